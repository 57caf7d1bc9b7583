"""Tokens that were refused, and how fast each sender may go on sending others.

A token review is a request to the API server. Without this, strangers could make the operator send
as many as that answers.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import NamedTuple


class Share(NamedTuple):
    """Refusals: so many at once, then so many in each second."""

    burst: float
    rate: float


OF_ADDRESS, OF_POD = Share(50, 5.0), Share(5, 0.2)
"""A node has many pods behind one address. The kubelet gives each a good token, so a pod needs few.
"""
KEPT_S = 5.0
"""A token that was refused is refused again for so long, whatever the API server would say."""
PAUSE_S, MOST_HELD_UP = 1.0, 256
"""Who sends more is told so after a pause. Streams that wait for it at a time; further ones do not.
"""
MOST = 4096
"""Tokens and senders that are remembered, each; the oldest ones go."""


class Sender(NamedTuple):
    """The sender of a token. pod: the UID that it names, if an operator has made that pod.

    Anybody can name it, so it counts together with the address: nobody locks out a pod elsewhere.
    """

    address: str
    pod: str = ""

    @property
    def share(self) -> Share:
        """A pod does not wait for strangers behind the same address."""
        return OF_POD if self.pod else OF_ADDRESS


class RefusedTokens:
    """By token and by sender."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens: dict[bytes, tuple[float, str]] = {}  # until when, and why
        self._owed: dict[Sender, tuple[float, float]] = {}  # refusals that count, and since when

    def why(self, token: str) -> str:
        """Why it has been refused lately; empty: it has not."""
        until, why = self._tokens.get(_hash(token), (0.0, ""))
        return why if self._clock() < until else ""

    def is_over(self, sender: Sender) -> bool:
        """Whether too many of its tokens have been refused."""
        return self._count(sender) >= sender.share.burst

    def note(self, sender: Sender, token: str, why: str) -> None:
        """A review has refused the token."""
        count = self._count(sender) + 1
        self._owed.pop(sender, None)
        self._owed[sender] = (count, self._clock())
        self._tokens[_hash(token)] = (self._clock() + KEPT_S, why)
        if len(self._owed) > MOST:
            del self._owed[next(iter(self._owed))]
        if len(self._tokens) > MOST:
            del self._tokens[next(iter(self._tokens))]

    def _count(self, sender: Sender) -> float:
        count, at = self._owed.get(sender, (0.0, 0.0))
        return max(0.0, count - (self._clock() - at) * sender.share.rate)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
