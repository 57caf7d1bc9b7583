"""What the two ends of a link tell each other about their group, over the link itself."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bamboo_core.model.ids import Fence

MAX_CONTROL_BYTES = 1 << 16


class Do(StrEnum):
    """The kind of a message."""

    OFFER = "offer"  # sender: let us make a group
    REFUSE = "refuse"  # receiver: no; ``why``
    SET = "set"  # either: a value for the rendezvous
    READY = "ready"  # receiver: my end of the group exists
    DROP = "drop"  # sender: leave the group
    DROPPED = "dropped"  # receiver: I have left it, after so many ``pieces``


class ControlError(ValueError):
    """A message is malformed."""


@dataclass(frozen=True)
class Control:
    """One message. ``fence`` names the group: a link makes at most one in each plan."""

    do: Do
    fence: Fence
    backend: str = ""  # OFFER
    device: str = ""  # OFFER: the sender's GPU; empty: none
    key: str = ""  # SET
    value: bytes = b""  # SET
    pieces: int = 0  # DROPPED
    why: str = ""  # REFUSE, DROP, DROPPED


def encode(message: Control) -> bytes:
    """As a JSON object, without the fields that are empty."""
    values: dict[str, Any] = {"do": message.do, "fence": list(message.fence)}
    for name in ("backend", "device", "key", "why", "pieces"):
        if value := getattr(message, name):
            values[name] = value
    if message.value:
        values["value"] = base64.b64encode(message.value).decode()
    return json.dumps(values, separators=(",", ":")).encode()


def decode(data: bytes) -> Control:
    """Inverse of :func:`encode`. ControlError if malformed."""
    try:
        values = json.loads(data)
        return Control(
            Do(values["do"]),
            Fence(*(int(x) for x in values["fence"])),
            str(values.get("backend", "")),
            str(values.get("device", "")),
            str(values.get("key", "")),
            base64.b64decode(values.get("value", ""), validate=True),
            int(values.get("pieces", 0)),
            str(values.get("why", "")),
        )
    except Exception as error:  # too many kinds to list, and every one is the peer's fault
        raise ControlError(f"a message about a group is malformed: {error!r:.200}") from error
