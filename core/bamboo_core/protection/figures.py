"""How long a step takes in each mode of redundancy, undisturbed and after a loss.

Mode Auto compares the modes by these figures. They come from no formula: for a small grid of the
job's shape, the planner's own scheduler makes the programs, and a dry run executes them. Times and
numbers are then scaled to the job's grid, so an answer never takes long, but it is an estimate:
stages of an undisturbed step count as equal. The unit of time is one forward of a stage. Answers
are remembered, since jobs of one shape ask the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.protection import grids
from bamboo_core.protection.grids import Layered, Shape
from bamboo_core.protection.loss_cost import AfterLoss, after_loss
from bamboo_core.protocol.messages import LayerCost
from bamboo_core.scheduling import dry_run, schedule
from bamboo_core.scheduling.item_bytes import ItemBytes

_ROUNDS = 4  # M over P of the largest grid that is computed
_PHASES = (0.8, 1.3)  # of the latency
_MOST_COPYING = 4  # pipelines: what an agent sends and receives depends little on more
_UNIT = 1 << 30  # bytes; other items have a few


@dataclass(frozen=True)
class Figures:
    """Costs of one redundancy mode, in units of one stage's forward pass."""

    length: float  # of an undisturbed step
    idle: float  # of an agent, between its first and last computation; mean of all agents
    in_flight: tuple[int, ...]  # most activations at once, for each stage
    ahead: float  # forwards of its successor that an agent computes meanwhile; mean of all agents
    kept: tuple[float, ...]  # for each stage, forwards ahead beside the activations in flight
    copying: float  # by which the way of gradients to copies makes a step longer
    after: AfterLoss | None  # None: a loss is fatal, or there is no such mode


def figures(shape: Shape, mode: RedundancyMode) -> Figures:
    """The figures of a step of this shape. Deterministic.

    Pipelines are independent until the reduction, so one of them gives the length. In 1F1B a step
    takes M + P - 1 slots of F + B, of which an agent idles in P - 1 (Bamboo, and PipeDream-Flush):
    a larger M adds its own time only, a larger P adds idle time in proportion. Lanes lengthen no
    step. A slice may just fit into a wait or just not, so the mean of two latencies is taken.
    """
    is_large = shape.pipelines * shape.stages > schedule.MANY
    whole = replace(grids.plain(shape), pipelines=1, can_split=shape.can_split and not is_large)
    one = grids.smaller(whole, _ROUNDS)
    phases = [replace(one, latency=factor * one.latency) for factor in _PHASES]
    alone = _mean([_run(replace(x, copied=0.0)) for x in phases])
    wider = (shape.stages - 1) / max(1, one.stages - 1)
    ramp = alone.length - one.microbatches * alone.pace
    length = shape.microbatches * alone.pace + ramp * wider
    found = alone
    is_eager = mode is RedundancyMode.EAGER and shape.stages > 1
    # The way of gradients decides with whether backwards are split, and so what is in flight.
    splits = one.can_split and (not _takes_time(shape) or _exchanged(_wide(shape), mode).splits)
    if is_eager or splits != one.can_split:
        planned = [replace(x, can_split=splits) for x in phases]
        planned = planned if is_eager else [replace(x, copied=0.0) for x in planned]
        found = _mean([_run(x, is_eager=is_eager) for x in planned])
    places = [grids.place(s, shape.stages, one.stages) for s in range(shape.stages)]
    return Figures(
        length=length,
        idle=alone.idle * wider,
        in_flight=tuple(
            min(shape.microbatches, shape.stages - s + found.beyond[place])
            for s, place in enumerate(places)
        ),
        ahead=min(shape.microbatches, found.ahead * wider),
        kept=tuple(min(shape.microbatches, found.kept[place] * wider) for place in places),
        copying=_copying(shape) if mode.keeps_copies else 0.0,
        after=after_loss(shape, mode),
    )


class _Ran(NamedTuple):
    """Means over all agents, but for the length and what has one number for each stage."""

    length: float
    pace: float  # computing time for a micro-batch
    idle: float
    ahead: float
    beyond: tuple[int, ...]
    kept: tuple[int, ...]


def _mean(runs: list[_Ran]) -> _Ran:
    """The mean of both runs; counts come from the first."""
    first, second = runs
    return first._replace(
        length=(first.length + second.length) / 2,
        idle=(first.idle + second.idle) / 2,
        ahead=(first.ahead + second.ahead) / 2,
    )


@lru_cache(maxsize=256)
def _run(shape: Shape, *, is_eager: bool = False) -> _Ran:
    """An undisturbed step, without lanes or with them."""
    mode = RedundancyMode.REPLICA if is_eager else RedundancyMode.NONE
    step, made = grids.whole(shape, mode)
    programs = made.programs
    report = dry_run.dry_run(
        programs,
        batch=step.batch,
        layers=step.cut[-1][1],
        holdings=step.holdings(),
        costs=step.timing,
        bytes_of=_kept_bytes(step).of,
        lanes=step.lanes(programs) if is_eager else None,
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


def _copying(shape: Shape) -> float:
    """By how much copies lengthen a step: their agents receive a stage's reduced gradient, too.

    A transfer costs nothing while its agents have time for it.
    0: there is no next stage, or messages take no time.
    """
    if shape.stages == 1 or not _takes_time(shape):
        return 0.0
    wide = _wide(shape)
    none, replica = (_exchanged(wide, m) for m in (RedundancyMode.NONE, RedundancyMode.REPLICA))
    return max(0.0, replica.end - none.end)


def _takes_time(shape: Shape) -> bool:
    """Whether gradients take time on their way."""
    return any(shape.sums)


def _wide(shape: Shape) -> Shape:
    """A small grid whose gradients take as long as those of the job, between several pipelines.

    Its M over P is that of the job, on which depends what split backwards gain.
    """
    small = grids.smaller(replace(shape, copied=0.0, slices=1, room=0), _ROUNDS)
    alike = max(1, round(shape.microbatches * small.stages / shape.stages))
    return replace(
        small,
        pipelines=min(shape.pipelines, _MOST_COPYING),
        microbatches=min(small.microbatches, alike),
    )


class _Exchanged(NamedTuple):
    """An undisturbed step with the way of its gradients."""

    end: float
    splits: bool  # whether its backwards are split


@lru_cache(maxsize=256)
def _exchanged(shape: Shape, mode: RedundancyMode) -> _Exchanged:
    """Eager is as Replica."""
    if mode is RedundancyMode.EAGER:
        return _exchanged(shape, RedundancyMode.REPLICA)
    step, made = grids.whole(shape, mode)
    report = dry_run.dry_run(
        made.programs,
        batch=step.batch,
        layers=step.cut[-1][1],
        holdings=step.holdings(),
        costs=step.timing,
        wire=step.wire(),
    )
    return _Exchanged(report.end, made.is_split)


def _kept_bytes(step: Layered) -> ItemBytes:
    """Sizes of items that count only activations, in units of one stage."""
    layers = step.cut[-1][1]
    cost = LayerCost(0.0, 0.0, 0, 0, activation_bytes=_UNIT // step.slices)
    return ItemBytes([cost] * layers)
