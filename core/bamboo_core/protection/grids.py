"""Small grids in the place of a job's own: shapes of steps, as the planner schedules them.

The unit is one forward of the costliest stage.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from bamboo_core.api.spec import RecoveryPolicy, RedundancyMode
from bamboo_core.graph.tasks import TaskGraph
from bamboo_core.model.ids import AgentId
from bamboo_core.model.numerics import BatchShape, choose
from bamboo_core.planning.step_shape import StepShape
from bamboo_core.scheduling import device_memory, inflight
from bamboo_core.scheduling.candidates import Candidate
from bamboo_core.scheduling.costs import Costs
from bamboo_core.scheduling.schedule import Schedule

_PIPELINES, _STAGES, _FEW_STAGES = 4, 8, 6  # of the largest grid that is computed
_MOST_TASKS = 288  # micro-batches of all its stages
_LEAST_ROUNDS = 2  # M over P, even if that makes more tasks
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
    sums: tuple[float, ...] = ()  # stage -> time in which a sum goes to another agent; empty: 0
    leaf_size: int = 1  # micro-batches in a sum
    room: int = 1 << 30  # forwards ahead that an agent can keep
    relays: bool = True  # whether agents may pass gradients on


def plain(shape: Shape) -> Shape:
    """The shape as far as an undisturbed step depends on it."""
    return replace(shape, loads=(), sums=(), leaf_size=1, room=1 << 30)


def smaller(shape: Shape, rounds: int = 0, *, is_wide: bool = False) -> Shape:
    """A shape that is computed fast. rounds: its M over P, at most; 0: as many as are fast;
    is_wide: it has as many pipelines as can be, and so fewer stages."""
    is_wide = is_wide or _is_slow(shape)
    stages, usual = _near(shape, is_wide), _PIPELINES if is_wide else 2
    few = min(shape.pipelines, usual)
    rounds = rounds or max(_LEAST_ROUNDS, _MOST_TASKS // (few * stages * stages))
    microbatches = min(shape.microbatches, rounds * stages)
    most = min(_PIPELINES, max(few, _MOST_TASKS // (stages * microbatches)))
    places = [place(s, stages, shape.stages) for s in range(stages)]
    return replace(
        shape,
        pipelines=min(shape.pipelines, most),
        stages=stages,
        microbatches=microbatches,
        slices=1 << (min(shape.slices, _MOST_SLICES).bit_length() - 1),  # exact in binary
        loads=tuple(shape.loads[s] for s in places if shape.loads),
        sums=tuple(shape.sums[s] for s in places if shape.sums),
        room=min(shape.room, microbatches),  # no lane has more, and equal shapes are computed once
    )


def fewer(shape: Shape, pipelines: int) -> Shape:
    """The same batch on fewer pipelines."""
    rounds = -(-shape.pipelines * shape.microbatches // pipelines)
    return replace(shape, pipelines=pipelines, microbatches=rounds)


def with_whole_sums(shape: Shape) -> Shape:
    """A smaller shape whose gradients take as long as those of the job, however few micro-batches
    they sum up here."""
    few = _batch(shape).leaf_size
    return replace(shape, sums=tuple(x * shape.leaf_size / few for x in shape.sums))


def near(shape: Shape) -> int:
    """Stages of the smaller shape. The work of a lost agent reaches no more: chains of stages that
    share it wait for each other, so that a step of twelve stages loses as much as one of eight."""
    return _near(shape, _is_slow(shape))


def _near(shape: Shape, is_wide: bool) -> int:
    return min(shape.stages, _FEW_STAGES if is_wide else _STAGES)


def _is_slow(shape: Shape) -> bool:
    """Whether what pipelines send each other decides: then more of these count."""
    if shape.pipelines == 1 or not shape.sums:
        return False
    return any(2 * shape.sums[s] >= _leaf_s(shape, s) for s in range(shape.stages))


def _leaf_s(shape: Shape, stage: int) -> float:
    load = shape.loads[stage] if shape.loads else 1.0
    return shape.leaf_size * load * (1 + shape.backward)


def place(stage: int, stages: int, others: int) -> int:
    """The stage of a grid of ``others`` that is as far from the first one and from the last one."""
    return round(stage * (others - 1) / max(1, stages - 1))


@dataclass(frozen=True)
class Layered(StepShape):
    """A step whose stages have several layers each, planned as if messages took no time, as the
    planner orders a step; it counts with the network only when it spreads lost work."""

    slices: int = 1

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


@lru_cache(maxsize=8)
def whole(shape: Shape, mode: RedundancyMode) -> Planned:
    """As the planner schedules a full grid (bamboo_core.scheduling.inflight)."""
    fused = _planned(_step(shape, mode))
    if not shape.can_split:
        return fused
    split = _planned(replace(fused.step, split=True, extra=shape.spare or 0))
    return split if split.made.length * inflight.WORTH < fused.made.length else fused


def without(shape: Shape, mode: RedundancyMode, stage: int, *, split: bool) -> Layered:
    """The step with an empty seat in the first pipeline. split: I and W instead of B."""
    extra = device_memory.BEYOND if shape.spare is None else shape.spare
    return replace(_step(shape, mode), lost=((0, stage),), extra=extra, split=split)


def _planned(step: Layered) -> Planned:
    return Planned(step, step.build())


def _step(shape: Shape, mode: RedundancyMode) -> Layered:
    """Without an empty seat, and with fused backwards."""
    n = shape.slices
    loads = shape.loads or (1.0,) * shape.stages
    one = tuple(load / n for load in loads for _ in range(n))
    fused = tuple(x * shape.backward for x in one)
    half = tuple(x * shape.halves / 2 for x in fused) if shape.can_split else fused
    batch = _batch(shape)
    return Layered(
        shape.pipelines,
        shape.stages,
        batch,
        mode=mode,
        policy=shape.policy,
        relays=shape.relays,
        costs=Costs(
            one,
            fused,
            half,
            half,
            shape.latency,
            ahead=tuple(x * (1 + shape.copied) for x in one),
        ),
        slices=n,
        # a sum is as long in comparison with what it sums up
        transfer=tuple(x * batch.leaf_size / shape.leaf_size for x in shape.sums),
    )


def _batch(shape: Shape) -> BatchShape:
    return choose(
        microbatches=shape.pipelines * shape.microbatches,
        pipelines_max=shape.pipelines,
    )
