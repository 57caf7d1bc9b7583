"""Reads layers of a checkpoint and lists the checkpoints, in the background."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from threading import Event

from bamboo_agent.payloads.kinds import LayerRecord
from bamboo_agent.storage.background import Background
from bamboo_agent.storage.checkpoint import (
    AbsentError,
    CheckpointError,
    Checkpoints,
    UnreachableError,
)
from bamboo_agent.storage.origin import Origin, OriginError
from bamboo_agent.storage.sight import Look, Seen
from bamboo_core.model.ids import AgentId, Fence, Range
from bamboo_core.protocol.messages import Manifest, Mark

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
MOST_PAUSE_S = 15.0
PARTIAL_TRIES = 5
"""Scans of one listing that may miss a checkpoint."""


@dataclass(frozen=True)
class Listing:
    """Complete checkpoints, oldest first, and an error for each one that is wrong."""

    good: tuple[Manifest, ...]
    bad: tuple[CheckpointError, ...]
    fence: Fence  # of its order
    unreachable: str  # why a checkpoint could not be reached; empty: all could
    right: Mark | None = None  # the suspect, if all of it was read and is right


@dataclass(frozen=True, eq=False)
class Order:
    """A listing that is asked for. One that is given up before it has begun does nothing."""

    fence: Fence
    suspect: Manifest | None  # is read whole
    is_given_up: Event = field(default_factory=Event)
    told: set[str] = field(default_factory=set)  # warnings
    pauses: Iterator[float] = field(default_factory=lambda: islice(pauses(), PARTIAL_TRIES - 1))


@dataclass(frozen=True, eq=False)
class Reading:
    """Layers that are being read."""

    manifest: Manifest
    layers: Range
    attempt: int  # that reads it
    is_given_up: Event = field(default_factory=Event)


@dataclass(frozen=True)
class Read:
    """The layers in order, or in what way the checkpoint is wrong."""

    reading: Reading
    records: tuple[LayerRecord, ...] = ()
    error: CheckpointError | None = None


@dataclass(frozen=True)
class Unreachable:
    """Layers cannot be read for now, since a file cannot be reached, and which checkpoints are
    there; or, if the text is empty, they can again."""

    reading: Reading
    text: str
    good: tuple[Manifest, ...] = ()


@dataclass(frozen=True)
class Looked:
    """The answer to an agent's question about files."""

    asker: AgentId
    seen: Seen


@dataclass(frozen=True)
class NoOrigin:
    """The checkpoint with which the job begins cannot be reached; fence: of the listing's order."""

    fence: Fence
    text: str


Result = Listing | Read | Unreachable | Looked | NoOrigin


def pauses() -> Iterator[float]:
    """Seconds between attempts to reach the storage: each twice as long, up to a bound."""
    pause_s = FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(MOST_PAUSE_S, 2 * pause_s)


