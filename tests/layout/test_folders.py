"""Every folder of the packages answers one question: it is small, says so, and is kept apart."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LARGEST = 12
TEMPLATE = Path("cli/bamboo_cli/local/project")
"""The project that `bamboo init` copies is no package of ours."""
BOUNDARY = re.compile(r"\b(not|nothing|nobody|belongs? to)\b", flags=re.I)
"""How a text says what does not belong in a folder."""


@pytest.fixture(scope="module")
def folders(root: Path) -> list[Path]:
    """Every folder of the packages, the packages themselves included."""
    found = sorted(
        path.parent
        for path in root.glob("*/bamboo_*/**/__init__.py")
        if "bamboo_proto" not in path.parts and TEMPLATE not in path.relative_to(root).parents
    )
    assert len(found) > 40
    return found


@pytest.fixture(scope="module")
def contracts(root: Path) -> list[dict[str, Any]]:
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]
    found: list[dict[str, Any]] = settings["contracts"]
    return found


def modules_in(folder: Path) -> set[str]:
    """The modules that stand in the folder itself; ``__init__`` and ``__main__`` do not count."""
    return {path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")}


def dotted(folder: Path, root: Path) -> str:
    return ".".join(folder.relative_to(root).parts[1:])


def docstring(folder: Path) -> str:
    return ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""


def test_folders_are_small(root: Path, folders: list[Path]) -> None:
    sizes = {str(folder.relative_to(root)): len(modules_in(folder)) for folder in folders}
    assert {name: n for name, n in sizes.items() if n > LARGEST} == {}


def test_modules_stand_in_folders_that_say_what_they_are(root: Path) -> None:
    silent = {
        str(path.parent.relative_to(root))
        for path in root.glob("*/bamboo_*/**/*.py")
        if not (path.parent / "__init__.py").exists()
        and TEMPLATE not in path.relative_to(root).parents
    }
    assert silent == set()


def test_every_folder_says_what_belongs_there_and_what_does_not(
    root: Path, folders: list[Path]
) -> None:
    unclear = []
    for folder in folders:
        first = docstring(folder).partition("\n\n")[0]
        if not first.endswith(".") or not BOUNDARY.search(first):
            unclear.append(f"{folder.relative_to(root)}: {first}")
    assert unclear == []


def test_the_folders_of_every_package_have_an_order(
    root: Path, folders: list[Path], contracts: list[dict[str, Any]]
) -> None:
    """A layers contract names every member of the package: `exhaustive` lets none be forgotten."""
    ordered = {
        container
        for contract in contracts
        if contract["type"] == "layers" and contract.get("exhaustive")
        for container in contract["containers"]
    }
    holders = {folder.parent for folder in folders} & set(folders)
    assert {dotted(folder, root) for folder in holders} <= ordered


def hidden_modules(contracts: list[dict[str, Any]]) -> Iterator[str]:
    for contract in contracts:
        if contract["type"] == "protected":
            yield from contract["protected_modules"]


def test_every_module_is_public_or_protected(
    root: Path, folders: list[Path], contracts: list[dict[str, Any]]
) -> None:
    """Modules that a docstring names may be imported elsewhere; a contract protects the rest."""
    protected = set(hidden_modules(contracts))
    wrong = {}
    for folder in folders:
        name, inside = dotted(folder, root), modules_in(folder)
        if not inside or "." not in name:
            continue
        said = docstring(folder).partition("Public")[2].partition(": ")[2]
        is_all = said.startswith("every module")
        public = inside if is_all else set(re.findall(r"``(\w+)``", said))
        hidden = {module for module in inside if f"{name}.{module}" in protected}
        if inside - public - hidden:
            wrong[name] = sorted(inside - public - hidden)
    assert wrong == {}


def test_public_modules_exist(root: Path, folders: list[Path]) -> None:
    missing = {}
    for folder in folders:
        said = docstring(folder).partition("Public")[2].partition(": ")[2]
        named = {name for name in re.findall(r"``(\w+)``", said) if name != "torch"}
        if absent := named - modules_in(folder):
            missing[str(folder.relative_to(root))] = sorted(absent)
    assert missing == {}


def test_contracts_name_modules_that_exist(root: Path, contracts: list[dict[str, Any]]) -> None:
    known = {
        ".".join(path.relative_to(root).with_suffix("").parts[1:])
        for path in root.glob("*/bamboo_*/**/*.py")
    }
    assert [name for name in hidden_modules(contracts) if name not in known] == []


OF_SEVERAL_FOLDERS = {
    Path("devcluster/e2e"): "whole clusters",
    Path("sim/peers"): "benchmarks/peers",
}
"""Folders of tests that mirror no folder of a package, and what they test."""


def test_tests_mirror_the_packages(root: Path) -> None:
    strange = set()
    for path in root.glob("tests/*/**/test_*.py"):
        package, *rest = path.parent.relative_to(root / "tests").parts
        source = root / package / f"bamboo_{package}"
        if source.is_dir() and not source.joinpath(*rest).is_dir():
            strange.add(Path(package, *rest))
    assert strange == OF_SEVERAL_FOLDERS.keys()
