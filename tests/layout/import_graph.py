"""Which modules import which, within one package, by reading the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

Graph = dict[str, set[str]]
"""Module -> the modules of its package that it imports."""


def modules_of(package: Path) -> dict[str, Path]:
    """Dotted name -> file, of all modules of a package."""
    names = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imports(package: Path, *, type_checking: bool) -> Graph:
    """The graph of a package. ``type_checking``: with imports that only type checkers perform."""
    known = modules_of(package)
    return {
        name: {
            found
            for node in _imports(ast.parse(path.read_text()), type_checking=type_checking)
            for found in _imported(node, known.keys())
        }
        - {name}
        for name, path in known.items()
    }


def _imports(tree: ast.AST, *, type_checking: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            taken = [*(node.body if type_checking else []), *node.orelse]
            yield from _imports(ast.Module(taken, []), type_checking=type_checking)
        else:
            yield from _imports(node, type_checking=type_checking)


def _imported(node: ast.Import | ast.ImportFrom, known: Iterable[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
        return
    assert not node.level, "a relative import: name the module in full"
    for alias in node.names:
        name = f"{node.module}.{alias.name}"
        if name in known:
            yield name
        elif node.module in known:
            yield node.module


def between_siblings(graph: Graph) -> dict[str, Graph]:
    """Folder -> the graph between its members.

    The members of a package are its folders and its modules. Those of a folder in it are its
    folders and, as one member, all its modules.
    """
    folders = {name.rpartition(".")[0] for name in graph} - {""}
    return {folder: _between_members(graph, folder, folders) for folder in folders}


def _between_members(graph: Graph, folder: str, folders: set[str]) -> Graph:
    found: Graph = {}
    for name, targets in graph.items():
        if member := _member(name, folder, folders):
            others = {_member(target, folder, folders) for target in targets}
            found.setdefault(member, set()).update(others - {member, ""})
    return found


def _member(module: str, folder: str, folders: set[str]) -> str:
    """Return what stands for the module in the folder; empty: it is not in the folder."""
    if not module.startswith(f"{folder}."):
        return ""
    direct = f"{folder}." + module.removeprefix(f"{folder}.").partition(".")[0]
    return direct if direct in folders or "." not in folder else f"the modules of {folder}"


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Groups of two or more nodes each of which reaches all others of its group."""
    reached = {node: _reachable(graph, node) for node in graph}
    groups = []
    left = set(graph)
    while left:
        node = left.pop()
        group = {node} | {other for other in reached[node] if node in reached.get(other, set())}
        left -= group
        if len(group) > 1:
            groups.append(group)
    return groups


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    todo = [start]
    while todo:
        for other in graph.get(todo.pop(), set()) - found:
            found.add(other)
            todo.append(other)
    return found