class Reader:
    """One thread of its own: a slow write does not hold up what a plan waits for."""

    def __init__(self, checkpoints: Checkpoints, origin: Origin | None = None) -> None:
        """origin: the checkpoint with which the job begins, before any listing; None: none."""
        self._checkpoints, self._origin = checkpoints, origin
        self._thread: Background[Result] = Background("reader")
        self._wanted: Reading | None = None
        self._ordered: Order | None = None

    def read(self, manifest: Manifest, layers: Range, attempt: int) -> None:
        """Queue the reading of these layers for a plan of this attempt. The last one before it is
        given up, and the listing: one that fails must not hold the layers up.

        While the storage cannot be reached, the thread tries again: only the storage knows whether
        the checkpoint is good.
        """
        self.forget()
        self._forget_listing()
        self._wanted = reading = Reading(manifest, layers, attempt)
        self._thread.submit(lambda: self._read(reading))

    def forget(self) -> None:
        """The layers are not wanted any more."""
        if self._wanted is not None:
            self._wanted.is_given_up.set()
        self._wanted = None

    def begin_listing(self, fence: Fence, suspect: Manifest | None = None) -> None:
        """Queue a listing. The last one before it is given up. suspect: a checkpoint of which all
        is read, since it may be wrong.

        While the storage cannot be reached, the thread tries again.
        """
        self._forget_listing()
        self._ordered = order = Order(fence, suspect)
        self._thread.submit(lambda: self._list(order))

    def _forget_listing(self) -> None:
        if self._ordered is not None:
            self._ordered.is_given_up.set()
        self._ordered = None

    def look(self, asker: AgentId, question: Look) -> None:
        """Queue one look at files for another agent, which asks again if they are not there. While
        this agent waits for the storage, it does not answer: it cannot see them."""
        self._thread.submit(lambda: self._look(asker, question))

    def poll(self) -> list[Result]:
        """Results since the last call, without layers that are not wanted any more. OriginError if
        the job cannot begin with the checkpoint that it names."""
        results = self._thread.poll()
        for result in results:
            if isinstance(result, Listing) and result.unreachable:
                self._complete(result)
        return [
            r
            for r in results
            if isinstance(r, Listing | Looked | NoOrigin) or r.reading is self._wanted
        ]

    def _complete(self, listing: Listing) -> None:
        """A partial list is given out at once. A few more tries may find what it misses: that may
        stay out of reach for ever."""
        order = self._ordered
        if order is None or order.fence != listing.fence:
            return
        pause_s = next(order.pauses, None)
        if pause_s is not None:
            self._thread.submit(lambda: self._list_again(order, pause_s))

    def fileno(self) -> int:
        """Readable while :meth:`poll` may have results."""
        return self._thread.fileno()

    @property
    def is_busy(self) -> bool:
        """Whether :meth:`poll` has not yet returned all results."""
        return self._thread.is_busy

    def close(self) -> None:
        """End the thread after the file that it is reading."""
        self.forget()
        self._forget_listing()
        self._thread.close()

    # ------------------------------------------------------------ in the thread

    def _read(self, reading: Reading) -> Read | None:
        records: list[LayerRecord] = []
        told: set[str] = set()
        known = Unreachable(reading, "")
        waits = pauses()
        is_claimed = reading.manifest.attempt >= reading.attempt
        while not reading.is_given_up.is_set():
            count = len(records)
            try:
                is_claimed = is_claimed or self._checkpoints.claim(reading.attempt)
                self._read_more(reading, records)
            except UnreachableError as error:
                _warn_once(told, f"{error}; the load waits until the storage can be reached")
                others = self._others(told) if isinstance(error, AbsentError) else ()
                found = Unreachable(reading, str(error), others)
                if found != known:
                    known = found
                    self._thread.note(found)
            except CheckpointError as error:
                return Read(reading, error=error)
            else:
                if known.text:
                    self._thread.note(Unreachable(reading, ""))
                return Read(reading, tuple(records))
            if len(records) > count:
                waits = pauses()
            reading.is_given_up.wait(next(waits))
        return None

    def _others(self, told: set[str]) -> tuple[Manifest, ...]:
        """Checkpoints that are there instead: a newer one may have replaced what is wanted."""
        try:
            return tuple(self._checkpoints.scan(told).good)
        except CheckpointError:
            return ()

    def _read_more(self, reading: Reading, records: list[LayerRecord]) -> None:
        """Add the layers that are missing, until the reading is given up. CheckpointError."""
        lo, hi = reading.layers
        missing = range(lo + len(records), hi)
        for record in self._checkpoints.read_layers(reading.manifest, missing):
            if reading.is_given_up.is_set():
                return
            records.append(record)

    def _list(self, order: Order) -> Listing | None:
        """A listing that fails is no answer: others may see the folder."""
        waits = pauses()
        while not order.is_given_up.is_set():
            try:
                self._settle(order)
                suspect, right = self._check(order.suspect)
                good, bad, unreachable = self._checkpoints.scan(order.told)
            except OriginError:
                raise
            except CheckpointError as error:
                text = f"{error}; the listing waits until the storage can be reached"
                _warn_once(order.told, text)
                order.is_given_up.wait(next(waits))
            else:
                if suspect is not None:
                    marks = suspect.attempt, suspect.step
                    good = [m for m in good if (m.attempt, m.step) != marks]
                    bad = [*(e for e in bad if (e.attempt, e.step) != marks), suspect]
                return Listing(tuple(good), tuple(bad), order.fence, unreachable, right)
        return None

    def _settle(self, order: Order) -> None:
        """UnreachableError, of which the operator hears: the job waits for it."""
        if self._origin is None:
            return
        try:
            self._origin.settle(self._checkpoints)
        except UnreachableError as error:
            if str(error) not in order.told:
                self._thread.note(NoOrigin(order.fence, str(error)))
            raise

    def _check(self, suspect: Manifest | None) -> tuple[CheckpointError | None, Mark | None]:
        """In what way it is wrong, or its mark if it is right; neither if it cannot be reached."""
        if suspect is None:
            return None, None
        try:
            self._checkpoints.check(suspect)
        except UnreachableError:
            return None, None
        except CheckpointError as error:
            return CheckpointError(str(error), suspect.attempt, suspect.step), None
        return None, Mark(suspect.attempt, suspect.step)

    def _look(self, asker: AgentId, question: Look) -> Looked:
        missing = self._checkpoints.missing(question)
        return Looked(asker, Seen(question.attempt, question.step, missing))

    def _list_again(self, order: Order, pause_s: float) -> Listing | None:
        order.is_given_up.wait(pause_s)
        return self._list(order)


def _warn_once(told: set[str], text: str) -> None:
    if text not in told:
        told.add(text)
        log.warning("%s", text)
