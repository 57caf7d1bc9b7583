"""The report at the end of a quick start: outcome, learning curve, faults, time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bamboo_cli.chaos import Fault, Hit, ScheduledFault
from bamboo_cli.job import Job, Manifest
from bamboo_cli.recoveries import PlanSummary, recovery
from bamboo_cli.timeline import Timeline
from bamboo_core.model.counts import counted


@dataclass(frozen=True)
class RunRecord:
    """The faults of a run, and its events."""

    hits: Sequence[Hit] = ()
    events: Sequence[Manifest] = ()
    left: Sequence[ScheduledFault] = ()  # scheduled, but not injected


@dataclass(frozen=True)
class Comparison:
    """The final state compared with an undisturbed run's."""

    layers: int
    differing: tuple[int, ...]  # layers whose bits differ
    undisturbed_loss: Sequence[tuple[int, float]] = ()  # (committed steps, training loss)


@dataclass(frozen=True)
class Pause:
    """How long training stood still because of a fault. Unix times in seconds."""

    stopped_at: float
    began_at: float
    ended_at: float | None  # None: training did not resume

    @property
    def seconds(self) -> float | None:
        return None if self.ended_at is None else self.ended_at - self.began_at


def final_report(
    job: Job, timeline: Timeline, record: RunRecord, comparison: Comparison | None = None
) -> RenderableType:
    parts: list[RenderableType] = [outcome(job, timeline), learning(timeline), losses(job)]
    if job.redundancy_reason:
        parts.append(redundancy(job))
    if job.channel:
        parts.append(channel(job))
    if record.hits:
        parts += [faults(record.hits, record.events), _LEGEND]
    if comparison is not None:
        parts.append(verdict(comparison))
    parts += [Text(line, style="bold red") for line in unproven(job, record, comparison)]
    return Group(*parts, times(timeline))


def is_success(job: Job, record: RunRecord, comparison: Comparison | None) -> bool:
    """Whether the job completed, every fault was injected, and the bits are equal."""
    is_equal = comparison is None or not comparison.differing
    return job.ended == "Complete" and is_equal and not unproven(job, record, comparison)


def unproven(job: Job, record: RunRecord, comparison: Comparison | None) -> list[str]:
    """What a completed run should have shown but did not, one sentence each."""
    if job.ended != "Complete":
        return []
    found = [_not_injected(fault, job) for fault in record.left]
    found += [
        f"No event shows how training continued without {', '.join(hit.pods)}: see the job's"
        " events."
        for hit in record.hits
        if not _has_recovered(hit, record.events)
    ]
    if record.hits and comparison is None:
        found.append("The final state was not compared with an undisturbed run's.")
    return found


def _not_injected(fault: ScheduledFault, job: Job) -> str:
    return (
        f'"{fault.fault}" was due at step {fault.progress * job.steps:.0f} of {job.steps} but was'
        " not injected: the job ended before all of its agents were seen running. Give the job"
        " more steps (spec.training.steps) or more --nodes, or inject no faults (--no-losses)."
    )


def _has_recovered(hit: Hit, events: Sequence[Manifest]) -> bool:
    found = recovery(hit.pods, events, lost_at=hit.at_s)
    return found is not None and found.resumed_at is not None


def outcome(job: Job, timeline: Timeline) -> Text:
    """How the job ended."""
    line = job.condition(job.ended or "Running")
    reason = f": {line.message or line.reason}" if line else ""
    style = "bold green" if job.ended == "Complete" else "bold red"
    text = f"{job.name} {job.ended or job.phase} at step {job.step} of {job.steps}"
    return Text(f"{text} after {timeline.elapsed_s:.0f} s{reason}", style=style)


def learning(timeline: Timeline) -> Text:
    """The validation loss, first to last."""
    found = timeline.validation
    if len(found) < 2:
        return Text("validation loss: fewer than two values were seen")
    curve = " -> ".join(f"{value:.3f}" for _, value in _thinned(found))
    trend = "falling" if found[-1][1] < found[0][1] else "NOT falling"
    return Text(f"validation loss {trend}: {curve}")


