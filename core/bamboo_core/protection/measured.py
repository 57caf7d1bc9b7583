"""How long things have taken in a job: steps, what a loss has cost in time, and empty seats.

The median of the newest few durations counts, so that one odd loss changes no mode. Until there is
one, :class:`bamboo_core.protection.facts.Assumptions` hold. Seats that stay empty for hours count
before they are taken again, so of them all the time counts and not a median.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.protection.choice import Verdict

_NEWEST = 5
_LEAST_S = 0.001
_HALF_LIFE_S = 24 * 3600.0
_WORTH_S = 20 * 3600.0  # of a seat: what the prior of the share weighs
_MOST_SHARE, _MOST_TOGETHER = 0.999, 0.99


@dataclass(frozen=True)
class Measured:
    """Durations in seconds, oldest first."""

    pipelines: int = 0  # of the grid in which ``step_s`` was measured
    step_s: float = 0.0  # the last step with an agent in every seat; 0: there was none
    stops: tuple[float, ...] = ()  # from a loss until the survivors computed again
    restarts: tuple[float, ...] = ()  # of a new attempt, without what it repeats

    def __post_init__(self) -> None:
        for name in ("stops", "restarts"):
            object.__setattr__(self, name, tuple(map(_rounded, getattr(self, name)))[-_NEWEST:])

    def stepped(self, pipelines: int, step_s: float) -> Measured:
        """After an undisturbed step."""
        return replace(self, pipelines=pipelines, step_s=_rounded(step_s))

    def stopped(self, seconds: float) -> Measured:
        """After a loss."""
        return replace(self, stops=(*self.stops, seconds))

    def restarted(self, seconds: float) -> Measured:
        """A new attempt trains."""
        return replace(self, restarts=(*self.restarts, seconds))


@dataclass(frozen=True)
class EmptySeats:
    """How long seats of the grid that the job asks for had no agent. All numbers fade, since
    markets change."""

    seat_s: float = 0.0  # seconds, summed over all seats
    empty_s: float = 0.0  # of them, those of empty seats
    pair_s: float = 0.0  # as seat_s, times the share of pairs of seats of which both were empty
    refilled: float = 0.0  # empty seats that were taken

    @property
    def is_measured(self) -> bool:
        """Whether what was seen weighs about as much as the prior."""
        return self.refilled >= 0.5 or self.seat_s >= _WORTH_S

    def passed(self, seats: int, empty: int, seconds: float) -> EmptySeats:
        """After so many seconds with so many seats, of which some were empty."""
        seconds = max(0.0, seconds)
        keep, pairs = 0.5 ** (seconds / _HALF_LIFE_S), seats * (seats - 1)
        both = empty * (empty - 1) / pairs if pairs else 0.0
        return EmptySeats(
            keep * self.seat_s + seats * seconds,
            keep * self.empty_s + empty * seconds,
            keep * self.pair_s + seats * seconds * both,
            keep * self.refilled,
        )

    def taken(self, seats: int) -> EmptySeats:
        """After so many empty seats were taken."""
        return replace(self, refilled=self.refilled + seats)

    def length_s(self, prior_s: float) -> float:
        """For how long a seat stays empty, on average. The prior weighs as much as one seat. Seats
        that are still empty count with the time until now."""
        return (self.empty_s + prior_s) / (self.refilled + 1)

    def share(self, prior: float) -> float:
        """The share of seats that are empty, on average over time."""
        return min(_MOST_SHARE, (self.empty_s + _WORTH_S * prior) / (self.seat_s + _WORTH_S))

    def together(self, prior: float) -> float:
        """How much seats are empty at the same time: the correlation of two seats. 0: each by
        itself. prior: of the share."""
        share = self.share(prior)
        both = (self.pair_s + _WORTH_S * prior**2) / (self.seat_s + _WORTH_S)
        spread = share * (1 - share)
        return min(_MOST_TOGETHER, max(0.0, (both - share**2) / spread)) if spread > 0 else 0.0

    def rounded(self) -> EmptySeats:
        """To whole seconds and thousandths of a seat, as it is written."""
        seat_s, empty_s, pair_s = map(round, (self.seat_s, self.empty_s, self.pair_s))
        return EmptySeats(float(seat_s), float(empty_s), float(pair_s), round(self.refilled, 3))


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
