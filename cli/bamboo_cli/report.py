"""The quick start's last words: did it learn, where did the time go, what was lost. Pure."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bamboo_cli.job import Job
from bamboo_cli.timeline import Timeline


def final_report(job: Job, timeline: Timeline) -> RenderableType:
    """Everything worth keeping of a finished run."""
    return Group(outcome(job, timeline), learning(timeline), losses(job), times(timeline))


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


def times(timeline: Timeline) -> Table:
    """Seconds by phase."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("time by phase")
    table.add_column("s", justify="right")
    for name, seconds in timeline.phases.items():
        table.add_row(name, f"{seconds:.1f}")
    table.add_row("all", f"{timeline.elapsed_s:.1f}", style="bold")
    return table
