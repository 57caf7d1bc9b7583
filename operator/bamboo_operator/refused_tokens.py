"""Tokens that were refused, and how fast each address may go on sending others.

A token review is a request to the API server. Without this, strangers could make the operator send
as many as that answers.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

BURST = 50
RATE = 5.0
"""Refusals of an address: so many at once, then so many in each second."""
KEPT_S = 5.0
"""A token that was refused is refused again for so long, whatever the API server would say."""
PAUSE_S, MOST_HELD_UP = 1.0, 256
"""Who sends more is told so after a pause. Streams that wait for it at a time; further ones do not.
"""
MOST = 4096
"""Tokens and addresses that are remembered, each; the oldest ones go."""


class RefusedTokens:
    """By address. A pod that an operator has made is judged apart from the others there."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens: dict[bytes, tuple[float, str]] = {}  # until when, and why
        self._owed: dict[str, tuple[float, float]] = {}  # refusals that count, and since when

    def why(self, token: str) -> str:
        """Why it has been refused lately; empty: it has not."""
        until, why = self._tokens.get(_hash(token), (0.0, ""))
        return why if self._clock() < until else ""

    def is_over(self, whose: str) -> bool:
        """Whether too many of the address, or of the pod, have been refused."""
        return self._count(whose) >= BURST

    def note(self, whose: str, token: str, why: str) -> None:
        """A review has refused the token."""
        count = self._count(whose) + 1
        self._owed.pop(whose, None)
        self._owed[whose] = (count, self._clock())
        self._tokens[_hash(token)] = (self._clock() + KEPT_S, why)
        if len(self._owed) > MOST:
            del self._owed[next(iter(self._owed))]
        if len(self._tokens) > MOST:
            del self._tokens[next(iter(self._tokens))]

    def _count(self, whose: str) -> float:
        count, at = self._owed.get(whose, (0.0, 0.0))
        return max(0.0, count - (self._clock() - at) * RATE)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
