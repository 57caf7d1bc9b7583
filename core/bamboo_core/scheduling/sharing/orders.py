"""In which order the leaves of a step are processed. It changes no number: only when sums are done.

In each pipeline, leaves that the same agents compute form a group. Groups are spread evenly over
the step, so that agents that share a pipeline have work all the time. Within a group the leaves of
small sums come first and those of the largest last: the small ones are sent meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from bamboo_core.model.ids import AgentId
from bamboo_core.model.numerics import BatchShape, fewest, running
from bamboo_core.scheduling.sharing.dealing import pipelines_of
from bamboo_core.scheduling.sharing.step_work import WorkMap


def positions(batch: BatchShape, work: WorkMap, pipelines: int) -> tuple[int, ...]:
    """Micro-batch -> its place in the step. pipelines: among which the leaves were dealt.

    The leaves of a chunk keep their order in a pipeline: they are added one after the other, and
    one that comes too early would have to be kept.
    """
    stages = 1 + max(stage for stage, _ in work)
    dealt = pipelines_of(batch, pipelines)
    place = [0] * batch.leaves
    own: list[list[int]] = [[] for _ in range(pipelines)]
    for leaf, d in enumerate(dealt):
        own[d].append(leaf)
    for leaves in own:
        for at, leaf in enumerate(_in_turn(batch, _groups(batch, work, stages, leaves))):
            place[leaf] = at
    size = batch.leaf_size
    return tuple(place[batch.leaf_of(m)] * size + m % size for m in range(batch.microbatches))


@lru_cache(maxsize=64)
def undisturbed(batch: BatchShape, pipelines: int) -> tuple[tuple[int, ...], ...]:
    """Pipeline -> its leaves in the order of the step, while no seat is empty."""
    own: list[list[int]] = [[] for _ in range(pipelines)]
    for leaf, d in enumerate(pipelines_of(batch, pipelines)):
        own[d].append(leaf)
    return tuple(tuple(_small_first(batch, leaves)) for leaves in own)


@lru_cache(maxsize=64)
def sums_in_turn(batch: BatchShape, pipelines: int) -> tuple[tuple[int, ...], ...]:
    """Pipeline -> sums of a stage's gradient that an agent of a full grid holds at each of its
    leaves, in the order of the step: of that leaf, and one for each level of the tree on which it
    waits for the other half."""
    is_growing = batch.leaf_size > 1  # the leaf comes before it is done
    every = (running(batch, leaves)[1] for leaves in undisturbed(batch, pipelines))
    return tuple(tuple([is_growing + count for count in held]) for held in every)


def sums_at_once(batch: BatchShape, pipelines: int) -> int:
    """The most of :func:`sums_in_turn`."""
    return max(count for held in sums_in_turn(batch, pipelines) for count in held)


def _in_turn(batch: BatchShape, groups: Sequence[Sequence[int]]) -> list[int]:
    turns: list[tuple[float, int]] = []
    for group in groups:
        ordered = _small_first(batch, group)
        turns += [((at + 0.5) / len(group), leaf) for at, leaf in enumerate(ordered)]
    return [leaf for _, leaf in sorted(turns)]


def _small_first(batch: BatchShape, leaves: Sequence[int]) -> list[int]:
    """Those of a chunk go together, with the smallest of its sums."""
    turn: dict[int, tuple[int, int]] = {}
    of_chunk: dict[int, int] = {}
    for lo, hi in sorted(fewest(batch, leaves), key=lambda x: (x[1] - x[0], x[0])):
        first = of_chunk.setdefault(batch.chunk_of(lo), len(of_chunk))
        turn |= {leaf: (first, leaf) for leaf in range(lo, hi)}
    return sorted(leaves, key=turn.__getitem__)


def _groups(
    batch: BatchShape, work: WorkMap, stages: int, leaves: Sequence[int]
) -> list[list[int]]:
    """Leaves of one pipeline by the agents that compute them. Those of chunks whose leaves have
    different agents are one group, in the order of their numbers."""
    agents = {leaf: tuple([work[s, leaf] for s in range(stages)]) for leaf in leaves}
    chunks: dict[int, set[tuple[AgentId, ...]]] = {}
    for leaf in leaves:
        chunks.setdefault(batch.chunk_of(leaf), set()).add(agents[leaf])
    whole: dict[tuple[AgentId, ...], list[int]] = {}
    mixed: list[int] = []
    for leaf in leaves:
        is_mixed = len(chunks[batch.chunk_of(leaf)]) > 1
        (mixed if is_mixed else whole.setdefault(agents[leaf], [])).append(leaf)
    return [*whole.values(), *([mixed] if mixed else [])]
