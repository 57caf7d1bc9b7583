"""What the loss of agents would do to a job now, by the planner that the operator runs. Pure.

The grid, the cut and the checkpoints are the arbiter's durable facts in the job's status. What each
agent holds is what its plan wants it to hold, at the step that the status shows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from bamboo_cli.errors import CommandError
from bamboo_cli.job.state import Manifest
from bamboo_core.admission import quota
from bamboo_core.api.reasons import JobPhase
from bamboo_core.api.spec import JobSpec, RedundancyMode, batch_shape
from bamboo_core.arbiter_state.durable import Durable, eligible, from_json
from bamboo_core.model.counts import counted, repeated
from bamboo_core.model.ids import AgentId, Fence, Range
from bamboo_core.placement.capacity import is_enough
from bamboo_core.placement.plan import layers_of, ranges_of, wants
from bamboo_core.planning.planner import compute
from bamboo_core.planning.requests import (
    Decision,
    Fatal,
    Participant,
    PlanRequest,
    PlanResult,
    Unplaceable,
)
from bamboo_core.protocol.messages import AgentReport, CommitRecord
from bamboo_core.validation.reading import read

_RESTING = (JobPhase.SUSPENDING, JobPhase.SUSPENDED)
"""Kueue may have suspended a job that its spec does not."""


class Fate(StrEnum):
    """What happens to the training after a loss."""

    NOTHING = "nothing is lost"
    CONTINUES = "training goes on"
    WAITS = "training waits"
    RESTORES = "restore"
    UNKNOWN = "not known"


@dataclass(frozen=True)
class Outlook:
    """The consequence of losing these agents at once."""

    agents: tuple[AgentId, ...]  # members of the plan that are lost
    fate: Fate
    text: str  # one sentence, without the fate


@dataclass(frozen=True)
class Held:
    """A job in training: its plan, and the step that it computes."""

    spec: JobSpec  # redundancy.mode is the one in force
    durable: Durable
    step: int  # the next one to commit

    @property
    def wants(self) -> dict[AgentId, tuple[Range, ...]]:
        """Agent -> the layers that it holds by plan."""
        plan = self.durable
        return wants(
            pipelines=plan.pipelines,
            cut=plan.cut,
            live=plan.voters,
            mode=self.spec.redundancy.mode,
            holders={},
        )


def facts(manifest: Manifest) -> Durable:
    """The arbiter's facts. CommandError if they cannot be read."""
    try:
        return from_json((manifest.get("status") or {}).get("arbiter") or {})
    except ValueError as error:
        raise CommandError(
            f"status.arbiter of the job cannot be read ({error}); use the `bamboo` of the"
            " operator's version."
        ) from error


def plan_in_force(manifest: Manifest) -> Durable | None:
    """The arbiter's facts; None if no plan is in force. CommandError if they cannot be read."""
    durable = facts(manifest)
    has_plan = bool(durable.pipelines and durable.voters)
    if not has_plan or durable.outcome is not None or durable.plan.attempt != durable.attempt:
        return None
    return durable


def held(manifest: Manifest) -> Held | None:
    """The plan in force; None if there is none. CommandError if spec or status cannot be read."""
    status = manifest.get("status") or {}
    # What the spec asks for may be forbidden: only the operator knows the rules of its chart, and
    # it leads a job that trains even against them.
    spec = read(manifest)
    is_asked = not isinstance(spec, list) and spec.suspend
    if is_asked or status.get("phase") in _RESTING:
        return None
    durable = plan_in_force(manifest)
    if durable is None:
        return None
    if isinstance(spec, list):
        raise CommandError(
            f"the spec of the job cannot be read ({'; '.join(map(str, spec))}); correct it, or use"
            " the `bamboo` of the operator's version."
        )
    mode = spec.redundancy.mode
    if mode is RedundancyMode.AUTO:
        mode = durable.mode or RedundancyMode.NONE
    step = int((status.get("progress") or {}).get("step", 0))
    return Held(
        replace(
            spec,
            redundancy=replace(spec.redundancy, mode=mode),
            pipelines=quota.at_most(spec.pipelines, _admitted(status) or spec.pipelines.count),
        ),
        durable,
        min(max(step, durable.committed + 1, durable.target), spec.training.steps),
    )


def _admitted(status: Manifest) -> int | None:
    """Pipelines that the operator wants: Kueue may have admitted fewer than the spec has.

    None: not known.
    """
    _, _, wanted = str(status.get("pipelinesSummary") or "").rpartition("/")
    return int(wanted) if wanted.isdecimal() else None


def loss(training: Held, lost: Collection[str], zones: Mapping[str, str]) -> Outlook:
    """The outlook if these agents vanish now. zones: agent -> zone; absent: not known."""
    durable = training.durable
    gone = tuple(agent for agent in durable.members if agent in lost)
    if not gone:
        return Outlook((), Fate.NOTHING, "no agent of the plan is there")
    staying = tuple(agent for agent in durable.members if agent not in lost)
    grid = training.spec.pipelines
    if not staying:
        return Outlook(gone, Fate.RESTORES, _restored(training, "no agent is left"))
    if not is_enough(staying, stages=grid.stages, least=grid.min):
        return _too_few(training, gone, staying, zones)
    return _outlook(training, gone, next(compute(_request(training, staying, zones))))


