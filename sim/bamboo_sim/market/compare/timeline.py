"""What happens over time, in bins of equal length: the fleet by zone, and what a system does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bamboo_sim.market.simulation.events import ADD, REMOVE, FleetEvent
from bamboo_sim.market.simulation.outcome import HOUR_MS, Activity, Span

BINS = 120
"""How many bins a run has: enough for a drawing, and a multiple of the blocks of intervals."""


class Timeline:
    """The spans of a run of ``until_ms``, told by the engine, added up in bins.

    Each list has one number for each bin. ``net``: samples that count, less those that were lost in
    it; ``fresh``: samples that were trained for the first time; ``dollars``: of the nodes;
    ``activity_ms``: the time by activity.
    """

    def __init__(self, until_ms: int, bins: int = BINS) -> None:
        self._bin_ms = until_ms / bins
        self._last = bins - 1
        self._reached, self._most = 0.0, 0.0
        self.net = [0.0] * bins
        self.fresh = [0.0] * bins
        self.dollars = [0.0] * bins
        self.activity_ms = {activity: [0.0] * bins for activity in Activity}

    def __call__(self, span: Span) -> None:
        """Add a span; they come in order."""
        self.net[self._bin(span.begin_ms)] += span.before - self._reached
        self._reached = span.after
        new = max(0.0, span.after - max(self._most, span.before))
        self._most = max(self._most, span.after)
        turn_ms = span.begin_ms + span.again_ms
        self._spread(span.begin_ms, span.end_ms, self.net, span.after - span.before)
        cost = span.dollars_per_hour * (span.end_ms - span.begin_ms) / HOUR_MS
        self._spread(span.begin_ms, span.end_ms, self.dollars, cost)
        self._spread(turn_ms, span.end_ms, self.fresh, new)
        again = self.activity_ms[Activity.REPEATING]
        self._spread(span.begin_ms, turn_ms, again, span.again_ms)
        rest = self.activity_ms[span.activity]
        self._spread(turn_ms, span.end_ms, rest, span.end_ms - turn_ms)

    def samples_per_s(self) -> list[float]:
        """First-time samples per second in each bin."""
        return [1000 * samples / self._bin_ms for samples in self.fresh]

    def samples_per_dollar(self) -> list[float]:
        """First-time samples for a dollar in each bin; 0 where nothing is paid."""
        return [
            samples / dollars if dollars else 0.0
            for samples, dollars in zip(self.fresh, self.dollars, strict=True)
        ]

    def dollars_per_h(self) -> list[float]:
        """Dollars per hour in each bin."""
        return [dollars * HOUR_MS / self._bin_ms for dollars in self.dollars]

    def shares(self) -> dict[Activity, list[float]]:
        """The share of each bin by activity."""
        return {
            activity: [ms / self._bin_ms for ms in each]
            for activity, each in self.activity_ms.items()
        }

    def _bin(self, at_ms: float) -> int:
        return min(int(at_ms / self._bin_ms), self._last)

    def _spread(self, begin_ms: float, end_ms: float, into: list[float], amount: float) -> None:
        """Give each bin the part of an amount that its time has."""
        spread(begin_ms, end_ms, into, amount, self._bin_ms)


def spread(begin_ms: float, end_ms: float, into: list[float], amount: float, bin_ms: float) -> None:
    """Add an amount that comes evenly over a time to the bins that the time touches."""
    length = end_ms - begin_ms
    if length <= 0 or not amount:
        return
    last = len(into) - 1
    first, final = min(int(begin_ms / bin_ms), last), min(int(end_ms / bin_ms), last)
    if first == final:
        into[first] += amount
        return
    for index in range(first, final + 1):
        left = max(begin_ms, index * bin_ms)
        right = end_ms if index == final else (index + 1) * bin_ms
        into[index] += amount * (right - left) / length


def nodes(
    events: Iterable[FleetEvent], until_ms: int, bins: int = BINS
) -> dict[str, Sequence[float]]:
    """Zone -> the nodes that are rented, ready or not, the mean of each bin."""
    bin_ms = until_ms / bins
    found: dict[str, list[float]] = {}
    begun: dict[int, int] = {}
    zones: dict[int, str] = {}
    for at_ms, kind, _, node in events:
        if kind is ADD:
            begun[node.number], zones[node.number] = at_ms, node.zone
        elif kind is REMOVE:
            series = found.setdefault(node.zone, [0.0] * bins)
            begin_ms = begun.pop(node.number)
            spread(begin_ms, at_ms, series, (at_ms - begin_ms) / bin_ms, bin_ms)
    for number, begin_ms in begun.items():
        series = found.setdefault(zones[number], [0.0] * bins)
        spread(begin_ms, until_ms, series, (until_ms - begin_ms) / bin_ms, bin_ms)
    return dict(sorted(found.items()))
