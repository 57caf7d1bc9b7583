"""How far training has come: one record on its way from the agents' reports to the job's status."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainingProgress:
    """Informative, never decisive: no step is skipped or repeated because of it."""

    committed: int = -1  # newest committed step; -1: none
    loss: float | None = None  # training loss of that step; None: unknown
    validation_loss: float | None = None  # newest one
    step_s: float = 0.0  # duration of the last step in seconds; 0: unknown
    skipped: int = 0  # steps of this attempt that changed no layer

    def samples_per_s(self, batch: int) -> float:
        """Speed with ``batch`` samples in a step; 0: unknown."""
        return batch / self.step_s if self.step_s > 0 else 0.0
