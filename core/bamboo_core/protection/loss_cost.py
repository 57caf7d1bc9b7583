"""The cost of the loss of an agent, by the planner's own dry runs on a small grid.

The planner interrupts the small step, spreads what is lost with the agent, and schedules the rest,
with the costs of each stage, sums that go from agent to agent, and forwards computed ahead. The
means over a few stages and times are scaled to the job's grid. Where an agent is lost in the middle
of a step, the small grid has all stages of most jobs: each stage has other work in flight then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import inf
from statistics import fmean
from statistics import mode as mode_of
from typing import NamedTuple

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.model.ids import AgentId
from bamboo_core.model.program import Program
from bamboo_core.planning import comparison
from bamboo_core.planning.comparison import Shortest
from bamboo_core.protection import grids, interrupted
from bamboo_core.protection.grids import Layered, Shape
from bamboo_core.protection.interrupted import Stopped
from bamboo_core.scheduling import dry_run
from bamboo_core.scheduling.candidates import Candidate, candidates
from bamboo_core.scheduling.dry_run import DryRunResult
from bamboo_core.scheduling.schedule import Schedule

_SAMPLED = ((0.25, 0.75), (0.5,), (0.25, 0.75))
"""For the first, the middle and the last stage, the shares of a step when its agent is lost."""

_SAMPLES = 4  # patterns of as many empty seats
_DRAWS = 40  # in which these are found


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


class _Lost(NamedTuple):
    """Steps in which an agent is lost."""

    usual: float  # length of an undisturbed step
    longer: tuple[float, ...]  # stage -> time by which the interrupted step is longer


def after_loss(shape: Shape, mode: RedundancyMode) -> AfterLoss | None:
    """None: a loss is fatal, or there is no such mode.

    What exceeds an undisturbed step is shared, so it shrinks with the number of those who share. In
    an interrupted step of one pipeline, only the holder of the replica repeats what was lost.
    """
    if _is_fatal(shape, mode):
        return None
    ahead = mode is RedundancyMode.EAGER
    kept = replace(shape, copied=0.0) if ahead else replace(shape, copied=0.0, slices=1, room=0)
    small = grids.alike(kept)
    kind = RedundancyMode.REPLICA if mode.keeps_copies else mode
    more = _with_one(small, shape, kind)
    ways = _degraded(small, kind).ways
    larger = grids.interrupted(kept)
    found = _lose_each(larger, kind, ahead)
    redone = []
    for way, longer in zip(ways, found.longer, strict=True):
        share = _share(larger, shape, mode, way)
        # half of the step is one with an empty seat in any case
        lost = longer - more / share / 2 * found.usual
        redone.append(lost * (share if shape.pipelines > 1 else 1.0))
    rounds = shape.mean / larger.mean
    return AfterLoss(1 + more * _weight(small, shape, kind), max(0.0, fmean(redone) * rounds))


@lru_cache(maxsize=4096)
def with_empty(shape: Shape, mode: RedundancyMode, pipelines: int, empty: int) -> float:
    """The length of a step of fewer or as many pipelines, with so many empty seats (less than
    stages), over the undisturbed step of the shape.

    One empty seat of a whole grid costs what :func:`after_loss` says. Else a few patterns run dry
    on a small grid with as many of them for each stage, and what lies between is interpolated. More
    empty seats never make a step shorter.
    """
    kind = RedundancyMode.REPLICA if mode.keeps_copies else mode
    shape = replace(shape, copied=0.0, slices=1, room=0)
    part = shape if pipelines == shape.pipelines else grids.fewer(shape, pipelines)
    small = grids.alike(part)
    found = [(0.0, 1.0)]
    for count in (1, *_counts(small.stages)):
        if empty <= found[-1][0]:
            break
        one = _one(shape, kind) if count == 1 and part is shape else None
        at = 1.0 if count == 1 else count * shape.stages / small.stages
        found.append((at, max(found[-1][1], one or 1 + _more(small, part, kind, count))))
    return usual(part, kind) / usual(shape, kind) * _between(found, empty)


def usual(shape: Shape, mode: RedundancyMode) -> float:
    """The length of an undisturbed step with its messages, from that of a small grid: the first
    micro-batch passes more stages, and each one of the small grid stands for several ones."""
    small = grids.alike(shape)
    ramp = _ramp(small, mode)
    wider = (shape.stages - 1) / max(1, small.stages - 1)
    return (_length(small, mode) - ramp) * shape.mean / small.mean + ramp * wider


def _ramp(shape: Shape, mode: RedundancyMode) -> float:
    """The part of a step that it takes however many micro-batches it has."""
    pace = max(shape.loads, default=1.0) * (1 + shape.backward)
    return max(0.0, grids.whole(shape, mode).made.length - grids.busiest(shape) * pace)


def _weight(small: Shape, shape: Shape, mode: RedundancyMode) -> float:
    """A share of the small step as one of the job's: lost work grows with the micro-batches, and
    a step does not quite."""
    return _length(small, mode) * shape.mean / small.mean / usual(shape, mode)


def _between(points: list[tuple[float, float]], x: float) -> float:
    """Interpolated between the last two points; beyond, as the last one."""
    (x1, y1), (x2, y2) = points[-2:] if len(points) > 1 else points * 2
    return y2 if x >= x2 else y1 + (y2 - y1) * (x - x1) / (x2 - x1)


def _counts(stages: int) -> list[int]:
    """How many empty seats of a small grid are tried, beside one."""
    return sorted({x for x in (2, 2 + (stages - 2) // 2, stages - 1) if 1 < x < stages})


def _one(shape: Shape, kind: RedundancyMode) -> float | None:
    """With one empty seat, as in :func:`after_loss`; None: it has no such step."""
    if _is_fatal(shape, kind):
        return None
    small = grids.alike(shape)
    return 1 + _with_one(small, shape, kind) * _weight(small, shape, kind)


def _with_one(small: Shape, shape: Shape, kind: RedundancyMode) -> float:
    """By which share a step with one empty seat is longer, shared as in the job's grid."""
    _, slower, ways = _degraded(small, kind)
    shares = (_share(small, shape, kind, way) for way in ways)
    return max(0.0, fmean(x * share for x, share in zip(slower, shares, strict=True)))


