"""The sample is even, and covers all that decides."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from bamboo_sim.mutation import sample, sources
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
    chosen = [mutant for _, mutant in sample.sample(groups, 23, 0)]
    assert Counter(m.module[0] for m in chosen) == {"a": 10, "b": 10, "c": 3}
    assert {m.module for m in chosen[:6]} >= {"b/1.py", "c/1.py"}


def test_a_line_has_at_most_one_mutant(groups: dict[str, list[Module]]) -> None:
    chosen = [mutant for _, mutant in sample.sample(groups, 1000, 0)]
    assert len(chosen) == 63  # of the lines with "if"
    assert len({(m.module, m.line) for m in chosen}) == 63
    operators = Counter(m.operator for m in chosen)
    assert operators["swap_op"] > 10
    assert operators["arg_removal"] < 40  # it makes most of the mutants


def test_the_seed_chooses(groups: dict[str, list[Module]]) -> None:
    def ids(seed: int) -> list[str]:
        return [mutant.id for _, mutant in islice(sample.sample(groups, 1000, seed), 8)]

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


def test_every_module_of_the_folders_is_mutated_or_left_out_for_a_reason() -> None:
    mutated = [path for paths in sources.paths().values() for path in paths]
    assert len(mutated) == len(set(mutated))
    folders = {path.parent for path in mutated}
    files = {path for folder in folders for path in folder.glob("*.py")}
    left = {str(p.relative_to(sources.CORE)) for p in files - set(mutated)}
    assert {name for name in left if not name.endswith("__init__.py")} == set(sources.LEFT_OUT)


def test_only_some_modules() -> None:
    (members,) = sample.modules("graph/tasks").values()
    assert [m.name for m in members] == ["graph/tasks.py"]
