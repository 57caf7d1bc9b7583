"""The text at the end of a quick start: outcome, learning curve, faults, time. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bamboo_cli.job.state import Job, Manifest
from bamboo_cli.quickstart.final_state import Comparison
from bamboo_cli.quickstart.stopwatch import Stopwatch
from bamboo_cli.quickstart.verdict import unproven
from bamboo_cli.run.faults import FaultLog, Hit
from bamboo_cli.run.model import Run
from bamboo_cli.run.recovery import pause_of, plan_text, recovery
from bamboo_core.model.counts import counted


def final_report(
    run: Run, stopwatch: Stopwatch, log: FaultLog, comparison: Comparison | None = None
) -> RenderableType:
    job = run.job
    parts: list[RenderableType] = [outcome(job, stopwatch), learning(run), losses(job)]
    if job.redundancy_reason:
        parts.append(redundancy(job))
    if job.channel:
        parts.append(channel(job))
    if log.hits:
        parts += [faults(log.hits, log.events), _LEGEND]
    if comparison is not None:
        parts.append(verdict(comparison))
    parts += [Text(line, style="bold red") for line in unproven(job, log, comparison)]
    return Group(*parts, times(stopwatch))


def outcome(job: Job, stopwatch: Stopwatch) -> Text:
    """How the job ended."""
    line = job.condition(job.ended or "Running")
    reason = f": {line.message or line.reason}" if line else ""
    style = "bold green" if job.ended == "Complete" else "bold red"
    text = f"{job.name} {job.ended or job.phase} at step {job.step} of {job.steps}"
    return Text(f"{text} after {stopwatch.elapsed_s:.0f} s{reason}", style=style)


def learning(run: Run) -> Text:
    """The validation loss, first to last."""
    found = run.validation
    if len(found) < 2:
        return Text("validation loss: fewer than two values were seen")
    curve = " -> ".join(f"{value:.3f}" for _, value in _thinned(found))
    trend = "falling" if found[-1][1] < found[0][1] else "NOT falling"
    return Text(f"validation loss {trend}: {curve}")


def _thinned(values: Sequence[tuple[int, float]], most: int = 7) -> Sequence[tuple[int, float]]:
    """At most ``most`` values at even distances, with the first and the last."""
    if len(values) <= most:
        return values
    return [values[i * (len(values) - 1) // (most - 1)] for i in range(most)]


def losses(job: Job) -> Text:
    """Number of agents lost, and of restores."""
    if not job.lost:
        return Text("no agent was lost")
    count = sum(count for _, count in job.restores)
    restores = counted(count, "restore") if count else "no restore from a checkpoint"
    return Text(f"{counted(job.lost, 'agent')} lost ({job.lost_noticed} with notice), {restores}")


def redundancy(job: Job) -> Text:
    """The mode that Auto has taken, and why."""
    return Text(f"redundancy {job.redundancy}, taken by Auto: {job.redundancy_reason}")


def channel(job: Job) -> Text:
    """The channel that has carried large tensors, and why."""
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


def verdict(comparison: Comparison) -> Text:
    """Whether the faults changed the result."""
    layers = comparison.layers
    if not comparison.differing:
        text = f"weights and optimizer state of all {layers} layers equal the undisturbed run's"
        return Text(f"{text}, bit for bit", style="bold green")
    text = f"layers {list(comparison.differing)} of {layers} DIFFER from the undisturbed run's"
    return Text(text, style="bold red")


def times(stopwatch: Stopwatch) -> Table:
    """Seconds by phase."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("time by phase")
    table.add_column("s", justify="right")
    for name, seconds in stopwatch.phases.items():
        table.add_row(name, f"{seconds:.1f}")
    table.add_row("all", f"{stopwatch.elapsed_s:.1f}", style="bold")
    return table
