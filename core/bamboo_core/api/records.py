"""Converts frozen dataclasses to JSON and back by their type hints, with Kubernetes field names.

``global_batch_size`` is written ``globalBatchSize``; a duration ``grace_period_s`` is written
``gracePeriodSeconds``. For the job's spec and for facts in its status.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar, cast

T = TypeVar("T")

_NAMES = {"ttl_s": "ttlSecondsAfterFinished"}


class Problem(NamedTuple):
    """A mistake in a manifest: the field, and what is wrong, with value and remedy."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


@functools.cache
def name_of(field: str) -> str:
    """A field's name in manifests."""
    if field in _NAMES:
        return _NAMES[field]
    first, *rest = field.split("_")
    if rest and rest[-1] == "s":
        rest[-1] = "seconds"
    return first + "".join(word.capitalize() for word in rest)


def encode(value: Any) -> Any:
    """JSON value of a dataclass; None and empty lists or dicts of optional fields are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = ((f, getattr(value, f.name)) for f in dataclasses.fields(value))
        return {name_of(f.name): _wrap(f, item) for f, item in named if item not in (None, (), {})}
    if isinstance(value, tuple | frozenset):
        items = sorted(value) if isinstance(value, frozenset) else value
        return [encode(item) for item in items]
    if isinstance(value, StrEnum):
        return value.value
    return value


def _wrap(field: dataclasses.Field[Any], item: Any) -> Any:
    """A field with ``under`` in its metadata is wrapped in an object, which may grow later."""
    under = field.metadata.get("under")
    return {under: encode(item)} if under else encode(item)


def decode(kind: type[T], value: Any, *, path: str) -> T | list[Problem]:
    """Inverse of :func:`encode`; unknown fields are ignored (the API server has pruned them)."""
    problems: list[Problem] = []
    found = _decode(kind, value, path, problems)
    return problems or cast(T, found)


def _decode(kind: Any, value: Any, path: str, problems: list[Problem]) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        inner = next(a for a in arguments if a is not type(None))
        return None if value is None else _decode(inner, value, path, problems)
    if dataclasses.is_dataclass(kind):
        return _decode_record(kind, value, path, problems)
    if origin in (tuple, frozenset):
        if not isinstance(value, list):
            return _wrong(path, value, "a list", problems)
        return origin(
            _decode(arguments[0], item, f"{path}[{i}]", problems) for i, item in enumerate(value)
        )
    return _decode_plain(origin or kind, value, path, problems)


def _decode_record(kind: Any, value: Any, path: str, problems: list[Problem]) -> Any:
    if not isinstance(value, dict):
        return _wrong(path, value, "an object", problems)
    hints = _hints(kind)
    known: dict[str, Any] = {}
    before = len(problems)
    for field in dataclasses.fields(kind):
        name = name_of(field.name)
        where, item = f"{path}.{name}", value.get(name)
        if (under := field.metadata.get("under")) and item is not None:
            where = f"{where}.{under}"
            item = item.get(under) if isinstance(item, dict) else item
        if item is not None:
            known[field.name] = _decode(hints[field.name], item, where, problems)
        elif _is_required(field):
            problems.append(Problem(where, "is required; set it"))
    return kind(**known) if len(problems) == before else None


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """Cached, since reading type hints compiles their text."""
    return typing.get_type_hints(kind)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _decode_plain(kind: Any, value: Any, path: str, problems: list[Problem]) -> Any:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if value not in list(kind):
            return _wrong(path, value, "one of " + ", ".join(kind), problems)
        return kind(value)
    if kind is Any:
        return value
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            return _wrong(path, value, "a finite number", problems)
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        words = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
        return _wrong(path, value, words.get(kind, "an object"), problems)
    return value


def _wrong(path: str, value: Any, wanted: str, problems: list[Problem]) -> None:
    problems.append(Problem(path, f"is {value!r}; it must be {wanted}"))
