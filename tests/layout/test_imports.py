"""What lint-imports cannot say: the closed list of the core, and what must not be loaded."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from bamboo_cli.main import COMMANDS, module_of

CLOSED_LIST = """
    __future__ abc base64 bisect collections copy dataclasses difflib enum fractions functools
    hashlib heapq itertools json math operator re statistics string struct textwrap types typing
    zlib bamboo_core
"""
CORE_MAY_IMPORT = frozenset(CLOSED_LIST.split())
CORE_COMMAND_LINES = {"show.py": {"argparse", "sys"}}


def imported(path: Path) -> set[str]:
    """First parts of the names of everything that the module imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_core_imports_only_the_closed_list(root: Path) -> None:
    strange = {
        path.name: extra
        for path in (root / "core/bamboo_core").rglob("*.py")
        if (extra := imported(path) - CORE_MAY_IMPORT - CORE_COMMAND_LINES.get(path.name, set()))
    }
    assert not strange


@pytest.mark.parametrize("folder", ["operator", "agent", "core", "cli", "devcluster"])
def test_folders_of_packages_are_no_packages(root: Path, folder: str) -> None:
    assert not (root / folder / "__init__.py").exists()


def test_operator_of_the_standard_library_is_itself(root: Path) -> None:
    program = (
        "import operator; assert operator.itemgetter(0)('ab') == 'a'; print(operator.__file__)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=root, check=True, capture_output=True, text=True
    )
    assert not result.stdout.startswith(str(root / "operator"))


def loads(module: str, *forbidden: str) -> set[str]:
    """The forbidden packages that importing ``module`` loads, in a process of its own."""
    program = f"import sys, {module}; print(*(set({forbidden!r}) & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-P", "-c", program], check=True, capture_output=True, text=True
    )
    return set(result.stdout.split())


def test_operator_carries_no_torch() -> None:
    assert not loads("bamboo_operator.__main__", "torch", "numpy")


def test_supervisor_carries_no_torch() -> None:
    assert not loads("bamboo_agent.__main__", "torch", "kopf", "kubernetes")


@pytest.mark.parametrize("module", ["bamboo_cli.main", *map(module_of, COMMANDS)])
def test_command_line_is_light(module: str) -> None:
    assert not loads(module, "torch", "kopf", "grpc")


def test_the_core_has_folders_only(root: Path) -> None:
    assert len(list((root / "core/bamboo_core").glob("*.py"))) <= 3
