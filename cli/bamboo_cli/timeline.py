"""What a run spent its time on, and the progress seen meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bamboo_cli.job import Job


@dataclass(frozen=True)
class Point:
    """Progress at one moment."""

    at_s: float  # since the start
    step: int
    loss: float | None
    validation_loss: float | None


@dataclass
class Timeline:
    """Seconds by phase, and the points of the loss curve."""

    now: Callable[[], float] = time.monotonic
    phases: dict[str, float] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._started = self.now()

    @property
    def elapsed_s(self) -> float:
        return self.now() - self._started

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the block towards the phase, even if the block fails."""
        start = self.now()
        try:
            yield
        finally:
            self.add(name, self.now() - start)

    def add(self, name: str, seconds: float) -> None:
        self.phases[name] = self.phases.get(name, 0.0) + seconds

    def see(self, job: Job) -> bool:
        """Add a point if the progress has changed; returns whether it has."""
        last = self.points[-1] if self.points else None
        seen = (job.step, job.loss, job.validation_loss)
        if last and (last.step, last.loss, last.validation_loss) == seen:
            return False
        self.points.append(Point(self.elapsed_s, *seen))
        return True

    @property
    def validation(self) -> list[tuple[int, float]]:
        """(step at which it was first seen, validation loss), without repetitions."""
        found: list[tuple[int, float]] = []
        for point in self.points:
            value = point.validation_loss
            if value is not None and (not found or found[-1][1] != value):
                found.append((point.step, value))
        return found
