"""How far the training has come, as the members tell it: informative, never decisive."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from bamboo_core.arbiter.durable import Durable
from bamboo_core.protocol.messages import CommitRecord, Progress


@dataclass
class Ledger:
    """committed: newest commit told in this attempt; step_s: duration of the last step."""

    steps: int
    committed: CommitRecord | None = None
    validation_loss: float | None = None
    step_s: float = 0.0
    progress_at: float = -inf

    def learn(self, progress: Progress, now: float) -> bool:
        """Whether a new commit was told (the epilogue's own, of step ``steps``, is none)."""
        commit = progress.commit
        if commit.validation_loss is not None:
            self.validation_loss = commit.validation_loss
        if progress.step_s:
            self.step_s = progress.step_s
        newest = self.committed.step if self.committed is not None else -1
        if not newest < commit.step < self.steps:
            return False
        self.committed, self.progress_at = commit, now
        return True

    def newest(self, durable: Durable) -> int:
        """Newest commit of the attempt that is known, by word or by a file after it; -1: none."""
        told = self.committed.step if self.committed is not None else -1
        files = (m.step - 1 for m in durable.manifests if m.attempt == durable.attempt)
        return max(told, durable.committed, *files)