def _more(small: Shape, shape: Shape, kind: RedundancyMode, empty: int) -> float:
    """By which share a step of the job is longer if so many seats of the small grid are empty."""
    more, way = _several(small, kind, empty)
    return more * _share(small, shape, kind, way) * _weight(small, shape, kind)


def _share(small: Shape, shape: Shape, mode: RedundancyMode, way: str) -> float:
    """The share in the job's grid of what exceeds an undisturbed step of the small one."""
    return _sharers(small, mode, way) / _sharers(shape, mode, way)


@lru_cache(maxsize=256)
def _length(shape: Shape, mode: RedundancyMode) -> float:
    """The length of an undisturbed step, with its messages."""
    step, made = grids.whole(shape, mode)
    return _run(step, made.programs, None).end


@lru_cache(maxsize=1024)
def _several(shape: Shape, mode: RedundancyMode, empty: int) -> tuple[float, str]:
    """By which share a step with so many empty seats is longer than an undisturbed one, as a mean
    over patterns, and the way in which most of them share lost work: the likeliest one, since to
    compare all would take too long."""
    one = grids.without(shape, mode, 0, split=_splits(shape, mode))
    steps = [replace(one, lost=lost) for lost in _patterns(shape, mode, empty)]
    lengths = [_run(x, x.build().programs, None).end for x in steps]
    way = mode_of(x.likeliest.way for x in steps)
    return fmean(lengths) / _length(shape, mode) - 1, way


def _splits(shape: Shape, mode: RedundancyMode) -> bool:
    """Whether steps with empty seats have I and W instead of B."""
    return not _is_fatal(shape, mode) and _degraded(shape, mode).split


def _patterns(shape: Shape, mode: RedundancyMode, empty: int) -> list[tuple[tuple[int, int], ...]]:
    """Some patterns in which each stage has a copy. If hardly any has one, then of those in which
    agents read what they do not hold from a checkpoint. One seat of each is at another stage.
    Equal arguments give equal patterns."""
    seats = [(d, s) for d in range(shape.pipelines) for s in range(shape.stages)]
    drawn = [sorted(seats, key=lambda seat: _mixed(draw, *seat))[:empty] for draw in range(_DRAWS)]
    kept = [x for x in drawn if _has_copies(shape, mode, x)] or drawn
    found: list[tuple[tuple[int, int], ...]] = []
    for i, pattern in enumerate(kept[:_SAMPLES]):
        # the same pattern at other stages is as likely
        further = (2 * i + 1) * shape.stages // (2 * _SAMPLES) - pattern[0][1]
        found.append(tuple(sorted((d, (s + further) % shape.stages) for d, s in pattern)))
    return list(dict.fromkeys(found))


