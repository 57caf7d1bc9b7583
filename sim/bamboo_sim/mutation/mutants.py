"""Makes mutants of a module with mutmut's operators. A mutant is one small change of the code.

Left out, because they change only words, types or nothing: strings, arguments that are strings, the
arguments of exceptions, parts of f-strings, annotations, type aliases, decorators and imports; also
None in place of False, which mostly means the same (True in place of False is made).
"""

from __future__ import annotations

import ast
import difflib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, cast

import libcst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

_TEXT = (libcst.SimpleString, libcst.FormattedString, libcst.ConcatenatedString)
_SKIPPED = (
    libcst.Annotation,
    libcst.Decorator,
    libcst.FormattedString,
    libcst.Import,
    libcst.ImportFrom,
    libcst.Raise,
)
_WIDTH = 100
_SWAPPED = (
    libcst.AugAssign,
    libcst.BinaryOperation,
    libcst.BooleanOperation,
    libcst.ComparisonTarget,
    libcst.UnaryOperation,
)
_OPERATORS = [
    # mutmut asks about swaps at every node, which takes most of the time
    (_SWAPPED if operator is mutators.operator_swap_op else kind, operator)
    for kind, operator in mutators.mutation_operators
    if operator is not mutators.operator_string
]


def identity(module: str, operator: str, text: str, occurrence: int) -> str:
    """A mutant's short name."""
    name = "\n".join((module, operator, text, str(occurrence)))
    return hashlib.sha256(name.encode()).hexdigest()[:10]


@dataclass(frozen=True)
class Mutant:
    """One change. Module, operator, text and occurrence name it in later versions of the code."""

    module: str  # path below core/bamboo_core
    operator: str
    text: str  # the line where the change begins, without indentation
    occurrence: int  # among the changes of this operator to lines with this text, from 0
    line: int
    becomes: str  # the changed piece, in one line

    @property
    def id(self) -> str:
        return identity(self.module, self.operator, self.text, self.occurrence)

    def __str__(self) -> str:
        return f"{self.id} {self.module}:{self.line} {self.operator}: {self.becomes}"


class Module:
    """A module of the core and its mutants."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.source = path.read_text(encoding="utf-8")
        wrapper = MetadataWrapper(libcst.parse_module(self.source))
        self._tree = wrapper.module
        collector = _Collector()
        wrapper.visit(collector)
        lines, seen = self.source.splitlines(), Counter[tuple[str, str]]()
        self._signature = signature(self.source)
        self._changes: dict[Mutant, tuple[libcst.CSTNode, libcst.CSTNode]] = {}
        for line, operator, old, new in collector.found:
            text = lines[line - 1].strip()
            becomes = " ".join(self._tree.code_for_node(new).split())[:_WIDTH]
            mutant = Mutant(name, operator, text, seen[operator, text], line, becomes)
            seen[operator, text] += 1
            self._changes[mutant] = (old, new)

    @property
    def mutants(self) -> list[Mutant]:
        return list(self._changes)

    def mutated(self, mutant: Mutant) -> str:
        """The module's source with this change."""
        old, new = self._changes[mutant]
        tree = self._tree.deep_replace(old, cast(Any, new))
        return cast(libcst.Module, tree).code

    def is_same(self, mutant: Mutant) -> bool:
        """Whether the change leaves the byte code as it is."""
        return signature(self.mutated(mutant)) == self._signature

    def difference(self, mutant: Mutant) -> str:
        """The change as a unified diff."""
        before, after = self.source.splitlines(), self.mutated(mutant).splitlines()
        name = f"core/bamboo_core/{self.name}"
        return "\n".join(difflib.unified_diff(before, after, name, name, n=2, lineterm=""))


class _Collector(libcst.CSTVisitor):
    """Asks every operator for its changes of every node."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        self.found: list[tuple[int, str, libcst.CSTNode, libcst.CSTNode]] = []
        self._depth = 0  # of functions

    def on_visit(self, node: libcst.CSTNode) -> bool:
        if isinstance(node, _SKIPPED) or (not self._depth and _is_alias(node)):
            return False
        place = self.get_metadata(PositionProvider, node, None)
        if place is not None:
            for kind, operator in _OPERATORS:
                if isinstance(node, kind):
                    self._ask(operator, node, place.start.line)
        self._depth += isinstance(node, libcst.FunctionDef)
        return True

    def on_leave(self, original_node: libcst.CSTNode) -> None:
        self._depth -= isinstance(original_node, libcst.FunctionDef)

    def _ask(self, operator: Callable[[Any], Any], node: libcst.CSTNode, line: int) -> None:
        for new in operator(node):
            if not _is_left_out(node, new):
                name = operator.__name__.removeprefix("operator_")
                self.found.append((line, name, node, new))


def _is_alias(node: libcst.CSTNode) -> bool:
    """Whether a statement outside functions names a type, for annotations only."""
    if not isinstance(node, libcst.Assign):
        return False
    value = node.value
    return isinstance(value, libcst.Subscript) or (
        isinstance(value, libcst.BinaryOperation) and isinstance(value.operator, libcst.BitOr)
    )


def _is_left_out(old: libcst.CSTNode, new: libcst.CSTNode) -> bool:
    """Whether only a string is replaced or removed, or False becomes None."""
    if isinstance(old, libcst.Assign | libcst.AnnAssign):
        return isinstance(old.value, _TEXT) or _is_false(old.value)
    if not isinstance(old, libcst.Call) or not isinstance(new, libcst.Call):
        return False
    pairs = zip(old.args, [*new.args, None], strict=False)
    changed: Sequence[libcst.Arg] = [a for a, b in pairs if a is not b]
    if not changed:
        return False
    is_replaced = len(old.args) == len(new.args)
    return isinstance(changed[0].value, _TEXT) or (is_replaced and _is_false(changed[0].value))


def _is_false(value: libcst.BaseExpression | None) -> bool:
    return isinstance(value, libcst.Name) and value.value == "False"


def signature(source: str) -> tuple[Any, ...]:
    """The byte code without positions, doc strings and the words of annotations."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant("")
    ast.fix_missing_locations(tree)
    return _shape(compile(tree, "", "exec", dont_inherit=True, optimize=2))


def _shape(code: CodeType) -> tuple[Any, ...]:
    def constants() -> Iterator[Any]:
        for value in code.co_consts:
            yield _shape(value) if isinstance(value, CodeType) else (type(value), repr(value))

    return (code.co_code, code.co_names, code.co_varnames, code.co_freevars, tuple(constants()))
