"""Converts frozen dataclasses to JSON and back by their type hints, with Kubernetes field names.

``global_batch_size`` is written ``globalBatchSize``; a duration ``grace_period_s`` is written
``gracePeriodSeconds``. For the job's spec, facts in its status, and files of ``bamboo profile``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar, cast

T = TypeVar("T")

_WORDS = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_INDEX = re.compile(r"\[\d+\]")
_PLAIN = {int: _NUMBER, float: _NUMBER, bool: re.compile("true|false")}
_NAMES = {"ttl_s": "ttlSecondsAfterFinished"}


class Problem(NamedTuple):
    """A mistake in a manifest: the field, and what is wrong, with value and remedy."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class Limits(NamedTuple):
    """The least and the most value of a number."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"from {self.low:,} to {self.high:,}"


@dataclasses.dataclass
class _Reading:
    """limits: of numbers, by the field's path, with [] for any item. problems: those so far."""

    limits: Mapping[str, Limits]
    is_strict: bool = False
    problems: list[Problem] = dataclasses.field(default_factory=list)

    def wrong(self, path: str, value: Any, wanted: str) -> None:
        self.problems.append(Problem(path, f"is {value!r}; it must be {wanted}"))

    def check_names(self, path: str, value: Mapping[str, Any], names: Collection[str]) -> None:
        """No other field may be there, if unknown ones are problems."""
        if self.is_strict:
            text = f"is not known; the fields of {path} are {', '.join(names)}"
            unknown = [str(name) for name in value if name not in names]
            self.problems += [Problem(f"{path}.{name}", text) for name in unknown]


@functools.cache
def name_of(field: str) -> str:
    """A field's name in manifests."""
    if field in _NAMES:
        return _NAMES[field]
    first, *rest = field.rstrip("_").split("_")  # from_ is written from
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


def without_nulls(value: Any) -> Any:
    """A copy without the fields that are null."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def decode(
    kind: type[T],
    value: Any,
    *,
    path: str,
    limits: Mapping[str, Limits] | None = None,
    is_strict: bool = False,
) -> T | list[Problem]:
    """Inverse of :func:`encode`. A number whose path is in ``limits`` must be within them;
    ``[]`` in such a path stands for every item of a list.

    Unknown fields are problems only if ``is_strict``, for a manifest that no API server has seen.
    Else the API server has pruned them or, by default, refused the
    manifest (``kubectl --validate=strict``); and while versions change, a spec may have fields that
    only the newer side knows.
    """
    reading = _Reading(limits if limits is not None else {}, is_strict)
    found = _decode(kind, value, path, reading)
    return reading.problems or cast(T, found)


def _decode(kind: Any, value: Any, path: str, reading: _Reading) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        inner = next(a for a in arguments if a is not type(None))
        return None if value is None else _decode(inner, value, path, reading)
    if dataclasses.is_dataclass(kind):
        return _decode_record(kind, value, path, reading)
    if origin in (tuple, frozenset):
        if not isinstance(value, list):
            return reading.wrong(path, value, "a list, as in [a, b]")
        return origin(
            _decode(arguments[0], item, f"{path}[{i}]", reading) for i, item in enumerate(value)
        )
    return _decode_plain(origin or kind, value, path, reading)


def _decode_record(kind: Any, value: Any, path: str, reading: _Reading) -> Any:
    names = [name_of(field.name) for field in dataclasses.fields(kind)]
    if not isinstance(value, dict):
        return reading.wrong(path, value, f"an object with fields among {', '.join(names)}")
    reading.check_names(path, value, names)
    hints = _hints(kind)
    known: dict[str, Any] = {}
    before = len(reading.problems)
    for field in dataclasses.fields(kind):
        name = name_of(field.name)
        where, item = f"{path}.{name}", value.get(name)
        if (under := field.metadata.get("under")) and item is not None:
            if isinstance(item, dict):
                reading.check_names(where, item, [under])
                item = item.get(under)
            where = f"{where}.{under}"
        if item is not None:
            known[field.name] = _decode(hints[field.name], item, where, reading)
        elif _is_required(field):
            reading.problems.append(Problem(where, "is required; set it"))
    return kind(**known) if len(reading.problems) == before else None


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """Cached, since reading type hints compiles their text."""
    return typing.get_type_hints(kind)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _decode_plain(kind: Any, value: Any, path: str, reading: _Reading) -> Any:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if value not in list(kind):
            return reading.wrong(path, value, "one of " + ", ".join(kind) + _quoted(kind, value))
        return kind(value)
    if kind is Any:
        return value
    if kind in (int, float):
        return _decode_number(kind, value, path, reading)
    if not isinstance(value, kind):
        wanted = _WORDS.get(kind, "an object, as in {a: b}")
        return reading.wrong(path, value, wanted + _quotes(kind, value))
    return value


def _decode_number(kind: type[int] | type[float], value: Any, path: str, reading: _Reading) -> Any:
    limits = reading.limits.get(_INDEX.sub("[]", path))
    wanted = _WORDS[kind] if limits is None else f"{_WORDS[kind]} {limits}"
    is_number = isinstance(value, int | float if kind is float else int)
    if not is_number or isinstance(value, bool):
        return reading.wrong(path, value, wanted + _quotes(kind, value))
    if kind is float and not _is_finite(value):
        return reading.wrong(path, value, wanted if limits else "a finite number")
    if limits is not None and not limits.low <= value <= limits.high:
        return reading.wrong(path, value, wanted)
    return kind(value)


def _is_finite(value: int | float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that is too large for a float
        return False


def _quoted(kind: type[StrEnum], value: Any) -> str:
    """YAML reads Off as false and On as true."""
    word = ("Off", "On")[value] if isinstance(value, bool) else ""
    return f'; write "{word}" in quotes' if word and word in list(kind) else ""


def _quotes(wanted: type, value: Any) -> str:
    """The usual reason for a wrong type: YAML makes 3 a number and "3" a string."""
    if wanted is str and isinstance(value, int | float):
        return ", in quotes"
    is_quoted = isinstance(value, str) and wanted in _PLAIN and _PLAIN[wanted].fullmatch(value)
    return ", without quotes" if is_quoted else ""
