"""What timed runs measure: steps of a mode, memory, and the pause after a loss."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.model.ids import AgentId
from bamboo_sim.timed.declared import TimedJob
from bamboo_sim.timed.fleet import Fleet

_WARM = (
    2  # steps before what is measured: in the first one agents see how long their waits are, and
)
# in the second one how long slices take


@dataclass(frozen=True)
class Undisturbed:
    """A steady step. Peaks are of the fullest agent."""

    step_s: float
    busy: float  # share of the step in which an agent computes its own program, mean
    ahead: float  # forwards computed ahead, of all that replicas could
    device_bytes: int
    host_bytes: int
    groups: dict[str, int]  # what the fullest device holds, by heading, each at its own peak
    sent_bytes: int  # by all agents
    hosted: tuple[str, ...]  # groups in host memory


def undisturbed(job: TimedJob) -> Undisturbed:
    """Run a few steps and measure the last one."""
    fleet = Fleet(job)
    fleet.run_to(_WARM)
    before = sum(fleet.network.sent_bytes.values())
    marks = {a: len(x.spans) for a, x in fleet.agents.items()}
    fleet.run_to(_WARM + 1)
    step_s = fleet.step_s(_WARM + 1)
    spans = [s for a, x in fleet.agents.items() for s in x.spans[marks[a] :]]
    own_s = sum(end - begin for task, begin, end in spans if task.op != "R")
    layers_ahead = sum(hi - lo for task, _, _ in spans if task.op == "R" for lo, hi in task.ranges)
    fullest = max(fleet.agents.values(), key=lambda x: x.memory.device_peak)
    return Undisturbed(
        step_s=step_s,
        busy=own_s / (step_s * len(fleet.agents)),
        ahead=layers_ahead / (fleet.batch.microbatches * len(job.layers)),
        device_bytes=fullest.memory.device_peak,
        host_bytes=max(x.memory.host_peak for x in fleet.agents.values()),
        groups=dict(sorted(fullest.memory.peak.items())),
        sent_bytes=sum(fleet.network.sent_bytes.values()) - before,
        hosted=tuple(sorted(fullest.memory.hosted)),
    )


def by_mode(job: TimedJob, *modes: RedundancyMode) -> dict[RedundancyMode, Undisturbed]:
    """The same job in each mode."""
    return {mode: undisturbed(replace(job, mode=mode)) for mode in modes}


@dataclass(frozen=True)
class Pause:
    """A loss in a step. pause_s: how much longer the interrupted step takes than the one before."""

    victim: AgentId
    step_s: float
    pause_s: float
    tasks: int  # compute tasks that were missing when the step was resumed


def pause(job: TimedJob, *, pipeline: int, stage: int, fraction: float) -> Pause:
    """Lose the agent in a seat at a fraction of a step."""
    return lose(warm(job), pipeline=pipeline, stage=stage, fraction=fraction)


def warm(job: TimedJob) -> Fleet:
    """The job at the commit before the step in which agents are lost."""
    fleet = Fleet(job)
    fleet.run_to(_WARM)
    return fleet


def lose(fleet: Fleet, *, pipeline: int, stage: int, fraction: float) -> Pause:
    """Lose an agent of a warm fleet, which is of no use for another loss."""
    step_s, victim = fleet.step_s(_WARM), fleet.seat(pipeline, stage)
    plans = len(fleet.operator.decided)
    fleet.run_until(fleet.commits[_WARM] + fraction * step_s)
    fleet.kill(victim)
    fleet.run_to(_WARM + 1)
    found = fleet.step_s(_WARM + 1) - step_s
    return Pause(victim, step_s, found, fleet.operator.decided[plans].tasks)
