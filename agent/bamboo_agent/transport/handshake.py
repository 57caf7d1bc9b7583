"""Mutual authentication of two agents with a key from the plan.

Four lines of JSON. Both sides prove that they know the listener's key, with an HMAC over both
names, the job, the listener's certificate (see `stream`) and a nonce from each side, which prevents
replay, reflection and someone in between. The job itself is
never sent: either end may be a stranger. For the same reason a refusal says nothing about us.

    dialer   -> {"bamboo": 2, "from", "to", "fence", "nonce"}
    listener -> {"nonce", "proof"}  or  {"refused": why}
    dialer   -> {"proof"}
    listener -> {"welcome": true}   or  {"refused": why}
"""

from __future__ import annotations

import hmac
import json
import os
from dataclasses import dataclass
from typing import Any

from bamboo_core.model.ids import AgentId, Fence

MAX_LINE_BYTES = 4096
VERSION = 2
_MOST_NAME = 253
_MOST_NONCE = 64
_MOST_NUMBER = 1 << 63


class RefusedError(Exception):
    """The other side failed authentication, or refused us. The text says why."""


@dataclass(frozen=True)
class Greeting:
    """The dialer's first line."""

    dialer: AgentId
    listener: AgentId
    fence: Fence
    nonce: str

    def line(self) -> bytes:
        """Its encoding."""
        return encode_line(
            {
                "bamboo": VERSION,
                "from": self.dialer,
                "to": self.listener,
                "fence": list(self.fence),
                "nonce": self.nonce,
            }
        )


def new_nonce() -> str:
    """128 random bits."""
    return os.urandom(16).hex()


def encode_line(values: dict[str, Any]) -> bytes:
    """One line."""
    return json.dumps(values).encode() + b"\n"


def decode_line(data: bytes) -> dict[str, Any]:
    """Inverse of :func:`encode_line`. RefusedError if malformed or if it is a refusal."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RefusedError("it does not speak our protocol") from error
    if not isinstance(values, dict):
        raise RefusedError("it does not speak our protocol")
    if "refused" in values:
        raise RefusedError(f"it refuses us: {ascii(values['refused'])[:200]}")
    return values


def read_greeting(data: bytes) -> Greeting:
    """The dialer's first line. RefusedError if malformed."""
    values = decode_line(data)
    if not isinstance(values.get("bamboo"), int):
        raise RefusedError("its greeting is malformed")
    if values["bamboo"] != VERSION:
        raise RefusedError(f"it speaks version {str(values['bamboo'])[:20]}, we speak {VERSION}")
    return Greeting(
        AgentId(_word(values.get("from"), _MOST_NAME)),
        AgentId(_word(values.get("to"), _MOST_NAME)),
        _fence(values.get("fence")),
        _word(values.get("nonce"), _MOST_NONCE),
    )


def read_nonce(values: dict[str, Any]) -> str:
    """The listener's nonce. RefusedError if malformed."""
    return _word(values.get("nonce"), _MOST_NONCE)


def _word(value: object, most: int) -> str:
    if not (isinstance(value, str) and 0 < len(value) <= most and value.isascii()):
        raise RefusedError("its greeting is malformed")
    return value


def _fence(value: object) -> Fence:
    if not (isinstance(value, list) and len(value) == len(Fence())):
        raise RefusedError("its greeting is malformed")
    if not all(type(x) is int and 0 <= x < _MOST_NUMBER for x in value):
        raise RefusedError("its greeting is malformed")
    return Fence(*value)


def proof(
    key: bytes, role: str, job: str, greeting: Greeting, listener_nonce: str, binding: bytes = b""
) -> str:
    """An HMAC with the key. role: "listen" or "dial". job: its UID. binding: see `stream`."""
    words = [role, job, greeting.dialer, greeting.listener, greeting.nonce, listener_nonce]
    words.append(binding.hex())
    return hmac.digest(key, "\0".join(words).encode(), "sha256").hex()


def check(said: object, expected: str) -> None:
    """RefusedError unless the proof is right (compared in constant time)."""
    is_text = isinstance(said, str) and said.isascii()  # compare_digest takes no other
    if not is_text or not hmac.compare_digest(str(said), expected):
        raise RefusedError("it does not know the plan's key")
