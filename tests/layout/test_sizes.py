"""Limits of size, as CONTRIBUTING.md states them: what passes them has more than one subject."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

FILE_LINES = 500
FUNCTION_LINES = 70
TEST_FILE_LINES = 600


@pytest.fixture(scope="module")
def sources(root: Path, tracked: list[Path]) -> dict[Path, str]:
    """Every Python file that people write, with its text."""
    found = {
        path: (root / path).read_text()
        for path in tracked
        if path.suffix == ".py" and "bamboo_proto" not in path.parts
    }
    assert len(found) > 500
    return found


def test_contributors_are_told_the_same_limits(root: Path) -> None:
    text = " ".join((root / "CONTRIBUTING.md").read_text().split())
    rule = re.findall(
        r"No file over (\d+) lines, no function over (\d+), no test file over (\d+)", text
    )
    limits = FILE_LINES, FUNCTION_LINES, TEST_FILE_LINES
    assert [tuple(map(int, found)) for found in rule] == [limits]


def test_files_have_one_subject(sources: dict[Path, str]) -> None:
    large = {}
    for path, text in sources.items():
        limit = TEST_FILE_LINES if path.parts[0] == "tests" else FILE_LINES
        if (lines := len(text.splitlines())) > limit:
            large[str(path)] = lines
    assert large == {}


def functions(text: str) -> dict[str, int]:
    """Name with line -> lines, of every function in a file."""
    return {
        f"{node.name}:{node.lineno}": (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_functions_can_be_read_at_once(sources: dict[Path, str]) -> None:
    sizes = {path: functions(text) for path, text in sources.items()}
    assert sum(map(len, sizes.values())) > 5000
    assert not {
        f"{path} {name}": lines
        for path, found in sizes.items()
        for name, lines in found.items()
        if lines > FUNCTION_LINES
    }


def test_every_module_says_what_it_is_for(root: Path, modules: list[Path]) -> None:
    silent = [
        str(path)
        for path in modules
        if (text := (root / path).read_text()).strip() and not ast.get_docstring(ast.parse(text))
    ]
    assert not silent