def _too_few(
    training: Held,
    gone: tuple[AgentId, ...],
    staying: Sequence[AgentId],
    zones: Mapping[str, str],
) -> Outlook:
    """Training waits for others. They hold nothing, so what has no copy now has none then."""
    grid = training.spec.pipelines
    least = -(-grid.stages * grid.min // 2)
    newcomers = [AgentId(f"newcomer {n}") for n in range(least - len(staying))]
    found = next(compute(_request(training, [*staying, *newcomers], zones)))
    if isinstance(found, Fatal):
        lost = _outlook(training, gone, found)
        return replace(lost, text=f"{lost.text}, once there are {least} agents")
    are, they = ("is", "it keeps") if len(staying) == 1 else ("are", "they keep")
    few = f"{counted(len(staying), 'agent')} {are} too few to go on"
    return Outlook(gone, Fate.WAITS, f"{few}; {they} the state until there are {least}")


def _outlook(training: Held, gone: tuple[AgentId, ...], found: PlanResult) -> Outlook:
    match found:
        case Decision():
            return Outlook(gone, Fate.CONTINUES, _continued(training, found))
        case Fatal():
            why = f"no copy of {_layers(found.layers)} is left"
            return Outlook(gone, Fate.RESTORES, _restored(training, why))
        case Unplaceable():
            return Outlook(gone, Fate.WAITS, found.message)
        case _:
            return Outlook(gone, Fate.UNKNOWN, f"the planner has no answer ({found})")


def _layers(lost: Collection[int]) -> str:
    """Such as ``layer 3`` or ``layers 0-1, 4``."""
    ranges = [f"{lo}" if hi == lo + 1 else f"{lo}-{hi - 1}" for lo, hi in ranges_of(lost)]
    return f"layer{'' if len(lost) == 1 else 's'} {', '.join(ranges)}"


def _continued(training: Held, found: Decision) -> str:
    plan, again = found.plan, max(0, training.step - 1 - found.committed)
    grid = f"{len(plan.pipelines)} x {training.spec.pipelines.stages}"
    parts = [
        f"{grid} with {counted(len(plan.live), 'agent')}",
        f"{counted(plan.holes, 'seat')} empty" if plan.holes else "",
        f"{counted(found.copies, 'layer')} copied between agents" if found.copies else "",
        _made(found) if found.loads else "",
        f"{counted(again, 'step')} repeated" if again else "no step repeated",
    ]
    return ", ".join(part for part in parts if part)


def _made(found: Decision) -> str:
    """Layers that no agent has. Before the first step there is no checkpoint."""
    how = "read from a checkpoint" if found.plan.target else "built anew"
    return f"{counted(found.loads, 'layer')} {how}"


def _restored(training: Held, why: str) -> str:
    """why: what is left."""
    newest = next(reversed(eligible(training.durable)), None)
    if newest is None:
        return f"{why}, and no checkpoint is complete: {repeated(training.step)}"
    again = repeated(max(0, training.step - newest.step))
    return f"{why}: {again} from the checkpoint of step {newest.step}"


def _request(training: Held, agents: Sequence[AgentId], zones: Mapping[str, str]) -> PlanRequest:
    """As the arbiter asks once these agents have stopped between two steps.

    Those that are not in the plan hold nothing.
    """
    durable, spec, step = training.durable, training.spec, training.step
    fence, done = durable.plan._replace(epoch=durable.plan.epoch + 1), step - 1
    commits = (CommitRecord(done),) if step else ()
    holds = training.wants
    return PlanRequest(
        fence=fence,
        spec=spec,
        batch=durable.batch or batch_shape(spec),
        layers=durable.cut[-1][1],
        costs=(),
        validation_samples=0,
        pipelines=spec.pipelines.count,
        grid=durable.pipelines,
        cut=durable.cut,
        step_cut=durable.step_cut if step == durable.target else durable.cut,
        target=step,
        participants={a: Participant(zones.get(a, ""), "", "", "", b"") for a in agents},
        reports={
            a: AgentReport(
                fence,
                durable.plan,
                dict.fromkeys(layers_of(holds.get(a, ())), step),
                frozenset(),
                commits,
                done,
            )
            if a in durable.members
            else AgentReport(fence, Fence(), {}, frozenset())
            for a in agents
        },
        draining=frozenset(),
        short_notice=frozenset(),
        manifests=eligible(durable),
        base=durable.manifest.step - 1 if durable.manifest is not None else -1,
        has_voter=not set(agents).isdisjoint(durable.voters),
        is_full=False,
        is_last=False,
        least=spec.pipelines.min,
    )


def seats_text(training: Held, agents: Collection[AgentId]) -> str:
    """The seats of these agents in the plan, such as ``pipeline 0: stages 1, 3``."""
    found: dict[int, list[int]] = {}
    for d, pipeline in enumerate(training.durable.pipelines):
        for s, agent in enumerate(pipeline):
            if agent is not None and agent in agents:
                found.setdefault(d, []).append(s)
    listed = [
        f"pipeline {d}: stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}"
        for d, stages in found.items()
    ]
    return "\n".join(listed) or "no seat"
