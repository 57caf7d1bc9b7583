"""Core messages -> proto. WireError if a number does not fit its field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bamboo_core.protocol import messages as m
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_wire.codec import Codec, Kept, bodies, record
from bamboo_wire.errors import WireError

_AGENT = bodies(m.AgentMessage, pb.AgentMessage)
_OPERATOR = bodies(m.OperatorMessage, pb.OperatorMessage)


def agent_message(message: m.AgentMessage) -> pb.AgentMessage:
    return pb.AgentMessage(**_body(_AGENT, message))


def operator_message(message: m.OperatorMessage) -> pb.OperatorMessage:
    return pb.OperatorMessage(**_body(_OPERATOR, message))


def operator_bytes(message: m.OperatorMessage) -> bytes:
    """The message as it goes over the wire.

    In the directives of a large grid most bytes name other agents, and the same ones again and
    again. So these fields are encoded once for all directives, and come last: of a repeated field
    in several places, all entries count.
    """
    if isinstance(message, m.Stop):
        return _stops(message)
    if not isinstance(message, m.Directive):
        return operator_message(message).SerializeToString()
    own = operator_message(replace(message, voters=(), peers=())).directive.SerializeToString()
    try:
        parts = [own, _voters(message.voters), *_peers.each(message.peers)]
    except (ValueError, TypeError) as error:
        raise WireError("Directive", str(error)) from error
    return b"".join([_DIRECTIVE, _varint(sum(map(len, parts))), *parts])


def _of_voters(names: tuple[str, ...]) -> bytes:
    return pb.Directive(voters=names).SerializeToString()


def _of_peer(peer: m.Peer) -> bytes:
    return pb.Directive(peers=[record(m.Peer).encode(peer)]).SerializeToString()


_stops = Kept(lambda stop: operator_message(stop).SerializeToString(), most=16)  # to all agents
_voters = Kept(_of_voters, most=16)  # plans: each has one tuple, with the names of all its agents
_peers = Kept(_of_peer)


def _varint(number: int) -> bytes:
    """Seven bits in a byte, the lowest first; the highest bit says that more follow."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_DIRECTIVE = _varint(pb.OperatorMessage.DESCRIPTOR.fields_by_name["directive"].number << 3 | 2)
"""Before the length of a Directive in an OperatorMessage."""


def _body(table: dict[type, tuple[str, Codec]], message: Any) -> dict[str, Any]:
    name, codec = table[type(message)]
    try:
        return {name: codec.encode(message)}
    except (ValueError, TypeError, OverflowError) as error:
        raise WireError(type(message).__name__, str(error)) from error
