"""How large an agent's message may be, by kind. Checked before the bytes are parsed.

Names have at most 253 characters and addresses less, so a Hello has less than 2 KiB. A report names
what an agent holds in one step, at about 20 bytes for an item; a Ready has about 60 bytes for a
layer. All other messages hold a few names and numbers, or as many suspicions, claims or manifests
as there are agents, micro-batches or checkpoints.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final

from bamboo_core.api.limits import MOST_HOOKS
from bamboo_core.api.progress import MOST_SLOW_PEERS, MOST_ZONES
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_wire.errors import WireError

MOST_BYTES: Final = 4 << 20
"""Of any message of an agent. gRPC refuses a longer one unread."""
MOST_LAYERS: Final = 1 << 14
MOST_TIES: Final = 1 << 8

_SMALL = 64 << 10
_LARGE = 1 << 20
BYTES: Final[dict[str, int]] = {
    "hello": 8 << 10,
    "ready": _LARGE,
    "heartbeat": 256 << 10,
    "report": MOST_BYTES,
    "progress": _SMALL,
    "suspicion": _SMALL,
    "notice": _SMALL,
    "failure": _SMALL,
    "halted": _SMALL,
    "sealed": _SMALL,
    "bad_checkpoint": _SMALL,
    "left": _SMALL,
    "finished": _SMALL,
    "listed": 256 << 10,
    "disputed": _LARGE,
}
"""By the field of AgentMessage that holds the message."""

_COUNTS: Final[dict[str, dict[str, int]]] = {
    "ready": {"costs": MOST_LAYERS, "ties": MOST_TIES},
    "progress": {
        "sent": MOST_ZONES + 1,
        "goodput.slowest_to": MOST_SLOW_PEERS,
        "goodput.slowest_from": MOST_SLOW_PEERS,
        "warnings": MOST_HOOKS,
    },
    "heartbeat": {"suspicions": 1 << 12},
    "listed": {"manifests": 1 << 12},
    "report": {"versions": MOST_LAYERS, "items": 1 << 18, "commits": 1 << 10},
    "disputed": {"disputes": 1 << 12},
}
"""Entries of repeated fields: empty ones cost two bytes on the wire, and far more in memory."""

_NAMES = {field.number: field.name for field in pb.AgentMessage.DESCRIPTOR.fields}


def check_bytes(data: bytes) -> None:
    """WireError if the message that ``data`` begins with may not be so long."""
    name = kind_of(data)
    if len(data) > BYTES[name]:
        raise WireError(name, f"has {len(data)} bytes; at most {BYTES[name]} are allowed")


def check_parsed(message: Any, size: int) -> None:
    """WireError if an AgentMessage of ``size`` bytes is too long for its kind, or too full."""
    name = message.WhichOneof("body") or ""
    if name and size > BYTES[name]:  # of several bodies the last one counts
        raise WireError(name, f"has {size} bytes; at most {BYTES[name]} are allowed")
    body = getattr(message, name) if name else None
    for field, most in _COUNTS.get(name, {}).items():
        if (count := len(attrgetter(field)(body))) > most:
            raise WireError(f"{name}.{field}", f"has {count} entries; at most {most} are allowed")


def kind_of(data: bytes) -> str:
    """The kind of message. WireError unless the bytes begin with one of the bodies."""
    if not data:
        raise WireError("AgentMessage", "has no body")
    tag = data[0]  # all fields have numbers below 16, so one byte is the whole tag
    name = _NAMES.get(tag >> 3)
    if name is None or tag & 7 != 2:
        raise WireError("AgentMessage", "does not begin with a body")
    return name
