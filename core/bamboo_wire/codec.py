"""Derives the mapping between core messages and proto messages from their fields.

A dataclass or named tuple corresponds to the proto message of the same name, and each of its
fields to the proto field of the same name. A proto field that is missing or left over is an error
at import. The two sides differ in four ways:

* seconds (``x_s``) travel as whole milliseconds if the proto field is ``x_ms``;
* programs and items travel as text (see bamboo_core.model);
* a text that is not UTF-8 travels with escapes (see bamboo_core.api.texts); a name must be UTF-8;
* the values of a proto enum have the enum's name as prefix.

Decoding checks each field as it goes: a required part is set, a name is not empty, a number that
counts something is not negative, a text parses. What the values mean is the receiver's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from enum import Enum
from functools import cache
from types import UnionType
from typing import (
    Any,
    Final,
    Generic,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor

from bamboo_core.api import texts
from bamboo_core.api.progress import METRIC_NAME, MOST_METRICS, Metrics
from bamboo_core.model.claims import GRADIENTS
from bamboo_core.model.ids import AgentId, Range
from bamboo_core.model.items import Item, parse_item
from bamboo_core.model.program import Program, parse, to_text
from bamboo_core.protocol.messages import Directive, Peer
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_wire.errors import WireError
from bamboo_wire.limits import MOST_LAYERS

_LEAST: Final = {
    "Heartbeat.step": -1,
    "AgentReport.ended": -1,
    "CommitRecord.culprit": -1,
    "Dispute.microbatch": GRADIENTS,
    "Ready.layers": 1,
    "Failure.exit_code": -(2**31),
    "Release.exit_code": -(2**31),
}
"""Least value of an integer field; 0 if not listed."""

_MOST: Final = {"Ready.layers": MOST_LAYERS}
"""Greatest value of an integer field; any if not listed. Memory grows with it."""

_MOST_SHARED: Final = 1024
"""Objects whose encoding is kept: an agent of a plan is a peer in the directives of many others."""

_UNIONS: Final = (UnionType, Union)
"""What ``x | None`` is: the second, if ``x`` is a NewType."""

_Convert = Callable[[Any], Any]
T = TypeVar("T")


def _same(value: Any) -> Any:
    return value


class Codec(NamedTuple):
    """How to convert the values of one type. Both functions raise ValueError."""

    encode: _Convert = _same
    decode: _Convert = _same


class _Field(NamedTuple):
    core_name: str
    proto_name: str
    codec: Codec
    has_presence: bool
    is_optional: bool


def bodies(union: Any, outer: Any) -> dict[type, tuple[str, Codec]]:
    """The members of a union of messages: the oneof's field that holds each, and its codec."""
    names = {field.message_type.name: field.name for field in outer.DESCRIPTOR.fields}
    out = {kind: (names.pop(kind.__name__), record(kind)) for kind in get_args(union)}
    if names:
        raise TypeError(f"{outer.DESCRIPTOR.name} has bodies that no message has: {names}")
    return out


@cache
def record(kind: type) -> Codec:
    """The codec of a dataclass or named tuple. TypeError if the proto's fields are others."""
    proto: Any = getattr(pb, kind.__name__)
    parts = _fields(kind, proto.DESCRIPTOR.fields_by_name)
    writers = tuple((part.core_name, part.proto_name, part.codec.encode) for part in parts)
    readers = tuple((p.proto_name, p.codec.decode, p.has_presence, p.is_optional) for p in parts)

    def encode(value: Any) -> Any:
        return proto(**{name: write(getattr(value, core)) for core, name, write in writers})

    def decode(message: Any) -> Any:
        values: list[Any] = []
        name = ""
        try:
            for name, read, has_presence, is_optional in readers:
                if has_presence and not message.HasField(name):
                    if not is_optional:
                        raise ValueError("is missing")
                    values.append(None)
                else:
                    values.append(read(getattr(message, name)))
        except ValueError as error:
            raise WireError.at(name, error) from error
        value = kind(*values)
        if kind is Directive and value.last < value.target:
            raise WireError("last", f"{value.last} is below {value.target}")
        return value

    return Codec(Kept(encode) if kind is Peer else encode, decode)


class Kept(Generic[T]):
    """Encodes an object once. Its id finds it: its hash would take as long as its encoding.

    most: objects that are kept at a time.
    """

    def __init__(self, encode: Callable[[Any], T], most: int = _MOST_SHARED) -> None:
        self._encode, self._most = encode, most
        self._encoded: dict[int, T] = {}
        self._objects: dict[int, Any] = {}  # the same, so that no other gets its id

    def __call__(self, value: Any) -> T:
        key = id(value)
        if key not in self._encoded:
            if len(self._encoded) >= self._most:
                self._encoded.clear()
                self._objects.clear()
            self._encoded[key] = self._encode(value)
            self._objects[key] = value
        return self._encoded[key]

    def each(self, values: Sequence[Any]) -> list[T]:
        """Hundreds of objects, most of which are kept already."""
        try:
            return list(map(self._encoded.__getitem__, map(id, values)))
        except KeyError:
            return [self(value) for value in values]


