"""Mutual authentication of two agents with a key from the plan.

Four lines of JSON. Both sides prove that they know the listener's key, with an HMAC over both
names, the job and a nonce from each side, which prevents replay and reflection.

    dialer   -> {"bamboo": 1, "job", "from", "to", "fence", "nonce"}
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
VERSION = 1


class RefusedError(Exception):
    """The other side failed authentication, or refused us. The text says why."""


@dataclass(frozen=True)
class Greeting:
    """The dialer's first line."""

    job: str
    dialer: AgentId
    listener: AgentId
    fence: Fence
    nonce: str

    def line(self) -> bytes:
        """Its encoding."""
        return encode_line(
            {
                "bamboo": VERSION,
                "job": self.job,
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
    except ValueError as error:
        raise RefusedError("it does not speak our protocol") from error
    if not isinstance(values, dict):
        raise RefusedError("it does not speak our protocol")
    if "refused" in values:
        raise RefusedError(f"it refuses us: {str(values['refused'])[:200]}")
    return values


def read_greeting(data: bytes) -> Greeting:
    """The dialer's first line. RefusedError if malformed."""
    values = decode_line(data)
    try:
        if values["bamboo"] != VERSION:
            raise RefusedError(f"it speaks version {values['bamboo']}, we speak {VERSION}")
        return Greeting(
            str(values["job"]),
            AgentId(str(values["from"])),
            AgentId(str(values["to"])),
            Fence(*(int(x) for x in values["fence"])),
            str(values["nonce"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RefusedError("its greeting is malformed") from error


def proof(key: bytes, role: str, greeting: Greeting, listener_nonce: str) -> str:
    """An HMAC with the key. role: "listen" or "dial"."""
    words = [role, greeting.job, greeting.dialer, greeting.listener, greeting.nonce, listener_nonce]
    return hmac.digest(key, "\0".join(words).encode(), "sha256").hex()


def check(said: object, expected: str) -> None:
    """RefusedError unless the proof is right (compared in constant time)."""
    if not isinstance(said, str) or not hmac.compare_digest(said.encode(), expected.encode()):
        raise RefusedError("it does not know the plan's key")
