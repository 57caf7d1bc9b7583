"""What a run of a policy on a market gives: samples, money, and where the time went."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

HOUR_MS = 3_600_000


class Activity(StrEnum):
    """What the job does. Every millisecond of a run is one of these."""

    TRAINING = "training"
    REPEATING = "repeating"
    """It trains what it has trained before."""
    PAUSED = "paused"
    STANDING = "standing"
    """Nodes are ready, but too few to train."""
    IDLE = "idle"
    """No node is ready."""


class Use(StrEnum):
    """What a paid node does."""

    BOOTING = "booting"
    STANDBY = "standby"
    SERVING = "serving"


class Spend(NamedTuple):
    """Where money goes."""

    zone: str
    capacity: str
    use: Use


class Pause(NamedTuple):
    """A time without training. ``ms``: until training went on, or another cause took over."""

    at_ms: int
    ms: int
    cause: str


class Span(NamedTuple):
    """A time in which nothing changed. ``again_ms``: the part of it, from its begin, in which the
    job repeats; ``before`` and ``after``: the samples that count at its begin and at its end."""

    begin_ms: int
    end_ms: int
    activity: Activity
    again_ms: int
    before: float
    after: float
    dollars_per_hour: float


@dataclass(frozen=True)
class Outcome:
    """One run. ``samples``: that count, without repetitions; ``first_ms``: when training began."""

    samples: float
    end_ms: int
    first_ms: int
    node_ms: dict[Spend, int]
    dollars: dict[Spend, float]
    activity_ms: dict[Activity, int]
    pauses: tuple[Pause, ...]
    removals: int
    fatal: int
    samples_by_price: float
    """Each sample over what the fleet cost per hour when it was trained, added up."""

    @property
    def hours(self) -> float:
        """From the start of the market to the end of the run."""
        return self.end_ms / HOUR_MS

    @property
    def dollars_per_hour(self) -> float:
        """The mean over the whole run."""
        return sum(self.dollars.values()) / self.hours

    @property
    def samples_per_second(self) -> float:
        """The mean from the first step's begin to the end."""
        return _over(self.samples, (self.end_ms - self.first_ms) / 1000)

    @property
    def value(self) -> float:
        """Samples per second for each dollar per hour: a ratio of totals."""
        return _over(self.samples, 3600 * sum(self.dollars.values()))

    @property
    def value_time_mean(self) -> float:
        """The mean over time of samples per second for each dollar per hour, for comparison with
        tables that have it. :attr:`value` says what the samples have cost."""
        return _over(self.samples_by_price, (self.end_ms - self.first_ms) / 1000)

    def share(self, activity: Activity) -> float:
        """The part of the run."""
        return self.activity_ms[activity] / self.end_ms


def _over(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
