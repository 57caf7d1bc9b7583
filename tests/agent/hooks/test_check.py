"""The check of hooks' names: what can never work is refused, what may work later is not."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from bamboo_agent.factory_names import FactoryError
from bamboo_agent.hooks.check import NameCheck
from bamboo_core.api.spec import FactorySpec, Json

MODULES = {
    "mine": """
        from builtins import dict as in_c
        LIST = []
        def build(folder, *, every=1):
            raise SystemExit("it is not called")
        """,
    "down": "raise ConnectionRefusedError('the server is down')",
    "lacks": "import a_library_that_is_missing",
    "wrong": "raise ValueError('no')",
    "exits": "import os; os._exit(0)",
}


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def checked(*hooks: FactorySpec) -> str:
    try:
        NameCheck(hooks).finish()
    except FactoryError as error:
        return str(error)
    return ""


def test_hooks_that_can_be_called_pass_and_none_is_called() -> None:
    right = FactorySpec("mine:build", {"folder": "x"})
    late = [FactorySpec("down:build"), FactorySpec("exits:build"), FactorySpec("mine:in_c")]
    assert checked() == checked(right, late[0], late[2]) == checked(late[1]) == ""


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("mine", {}, "'mine' is not of the form module:function"),
        ("nowhere:build", {}, "cannot import 'nowhere': No module named 'nowhere'"),
        ("lacks:build", {}, "cannot import 'lacks': No module named 'a_library_that_is_missing'"),
        ("wrong:build", {}, "cannot import 'wrong': ValueError: no"),
        ("mine:other", {}, "module 'mine' has no 'other'"),
        ("mine:LIST", {}, "'mine:LIST' is not a function"),
        ("mine:build", {}, "cannot be called with args []: missing a required argument: 'folder'"),
        (
            "mine:build",
            {"folder": "x", "evry": 2},
            "cannot be called with args ['evry', 'folder']: got an unexpected keyword argument",
        ),
    ],
)
def test_a_hook_that_can_never_work_is_named(name: str, args: dict[str, Json], words: str) -> None:
    found = checked(FactorySpec("mine:build", {"folder": "x"}), FactorySpec(name, args))
    assert found.startswith("spec.hooks[1]: ")
    assert words in found
