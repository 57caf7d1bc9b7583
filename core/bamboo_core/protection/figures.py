"""What a step of a grid costs, undisturbed and after a loss, by the planner's own dry runs.

The unit is one forward of a stage. Large grids are computed on a smaller one and scaled, so that an
answer never takes long. Answers are remembered, since every job of one shape asks the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from bamboo_core.api.spec import RecoveryPolicy, RedundancyMode
from bamboo_core.model.ids import AgentId
from bamboo_core.model.numerics import choose
from bamboo_core.planning.lanes import lanes
from bamboo_core.planning.step_shape import StepShape
from bamboo_core.protection import interrupted
from bamboo_core.scheduling import dry_run
from bamboo_core.scheduling.costs import Costs

_PIPELINES, _STAGES = 2, 8  # of the largest grid that is computed
_ROUNDS, _FEW_ROUNDS = 4, 2  # its M over P: of one pipeline, and of two
_MOST_SLICES = 8  # of a forward
_PHASES = (0.8, 1.3)  # of the latency
_EXTRA = 8  # activations beyond P - s after a loss, as in bamboo_core.scheduling.inflight


@dataclass(frozen=True)
class Shape:
    """What the figures depend on."""

    pipelines: int  # D
    stages: int  # P
    microbatches: int  # M of one pipeline
    backward: float = 2.0  # B over F
    latency: float = 0.0  # of a boundary tensor, in forwards of a stage
    slices: int = 1  # layers of a stage, which the lane runs one at a time
    copied: float = 0.0  # time in which what a forward ahead keeps goes to host memory
    split: bool = False  # steps have I and W instead of B, and more activations in flight
    policy: RecoveryPolicy = RecoveryPolicy.DIFFUSE


@dataclass(frozen=True)
class AfterLoss:
    """How a mode goes on without one agent."""

    degraded: float  # length of a step with an empty seat, over that of an undisturbed step
    redone: float  # time that the work costs which is lost with the agent, halfway in a step


@dataclass(frozen=True)
class Figures:
    """Times are in forwards of a stage."""

    length: float  # of an undisturbed step
    idle: float  # of an agent, between its first and last computation; mean of all agents
    ahead: float  # forwards of its successor that an agent computes meanwhile; mean of all agents
    delay: float  # by which a step is longer for it
    bare: AfterLoss | None  # without replicas; None: a loss is fatal, since D is 1
    copied: AfterLoss | None  # with replicas; None: there are none, since P is 1


def figures(shape: Shape) -> Figures:
    """Of a step of this shape. Deterministic.

    Pipelines are independent until the reduction, so one of them gives the length. In 1F1B a step
    takes M + P - 1 slots of F + B, of which an agent idles in P - 1 (Bamboo, and PipeDream-Flush):
    a larger M adds its own time only, a larger P adds idle time in proportion. A message that comes
    just when a slice ends delays nobody, so the mean of two latencies is taken.
    """
    one = _smaller(replace(shape, pipelines=1), _ROUNDS)
    phases = [replace(one, latency=factor * one.latency) for factor in _PHASES]
    alone = _mean([_run(x) for x in phases])
    eager = _mean([_run(x, is_eager=True) for x in phases])
    wider = (shape.stages - 1) / max(1, one.stages - 1)
    ramp = alone.length - one.microbatches * (1 + one.backward)
    length = shape.microbatches * (1 + shape.backward) + ramp * wider
    return Figures(
        length=length,
        idle=alone.idle * wider,
        ahead=min(shape.microbatches, eager.ahead * wider),
        delay=max(0.0, eager.length / alone.length - 1) * length,
        bare=_after(shape, RedundancyMode.NONE),
        copied=_after(shape, RedundancyMode.REPLICA),
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
    """A step whose stages have several layers each."""

    slices: int = 1

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
    """Means over all agents, but for the length."""

    length: float
    idle: float
    ahead: float


def _mean(runs: list[_Ran]) -> _Ran:
    return _Ran(*(sum(values) / len(runs) for values in zip(*runs, strict=True)))


@lru_cache(maxsize=256)
def _run(shape: Shape, *, is_eager: bool = False) -> _Ran:
    """An undisturbed step, without lanes or with them."""
    is_eager = is_eager and shape.stages > 1
    step = _step(shape, RedundancyMode.REPLICA if is_eager else RedundancyMode.NONE)
    programs = step.build().programs
    report = dry_run.dry_run(
        programs,
        batch=step.batch,
        layers=step.cut[-1][1],
        holdings=step.holdings(),
        costs=step.timing,
        lanes=lanes(programs, cut=step.cut, wants=step.wants(), held={}) if is_eager else None,
    )
    gaps = [spans[-1][2] - spans[0][1] - report.busy[a] for a, spans in report.spans.items()]
    return _Ran(report.length, sum(gaps) / len(gaps), sum(report.ahead_s.values()) / len(gaps))


def _step(shape: Shape, mode: RedundancyMode, *, lost: bool = False) -> _Layered:
    """lost: a middle seat is empty."""
    layers = shape.stages * shape.slices
    one, whole = (1 / shape.slices,) * layers, (shape.backward / shape.slices,) * layers
    half = (shape.backward / shape.slices / 2,) * layers
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
        lost=((0, shape.stages // 2),) if lost else (),
        split=shape.split,
        mode=mode,
        policy=shape.policy,
        extra=_EXTRA if lost or shape.split else 0,
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
    is_fatal = shape.pipelines == 1 and mode is RedundancyMode.NONE
    if is_fatal or (shape.stages == 1 and mode is RedundancyMode.REPLICA):
        return None
    small = _smaller(replace(shape, slices=1), _FEW_ROUNDS)
    found = _lose_one(small, mode)
    share = _sharers(small, mode) / _sharers(shape, mode)
    rounds = shape.microbatches / small.microbatches
    return AfterLoss(
        degraded=1 + (found.degraded - 1) * share,
        redone=found.redone * rounds * (share if shape.pipelines > 1 else 1.0),
    )


@lru_cache(maxsize=256)
def _lose_one(shape: Shape, mode: RedundancyMode) -> AfterLoss:
    before, after = _step(shape, mode), _step(shape, mode, lost=True)
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
