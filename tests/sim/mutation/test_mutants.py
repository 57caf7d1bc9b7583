"""Which changes are made, and how they are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from bamboo_sim.mutation.mutants import Module, Mutant, signature

TEXT = '''"""A page."""

from x import y

Table = dict[str, int]


@cached(maxsize=1)
def f(a: int = 1) -> bool:
    """Words: 1."""
    name = "word"
    log("words", a)
    note(f"{a + 1} words", key=name)
    if a < 2 and y(a):
        raise ValueError(str(a))
    return a is None
'''


def module(folder: Path, text: str) -> Module:
    path = folder / "m.py"
    path.write_text(text)
    return Module(path, "p/m.py")


def made(folder: Path, text: str) -> list[tuple[int, str]]:
    return [(m.line, m.becomes) for m in module(folder, text).mutants]


def test_code_is_changed_and_words_and_types_are_not(tmp_path: Path) -> None:
    assert made(tmp_path, TEXT) == [
        (9, "2"),
        (12, 'log("words", None)'),
        (12, 'log("words", )'),
        (13, 'note(f"{a + 1} words", key=None)'),
        (13, 'note(f"{a + 1} words", )'),
        (14, "a < 2 or y(a)"),
        (14, "<= 2"),
        (14, "3"),
        (14, "y(None)"),
        (16, "is not"),
    ]


def test_false_becomes_true_but_not_none(tmp_path: Path) -> None:
    text = "def f(a):\n    x = False\n    a(b=False)\n    a(False, x)\n"
    assert made(tmp_path, text) == [
        (2, "True"),
        (3, "True"),
        (4, "a(False, None)"),
        (4, "a(x)"),
        (4, "a(False, )"),
        (4, "True"),
    ]


def test_a_mutant_differs_from_the_code_in_one_place(tmp_path: Path) -> None:
    source = module(tmp_path, TEXT)
    (mutant,) = (m for m in source.mutants if m.becomes == "<= 2")
    assert source.mutated(mutant) == TEXT.replace("a < 2", "a <= 2")
    changed = [line for line in source.difference(mutant).splitlines() if line[1:2] == " "]
    assert changed[1:3] != changed[2:4]
    assert "-    if a < 2 and y(a):" in source.difference(mutant)
    assert "+    if a <= 2 and y(a):" in source.difference(mutant)


def test_names_stay_when_other_lines_change(tmp_path: Path) -> None:
    before = {m.id: m.becomes for m in module(tmp_path, TEXT).mutants}
    after = {m.id: m.becomes for m in module(tmp_path, "z = 1\n\n" + TEXT).mutants}
    assert before.items() <= after.items()
    assert len(after) == len(before) + 2


def test_equal_changes_of_equal_lines_are_told_apart(tmp_path: Path) -> None:
    mutants = module(tmp_path, "def f(a):\n    a += 1\n    a += 1\n").mutants
    numbers: list[Mutant] = [m for m in mutants if m.operator == "number"]
    assert [(m.text, m.occurrence, m.line) for m in numbers] == [("a += 1", 0, 2), ("a += 1", 1, 3)]
    assert len({m.id for m in mutants}) == len(mutants)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("x = 1 + 1", "x = 2", True),
        ("def f():\n 'a'\n return 1", "def f():\n\n 'b'\n return 1", True),
        ("def f(a: int) -> str: ...", "def f(a: None) -> int: ...", True),
        ("class A:\n a: int = 1", "class A:\n a: str = 1", True),
        ("x = 1", "x = True", False),
        ("x = 1", "x = 1.0", False),
        ("def f():\n return lambda: 1", "def f():\n return lambda: 2", False),
        ("x = y.a", "x = y.b", False),
    ],
)
def test_code_that_means_the_same_is_known(one: str, other: str, is_same: bool) -> None:
    assert (signature(one) == signature(other)) is is_same


def test_a_change_that_means_the_same_is_known(tmp_path: Path) -> None:
    source = module(tmp_path, "def f(a):\n    if 0 and a:\n        return 1\n")
    assert [(m.line, m.becomes) for m in source.mutants if source.is_same(m)] == [(3, "2")]
    source = module(tmp_path, "def f(a):\n    return a if True or a else 2\n")
    same = [m.becomes for m in source.mutants if source.is_same(m)]
    assert "a if (True or a) or True else 2" in same
