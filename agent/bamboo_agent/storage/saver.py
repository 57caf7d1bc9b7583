"""Writes files of checkpoints from snapshots in the background, while training continues."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass

from bamboo_agent.payloads.kinds import FileRecord, LayerRecord
from bamboo_agent.storage.background import Background
from bamboo_agent.storage.checkpoint import CheckpointError, Checkpoints, Facts
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item
from bamboo_core.protocol.messages import Manifest

log = logging.getLogger(__name__)

MOST_UNWRITTEN = 2
"""Checkpoints of which this agent may hold snapshots that are not written yet."""


@dataclass(frozen=True)
class Saved:
    """A layer's file, or in ``record.error`` why there is none."""

    attempt: int
    item: Item
    record: FileRecord


class Saver:
    """Writes in order, in one thread, and nothing twice at a time.

    agent: for error messages that other agents report.
    """

    def __init__(self, checkpoints: Checkpoints, agent: AgentId) -> None:
        self._checkpoints, self._agent = checkpoints, agent
        self._thread: Background[Saved] = Background("saver")
        self._attempt = 0  # jobs of older ones are skipped
        self._unwritten: Counter[tuple[int, int]] = Counter()  # (attempt, step) -> layers
        self._given_up = (-1, -1)  # the last one
        self._logged = (-1, -1)

    # ------------------------------------------------------------ jobs

    def adopt(self, attempt: int) -> None:
        """Begin a plan of this attempt: it may try again what was given up.

        Files that older attempts have queued are not written any more.
        """
        self._attempt, self._given_up = attempt, (-1, -1)

    def has_room(self, attempt: int, step: int) -> bool:
        """Whether a snapshot of this checkpoint may be queued without exceeding the bound."""
        unwritten = {mark for mark in self._unwritten if mark[0] >= self._attempt}
        if (attempt, step) in unwritten:
            return True
        return (attempt, step) != self._given_up and len(unwritten) < MOST_UNWRITTEN

    def save(self, *, attempt: int, step: int, layer: int, record: LayerRecord) -> None:
        """Queue a snapshot."""
        self._unwritten[attempt, step] += 1
        self._thread.submit(lambda: self._write(attempt, step, layer, record))

    def give_up(self, *, attempt: int, step: int, layer: int, why: str) -> None:
        """Record a layer as not written, at once."""
        self._given_up = (attempt, step)
        self._thread.post(Saved(attempt, Item.file(step, layer), self._failed(why)))

    def prune(self, *, keep: int, newest: Manifest, facts: Facts) -> None:
        """Queue the removal of checkpoints (:meth:`Checkpoints.prune`). Nothing is removed if the
        attempt is over by then."""
        self._thread.submit(lambda: self._prune(keep, newest, facts))

    # ------------------------------------------------------------ results

    def poll(self) -> list[Saved]:
        """Files written or given up since the last call, in order."""
        results = self._thread.poll()
        for result in results:
            self._count_down(result.attempt, result.item.step)
        return results

    @property
    def is_busy(self) -> bool:
        """Whether something is not written, or :meth:`poll` has not returned it yet."""
        return self._thread.is_busy

    def fileno(self) -> int:
        """Readable while :meth:`poll` has results."""
        return self._thread.fileno()

    def close(self) -> None:
        """Write what is queued, then end the thread."""
        self._thread.close()

    def _count_down(self, attempt: int, step: int) -> None:
        self._unwritten -= Counter({(attempt, step): 1})  # drops zeros

    # ------------------------------------------------------------ in the thread

    def _write(self, attempt: int, step: int, layer: int, record: LayerRecord) -> Saved:
        item = Item.file(step, layer)
        if attempt < self._attempt:
            return Saved(attempt, item, self._failed("the attempt is over"))
        try:
            file = self._checkpoints.write_layer(
                attempt=attempt, step=step, layer=layer, record=record
            )
        except CheckpointError as error:
            if self._logged != (attempt, step):  # once per step, not once per layer
                self._logged = (attempt, step)
                log.error("layer %d of step %d is not saved: %s", layer, step, error)
            file = self._failed(error.cause)
        return Saved(attempt, item, file)

    def _prune(self, keep: int, newest: Manifest, facts: Facts) -> None:
        if newest.attempt < self._attempt:
            return  # the facts of the attempt are old
        try:
            self._checkpoints.prune(keep=keep, newest=newest, facts=facts)
        except CheckpointError as error:
            log.warning("an old checkpoint stays: %s", error)

    def _failed(self, why: str) -> FileRecord:
        return FileRecord(error=f"agent {self._agent}: {why}")
