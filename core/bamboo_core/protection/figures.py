"""What a step of a grid costs, undisturbed and after a loss, by the planner's own dry runs.

The unit is one forward of a stage. Large grids are computed on a smaller one and scaled, so that an
answer never takes long. Answers are remembered, since every job of one shape asks the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from bamboo_core.api.spec import RecoveryPolicy, RedundancyMode
from bamboo_core.graph.tasks import TaskGraph
from bamboo_core.model.ids import AgentId
from bamboo_core.model.numerics import choose
from bamboo_core.planning.lanes import lanes
from bamboo_core.planning.step_shape import StepShape
from bamboo_core.protection import interrupted
from bamboo_core.protocol.messages import LayerCost
from bamboo_core.scheduling import device_memory, dry_run, inflight, schedule
from bamboo_core.scheduling.costs import Costs
from bamboo_core.scheduling.item_bytes import ItemBytes

_PIPELINES, _STAGES = 2, 8  # of the largest grid that is computed
_ROUNDS, _FEW_ROUNDS = 4, 2  # its M over P: of one pipeline, and of two
_MOST_SLICES = 8  # of a forward
_PHASES = (0.8, 1.3)  # of the latency
_UNIT = 1 << 30  # bytes; other items have a few


@dataclass(frozen=True)
class Shape:
    """What the figures depend on."""

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
    policy: RecoveryPolicy = RecoveryPolicy.DIFFUSE


@dataclass(frozen=True)
class AfterLoss:
    """How a mode goes on without one agent."""

    degraded: float  # length of a step with an empty seat, over that of an undisturbed step
    redone: float  # time that the work costs which is lost with the agent, halfway in a step


@dataclass(frozen=True)
class Figures:
    """Of one mode. Times are in forwards of a stage."""

    length: float  # of an undisturbed step
    idle: float  # of an agent, between its first and last computation; mean of all agents
    in_flight: tuple[int, ...]  # most activations at once, for each stage
    ahead: float  # forwards of its successor that an agent computes meanwhile; mean of all agents
    kept: tuple[float, ...]  # for each stage, forwards ahead beside the activations in flight
    after: AfterLoss | None  # None: a loss is fatal, or there is no such mode


def figures(shape: Shape, mode: RedundancyMode) -> Figures:
    """Of a step of this shape. Deterministic.

    Pipelines are independent until the reduction, so one of them gives the length. In 1F1B a step
    takes M + P - 1 slots of F + B, of which an agent idles in P - 1 (Bamboo, and PipeDream-Flush):
    a larger M adds its own time only, a larger P adds idle time in proportion. A message that comes
    just when a slice ends delays nobody, so the mean of two latencies is taken.
    """
    is_large = shape.pipelines * shape.stages > inflight.MANY
    whole = replace(shape, pipelines=1, can_split=shape.can_split and not is_large)
    one = _smaller(whole, _ROUNDS)
    phases = [replace(one, latency=factor * one.latency) for factor in _PHASES]
    alone = _mean([_run(replace(x, copied=0.0)) for x in phases])
    wider = (shape.stages - 1) / max(1, one.stages - 1)
    ramp = alone.length - one.microbatches * alone.pace
    length = shape.microbatches * alone.pace + ramp * wider
    found = alone
    if mode is RedundancyMode.EAGER and shape.stages > 1:
        found = _mean([_run(x, is_eager=True) for x in phases])
    return Figures(
        length=length * max(1.0, found.length / alone.length),
        idle=alone.idle * wider,
        in_flight=tuple(
            min(shape.microbatches, shape.stages - s + found.beyond[_place(s, shape, one)])
            for s in range(shape.stages)
        ),
        ahead=min(shape.microbatches, found.ahead * wider),
        kept=tuple(
            min(shape.microbatches, found.kept[_place(s, shape, one)] * wider)
            for s in range(shape.stages)
        ),
        after=_after(replace(shape, copied=0.0), mode),
    )


def _smaller(shape: Shape, rounds: int) -> Shape:
    stages = min(shape.stages, _STAGES)
    return replace(
        shape,
        pipelines=min(shape.pipelines, _PIPELINES),
        stages=stages,
        microbatches=min(shape.microbatches, rounds * stages),
        slices=1 << (min(shape.slices, _MOST_SLICES).bit_length() - 1),  # exact in binary
    )


@dataclass(frozen=True)
class _Layered(StepShape):
    """A step whose stages have several layers each, planned as if messages took no time, since the
    planner does not know the network."""

    slices: int = 1

    def build(self, tasks: TaskGraph | None = None) -> schedule.Schedule:
        if self.timing.latency:
            return replace(self, costs=replace(self.timing, latency=0.0)).build(tasks)
        return super().build(tasks)

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


class _Ran(NamedTuple):
    """Means over all agents, but for the length and what has one number for each stage."""

    length: float
    pace: float  # computing time for a micro-batch
    idle: float
    ahead: float
    beyond: tuple[int, ...]
    kept: tuple[int, ...]


def _mean(runs: list[_Ran]) -> _Ran:
    """Of two, but for what is counted: there the first one decides."""
    first, second = runs
    return first._replace(
        length=(first.length + second.length) / 2,
        idle=(first.idle + second.idle) / 2,
        ahead=(first.ahead + second.ahead) / 2,
    )


def _place(stage: int, shape: Shape, one: Shape) -> int:
    """The stage of a smaller grid that is as far from the first one and from the last one."""
    return round(stage * (one.stages - 1) / max(1, shape.stages - 1))


@lru_cache(maxsize=256)
def _run(shape: Shape, *, is_eager: bool = False) -> _Ran:
    """An undisturbed step, without lanes or with them."""
    step = _whole(shape, RedundancyMode.REPLICA if is_eager else RedundancyMode.NONE)
    programs = step.build().programs
    report = dry_run.dry_run(
        programs,
        batch=step.batch,
        layers=step.cut[-1][1],
        holdings=step.holdings(),
        costs=step.timing,
        bytes_of=_kept_bytes(step).of,
        lanes=lanes(programs, cut=step.cut, wants=step.wants(), held={}) if is_eager else None,
    )
    gaps = [spans[-1][2] - spans[0][1] - report.busy[a] for a, spans in report.spans.items()]
    usual, agents = schedule.caps(step.seats), step.live  # of one pipeline, in its order
    return _Ran(
        report.length,
        sum(report.busy.values()) / len(gaps) / shape.microbatches,
        sum(gaps) / len(gaps),
        sum(report.ahead_s.values()) / len(gaps),
        tuple(report.activations[a] - usual[a] for a in agents),
        tuple(max(0, report.bytes[a] // _UNIT - report.activations[a]) for a in agents),
    )


def _kept_bytes(step: _Layered) -> ItemBytes:
    """What forwards keep, in units of one stage. What else agents have is left out."""
    layers = step.cut[-1][1]
    cost = LayerCost(0.0, 0.0, 0, 0, activation_bytes=_UNIT // step.slices)
    return ItemBytes([cost] * layers, step.batch.chunks)


def _whole(shape: Shape, mode: RedundancyMode) -> _Layered:
    """As the planner schedules a full grid (bamboo_core.scheduling.inflight)."""
    fused = _step(shape, mode)
    if not shape.can_split:
        return fused
    split = replace(fused, split=True, extra=shape.spare or 0)
    is_worth = split.build().length * inflight.WORTH < fused.build().length
    return split if is_worth else fused


def _degraded(shape: Shape, mode: RedundancyMode) -> _Layered:
    """As the planner schedules a grid with an empty seat."""
    extra = device_memory.BEYOND if shape.spare is None else shape.spare
    fused = replace(_step(shape, mode), lost=((0, shape.stages // 2),), extra=extra)
    if not shape.can_split:
        return fused
    return min(fused, replace(fused, split=True), key=lambda step: step.build().length)


def _step(shape: Shape, mode: RedundancyMode) -> _Layered:
    """Without an empty seat, and with fused backwards."""
    layers = shape.stages * shape.slices
    one, whole = (1 / shape.slices,) * layers, (shape.backward / shape.slices,) * layers
    half = (shape.halves * shape.backward / shape.slices / 2,) * layers
    batch = choose(
        microbatches=shape.pipelines * shape.microbatches,
        pipelines=shape.pipelines,
        stages=shape.stages,
        pipelines_max=shape.pipelines,
    )
    return _Layered(
        shape.pipelines,
        shape.stages,
        batch,
        mode=mode,
        policy=shape.policy,
        costs=Costs(
            one,
            whole,
            half,
            half,
            shape.latency,
            ahead=((1 + shape.copied) / shape.slices,) * layers,
        ),
        slices=shape.slices,
    )


def _after(shape: Shape, mode: RedundancyMode) -> AfterLoss | None:
    """What exceeds an undisturbed step is shared, so it shrinks with the number of those who share.

    In an interrupted step of one pipeline, only the holder of the replica repeats what was lost.
    """
    if (shape.stages if mode.keeps_copies else shape.pipelines) == 1:
        return None
    small = _smaller(replace(shape, slices=1), _FEW_ROUNDS)
    found = _lose_one(small, RedundancyMode.REPLICA if mode.keeps_copies else mode)
    share = _sharers(small, mode) / _sharers(shape, mode)
    rounds = shape.microbatches / small.microbatches
    return AfterLoss(
        degraded=1 + (found.degraded - 1) * share,
        redone=found.redone * rounds * (share if shape.pipelines > 1 else 1.0),
    )


@lru_cache(maxsize=256)
def _lose_one(shape: Shape, mode: RedundancyMode) -> AfterLoss:
    before, after = _whole(shape, mode), _degraded(shape, mode)
    length = before.dry_run(before.build().programs).length
    degraded = after.dry_run(after.build().programs).length
    expected = (length + degraded) / 2  # if nothing were lost with the agent
    redone = interrupted.length(before, after, at=length / 2) - expected
    return AfterLoss(max(1.0, degraded / length), max(0.0, redone))


def _sharers(shape: Shape, mode: RedundancyMode) -> int:
    """Agents that take part in a lost agent's work."""
    if mode is RedundancyMode.NONE:
        return shape.pipelines - 1
    match shape.policy:
        case RecoveryPolicy.SHADOW:
            return 1
        case RecoveryPolicy.PEERS:
            return 2 * shape.pipelines - 1
        case _:
            return shape.pipelines * shape.stages - 1
