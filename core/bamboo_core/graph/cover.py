"""The sums that make up a stage's gradient: which runs of leaves, and who adds up each of them.

An agent that makes both parts of a run adds them up, so it sends one sum for each longest run that
is its own. The search goes from the whole gradient downward: a run that exists is taken as it is,
whatever exists of its parts. Those who reduce slices of a stage all add the same runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from bamboo_core.graph.holdings import HoldingsIndex
from bamboo_core.model.ids import AgentId, Range
from bamboo_core.model.numerics import BatchShape, middle


class Addend(NamedTuple):
    """The sum of a run of leaves."""

    run: Range
    agent: AgentId | None  # has or makes it; None: its slices exist


@dataclass
class Cover:
    """All of a stage's leaves. ``addends``: in order. ``fetched``: sums that an agent gets from one
    on short notice. ``leaves``: those to be computed."""

    addends: tuple[Addend, ...]
    fetched: frozenset[Range]
    leaves: tuple[int, ...]


def find(
    index: HoldingsIndex,
    batch: BatchShape,
    span: Range,
    owner: Callable[[int], AgentId],
) -> Cover:
    """The sums of one stage. owner: leaf -> the agent that computes it, or goes on with its sum."""
    search = _Search(index, batch, span, owner)
    addends = tuple(search.of_chunks(0, batch.chunks))
    return Cover(addends, frozenset(search.fetched), tuple(search.leaves))


class _Search:
    """One search. ``fetched`` and ``leaves``: as in :class:`Cover`."""

    def __init__(
        self,
        index: HoldingsIndex,
        batch: BatchShape,
        span: Range,
        owner: Callable[[int], AgentId],
    ) -> None:
        self._batch, self._owner = batch, owner
        self._sliced = index.sliced(span)
        self._sums = index.sums(span)
        self._going = index.short_notice
        self.fetched: list[Range] = []
        self.leaves: list[int] = []

    def of_chunks(self, first: int, end: int) -> list[Addend]:
        """The sums of an aligned row of chunks; one, if it exists or one agent makes it."""
        run = self._batch.leaves_of(first).start, self._batch.leaves_of(end - 1).stop
        if (found := self._existing(run)) is not None:
            return [found]
        if end - first == 1:
            return self._of_chunk(run)
        half = (first + end) // 2
        left, right = self.of_chunks(first, half), self.of_chunks(half, end)
        return self._merged(left, right) or [*left, *right]

    def _of_chunk(self, run: Range) -> list[Addend]:
        """The first leaves of a chunk, as far as one agent adds them up; then each other leaf."""
        first, end = run
        sums = [self._longest(first, end)]
        for leaf in range(sums[0].run[1], end):
            found = self._of_leaf(leaf)
            if len(sums) == 1 and (both := self._merged(sums, [found])):
                sums = both
            else:
                sums.append(found)
        return sums

    def _longest(self, first: int, end: int) -> Addend:
        """The sum of most leaves of the chunk that exists; else its first leaf."""
        known = {*self._sliced, *self._sums}
        for last in range(end - 1, first + 1, -1) if known else ():
            if (found := self._existing((first, last))) is not None:
                return found
        return self._of_leaf(first)

    def _of_leaf(self, leaf: int) -> Addend:
        run = leaf, leaf + 1
        found = self._existing(run)
        if found is None:
            self.leaves.append(leaf)
            found = Addend(run, self._owner(leaf))
        return found

    def _existing(self, run: Range) -> Addend | None:
        if run in self._sliced:
            return Addend(run, None)
        holders = self._sums.get(run)
        if not holders:
            return None
        staying = [agent for agent in holders if agent not in self._going]
        if staying:
            return Addend(run, staying[0])
        self.fetched.append(run)
        return Addend(run, self._successor(run))

    def _successor(self, run: Range) -> AgentId:
        """The agent that goes on with a sum of one on short notice: it has the chunk's next leaf,
        or else the first leaf."""
        first, end = run
        goes_on = end < self._batch.leaves and self._batch.chunk_of(end) == self._batch.chunk_of(
            end - 1
        )
        return self._owner(end if goes_on else first)

    @staticmethod
    def _merged(left: list[Addend], right: list[Addend]) -> list[Addend] | None:
        """Both as one sum, if one agent has both."""
        if len(left) > 1 or len(right) > 1:
            return None
        (a,), (b,) = left, right
        is_one = a.agent is not None and a.agent == b.agent
        return [Addend((a.run[0], b.run[1]), a.agent)] if is_one else None


def parts(batch: BatchShape, run: Range) -> tuple[Range, Range]:
    """The two runs that are added up to this one."""
    cut = middle(batch, run)
    return (run[0], cut), (cut, run[1])
