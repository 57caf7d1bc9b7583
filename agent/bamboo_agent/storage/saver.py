"""Writes checkpoint layers from snapshots in the background, while training continues."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from queue import SimpleQueue

from bamboo_agent.compute.layers import LayerRecord
from bamboo_agent.compute.serialization import FileRecord
from bamboo_agent.ipc.mailbox import Mailbox
from bamboo_agent.storage.checkpoint import CheckpointError, Checkpoints
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Job:
    attempt: int
    step: int
    layer: int
    record: LayerRecord


class Saver:
    """One writer thread. :meth:`poll` returns the results as FILE items with their records.

    agent: for error messages that other agents report.
    """

    def __init__(self, checkpoints: Checkpoints, agent: AgentId) -> None:
        self._checkpoints, self._agent = checkpoints, agent
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._results: Mailbox[tuple[Item, FileRecord, int]] = Mailbox()
        self._outstanding = 0
        self._logged = (-1, -1)
        self._thread = threading.Thread(target=self._work, name="saver", daemon=True)
        self._thread.start()

    def save(self, *, attempt: int, step: int, layer: int, record: LayerRecord) -> None:
        """Queue a snapshot."""
        self._outstanding += 1
        self._jobs.put(_Job(attempt, step, layer, record))

    def poll(self) -> list[tuple[Item, FileRecord, int]]:
        """Finished files: item, record (with ``error`` if the write failed) and attempt."""
        results = self._results.take_all()
        self._outstanding -= len(results)
        return results

    @property
    def is_busy(self) -> bool:
        """Whether :meth:`poll` has not yet returned all files."""
        return self._outstanding > 0

    def fileno(self) -> int:
        """Readable while :meth:`poll` has results."""
        return self._results.fileno()

    def close(self) -> None:
        """Write what is queued, then end the thread."""
        self._jobs.put(None)
        self._thread.join()
        self._results.close()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                record = self._checkpoints.write_layer(
                    attempt=job.attempt, step=job.step, layer=job.layer, record=job.record
                )
            except CheckpointError as error:
                self._log_error(job, error)
                record = FileRecord(error=f"agent {self._agent}: {error.cause}")
            item = Item.file(job.step, job.layer)
            self._results.put((item, record, job.attempt))

    def _log_error(self, job: _Job, error: CheckpointError) -> None:
        """Log once per step, not once per layer."""
        if self._logged != (job.attempt, job.step):
            self._logged = (job.attempt, job.step)
            log.error("layer %d of step %d is not saved: %s", job.layer, job.step, error)