def _thinned(values: list[tuple[int, float]], most: int = 7) -> list[tuple[int, float]]:
    """At most ``most`` values at even distances, with the first and the last."""
    if len(values) <= most:
        return values
    return [values[i * (len(values) - 1) // (most - 1)] for i in range(most)]


def losses(job: Job) -> Text:
    """Number of agents lost, and of restores."""
    if not job.lost:
        return Text("no agent was lost")
    restores = counted(job.attempt, "restore") if job.attempt else "no restore from a checkpoint"
    return Text(f"{counted(job.lost, 'agent')} lost ({job.lost_noticed} with notice), {restores}")


def redundancy(job: Job) -> Text:
    """The mode that Auto has taken, and why."""
    return Text(f"redundancy {job.redundancy}, taken by Auto: {job.redundancy_reason}")


def channel(job: Job) -> Text:
    """What has carried large tensors, and why."""
    text = f"channel {job.channel}: {job.channel_reason}"
    if job.group_share is not None:
        text += f"; groups have carried {job.group_share:.1%} of the bytes between agents"
    return Text(text)


def faults(hits: Sequence[Hit], events: Sequence[Manifest]) -> Table:
    """One row for each fault."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("step", "fault", "agents", "continued with", "stop after", "pause"):
        table.add_column(heading, overflow="fold")
    for hit in hits:
        columns = _recovery_columns(hit, events)
        table.add_row(str(hit.step), hit.fault, "\n".join(hit.pods), *columns)
    return table


_LEGEND = Text(
    "stop after: from the fault to the operator's STOP; pause: from the fault to the next commit"
    " (with notice: from the STOP, since training continues until then)",
    style="dim",
)


def _recovery_columns(hit: Hit, events: Sequence[Manifest]) -> tuple[str, str, str]:
    """Plan, seconds until the STOP, seconds of the pause."""
    found = recovery(hit.pods, events, lost_at=hit.at_s)
    if found is None:
        return "no event", "-", "-"
    plan = plan_text(found.plan)
    pause = pause_of(hit, events)
    if pause is None:
        return plan, "no stop", "-"
    seconds = "-" if pause.seconds is None else f"{pause.seconds:.2f} s"
    return plan, f"{pause.stopped_at - hit.at_s:.2f} s", seconds


def pause_of(hit: Hit, events: Sequence[Manifest]) -> Pause | None:
    """The pause that a fault caused; None if nothing waited for its agents, or no event names them.

    A fault may hit agents while training is already stopped; then its pause begins with it.
    """
    found = recovery(hit.pods, events, lost_at=hit.at_s)
    if found is None or (found.resumed_at is not None and found.resumed_at <= hit.at_s):
        return None
    stopped_at = max(found.stopped_at, hit.at_s)
    began_at = stopped_at if hit.fault is Fault.NOTICED else hit.at_s
    return Pause(stopped_at, began_at, found.resumed_at)


def plan_text(plan: PlanSummary | None) -> str:
    """The grid, and what is unusual about the plan."""
    if plan is None:
        return ""
    unusual = (
        (plan.empty_seats, f"{counted(plan.empty_seats, 'seat')} empty"),
        (plan.leaving, f"{plan.leaving} leaving"),
        (plan.learners, f"{plan.learners} catching up"),
        (plan.copied_layers, f"{counted(plan.copied_layers, 'layer')} copied"),
        (plan.loaded_layers, f"{counted(plan.loaded_layers, 'layer')} loaded"),
        (plan.repeated_steps, f"{counted(plan.repeated_steps, 'step')} repeated"),
    )
    grid = f"{plan.pipelines} x {plan.stages} from step {plan.step}"
    parts = [grid, counted(plan.agents, "agent")]
    return ", ".join(parts + [text for count, text in unusual if count])


def verdict(comparison: Comparison) -> Text:
    """Whether the faults changed the result."""
    layers = comparison.layers
    if not comparison.differing:
        text = f"weights and optimizer state of all {layers} layers equal the undisturbed run's"
        return Text(f"{text}, bit for bit", style="bold green")
    text = f"layers {list(comparison.differing)} of {layers} DIFFER from the undisturbed run's"
    return Text(text, style="bold red")


def times(timeline: Timeline) -> Table:
    """Seconds by phase."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("time by phase")
    table.add_column("s", justify="right")
    for name, seconds in timeline.phases.items():
        table.add_row(name, f"{seconds:.1f}")
    table.add_row("all", f"{timeline.elapsed_s:.1f}", style="bold")
    return table
