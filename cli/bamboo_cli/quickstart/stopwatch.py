"""How long each phase of a quick start takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Stopwatch:
    """Seconds by phase."""

    now: Callable[[], float] = time.monotonic
    phases: dict[str, float] = field(default_factory=dict)

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
