"""The list of commands, which imports none of them."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from bamboo_cli import commands
from bamboo_cli.main import COMMANDS, cli, module_of

LOADED = """
import sys
from bamboo_cli.main import main
try:
    main()
except SystemExit:
    pass
print("LOADED", *[name for name in sys.modules if name.startswith("bamboo_")])
print("RICH", "rich" in sys.modules)
"""
MOST = 10


def run(*arguments: str) -> str:
    """The output of `bamboo` with these arguments, and the modules that it has loaded."""
    command = [sys.executable, "-P", "-c", LOADED, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("arguments", [("--help",), ("-h",), ("no-such-command",)])
def test_the_list_of_commands_imports_none_of_them(arguments: tuple[str, ...]) -> None:
    text = run(*arguments)
    assert ("Commands:" in text) is (arguments != ("no-such-command",))
    _, *loaded = next(line for line in text.splitlines() if line.startswith("LOADED")).split()
    assert len(loaded) <= MOST, loaded
    assert "RICH False" in text


def test_a_command_imports_its_module_only() -> None:
    text = run("version")
    assert {name for name in COMMANDS if module_of(name) in text.split()} == {"version"}


def test_the_names_are_those_of_the_modules() -> None:
    folder = Path(commands.__file__ or "").parent
    shared = ("__init__", "options", "simulator")  # by several commands
    files = {path for path in folder.rglob("*.py") if path.stem not in shared}
    parts = [module_of(name).split(".")[2:] for name in COMMANDS]
    assert files == {folder.joinpath(*path).with_suffix(".py") for path in parts}


@pytest.mark.parametrize("width", ["40", "80", "200"])
def test_the_list_says_what_each_command_says_of_itself(
    width: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = [
        getattr(import_module(path), path.rpartition(".")[2]) for path in map(module_of, COMMANDS)
    ]
    plain = click.Group(
        "cli", commands=loaded, help=cli.help, context_settings=cli.context_settings
    )
    monkeypatch.setenv("COLUMNS", width)
    shown, expected = (
        CliRunner().invoke(group, "--help", terminal_width=int(width), max_content_width=200)
        for group in (cli, plain)
    )
    assert shown.output == expected.output
    assert (shown.exit_code, "quickstart" in shown.output) == (0, True)


def test_an_unknown_command_is_refused() -> None:
    result = CliRunner().invoke(cli, "tops")
    assert result.exit_code == 2
    assert "No such command 'tops'" in result.output
