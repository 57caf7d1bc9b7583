"""How far the training has come, as the members report it: informative, never decisive."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from bamboo_core.api.progress import TrainingProgress
from bamboo_core.arbiter.durable import Durable
from bamboo_core.protocol.messages import Progress


@dataclass
class Ledger:
    """What members have reported in this attempt."""

    steps: int
    progress: TrainingProgress = TrainingProgress()  # noqa: RUF009 - frozen
    progress_at: float = -inf

    def learn(self, report: Progress, now: float) -> bool:
        """True: a new commit (that of step ``steps``, the epilogue, does not count)."""
        commit, known = report.commit, self.progress
        if commit.validation_loss is not None:
            known = replace(known, validation_loss=commit.validation_loss)
        if report.step_s:
            known = replace(known, step_s=report.step_s)
        is_new = known.committed < commit.step < self.steps
        if is_new:
            known = replace(known, committed=commit.step, loss=commit.loss)
            self.progress_at = now
        self.progress = known
        return is_new

    def forget_commit(self) -> None:
        """The reported commit is lost: a restore has undone it, or only lost agents knew it."""
        self.progress = replace(self.progress, committed=-1, loss=None)

    def newest(self, durable: Durable) -> int:
        """Newest known commit of the attempt, reported or implied by a checkpoint; -1: none."""
        files = (m.step - 1 for m in durable.manifests if m.attempt == durable.attempt)
        return max(self.progress.committed, durable.committed, *files)
