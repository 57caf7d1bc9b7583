"""Which leaves belong to which pipeline: by the binary expansion of 1/D, so that sums are few.

A node is an aligned run of 1, 2, 4, ... chunks, whose sum is one inner node of the canonical tree.
A pipeline that has all leaves of a node sends one sum for it. From the largest nodes to the
smallest, each pipeline takes a node while it fits into its part of the batch. What is left of the
smallest nodes, single chunks, is cut: a prefix, whose sum is one too, and single leaves.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import NamedTuple

from bamboo_core.model.numerics import BatchShape, fewest, middle

_EVEN = 1.05  # the largest part over the mean
_FEW = 3  # sums of a pipeline


class Run(NamedTuple):
    """Leaves whose sum is sent as one."""

    share: int
    lo: int  # first leaf
    hi: int

    @property
    def leaves(self) -> range:
        """Its leaves, ascending."""
        return range(self.lo, self.hi)


@lru_cache(maxsize=64)
def pipelines_of(batch: BatchShape, pipelines: int) -> tuple[int, ...]:
    """Leaf -> its pipeline, while no seat is empty. It depends on the job and on D only."""
    out = [0] * batch.leaves
    for run in deal(batch, range(batch.leaves), pipelines):
        for leaf in run.leaves:
            out[leaf] = run.share
    return tuple(out)


def deal(batch: BatchShape, leaves: Sequence[int], shares: int) -> tuple[Run, ...]:
    """Deal these leaves (ascending) into so many shares of about equal size. Deterministic.

    No share exceeds the mean by more than 5 %, or than a leaf where that is more. Among the deals
    that keep this, the one with the fewest sums in a share is taken, down to three; then the most
    even one.
    """
    return _dealt(batch, _runs(leaves), shares)


@lru_cache(maxsize=512)
def _dealt(batch: BatchShape, leaves: tuple[tuple[int, int], ...], shares: int) -> tuple[Run, ...]:
    count = sum(hi - lo for lo, hi in leaves)
    if shares == 1 or not count:
        return tuple(Run(0, lo, hi) for lo, hi in fewest(batch, _leaves(leaves)))
    even = -(-count // shares)
    most = max(even, int(_EVEN * count / shares))
    whole = tuple(fewest(batch, _leaves(leaves)))
    deals = (
        _Deal(batch, shares, limit, largest, fills=fills).run(whole)
        for limit in range(even, most + 1)
        for largest in (limit, max(1, count // shares))
        for fills in (False, True)
    )
    return min(deals, key=_rank).runs()


def _rank(deal: _Deal) -> tuple[bool, int, int, int]:
    is_idle = not min(deal.load) and sum(deal.load) >= len(deal.load)
    return is_idle, max(_FEW, *deal.sums), max(deal.load), sum(deal.sums)


class _Deal:
    """One attempt. limit: most leaves of a share; largest: of a node that is not halved; fills: the
    fullest share in which a node fits takes it, else the emptiest."""

    def __init__(
        self, batch: BatchShape, shares: int, limit: int, largest: int, *, fills: bool
    ) -> None:
        self._batch, self._limit, self._largest, self._fills = batch, limit, largest, fills
        self.load, self.sums = [0] * shares, [0] * shares
        self._runs: list[Run] = []

    def run(self, nodes: Collection[tuple[int, int]]) -> _Deal:
        left = sorted(nodes, key=lambda x: (x[0] - x[1], x[0]))
        while left:
            size = left[0][1] - left[0][0]
            same = [x for x in left if x[1] - x[0] == size]
            left = left[len(same) :]
            for lo, hi in same:
                share = self._taker(size)
                if share is not None:
                    self._give(share, lo, hi)
                elif self._batch.chunk_of(lo) == self._batch.chunk_of(hi - 1):
                    self._cut(lo, hi)
                else:
                    cut = middle(self._batch, (lo, hi))
                    left += [(lo, cut), (cut, hi)]
            left.sort(key=lambda x: (x[0] - x[1], x[0]))
        return self

    def runs(self) -> tuple[Run, ...]:
        return tuple(sorted(self._runs, key=lambda x: x.lo))

    def _taker(self, size: int) -> int | None:
        if size > self._largest:
            return None
        able = [q for q, load in enumerate(self.load) if load + size <= self._limit]
        sign = -1 if self._fills else 1
        return min(
            able,
            key=lambda q: (self.sums[q] >= _FEW, sign * self.load[q], self.sums[q], q),
            default=None,
        )

    def _cut(self, lo: int, hi: int) -> None:
        """A prefix of the chunk to the share with most room, the other leaves one by one."""
        while lo < hi:
            able = [q for q, load in enumerate(self.load) if load < self._limit]
            share = min(able, key=lambda q: (self.sums[q] >= _FEW, self.load[q], self.sums[q], q))
            is_prefix = lo == self._batch.starts[self._batch.chunk_of(lo)]
            room = min(self._limit - self.load[share], self._largest, hi - lo)
            size = room if is_prefix else 1
            self._give(share, lo, lo + size)
            lo += size

    def _give(self, share: int, lo: int, hi: int) -> None:
        self.load[share] += hi - lo
        self.sums[share] += 1
        self._runs.append(Run(share, lo, hi))


def _runs(leaves: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Ascending numbers as runs, which are shorter."""
    if isinstance(leaves, range) and leaves.step == 1:
        return ((leaves.start, leaves.stop),) if leaves else ()
    out: list[tuple[int, int]] = []
    for leaf in leaves:
        if out and out[-1][1] == leaf:
            out[-1] = out[-1][0], leaf + 1
        else:
            out.append((leaf, leaf + 1))
    return tuple(out)


def _leaves(runs: Collection[tuple[int, int]]) -> list[int]:
    return [x for lo, hi in runs for x in range(lo, hi)]
