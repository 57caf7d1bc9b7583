"""Sums over a recorded fleet, in blocks of time, from which every figure of a fit follows."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bamboo_sim.market.simulation.events import Kind
from bamboo_sim.market.simulation.outcome import HOUR_MS
from bamboo_sim.market.traces.records import Seen
from bamboo_sim.market.traces.trace import ON_DEMAND, Trace, is_spot_loss

BLOCKS = 30
"""How many blocks a trace is cut into."""


@dataclass
class Block:
    """Sums over one block of time. Hours are of spot nodes; ``gap*`` are node-hours between the
    begins of two bursts, counted where the second one begins. A node is missing from its loss until
    a node comes for it, the first one lost first."""

    hours: float = 0.0
    node_hours: float = 0.0
    losses: int = 0
    bursts: int = 0
    bulks: int = 0
    losses_in_bulks: int = 0
    gaps: int = 0
    gap_sum: float = 0.0
    gap_squares: float = 0.0
    missing_hours: float = 0.0
    refills: int = 0


SUMS = tuple(Block.__dataclass_fields__)


@dataclass
class Tally:
    """``gaps``: minutes between the begins of bursts; ``refills``: minutes from each loss until a
    node came for it, ``unfilled``: losses for which none came; ``next_additions``: minutes from the
    begin of each burst until any node came, where one did."""

    blocks: list[Block]
    sizes: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    refills: list[float] = field(default_factory=list)
    unfilled: int = 0
    next_additions: list[float] = field(default_factory=list)
    least_nodes: int = 0
    most_nodes: int = 0


def tally(trace: Trace, within_ms: int, blocks: int = BLOCKS) -> Tally:
    """The sums of a trace that lasts longer than 0 ms. Losses of a burst count in the block in
    which it begins."""
    cut = _Cut(trace.begin_ms, trace.end_ms, blocks)
    found = Tally(cut.blocks)
    spot = [event for event in trace.seen() if event.capacity != ON_DEMAND]
    clock = _lives(spot, cut, found)
    bursts = trace.bursts(within_ms)
    _bursts(bursts, clock, cut, found)
    if trace.has_names:
        _refills(spot, cut, found)
        additions = sorted({event.at_ms for event in spot if event.kind is Kind.ADD})
        for begin_ms, _ in bursts:
            after = bisect_right(additions, begin_ms)
            if after < len(additions):
                found.next_additions.append((additions[after] - begin_ms) / 60_000)
    return found


class _Cut:
    """The time of a trace in blocks of equal length."""

    def __init__(self, begin_ms: int, end_ms: int, blocks: int) -> None:
        self.begin_ms, self.end_ms = begin_ms, end_ms
        self._block_ms = (end_ms - begin_ms) / blocks
        self.blocks = [Block(hours=self._block_ms / HOUR_MS) for _ in range(blocks)]

    def at(self, at_ms: int) -> Block:
        index = int((at_ms - self.begin_ms) / self._block_ms)
        return self.blocks[min(index, len(self.blocks) - 1)]

    def spread(self, begin_ms: int, end_ms: int, nodes: int, name: str) -> None:
        """Add node-hours to the blocks that a time touches."""
        if not nodes or begin_ms == end_ms:
            return
        first = int((begin_ms - self.begin_ms) / self._block_ms)
        for index in range(first, len(self.blocks)):
            left = self.begin_ms + index * self._block_ms
            if left >= end_ms:
                break
            is_last = index == len(self.blocks) - 1
            right = self.end_ms if is_last else left + self._block_ms
            hours = max(0.0, min(right, end_ms) - max(left, begin_ms)) / HOUR_MS
            block = self.blocks[index]
            setattr(block, name, getattr(block, name) + nodes * hours)


def _lives(spot: Sequence[Seen], cut: _Cut, found: Tally) -> dict[int, float]:
    """Node-hours; the answer has those before each instant at which nodes came or went. The range
    counts nodes between two instants, and the time before the first loss has no least."""
    clock: dict[int, float] = {}
    total, live, now = 0.0, 0, cut.begin_ms
    least: int | None = None
    has_lost = False
    for event in spot:
        if event.at_ms > now:
            total += live * (event.at_ms - now) / HOUR_MS
            cut.spread(now, event.at_ms, live, "node_hours")
            if has_lost:
                least = live if least is None else min(least, live)
            found.most_nodes = max(found.most_nodes, live)
            now = event.at_ms
        clock[event.at_ms] = total
        live += 1 if event.kind is Kind.ADD else -1
        has_lost = has_lost or is_spot_loss(event)
    cut.spread(now, cut.end_ms, live, "node_hours")
    found.most_nodes = max(found.most_nodes, live)
    found.least_nodes = live if least is None else min(least, live)
    return clock


def _bursts(
    bursts: Iterable[tuple[int, int]], clock: dict[int, float], cut: _Cut, found: Tally
) -> None:
    before_ms: int | None = None
    for at_ms, size in bursts:
        block = cut.at(at_ms)
        block.bursts += 1
        block.losses += size
        if size > 1:
            block.bulks += 1
            block.losses_in_bulks += size
        found.sizes.append(size)
        if before_ms is not None:
            gap = clock[at_ms] - clock[before_ms]
            block.gaps += 1
            block.gap_sum += gap
            block.gap_squares += gap**2
            found.gaps.append((at_ms - before_ms) / 60_000)
        before_ms = at_ms


def _refills(spot: Sequence[Seen], cut: _Cut, found: Tally) -> None:
    missing: deque[int] = deque()
    now = cut.begin_ms
    for event in spot:
        cut.spread(now, event.at_ms, len(missing), "missing_hours")
        now = event.at_ms
        if is_spot_loss(event):
            missing.append(event.at_ms)
        elif event.kind is Kind.ADD and missing:
            found.refills.append((event.at_ms - missing.popleft()) / 60_000)
            cut.at(event.at_ms).refills += 1
    cut.spread(now, cut.end_ms, len(missing), "missing_hours")
    found.unfilled = len(missing)
