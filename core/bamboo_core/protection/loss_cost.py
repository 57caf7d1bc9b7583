"""The cost of the loss of an agent, by the planner's own dry runs on a small grid.

The planner interrupts the small step, spreads what is lost with the agent, and schedules the rest,
with the costs of each stage, sums that go from agent to agent, and forwards computed ahead. The
means over a few stages and times are scaled to the job's grid.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from statistics import fmean
from typing import NamedTuple

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.model.ids import AgentId
from bamboo_core.model.program import Program
from bamboo_core.planning.alternatives import comparison
from bamboo_core.protection import grids, interrupted
from bamboo_core.protection.grids import Layered, Shape
from bamboo_core.scheduling import dry_run
from bamboo_core.scheduling.dry_run import DryRunResult
from bamboo_core.scheduling.schedule import Schedule
from bamboo_core.scheduling.sharing.candidates import Candidate, candidates

_FRACTIONS = (0.3, 0.7)  # of a step, when the agent is lost


@dataclass(frozen=True)
class AfterLoss:
    """How a mode goes on without one agent: means over stages and moments of the loss.

    Times are in forwards of the costliest stage.
    """

    degraded: float  # length of a step with an empty seat, over that of an undisturbed step
    redone: float  # time that the work costs which is lost with the agent


class _Degraded(NamedTuple):
    """Steps with an empty seat."""

    split: bool  # I and W instead of B
    slower: tuple[float, ...]  # stage -> by which share the step is longer; negative: shorter
    ways: tuple[str, ...]  # in which the lost work is shared


def after_loss(shape: Shape, mode: RedundancyMode) -> AfterLoss | None:
    """None: a loss is fatal, or there is no such mode.

    What exceeds an undisturbed step is shared, so it shrinks with the number of those who share. In
    an interrupted step of one pipeline, only the holder of the replica repeats what was lost. No
    agent passes gradients on here: in a small step that would save too large a share.
    """
    if (shape.stages if mode.keeps_copies else shape.pipelines) == 1:
        return None
    ahead = mode is RedundancyMode.EAGER
    kept = replace(shape, copied=0.0) if ahead else replace(shape, copied=0.0, slices=1, room=0)
    small = grids.smaller(replace(kept, relays=False))
    rounds = shape.microbatches / small.microbatches
    kind = RedundancyMode.REPLICA if mode.keeps_copies else mode
    slower, redone = [], []
    for more, lost, way in zip(*_lose_each(small, kind, ahead), strict=True):
        share = _sharers(small, mode, way) / _sharers(shape, mode, way)
        slower.append(more * share)
        redone.append(lost * rounds * (share if shape.pipelines > 1 else 1.0))
    return AfterLoss(1 + max(0.0, fmean(slower)), max(0.0, fmean(redone)))


def _victims(shape: Shape) -> list[int]:
    """Stages that lose an agent: the first, the middle and the last one."""
    return sorted({0, shape.stages // 2, shape.stages - 1})


@lru_cache(maxsize=256)
def _lose_each(
    shape: Shape, mode: RedundancyMode, ahead: bool
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[str, ...]]:
    """By which share a step without an agent of each victim's stage is longer, the time of what is
    lost with it, and the way in which its work is shared."""
    split, slower, ways = _degrade_each(replace(shape, slices=1, room=0), mode)
    step, made = grids.whole(shape, mode)
    limit = shape.room if ahead else None
    usual = _run(step, made.programs, limit)
    stops = [
        interrupted.stop(step, at=part * usual.length, programs=made.programs, lane_limit=limit)
        for part in _FRACTIONS
    ]
    redone = []
    for stage, more in zip(_victims(shape), slower, strict=True):
        rest = grids.without(shape, mode, stage, split=split)
        longer = fmean(interrupted.resumed(stopped, rest) for stopped in stops) - usual.end
        # half of the step is one with an empty seat in any case
        redone.append(longer - more / 2 * usual.end)
    return slower, tuple(redone), ways


@lru_cache(maxsize=256)
def _degrade_each(shape: Shape, mode: RedundancyMode) -> _Degraded:
    """A step without an agent of each victim's stage, in the shortest of all ways to share its
    work. The middle one says whether to split."""
    step, made = grids.whole(shape, mode)
    usual_s = _run(step, made.programs, None).end
    ways = (False, True) if shape.can_split else (False,)
    steps = [grids.without(shape, mode, shape.stages // 2, split=x) for x in ways]
    split = min(steps, key=lambda x: x.build().length).split
    slower, names = [], []
    for stage in _victims(shape):
        rest = grids.without(shape, mode, stage, split=split)
        options = candidates(rest.step_work, shape.policy)
        best = comparison.shortest(options, partial(_made, rest))
        slower.append(_run(rest, best.made.programs, None).end / usual_s - 1)
        names.append(best.shared.way)
    return _Degraded(split, tuple(slower), tuple(names))


def _made(step: Layered, shared: Candidate) -> Schedule:
    return step.build(None, None, shared, measures=True)


def _run(step: Layered, programs: dict[AgentId, Program], limit: int | None) -> DryRunResult:
    """limit: forwards ahead that an agent keeps; None: it computes none."""
    return dry_run.dry_run(
        programs,
        batch=step.batch,
        layers=step.cut[-1][1],
        holdings=step.holdings(),
        costs=step.timing,
        lanes={} if limit is None else step.lanes(programs),
        lane_limit=limit or 0,
        wire=step.wire(),
    )


def _sharers(shape: Shape, mode: RedundancyMode, way: str) -> int:
    """Agents that take part in a lost agent's work if it is shared in this way."""
    peers = max(1, shape.pipelines - 1)
    copies = shape.pipelines if mode.keeps_copies else 0
    match way:
        case "Shadow" | "OnePeer":
            return 1
        case "Peers" | "FewerPipelines":
            return peers
        case "PeersAndHolders":
            return 1 << ((shape.pipelines - 1 + copies).bit_length() - 1)
        case _:
            return shape.pipelines * grids.near(shape) - 1 if mode.keeps_copies else peers
