"""The canonical sum: the order of additions behind a gradient, whatever the fleet does.

leaf(m) = m div L. A leaf sum adds its micro-batches in ascending order, from zero, in a buffer of
its own. A chunk is the left fold of its leaf sums. The gradient is the sum of a balanced binary
tree over the C chunks. So every sum on the way is that of a run of leaves: one leaf, the first
leaves of a chunk, or all leaves of an aligned row of chunks. A run has one form: whoever adds it up
gets the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeVar

from bamboo_core.model.ids import Range

_T = TypeVar("_T")


@dataclass(frozen=True)
class BatchShape:
    """How a global batch is summed. It depends on the job, never on the fleet."""

    microbatches: int  # G, in the global batch
    leaf_size: int  # L, micro-batches per leaf
    chunks: int  # C, a power of two

    def __post_init__(self) -> None:
        if self.leaf_size < 1 or self.microbatches % self.leaf_size:
            raise ValueError(
                f"leaf_size {self.leaf_size} does not divide {self.microbatches} micro-batches"
            )
        if self.chunks < 1 or self.chunks & (self.chunks - 1) or self.chunks > self.leaves:
            raise ValueError(
                f"chunks {self.chunks} must be a power of two of at most {self.leaves} leaves"
            )

    @cached_property
    def leaves(self) -> int:
        """n = G / L."""
        return self.microbatches // self.leaf_size

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first leaf of each chunk, and the number of leaves."""
        return tuple(-(-chunk * self.leaves // self.chunks) for chunk in range(self.chunks + 1))

    def leaf_of(self, microbatch: int) -> int:
        """The leaf to which the micro-batch belongs."""
        return microbatch // self.leaf_size

    def microbatches_of(self, leaf: int) -> range:
        """The micro-batches of a leaf, ascending."""
        return range(leaf * self.leaf_size, (leaf + 1) * self.leaf_size)

    def chunk_of(self, leaf: int) -> int:
        """The chunk to which the leaf belongs."""
        return leaf * self.chunks // self.leaves

    def leaves_of(self, chunk: int) -> range:
        """The leaves of a chunk, ascending."""
        return range(self.starts[chunk], self.starts[chunk + 1])


def middle(batch: BatchShape, run: Range) -> int:
    """Where a run of two or more leaves is cut in two: its sum is that of the first part plus that
    of the second. ValueError if the run has no sum of its own."""
    cut = _middle(batch, *run)
    if cut is None:
        raise ValueError(f"leaves {run[0]} to {run[1] - 1} have no sum of their own")
    return cut


def _middle(batch: BatchShape, first: int, end: int) -> int | None:
    starts, chunk = batch.starts, batch.chunk_of(first)
    if starts[chunk] != first:
        return None
    if end <= starts[chunk + 1]:
        return end - 1 if end - first > 1 else None
    count = batch.chunk_of(end - 1) + 1 - chunk
    is_aligned = not (count & (count - 1) or chunk % count)
    return starts[chunk + count // 2] if is_aligned and starts[chunk + count] == end else None


def fewest(batch: BatchShape, leaves: Iterable[int]) -> list[Range]:
    """The fewest runs with sums that hold exactly these leaves, ascending: whole aligned rows of
    chunks; of a chunk that is not whole, its first leaves as one and each other leaf."""
    return list(_fewest(batch, tuple(sorted(leaves))))


@lru_cache(maxsize=1024)  # those of one agent stay the same while other agents' are shared
def _fewest(batch: BatchShape, leaves: tuple[int, ...]) -> tuple[Range, ...]:
    return tuple(running(batch, leaves)[0])


def running(batch: BatchShape, leaves: Iterable[int]) -> tuple[list[Range], list[int]]:
    """The runs whose sums an agent sends that makes these leaves, in this order, and for each leaf
    how many sums it has once it has made the leaf, with that one."""
    runs: list[Range] = []
    held: list[int] = []
    for leaf in leaves:
        runs.append((leaf, leaf + 1))
        held.append(len(runs))
        while len(runs) > 1 and _is_sum(batch, runs[-2], runs[-1]):
            runs[-2:] = [(runs[-2][0], runs[-1][1])]
    return runs, held


def _is_sum(batch: BatchShape, left: Range, right: Range) -> bool:
    """Whether both are added up to the sum of one run."""
    return left[1] == right[0] == _middle(batch, left[0], right[1])


def reduction(batch: BatchShape, runs: Sequence[Range]) -> list[int]:
    """The order in which sums of these runs are added up to the gradient.

    runs: they cover all leaves, in order. Each number p means: add number p + 1 of those that are
    left to number p, and take it out. ValueError if the runs do not cover all leaves, each once, or
    have no such order.
    """
    ends = [0, *(end for _, end in runs)]
    if [first for first, _ in runs] != ends[:-1] or ends[-1] != batch.leaves:
        raise ValueError(f"{list(runs)} are not the {batch.leaves} leaves")
    left, order = set(runs), list[int]()
    _reduce(batch, (0, batch.leaves), left, 0, order)
    if left:
        raise ValueError(f"{sorted(left)} have no sum of their own")
    return order


def _reduce(batch: BatchShape, run: Range, left: set[Range], at: int, order: list[int]) -> None:
    """Add up the run, whose first part is number ``at`` of those that are left."""
    todo = [run]
    while (begin := todo[-1]) not in left:
        todo.append((begin[0], middle(batch, begin)))
    left.discard(todo.pop())
    while todo:
        whole = todo.pop()
        _reduce(batch, (middle(batch, whole), whole[1]), left, at + 1, order)
        order.append(at)


def add_up(
    batch: BatchShape, runs: Sequence[Range], sums: Sequence[_T], add: Callable[[_T, _T], _T]
) -> _T:
    """The gradient from the sums of these runs, in the one order that there is."""
    left = list(sums)
    for at in reduction(batch, runs):
        left[at : at + 2] = [add(left[at], left[at + 1])]
    (total,) = left
    return total


_LEAVES = 128
"""A batch of at least as many micro-batches has at least as many leaves, so that 8 pipelines that
have lost an agent still share them evenly."""
_MOST = 8  # micro-batches in a leaf: 256 pipelines of as many micro-batches still share them


def choose(*, microbatches: int, pipelines_max: int) -> BatchShape:
    """L and C for a job, from its number of micro-batches alone: every grid gives the same bits.

    microbatches: G. ValueError if there are fewer leaves than ``pipelines_max``.
    """
    size = 1
    while size < _MOST and microbatches % (2 * size) == 0 and microbatches >= 2 * size * _LEAVES:
        size *= 2
    leaves = microbatches // size
    if leaves < pipelines_max:
        text = f"{microbatches} micro-batches in the global batch"
        if size > 1:
            text += f", which are added up by {size},"
        raise ValueError(f"{text} are fewer than {pipelines_max} pipelines")
    chunks = 1 << (max(leaves // 4, min(leaves, 16)).bit_length() - 1)
    return BatchShape(microbatches, size, chunks)
