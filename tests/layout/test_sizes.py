"""Hard limits of size; a file or function that passes them has more than one subject."""

from __future__ import annotations

import ast
from pathlib import Path

FILE_LINES = 600
FUNCTION_LINES = 80


def test_files_have_one_subject(root: Path, tracked: list[Path]) -> None:
    sources = [
        path for path in tracked if path.suffix == ".py" and "bamboo_proto" not in path.parts
    ]
    sizes = {str(path): len((root / path).read_text().splitlines()) for path in sources}
    assert not {name: size for name, size in sizes.items() if size > FILE_LINES}


def functions(path: Path) -> dict[str, int]:
    """Name with line -> lines, of every function in the file."""
    return {
        f"{path.name}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_functions_can_be_read_at_once(root: Path, modules: list[Path]) -> None:
    sizes = [functions(root / path) for path in modules]
    assert not {
        name: lines for size in sizes for name, lines in size.items() if lines > FUNCTION_LINES
    }


def test_every_module_says_what_it_is_for(root: Path, modules: list[Path]) -> None:
    silent = [
        str(path)
        for path in modules
        if (text := (root / path).read_text()).strip() and not ast.get_docstring(ast.parse(text))
    ]
    assert not silent
