"""How losses come: alone or together. A burst is a chain of losses with gaps of at most w."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from bamboo_sim.market.simulation.events import Kind
from bamboo_sim.market.traces.records import Count, Seen


@dataclass(frozen=True)
class Bursts:
    """Sizes of bursts, in the order of time."""

    sizes: tuple[int, ...]

    @property
    def histogram(self) -> dict[int, int]:
        """Size -> how many bursts have it."""
        return dict(sorted(Counter(self.sizes).items()))

    @property
    def share_together(self) -> float:
        """The share of lost nodes that were not alone in their burst."""
        return sum(size for size in self.sizes if size > 1) / max(1, sum(self.sizes))


def bursts(seen: Iterable[Seen], within_ms: int) -> Bursts:
    """The bursts of losses of named nodes."""
    return chains([event.at_ms for event in seen if event.kind is Kind.REMOVE], within_ms)


def chains(losses_ms: Iterable[int], within_ms: int) -> Bursts:
    """The bursts of losses at these times, in any order."""
    return Bursts(tuple(size for _, size in chains_of(losses_ms, within_ms)))


def chains_of(losses_ms: Iterable[int], within_ms: int) -> list[tuple[int, int]]:
    """The same, as the time of the first loss and the size of each."""
    found: list[tuple[int, int]] = []
    latest_ms = 0
    for at_ms in sorted(losses_ms):
        if found and at_ms - latest_ms <= within_ms:
            begin_ms, size = found[-1]
            found[-1] = begin_ms, size + 1
        else:
            found.append((at_ms, 1))
        latest_ms = at_ms
    return found


def drops(counts: Iterable[Count]) -> Bursts:
    """The drops between one count and the next in time; each is at least as many losses."""
    in_time = sorted(counts, key=lambda count: count.at_ms)
    steps = [after.nodes - before.nodes for before, after in pairwise(in_time)]
    return Bursts(tuple(-step for step in steps if step < 0))