def _mixed(draw: int, pipeline: int, stage: int) -> int:
    """A number that looks like chance (a step of splitmix64)."""
    x = (draw * 0x9E3779B97F4A7C15 + pipeline * 0xBF58476D1CE4E5B9 + stage * 0x94D049BB133111EB) % (
        1 << 64
    )
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % (1 << 64)
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % (1 << 64)
    return x ^ (x >> 31)


def _has_copies(shape: Shape, mode: RedundancyMode, lost: Collection[tuple[int, int]]) -> bool:
    """Whether an agent is left for each stage that holds it."""
    gone, before = set(lost), 1 if mode.keeps_copies else 0
    return all(
        any({(d, s), (d, (s - before) % shape.stages)} - gone for d in range(shape.pipelines))
        for s in range(shape.stages)
    )


def _is_fatal(shape: Shape, mode: RedundancyMode) -> bool:
    """Whether the loss of one agent takes the last copy of a layer from a full grid."""
    return (shape.stages if mode.keeps_copies else shape.pipelines) == 1


def _victims(shape: Shape) -> list[int]:
    """Stages that lose an agent: the first, the middle and the last one."""
    return sorted({0, shape.stages // 2, shape.stages - 1})


@lru_cache(maxsize=256)
def _lose_each(shape: Shape, mode: RedundancyMode, ahead: bool) -> _Lost:
    """Steps in which an agent of each victim's stage is lost."""
    step, made = grids.whole(shape, mode)
    limit = shape.room if ahead else None
    usual = _run(step, made.programs, limit).end

    @cache
    def stopped(part: float) -> Stopped:
        return interrupted.stop(step, at=part * usual, programs=made.programs, lane_limit=limit)

    longer = [
        fmean(interrupted.resumed(stopped(x), *_rests(shape, mode, stage)) for x in parts) - usual
        for stage, parts in zip(_victims(shape), _SAMPLED, strict=False)
    ]
    return _Lost(usual, tuple(longer))


def _degraded(shape: Shape, mode: RedundancyMode) -> _Degraded:
    """A step without an agent of each victim's stage, as the planner schedules it."""
    return _degrade_each(replace(_roomy(shape, mode), slices=1, room=0), mode)


@lru_cache(maxsize=256)
def _roomy(shape: Shape, mode: RedundancyMode) -> Shape:
    """The shape, without a limit of sums if no way to share lost work reaches it: then modes share
    their dry runs."""
    if shape.most_sums == inf:
        return shape
    steps = [grids.without(shape, mode, x, split=False).step_work for x in _victims(shape)]
    held = max(x.estimate.held for step in steps for x in candidates(step, shape.policy))
    return shape if held > shape.most_sums else replace(shape, most_sums=inf)


@lru_cache(maxsize=256)
def _degrade_each(shape: Shape, mode: RedundancyMode) -> _Degraded:
    """As :func:`_degraded`. The middle one says whether to split."""
    step, made = grids.whole(shape, mode)
    usual_s = _run(step, made.programs, None).end
    victims = _victims(shape)
    middle = _shortest(_rests(shape, mode, shape.stages // 2))
    split = middle.made.is_split
    found = [
        middle
        if stage == shape.stages // 2
        else _shortest([grids.without(shape, mode, stage, split=split)])
        for stage in victims
    ]
    return _Degraded(
        split,
        tuple(x.comparison.taken.step_s / usual_s - 1 for x in found),
        tuple(x.shared.way for x in found),
    )


def _rests(shape: Shape, mode: RedundancyMode, stage: int) -> list[Layered]:
    """The step without an agent of the stage, in each variant that the planner tries."""
    splits = (False, True) if shape.can_split else (False,)
    return [grids.without(shape, mode, stage, split=x) for x in splits]


def _shortest(variants: list[Layered]) -> Shortest:
    """The shortest step of all ways to share its lost work, with its messages."""
    step = variants[0]

    def made(shared: Candidate, tried: Sequence[Layered]) -> Schedule:
        return min((x.build(None, shared) for x in tried), key=lambda x: x.end)

    return comparison.in_variants(
        candidates(step.step_work, step.policy, step.most_sums),
        variants,
        made,
        lambda x: _run(step, x.programs, None).end,
    )


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
            found = shape.pipelines * grids.near(shape) - 1 if mode.keeps_copies else peers
            return min(found, _chunks(shape)) if way == "DiffuseChunks" else found


def _chunks(shape: Shape) -> int:
    """Chunks of a pipeline: as many agents can share a stage of it in whole ones."""
    return max(1, grids.batch_of(shape).chunks // shape.pipelines)
