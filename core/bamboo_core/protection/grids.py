"""Small grids in the place of a job's own: shapes of steps, as the planner schedules them.

The unit is one forward of the costliest stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import NamedTuple

from bamboo_core.api.spec import RecoveryPolicy, RedundancyMode
from bamboo_core.graph.tasks import TaskGraph
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item
from bamboo_core.model.numerics import BatchShape, choose
from bamboo_core.planning.step_shape import StepShape
from bamboo_core.scheduling import device_memory, inflight, schedule
from bamboo_core.scheduling.candidates import Candidate
from bamboo_core.scheduling.costs import Costs
from bamboo_core.scheduling.item_bytes import wire_times
from bamboo_core.scheduling.schedule import Schedule
from bamboo_core.scheduling.sharing.dealing import pipelines_of

_PIPELINES, _STAGES, _FEW_STAGES = 2, 8, 4  # of a smaller grid
_MOST_TASKS = 512  # micro-batches of all its stages, as long as it has that many stages
_MOST_INTERRUPTED = 1600  # the same of a grid that loses an agent in the middle of a step
_MOST_LEAVES, _MOST_PIPELINES = 160, 64
_MOST_SLICES = 8  # of a forward


@dataclass(frozen=True)
class Shape:
    """The shape of a step, on which the figures depend. In an undisturbed step stages are equal:
    ``loads`` and the fields after it count after a loss."""

    pipelines: int  # D
    stages: int  # P
    microbatches: int  # M of one pipeline
    backward: float = 2.0  # B over F
    halves: float = 1.0  # I and W over B
    latency: float = 0.0  # of a boundary tensor, in forwards of a stage
    slices: int = 1  # layers of a stage, which the lane runs one at a time
    copied: float = 0.0  # time in which what a forward ahead keeps goes to host memory
    can_split: bool = False  # I and W may replace B
    spare: int | None = None  # activations beyond P - s that the device has room for; None: unknown
    policy: RecoveryPolicy = RecoveryPolicy.AUTO
    loads: tuple[float, ...] = ()  # stage -> its forward; empty: 1 each
    boundaries: tuple[float, ...] = ()  # stage -> time of its output; empty: the latency each
    sums: tuple[float, ...] = ()  # stage -> time in which a sum goes to another agent; empty: 0
    leaf_size: int = 1  # micro-batches in a sum
    room: int = 1 << 30  # forwards ahead that an agent can keep
    most_sums: float = inf  # of a gradient, for which an agent has memory
    batch: int = 0  # micro-batches of all pipelines; 0: M of each
    stands: float = 1.0  # micro-batches of the job for which one of these stands

    @property
    def total(self) -> int:
        """Micro-batches of all pipelines."""
        return self.batch or self.pipelines * self.microbatches

    @property
    def mean(self) -> float:
        """Micro-batches of a pipeline, on average."""
        return self.total / self.pipelines


def plain(shape: Shape) -> Shape:
    """The shape as far as an undisturbed step depends on it."""
    return replace(
        shape,
        loads=(),
        boundaries=(),
        sums=(),
        leaf_size=1,
        room=1 << 30,
        most_sums=inf,
        stands=1.0,
    )


def smaller(shape: Shape, rounds: int) -> Shape:
    """A shape that is computed fast, for what an undisturbed step of it says.

    rounds: its M over P, at most. Its gradients take as long as those of the job.
    """
    stages = min(shape.stages, _STAGES)
    microbatches = min(shape.microbatches, rounds * stages)
    return _resized(shape, min(shape.pipelines, _PIPELINES), stages, microbatches)


def interrupted(shape: Shape) -> Shape:
    """As :func:`alike`, but with all stages of the job as long as that takes a second: they say how
    many micro-batches are in flight, and are begun again, when an agent is lost, and which agents
    have time for them."""
    small = alike(shape)
    stages = min(_MOST_INTERRUPTED // small.total, schedule.MANY // small.pipelines)
    found = small if stages <= small.stages else _alike(shape, stages)
    # what is in flight at a loss weighs more here than in the job, so waits are not longer, too
    return replace(found, stands=1.0)


def alike(shape: Shape) -> Shape:
    """A smaller shape in which lost work is shared as in the job: with as many pipelines and leaves
    as the job has, and so with as many sums of gradients, but with fewer stages.

    A micro-batch of it stands for a leaf of the job, or for several ones if the leaves are too
    many. So gradients take a part of their time: in comparison with what is computed they are as
    long as in the job.
    """
    return _alike(shape, max(_FEW_STAGES, _MOST_TASKS // _leaves(shape)))


def _alike(shape: Shape, stages: int) -> Shape:
    """stages: at most."""
    count = _leaves(shape)
    pipelines = min(shape.pipelines, _MOST_PIPELINES)
    found = _resized(shape, pipelines, min(shape.stages, stages), -(-count // pipelines))
    found = replace(found, leaf_size=1, batch=count)
    part = found.mean / shape.mean
    sums = tuple(x * part for x in found.sums)
    return replace(found, sums=sums, stands=shape.stands / part)


def _leaves(shape: Shape) -> int:
    """Micro-batches of a shape that is alike."""
    pipelines = min(shape.pipelines, _MOST_PIPELINES)
    leaves = max(pipelines, round(shape.mean * pipelines / shape.leaf_size))
    each = -(-leaves // _MOST_LEAVES)
    return leaves if each == 1 else pipelines * max(1, round(leaves / each / pipelines))


def _resized(shape: Shape, pipelines: int, stages: int, microbatches: int) -> Shape:
    places = _places(shape, stages)
    return replace(
        shape,
        pipelines=pipelines,
        stages=stages,
        microbatches=microbatches,
        batch=0,
        slices=1 << (min(shape.slices, _MOST_SLICES).bit_length() - 1),  # exact in binary
        loads=tuple(shape.loads[s] for s in places if shape.loads),
        boundaries=tuple(shape.boundaries[s] for s in places if shape.boundaries),
        sums=tuple(shape.sums[s] for s in places if shape.sums),
        room=min(shape.room, microbatches),  # no lane has more, and equal shapes are computed once
    )


def _places(shape: Shape, stages: int) -> list[int]:
    """Stages of the shape that so many ones of a small grid stand for: as far from each other as
    can be, but the costliest is one of them, for which the others wait."""
    places = [place(s, stages, shape.stages) for s in range(stages)]
    loads = [shape.loads[s] for s in places if shape.loads]
    if loads and max(loads) < max(shape.loads):
        costliest = shape.loads.index(max(shape.loads))
        nearest = min(
            range(stages), key=lambda s: (s in (0, stages - 1), abs(places[s] - costliest))
        )
        places[nearest] = costliest
    return places


def fewer(shape: Shape, pipelines: int) -> Shape:
    """The same batch on fewer pipelines."""
    rounds = -(-shape.total // pipelines)
    return replace(shape, pipelines=pipelines, microbatches=rounds, batch=shape.total)


def near(shape: Shape) -> int:
    """Stages that the work of a lost agent reaches: chains of stages that share it wait for each
    other, so that a step of twelve stages loses as much as one of eight."""
    return min(shape.stages, _STAGES)


def place(stage: int, stages: int, others: int) -> int:
    """The stage of a grid of ``others`` that is as far from the first one and from the last one."""
    return round(stage * (others - 1) / max(1, stages - 1))


@dataclass(frozen=True)
class Layered(StepShape):
    """A step whose stages have several layers each, planned as if messages took no time, as the
    planner orders a step; it counts with the network only when it spreads lost work."""

    slices: int = 1
    boundaries: tuple[float, ...] = ()  # stage -> time of its output, if gradients take time, too

    def wire(self) -> Callable[[Item], float] | None:
        firsts = (lo for lo, _ in self.cut[1:])
        between = dict(zip(firsts, self.boundaries, strict=False))  # the last has no output
        return wire_times(self.sums, between) if self.transfer else None

    def build(
        self,
        tasks: TaskGraph | None = None,
        shared: Candidate | None = None,
    ) -> Schedule:
        if self.timing.latency:
            alone = replace(self, costs=replace(self.timing, latency=0.0))
            return alone.build(tasks, shared)
        return super().build(tasks, shared)

    @property
    def cut(self) -> tuple[tuple[int, int], ...]:
        n = self.slices
        return tuple((s * n, (s + 1) * n) for s in range(self.stages))

    def holders(self) -> list[list[AgentId]]:
        held = self.wants()
        return [
            [a for a in self.live if any(lo <= first < hi for lo, hi in held[a])]
            for first, _ in self.cut
        ]


class Planned(NamedTuple):
    """A step with its schedule."""

    step: Layered
    made: Schedule


def whole(shape: Shape, mode: RedundancyMode) -> Planned:
    """As the planner schedules a full grid (bamboo_core.scheduling.inflight): in the variant that
    ends first, slices of gradients included."""
    return _whole(replace(shape, leaf_size=1, room=1 << 30, most_sums=inf, stands=1.0), mode)


@lru_cache(maxsize=32)
def _whole(shape: Shape, mode: RedundancyMode) -> Planned:
    """The plan without what counts only if work is lost."""
    step = _step(shape, mode)
    fused = Planned(step, step.build())
    if not shape.can_split:
        return fused
    step = replace(step, split=True, extra=shape.spare or 0)
    split = Planned(step, step.build())
    price = (inflight.WORTH - 1) * split.made.length
    return split if split.made.end + price < fused.made.end else fused


def without(shape: Shape, mode: RedundancyMode, stage: int, *, split: bool) -> Layered:
    """The step with an empty seat in the first pipeline. split: I and W instead of B."""
    extra = device_memory.BEYOND if shape.spare is None else shape.spare
    extra = round(extra / shape.stands)  # else waits would be bridged that are longer in the job
    return replace(_step(shape, mode), lost=((0, stage),), extra=extra, split=split)


def _step(shape: Shape, mode: RedundancyMode) -> Layered:
    """Without an empty seat, and with fused backwards."""
    n = shape.slices
    loads = shape.loads or (1.0,) * shape.stages
    one = tuple(load / n for load in loads for _ in range(n))
    fused = tuple(x * shape.backward for x in one)
    half = tuple(x * shape.halves / 2 for x in fused) if shape.can_split else fused
    batch = batch_of(shape)
    return Layered(
        shape.pipelines,
        shape.stages,
        batch,
        mode=mode,
        policy=shape.policy,
        most_sums=shape.most_sums,
        costs=Costs(
            one,
            fused,
            half,
            half,
            0.0 if shape.sums else shape.latency,
            ahead=tuple(x * (1 + shape.copied) for x in one),
        ),
        slices=n,
        transfer=shape.sums,
        boundaries=shape.boundaries or (shape.latency,) * shape.stages,
    )


def batch_of(shape: Shape) -> BatchShape:
    """How the small grid adds up its gradients."""
    return choose(microbatches=shape.total, pipelines_max=shape.pipelines)


def busiest(shape: Shape) -> int:
    """Micro-batches of the pipeline that gets most of them."""
    batch = batch_of(shape)
    return batch.leaf_size * max(Counter(pipelines_of(batch, shape.pipelines)).values())
