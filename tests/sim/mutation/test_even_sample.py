"""The sample is even, and covers all that decides."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from bamboo_sim.mutation import even_sample, sources
from bamboo_sim.mutation.mutants import Module


def module(folder: Path, name: str, lines: int) -> Module:
    path = folder / name.replace("/", "-")
    body = "".join(f"    if a{i} < f(a, b, {i}):\n        c()\n" for i in range(lines))
    path.write_text(f"def f():\n{body}")
    return Module(path, name)


@pytest.fixture
def groups(tmp_path: Path) -> dict[str, list[Module]]:
    large = [module(tmp_path, "a/1.py", 20), module(tmp_path, "a/2.py", 20)]
    return {"a": large, "b": [module(tmp_path, "b/1.py", 20)], "c": [module(tmp_path, "c/1.py", 3)]}


def test_every_group_has_its_share(groups: dict[str, list[Module]]) -> None:
    chosen = [mutant for _, mutant in even_sample.sample(groups, 23, 0)]
    assert Counter(m.module[0] for m in chosen) == {"a": 10, "b": 10, "c": 3}
    assert {m.module for m in chosen[:6]} >= {"b/1.py", "c/1.py"}


def test_a_line_has_at_most_one_mutant(groups: dict[str, list[Module]]) -> None:
    chosen = [mutant for _, mutant in even_sample.sample(groups, 1000, 0)]
    assert len(chosen) == 63  # of the lines with "if"
    assert len({(m.module, m.line) for m in chosen}) == 63
    operators = Counter(m.operator for m in chosen)
    assert operators["swap_op"] > 10
    assert operators["arg_removal"] < 40  # it makes most of the mutants


def test_the_seed_chooses(groups: dict[str, list[Module]]) -> None:
    def ids(seed: int) -> list[str]:
        return [mutant.id for _, mutant in islice(even_sample.sample(groups, 1000, seed), 8)]

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


@pytest.fixture
def core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Four modules, of which the second and the third have no mutants."""
    monkeypatch.setattr(sources, "CORE", tmp_path)
    paths = [module(tmp_path, f"{n}.py", 3).path for n in (1, 3, 6, 4)]
    for path in paths[1:3]:
        path.write_text("class Data:\n    count: int\n")
    return paths


@pytest.mark.parametrize(("seed", "name"), [(0, "1.py"), (1, "4.py"), (2, "4.py"), (7, "4.py")])
def test_a_module_without_mutants_gives_its_turn_to_the_next(
    core: list[Path], seed: int, name: str
) -> None:
    found, pairs = even_sample.of_one_module(core, 2, seed)
    assert found.name == name
    assert [mutant.module for _, mutant in pairs] == [name] * 2


def test_the_last_module_gives_its_turn_to_the_first(core: list[Path]) -> None:
    found, _ = even_sample.of_one_module(core[:3], 1, 2)
    assert found.name == "1.py"


def test_modules_without_any_mutant_are_named(core: list[Path]) -> None:
    with pytest.raises(ValueError, match=r"nothing to mutate in 3.py, 6.py; choose others"):
        even_sample.of_one_module(core[1:3], 2, 0)


def test_every_module_of_the_folders_is_mutated_or_left_out_for_a_reason() -> None:
    mutated = [path for paths in sources.paths().values() for path in paths]
    assert len(mutated) == len(set(mutated))
    folders = {path.parent for path in mutated}
    files = {path for folder in folders for path in folder.glob("*.py")}
    left = {str(p.relative_to(sources.CORE)) for p in files - set(mutated)}
    assert {name for name in left if not name.endswith("__init__.py")} == set(sources.LEFT_OUT)


def test_only_some_modules() -> None:
    (members,) = even_sample.modules("graph/tasks").values()
    assert [m.name for m in members] == ["graph/tasks.py"]
