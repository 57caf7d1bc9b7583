"""How long things have taken in a job: steps, and what a loss has cost in time.

The median of the newest few durations counts, so that one odd loss changes no mode. Until there is
one, :class:`bamboo_core.protection.facts.Assumptions` hold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.protection.choice import Verdict

_NEWEST = 5
_LEAST_S = 0.001


@dataclass(frozen=True)
class Measured:
    """Durations in seconds, oldest first."""

    pipelines: int = 0  # of the grid in which ``step_s`` was measured
    step_s: float = 0.0  # the last step with an agent in every seat; 0: there was none
    stops: tuple[float, ...] = ()  # from a loss until the survivors computed again
    refills: tuple[float, ...] = ()  # from a loss until as many seats were taken as before
    restarts: tuple[float, ...] = ()  # of a new attempt, without what it repeats

    def __post_init__(self) -> None:
        for name in ("stops", "refills", "restarts"):
            object.__setattr__(self, name, tuple(map(_rounded, getattr(self, name)))[-_NEWEST:])

    def stepped(self, pipelines: int, step_s: float) -> Measured:
        """After an undisturbed step."""
        return replace(self, pipelines=pipelines, step_s=_rounded(step_s))

    def stopped(self, seconds: float) -> Measured:
        """After a loss."""
        return replace(self, stops=(*self.stops, seconds))

    def refilled(self, seconds: float) -> Measured:
        """A lost agent is replaced."""
        return replace(self, refills=(*self.refills, seconds))

    def restarted(self, seconds: float) -> Measured:
        """A new attempt trains."""
        return replace(self, restarts=(*self.restarts, seconds))


def usual(durations: tuple[float, ...]) -> float:
    """0: there is none."""
    return median(durations) if durations else 0.0


def interrupted_s(verdict: Verdict, mode: RedundancyMode, step_s: float) -> float | None:
    """How long a step takes on average in which an agent is lost, if the others go on at once.

    Halfway, it becomes a step with an empty seat, and the lost work is done again. None: the loss
    is fatal, or nobody can tell.
    """
    recovery = verdict.facts.recovery(mode)
    if recovery is None or not step_s:
        return None
    return step_s * (1 + recovery.degraded) / 2 + verdict.of(mode).redone_s


def _rounded(seconds: float) -> float:
    """As it is written; never 0, which would mean that nothing is known."""
    return max(_LEAST_S, round(float(seconds), 3))
