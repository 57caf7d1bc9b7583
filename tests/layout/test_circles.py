"""No modules and no sibling folders import each other in a circle."""

from __future__ import annotations

from pathlib import Path

import pytest

from .import_graph import between_siblings, circles, imports

PACKAGES = sorted(
    path.relative_to(Path(__file__).parents[2])
    for path in Path(__file__).parents[2].glob("*/bamboo_*")
    if path.is_dir() and path.name != "bamboo_proto"
)


def test_all_packages_are_known() -> None:
    names = {path.name for path in PACKAGES}
    assert names >= {"bamboo_core", "bamboo_operator", "bamboo_agent", "bamboo_sim", "bamboo_cli"}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of folders and a module beside them."""
    for name in ("p/a/one.py", "p/a/two.py", "p/a/c/x.py", "p/b/three.py", "p/beside.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    for folder in ("p", "p/a", "p/a/c", "p/b"):
        (tmp_path / folder / "__init__.py").write_text("")
    return tmp_path / "p"


GUARDED = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "


@pytest.mark.parametrize(
    ("texts", "modules", "siblings"),
    [
        ({}, [], []),
        ({"a/one": "from p.a import two", "a/two": "from p.b.three import x"}, [], []),
        (
            {"a/one": "import p.a.two", "a/two": f"{GUARDED}from p.a.one import x"},
            [{"p.a.one", "p.a.two"}],
            [],
        ),
        (
            {"a/one": "def f():\n    from p.a import two", "a/two": "from p.a.one import x"},
            [{"p.a.one", "p.a.two"}],
            [],
        ),
        (
            {"a/one": "from p.b import three", "b/three": "from p.a import two"},
            [],
            [{"p.a", "p.b"}],
        ),
        (
            {"a/one": "from p import beside", "beside": "from p.a import two"},
            [],
            [{"p.a", "p.beside"}],
        ),
        ({"a/one": "from p.b import three", "b/three": f"{GUARDED}from p.a import two"}, [], []),
        (
            {"a/one": "from p.a.c import x", "a/c/x": "from p.a import two"},
            [],
            [{"the modules of p.a", "p.a.c"}],
        ),
    ],
)
def test_circles_are_found(
    package: Path,
    texts: dict[str, str],
    modules: list[set[str]],
    siblings: list[set[str]],
) -> None:
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text)
    assert circles(imports(package, type_checking=True)) == modules
    graphs = between_siblings(imports(package, type_checking=False)).values()
    assert [group for graph in graphs for group in circles(graph)] == siblings


@pytest.mark.parametrize("folder", PACKAGES, ids=str)
def test_no_modules_import_each_other(root: Path, folder: Path) -> None:
    """Imports for type checkers count, and those inside functions."""
    graph = imports(root / folder, type_checking=True)
    assert len(graph) > 1
    assert circles(graph) == []


@pytest.mark.parametrize("folder", PACKAGES, ids=str)
def test_no_sibling_folders_import_each_other(root: Path, folder: Path) -> None:
    """Every import counts that can happen at run time."""
    graphs = between_siblings(imports(root / folder, type_checking=False))
    assert graphs
    assert {name: found for name, graph in graphs.items() if (found := circles(graph))} == {}
