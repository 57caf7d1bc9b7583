"""The canonical sum: the order of additions behind a gradient, whatever the fleet does.

leaf(m) = m div L. A leaf sum adds its micro-batches in ascending order, from zero, in a buffer of
its own. A chunk is the left fold of its leaf sums. The gradient is the sum of a balanced binary
tree over the C chunks. For the reduction, every gradient is also cut into C slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


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

    @property
    def leaves(self) -> int:
        """n = G / L."""
        return self.microbatches // self.leaf_size

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
        n, c = self.leaves, self.chunks
        return range(-(-chunk * n // c), -(-(chunk + 1) * n // c))


def tree_order(width: int) -> Iterator[tuple[int, int]]:
    """Pairs (into, other) in the order of additions of a balanced binary tree.

    Each pair means ``x[into] += x[other]``; at the end ``x[0]`` is the sum. ``width``: number of
    summands, a power of two.
    """
    stride = 1
    while stride < width:
        for i in range(0, width, 2 * stride):
            yield i, i + stride
        stride *= 2


def choose(*, microbatches: int, pipelines: int, stages: int, pipelines_max: int) -> BatchShape:
    """L and C for a job.

    microbatches: G; pipelines: requested D; stages: P. ValueError if G < pipelines_max.
    """
    _check_batch(microbatches, max(pipelines, pipelines_max))
    count = chunks(pipelines, microbatches)
    agents = pipelines * stages
    leaf_size = 1
    if agents >= 3 and microbatches % pipelines == 0:
        size = 2
        while (microbatches // pipelines) % size == 0:
            enough = microbatches // size >= max(count, pipelines_max)
            load = -(-microbatches * stages // (size * (agents - 1))) * size
            fine = 100 * load <= 104 * -(-microbatches * stages // (agents - 1))
            if enough and fine:
                leaf_size = size
            size *= 2
    return BatchShape(microbatches, leaf_size, count)


def choose_fast(*, microbatches: int, pipelines: int, pipelines_max: int) -> BatchShape:
    """L and C for ``numerics: Fast``: the fewest leaves that ``pipelines_max`` pipelines can share.

    The number of leaves is a multiple of D if possible, so that each pipeline of a full grid sums
    its micro-batches as one leaf. microbatches: G; pipelines: requested D. ValueError if
    G < pipelines_max.
    """
    least = max(pipelines, pipelines_max)
    _check_batch(microbatches, least)
    counts = [n for n in range(least, microbatches + 1) if microbatches % n == 0]
    leaves = min(counts, key=lambda n: (n % pipelines != 0, n))
    return BatchShape(microbatches, microbatches // leaves, chunks(pipelines, leaves))


def _check_batch(microbatches: int, pipelines: int) -> None:
    if microbatches < pipelines:
        raise ValueError(
            f"{microbatches} micro-batches in the global batch are fewer than {pipelines} pipelines"
        )


def chunks(pipelines: int, most: int) -> int:
    """C: the smallest power of two >= D, halved while it exceeds ``most``."""
    count = 1
    while count < pipelines:
        count *= 2
    while count > most:
        count //= 2
    return count
