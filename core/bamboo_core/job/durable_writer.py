"""One leader's writes of the durable facts: which is next, and what it may replace. Pure.

Compare and swap: a leader's first write replaces exactly the facts that it began from, and each
later write replaces its own. If it finds other facts it writes nothing, and the job must be led
again from those. Comparing terms is not enough: each leader raises the term that it has read, so
two leaders may have the same one.

At most one write is under way. A write is repeated after ``RETRY_S`` until it succeeds, since the
arbiter waits for it; newer facts replace those that are not written yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bamboo_core.arbiter_state.durable import Durable, from_json, to_json
from bamboo_core.arbiter_state.events import Persist, Persisted

RETRY_S = 1.0

_WRITER = "writer"


class OvertakenError(Exception):
    """Another leader has written. Never try again; begin again from its facts."""


@dataclass(frozen=True)
class LeaderFacts:
    """One leader's facts of one job."""

    began: Durable  # the facts that it read first
    writer: str  # marks the facts that it wrote; unique among leaders

    def body(self, durable: Durable) -> dict[str, Any]:
        """The facts as a JSON object with the mark of their writer."""
        return to_json(durable) | {_WRITER: self.writer}

    def check(self, found: Mapping[str, Any], durable: Durable) -> None:
        """Whether ``durable`` may replace the facts found; OvertakenError if not.

        No leader erases facts; if they are erased, ours are still the newest.
        """
        if not found or found.get(_WRITER) == self.writer:
            return
        try:
            stored = from_json(dict(found))
        except ValueError as error:
            raise OvertakenError(str(error)) from error
        if stored != self.began:
            raise OvertakenError(
                f"term {stored.term} has written {stored.plan}; ours, {durable.term}, began from"
                f" term {self.began.term} with {self.began.plan}"
            )


class DurableWriter:
    """The facts that one leader has to write, the newest only."""

    def __init__(self) -> None:
        self.is_busy = False  # a write is under way, or its next attempt is awaited
        self._pending: Persist | None = None
        self._writing: Persist | None = None
        self._is_dropped = False  # the arbiter that asked for the present write is gone

    def put(self, wanted: Persist) -> bool:
        """Facts to write. True: begin now with :meth:`next`; else :meth:`written` leads to it."""
        self._pending = wanted
        begins, self.is_busy = not self.is_busy, True
        return begins

    def next(self) -> Durable | None:
        """The facts to write now, also after a failed attempt. None: all is written."""
        self._writing, self._is_dropped = self._pending, False
        self.is_busy = self._writing is not None
        return None if self._writing is None else self._writing.durable

    def written(self) -> Persisted | None:
        """The present write has succeeded; what to tell the arbiter. Call :meth:`next` then."""
        done = self._writing
        assert done is not None, "no write is under way"
        if self._pending is done:
            self._pending = None
        return None if self._is_dropped else Persisted(done.version)

    def drop(self) -> None:
        """The arbiter begins again: it does not know what it has asked for. A write that is under
        way goes on, since it cannot be called back."""
        self._pending, self._is_dropped = None, True

    def end(self) -> None:
        """Nothing more is written: the job is gone, or another leader has written."""
        self._pending, self.is_busy = None, False