def _fields(kind: type, proto: dict[str, FieldDescriptor]) -> tuple[_Field, ...]:
    """TypeError if the fields of both sides do not correspond."""
    hints = get_type_hints(kind)
    names = kind._fields if issubclass(kind, tuple) else [f.name for f in fields(kind)]  # type: ignore[attr-defined, arg-type]
    out = tuple(_field(kind, name, hints[name], proto) for name in names)
    if {field.proto_name for field in out} != set(proto):
        raise TypeError(f"{kind.__name__}: {names} are not the proto's fields {list(proto)}")
    return out


def _field(kind: type, name: str, hint: Any, proto: dict[str, FieldDescriptor]) -> _Field:
    milliseconds = f"{name.removesuffix('_s')}_ms"
    field = proto.get(name) or proto[milliseconds]
    is_optional = get_origin(hint) in _UNIONS
    if is_optional and not field.has_presence:
        raise TypeError(f"{kind.__name__}.{name} is optional, but not in the proto")
    codec = _codec(hint, field, _LEAST.get(f"{kind.__name__}.{name}", 0))
    if (most := _MOST.get(f"{kind.__name__}.{name}")) is not None:
        codec = _at_most(most, codec)
    if field.name == milliseconds:
        codec = _milliseconds(codec.decode)
    return _Field(name, field.name, codec, field.has_presence, is_optional)


def _codec(hint: Any, field: FieldDescriptor, least: int) -> Codec:
    if hint in _ADAPTED:
        return _ADAPTED[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in _UNIONS:
        return _optional(_codec(arguments[0], field, least))
    if origin is tuple:
        return _sequence(_codec(arguments[0], field, least))
    if origin is dict:
        entry: Any = field.message_type
        return _mapping(_codec(arguments[1], entry.fields_by_name["value"], least))
    if field.enum_type is not None:
        return _enum(hint, field.enum_type)
    if field.message_type is not None:
        return record(hint)
    if least > 0 or field.type in (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64):
        return _at_least(least)
    return Codec()


# ---------------------------------------------------------------- containers


def _optional(of: Codec) -> Codec:
    """An unset proto field is None, and is not decoded."""
    return Codec(lambda value: None if value is None else of.encode(value), of.decode)


def _sequence(of: Codec) -> Codec:
    """A tuple. An error names the index."""
    is_same = of.encode is _same  # hundreds of names in each directive
    return Codec(
        _same if is_same else lambda values: [of.encode(value) for value in values],
        lambda values: tuple(x for _, x in _decoded(of, enumerate(values))),
    )


def _mapping(of: Codec) -> Codec:
    """A dict with plain keys. An error names the key."""
    return Codec(_same, lambda values: dict(_decoded(of, values.items())))


def _decoded(of: Codec, pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    for key, value in pairs:
        try:
            yield key, of.decode(value)
        except ValueError as error:
            raise WireError.at(f"[{key}]", error) from error


# ---------------------------------------------------------------- values


def _at_least(least: int) -> Codec:
    def decode(value: int) -> int:
        if value < least:
            raise ValueError(f"{value} is below {least}")
        return value

    return Codec(_same, decode)


def _at_most(most: int, of: Codec) -> Codec:
    def decode(value: int) -> int:
        if value > most:
            raise ValueError(f"{value} is above {most}")
        return of.decode(value)  # type: ignore[no-any-return]

    return Codec(of.encode, decode)


def _milliseconds(decode: _Convert) -> Codec:
    return Codec(lambda seconds: round(seconds * 1000), lambda ms: decode(ms) / 1000)


def _enum(kind: type[Enum], proto: EnumDescriptor) -> Codec:
    """The proto's other values, such as UNSPECIFIED, are refused."""
    numbers = {x: proto.values_by_name[f"{proto.name.upper()}_{x.name}"].number for x in kind}
    members = {number: member for member, number in numbers.items()}

    def decode(number: int) -> Enum:
        if number not in members:
            raise ValueError(f"{number} is not a {kind.__name__}")
        return members[number]

    return Codec(numbers.__getitem__, decode)


def _agent(name: str) -> AgentId:
    if not name:
        raise ValueError("is empty")
    return AgentId(name)


def _range(message: Any) -> Range:
    if message.lo >= message.hi:
        raise ValueError(f"{message.lo}:{message.hi} is not a range of layers")
    return message.lo, message.hi


def _metrics(values: Any) -> Metrics:
    """In the order of their names: a proto map has none."""
    if len(values) > MOST_METRICS:
        raise ValueError(f"has {len(values)} entries; at most {MOST_METRICS} are allowed")
    for name in values:
        if METRIC_NAME.fullmatch(name) is None:
            raise ValueError(f"{name[:50]!r} is not the name of a metric")
    return {name: values[name] for name in sorted(values)}


_ITEMS = _sequence(Codec(_same, parse_item))

_ADAPTED: Final[dict[Any, Codec]] = {
    str: Codec(texts.valid),
    AgentId: Codec(_same, _agent),
    Range: Codec(lambda value: pb.Range(lo=value[0], hi=value[1]), _range),
    Metrics: Codec(_same, _metrics),
    Program: Codec(to_text, parse),
    frozenset[Item]: Codec(
        lambda items: sorted(str(item) for item in items),
        lambda texts: frozenset(_ITEMS.decode(texts)),
    ),
}
