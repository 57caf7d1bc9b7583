"""DiffuseChunks: as Diffuse, but whole chunks move, so that fewer sums are sent."""

from __future__ import annotations

from math import ceil

from bamboo_core.model.ids import AgentId
from bamboo_core.scheduling.sharing.assignment import Assignment
from bamboo_core.scheduling.sharing.blocks import Blocks
from bamboo_core.scheduling.sharing.rebalancing import Rebalancing
from bamboo_core.scheduling.sharing.step_work import StepWork, Work, WorkMap

_OWNERS = 4  # of a stage in a pipeline: each of its other agents holds a running sum for each share

_SLICES = 2  # of a sum: in the time that they take, a chain of moves pays


def diffuse_chunks(step: StepWork) -> WorkMap | None:
    """At most four agents share a stage of a pipeline. None: chunks are as large as pipelines."""
    blocks = Blocks(step)
    if blocks.are_whole:
        return None
    task = Assignment(blocks.step)
    for work in blocks.step.orphans:
        owners = task.owners(work)
        task.give(work, list(owners) if len(owners) >= _OWNERS else ())
    Rebalancing(task, _OWNERS).run(above=_enough(blocks.step))
    return blocks.apart(_aligned(task))


def _enough(step: StepWork) -> float:
    """The load that agents reach if each has as many chunks as the mean, rounded up. To relieve one
    with less takes a sum for each stage on the way, for less than a chunk. So it must have more by
    what two slices of a sum take an interface (two: measured from 10 to 100 Gb/s)."""
    chunk = max(step.weight.values())
    if not chunk:  # all leaves are finished
        return 0.0
    mean = sum(step.weight.values()) / len(step.agents)
    sums = zip(step.transfer, step.able, strict=False)
    slices = max((_SLICES * time / len(able) for time, able in sums), default=0.0)
    return ceil(mean / chunk) * chunk + min(slices, max(step.loads.values()))


def _aligned(task: Assignment) -> WorkMap:
    """The same agents as often as before in each (stage, pipeline), each with blocks that follow
    each other: the agent with most has the first ones."""
    step, out = task.step, dict(task.map)
    groups: dict[tuple[int, int], list[Work]] = {}
    for work in sorted(task.map):
        if work not in step.pinned and step.weight.get(work, 1.0) > 0:
            groups.setdefault((work[0], step.pipelines[work[1]]), []).append(work)
    for works in groups.values():
        counts: dict[AgentId, int] = {}
        for work in works:
            counts[task.map[work]] = counts.get(task.map[work], 0) + 1
        ordered = sorted(counts, key=lambda a: (-counts[a], a))
        each = [agent for agent in ordered for _ in range(counts[agent])]
        out |= zip(works, each, strict=True)
    return out
