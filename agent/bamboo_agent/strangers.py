"""Connections that have proved nothing yet: bounded in number, by address and in time.

A flood does not keep peers out. When too many wait, the one that has waited longest among those of
the busiest address goes, and a peer proves itself within milliseconds.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Generic, TypeVar

MOST = 256
"""Connections of all addresses."""
MOST_OF_AN_ADDRESS = 64

_LOG_EVERY_S = 10.0

_T = TypeVar("_T")


class Strangers(Generic[_T]):
    """Connections, each with its address and deadline, oldest first."""

    def __init__(self) -> None:
        self._deadlines: dict[_T, float] = {}
        self._addresses: dict[_T, str] = {}
        self._of: defaultdict[str, dict[_T, None]] = defaultdict(dict)

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, link: object) -> bool:
        return link in self._deadlines

    def __iter__(self) -> Iterator[_T]:
        return iter(list(self._deadlines))

    def add(self, link: _T, address: str, *, until: float) -> _T | None:
        """A new connection. The one that must go for it, if so; it is forgotten already.

        until: its deadline, in seconds of any clock; later ones never have an earlier deadline.
        """
        gone = None
        if len(self._of.get(address, ())) >= MOST_OF_AN_ADDRESS:
            gone = next(iter(self._of[address]))
        elif len(self) >= MOST:
            busiest = max(self._of, key=lambda address: len(self._of[address]))
            gone = next(iter(self._of[busiest]))
        if gone is not None:
            self.discard(gone)
        self._deadlines[link], self._addresses[link] = until, address
        self._of[address][link] = None
        return gone

    def discard(self, link: _T) -> None:
        """It has ended, or has proved itself."""
        if link in self._deadlines:
            del self._deadlines[link]
            address = self._addresses.pop(link)
            del self._of[address][link]
            if not self._of[address]:
                del self._of[address]

    @property
    def next_deadline(self) -> float | None:
        """The earliest; None: nobody waits."""
        return next(iter(self._deadlines.values()), None)

    def expired(self, now: float) -> list[_T]:
        """Those whose deadline has come."""
        found = []
        for link, until in self._deadlines.items():
            if until > now:
                break
            found.append(link)
        return found


class Refusals:
    """Counts connections that were refused. A flood of them does not fill the log."""

    def __init__(self, log: logging.Logger) -> None:
        self.count = 0
        self._log, self._said_at = log, float("-inf")

    def note(self, why: object) -> None:
        """One more."""
        self.count += 1
        now = time.monotonic()
        if now - self._said_at >= _LOG_EVERY_S:
            self._said_at = now
            self._log.warning("refused a connection (%d so far): %s", self.count, why)
