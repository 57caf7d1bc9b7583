"""Core messages -> proto. WireError if a number does not fit its field."""

from __future__ import annotations

from typing import Any

from bamboo_core.protocol import messages as m
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_wire.codec import Codec, bodies
from bamboo_wire.errors import WireError

_AGENT = bodies(m.AgentMessage, pb.AgentMessage)
_OPERATOR = bodies(m.OperatorMessage, pb.OperatorMessage)


def agent_message(message: m.AgentMessage) -> pb.AgentMessage:
    return pb.AgentMessage(**_body(_AGENT, message))


def operator_message(message: m.OperatorMessage) -> pb.OperatorMessage:
    return pb.OperatorMessage(**_body(_OPERATOR, message))


def _body(table: dict[type, tuple[str, Codec]], message: Any) -> dict[str, Any]:
    name, codec = table[type(message)]
    try:
        return {name: codec.encode(message)}
    except (ValueError, TypeError, OverflowError) as error:
        raise WireError(type(message).__name__, str(error)) from error
