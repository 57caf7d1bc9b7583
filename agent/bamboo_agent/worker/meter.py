"""The figures of Progress: times and traffic."""

from __future__ import annotations

import time

from bamboo_agent.compute.held import HeldLayers
from bamboo_agent.device.host_blocks import Tally
from bamboo_agent.worker.feeding import Feeding
from bamboo_core.api.progress import Ahead, Goodput, Sent
from bamboo_core.model.ids import Fence
from bamboo_core.model.program import COMPUTE, Instruction, Op
from bamboo_core.protocol.messages import CommitRecord, Progress


class Meter:
    """Counts from one end of a step to the next; host memory, from the start.

    ahead: the share of host memory of what is computed ahead. feeding: how long the worker has
    waited for samples, which its peers do, too.
    """

    def __init__(self, ahead: Tally, held: HeldLayers, feeding: Feeding) -> None:
        self._sent_bytes = 0  # at the last end of a step
        self.dropped = 0  # forwards computed ahead, for want of room
        self.failed = 0  # slices that ended in an error
        self._slices, self._host, self._held = 0, ahead, held
        self._busy_s = 0.0
        self._feeding, self._waited_s = feeding, 0.0  # at the last end of a step
        self._ended_at = time.perf_counter()

    def add(self, instruction: Instruction, elapsed_s: float) -> None:
        """Count a completed instruction."""
        if instruction.op is Op.R:  # it costs nobody time
            self._slices += 1
        elif instruction.op in COMPUTE:
            self._busy_s += elapsed_s

    def end_step(
        self,
        commit: CommitRecord,
        fence: Fence,
        sent: tuple[Sent, ...],
        goodput: Goodput | None = None,
    ) -> Progress:
        """The figures of the step that ends. The next one begins. sent: since the start."""
        now, sent_bytes = time.perf_counter(), sum(sum(s.by_lane().values()) for s in sent)
        progress = Progress(
            commit,
            fence,
            step_s=now - self._ended_at,
            busy_s=self._busy_s + self._feeding.waited_s - self._waited_s,
            sent_bytes=sent_bytes - self._sent_bytes,
            ahead=self._ahead(),
            hosted=self._held.figures,
            sent=sent,
            goodput=goodput,
        )
        self._sent_bytes, self._busy_s, self._ended_at = sent_bytes, 0.0, now
        self._waited_s = self._feeding.waited_s
        return progress

    def _ahead(self) -> Ahead:
        host = self._host
        return Ahead(
            self._slices,
            self.dropped,
            host.peak_bytes,
            host.copied_bytes,
            host.copied_s,
            host.left_bytes,
            self.failed,
        )
