"""The quick start's last words: did it learn, where did the time go, what was lost. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bamboo_cli.chaos import Fault, Hit, ScheduledFault
from bamboo_cli.job import Job, Manifest
from bamboo_cli.recoveries import recovery
from bamboo_cli.timeline import Timeline


@dataclass(frozen=True)
class RunRecord:
    """What was broken, what was to be broken and was not, and the job's events."""

    hits: Sequence[Hit] = ()
    events: Sequence[Manifest] = ()
    left: Sequence[ScheduledFault] = ()


@dataclass(frozen=True)
class Comparison:
    """With an undisturbed run: number of layers, and those whose final bits differ."""

    layers: int
    differing: tuple[int, ...]


def final_report(
    job: Job, timeline: Timeline, record: RunRecord, comparison: Comparison | None = None
) -> RenderableType:
    """Everything worth keeping of a finished run."""
    parts: list[RenderableType] = [outcome(job, timeline), learning(timeline), losses(job)]
    if record.hits:
        parts += [faults(record.hits, record.events), _LEGEND]
    if comparison is not None:
        parts.append(verdict(comparison))
    parts += [Text(line, style="bold red") for line in unproven(job, record, comparison)]
    return Group(*parts, times(timeline))


def is_success(job: Job, record: RunRecord, comparison: Comparison | None) -> bool:
    """Whether the job completed, all that was to be broken was, and the bits are right."""
    is_right = comparison is None or not comparison.differing
    return job.ended == "Complete" and is_right and not unproven(job, record, comparison)


def unproven(job: Job, record: RunRecord, comparison: Comparison | None) -> list[str]:
    """What a completed run was to show and has not, a sentence each."""
    if job.ended != "Complete":
        return []
    found = [_missed(fault, job) for fault in record.left]
    found += [
        f"Nothing tells how training went on without {', '.join(hit.pods)}: see the job's events."
        for hit in record.hits
        if not _is_absorbed(hit, record.events)
    ]
    if record.hits and comparison is None:
        found.append("The bits were not compared with those of an undisturbed run.")
    return found


def _missed(fault: ScheduledFault, job: Job) -> str:
    return (
        f'"{fault.fault}" was due at step {fault.progress * job.steps:.0f} of {job.steps} and did'
        " not happen: the job ended before all of its agents were seen running; give it more steps"
        " (spec.training.steps) or more --nodes, or break nothing (--no-losses)."
    )


def _is_absorbed(hit: Hit, events: Sequence[Manifest]) -> bool:
    found = recovery(hit.pods, events, lost_at=hit.at_s)
    return found is not None and found.resumed_at is not None


def outcome(job: Job, timeline: Timeline) -> Text:
    """How it ended, in a line."""
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
    verdict = "falling" if found[-1][1] < found[0][1] else "NOT falling"
    return Text(f"validation loss {verdict}: {curve}")


def _thinned(values: list[tuple[int, float]], most: int = 7) -> list[tuple[int, float]]:
    """At most ``most`` of them, evenly chosen, first and last included."""
    if len(values) <= most:
        return values
    return [values[i * (len(values) - 1) // (most - 1)] for i in range(most)]


def losses(job: Job) -> Text:
    """Agents lost and what it cost in restores."""
    if not job.lost:
        return Text("no agent was lost")
    redone = f", {job.attempt} restores" if job.attempt else ", nothing restored"
    return Text(f"{job.lost} agents lost ({job.lost_noticed} of them announced){redone}")


def faults(hits: Sequence[Hit], events: Sequence[Manifest]) -> Table:
    """Each fault: when, whom it hit, how training went on, and what that took."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("step", "what happened", "agents", "went on with", "stop after", "pause"):
        table.add_column(heading, overflow="fold")
    for hit in hits:
        absorbed = _absorbed(hit, events)
        table.add_row(str(hit.step), hit.fault, "\n".join(hit.pods), *absorbed)
    return table


_LEGEND = Text(
    "stop after: from the fault to the operator's STOP; pause: from the fault to the next commit"
    " (with notice, from the STOP, since training goes on until then)",
    style="dim",
)


def _absorbed(hit: Hit, events: Sequence[Manifest]) -> tuple[str, str, str]:
    """Plan, seconds until the STOP, seconds of the pause."""
    found = recovery(hit.pods, events, lost_at=hit.at_s)
    if found is None:
        return "no event tells", "-", "-"
    if found.resumed_at is not None and found.resumed_at <= hit.at_s:
        return (
            found.plan,
            "no stop",
            "-",
        )  # nobody waited for it: it caught_up, or had only to leave
    stopped_at = max(found.stopped_at, hit.at_s)  # the fault may fall on agents that stand still
    began_at = stopped_at if hit.fault is Fault.NOTICED else hit.at_s
    pause = "-" if found.resumed_at is None else f"{found.resumed_at - began_at:.2f} s"
    return found.plan, f"{stopped_at - hit.at_s:.2f} s", pause


def verdict(comparison: Comparison) -> Text:
    """Whether the losses changed the result."""
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
