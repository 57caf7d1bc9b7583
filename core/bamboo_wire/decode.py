"""Proto -> core messages. WireError names the field that is malformed."""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from bamboo_core.protocol import messages as m
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_wire import limits
from bamboo_wire.codec import Codec, bodies
from bamboo_wire.errors import WireError

_T = TypeVar("_T")
_AGENT = dict(bodies(m.AgentMessage, pb.AgentMessage).values())
_OPERATOR = dict(bodies(m.OperatorMessage, pb.OperatorMessage).values())


def parse_bytes(kind: type[_T], data: bytes) -> _T:
    """A serialized proto message of class ``kind``."""
    message: Any = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        problem = f"{len(data)} bytes are not such a message"
        raise WireError(kind.__name__, problem) from error
    return message  # type: ignore[no-any-return]


def agent_bytes(data: bytes) -> m.AgentMessage:
    """An agent's message as it comes from the wire: its size is checked before it is parsed."""
    limits.check_bytes(data)
    message = parse_bytes(pb.AgentMessage, data)
    limits.check_parsed(message, len(data))
    return agent_message(message)


def agent_message(message: pb.AgentMessage) -> m.AgentMessage:
    return _body(_AGENT, message)  # type: ignore[no-any-return]


def operator_message(message: pb.OperatorMessage) -> m.OperatorMessage:
    return _body(_OPERATOR, message)  # type: ignore[no-any-return]


def _body(table: dict[str, Codec], message: Any) -> Any:
    name = message.WhichOneof("body")
    if name is None:
        raise WireError(type(message).__name__, "has no body")
    try:
        return table[name].decode(getattr(message, name))
    except ValueError as error:
        raise WireError.at(name, error) from error
