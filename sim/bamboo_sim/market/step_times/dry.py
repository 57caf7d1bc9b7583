"""One step of one state, as the planner schedules it, run dry over a network.

The planner compares all ways to share lost work, each with backwards split and fused. Here the same
ways are compared, but those that are behind in their first schedule get no second one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.planning.step_shape import StepShape
from bamboo_core.scheduling import device_memory, inflight
from bamboo_core.scheduling.candidates import Candidate, candidates, likeliest
from bamboo_core.scheduling.costs import Costs, transfers
from bamboo_core.scheduling.device_memory import Need, Sizes
from bamboo_core.scheduling.dry_run import dry_run
from bamboo_core.scheduling.item_bytes import wire_times
from bamboo_core.scheduling.schedule import MANY, Schedule
from bamboo_core.scheduling.sharing import orders
from bamboo_sim.market.simulation.step_times import Hole
from bamboo_sim.market.step_times.models import ModelProfile
from bamboo_sim.market.step_times.networks import Network

_NEAR = 1.08
"""Times the shortest schedule: the planner runs ways dry that are within it, too."""
_LESS = 2  # activations in flight, as in inflight.tighter


@dataclass(frozen=True)
class Job:
    """A model that trains in a mode, over a network."""

    model: ModelProfile
    mode: RedundancyMode
    network: Network


@dataclass(frozen=True)
class _Step(StepShape):
    """A step with boundary tensors that take time. Schedules are made as if messages took none, as
    the planner makes them."""

    boundaries: tuple[float, ...] = ()  # stage -> seconds of its output
    latency_s: float = 0.0
    ahead: int = 0  # forwards computed ahead that an agent keeps

    def tighter(self) -> _Step:
        """The same with less in flight."""
        return replace(self, extra=self.extra - _LESS)

    def seconds(self, made: Schedule) -> float:
        """How long the step takes until the last slice of a gradient has come."""
        firsts = (lo for lo, _ in self.cut[1:])
        between = dict(zip(firsts, self.boundaries, strict=False))
        programs = made.programs
        report = dry_run(
            programs,
            batch=self.batch,
            layers=self.stages,
            holdings=self.holdings(),
            costs=replace(self.timing, latency=self.latency_s),
            lanes=self.lanes(programs) if self.ahead else {},
            lane_limit=self.ahead,
            wire=wire_times(self.sums, between),
        )
        if not report.ok:
            raise RuntimeError(f"{self.seats}: {report}")
        return report.end


def has_copies(mode: RedundancyMode, pipelines: int, stages: int, holes: frozenset[Hole]) -> bool:
    """Whether a live agent holds each stage: those in its seats, and with copies also those in the
    seats before it."""
    before = (0, 1) if mode.keeps_copies else (0,)
    return all(
        any((d, (s - x) % stages) not in holes for d in range(pipelines) for x in before)
        for s in range(stages)
    )


def fits(job: Job, pipelines: int, stages: int) -> bool:
    """Whether a model has so many layers, and fits onto its devices in the mode, after a loss,
    too."""
    if stages > len(job.model.layers):
        return False
    _, need = _memory(job, pipelines, stages)
    return device_memory.fits(need, job.model.memory_bytes)


def step_s(job: Job, pipelines: int, stages: int, holes: frozenset[Hole]) -> float | None:
    """Seconds of a step while seats are empty.

    None: no copy of some layer is left, or the model does not fit. ValueError names a pipeline,
    stage or hole that is out of range.
    """
    check(job, pipelines, stages, holes)
    mode, model = job.mode, job.model
    if not has_copies(mode, pipelines, stages, holes) or not fits(job, pipelines, stages):
        return None
    sizes, need = _memory(job, pipelines, stages)
    layers, bytes_per_s = model.stages(stages), job.network.bytes_per_s
    cut = tuple((s, s + 1) for s in range(stages))
    step = _Step(
        pipelines,
        stages,
        model.batch,
        lost=tuple(sorted(holes)),
        mode=_kept(mode, stages),
        costs=Costs.measured(layers),
        most_sums=device_memory.most_sums(need, sizes, model.memory_bytes),
        transfer=transfers(layers, cut, bytes_per_s),
        gathers=pipelines * stages - len(holes) > MANY,
        boundaries=tuple(x.output_bytes / bytes_per_s for x in layers),
        latency_s=job.network.latency_s,
        ahead=need.ahead if mode is RedundancyMode.EAGER else 0,
    )
    return _degraded_s(step, need.spare) if holes else _whole_s(step, model, need.spare)


def check(job: Job, pipelines: int, stages: int, holes: frozenset[Hole]) -> None:
    """ValueError if the job never has such a grid, or the grid no such seat."""
    most = job.model.pipelines
    if not 1 <= pipelines <= most:
        raise ValueError(
            f"pipelines is {pipelines}, and {job.model.name} has 1 to {most}; raise"
            " model.pipelines."
        )
    if stages < 1:
        raise ValueError(f"stages is {stages}; give 1 or more.")
    for pipeline, stage in sorted(holes):
        if not (0 <= pipeline < pipelines and 0 <= stage < stages):
            raise ValueError(
                f"hole ({pipeline}, {stage}) is no seat of {pipelines} pipelines of {stages}"
                " stages; both count from 0."
            )


def _kept(mode: RedundancyMode, stages: int) -> RedundancyMode:
    """A lone stage has no other to copy."""
    return mode if stages > 1 else RedundancyMode.NONE


def _memory(job: Job, pipelines: int, stages: int) -> tuple[Sizes, Need]:
    """By the layers themselves, as in planning.hosting."""
    model, batch = job.model, job.model.batch
    sizes = Sizes.of(
        model.cut(stages),
        model.layers,
        microbatches=-(-batch.microbatches // pipelines),
        sums=orders.sums_at_once(batch, pipelines),
    )
    need = device_memory.need(
        sizes,
        _kept(job.mode, stages),
        memory_bytes=model.memory_bytes,
        host_memory_bytes=model.host_memory_bytes,
    )
    return sizes, need


def _whole_s(step: _Step, model: ModelProfile, spare: int) -> float:
    """As planner and inflight.variants do it: it is split only for a clear gain."""
    if not step.timing.can_split or step.gathers:
        return step.seconds(step.build())
    split = replace(step, split=True, extra=spare if model.memory_bytes else 0)
    made = inflight.shortest(
        ((1.0, step.build()), (inflight.WORTH, split.build())),
        price_of_split=step.timing.price_of_split,
    )
    return step.seconds(made)


def _degraded_s(step: _Step, spare: int) -> float:
    """The shortest way to share the lost work."""
    both = (True, False) if step.timing.can_split else (False,)
    variants = [replace(step, split=split, extra=spare) for split in both]
    if step.gathers:
        shared = likeliest(step.step_work, step.policy, step.most_sums)
        return step.seconds(variants[0].build(None, shared))
    found = _scheduled(variants, candidates(step.step_work, step.policy, step.most_sums))
    shortest = min(made.end for _, made in found)
    near = [x for x in found if x[1].end <= _NEAR * shortest]
    ends = [_again(variants, shared, made) for shared, made in near]
    least = min(made.end for made in ends)
    return min(step.seconds(made) for made in ends if made.end <= _NEAR * least)


def _scheduled(
    variants: Sequence[_Step], ways: Sequence[Candidate]
) -> list[tuple[Candidate, Schedule]]:
    """Each way that can be the shortest, with its schedule: the likeliest in all variants, the
    others as its shortest one."""
    first = min((x.build(None, ways[0]) for x in variants), key=lambda made: made.end)
    found, least = [(ways[0], first)], first.end
    like = next(x for x in variants if x.split is first.is_split)
    for shared in ways[1:]:
        if shared.estimate.bound < least:
            found.append((shared, like.build(None, shared)))
            least = min(least, found[-1][1].end)
    return found


def _again(variants: Sequence[_Step], shared: Candidate, first: Schedule) -> Schedule:
    """The shortest schedule of a way: also with less in flight, or in the other variant."""
    made = [first]
    for step in variants:
        is_other = step.split is not first.is_split
        made.append((step if is_other else step.tighter()).build(None, shared))
    return min(made, key=lambda x: x.end)
