"""The quick start's last words: did it learn, where did the time go, what was lost. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bamboo_cli.absorbed import recovery
from bamboo_cli.chaos import Hit
from bamboo_cli.job import Job, Manifest
from bamboo_cli.timeline import Timeline


@dataclass(frozen=True)
class Story:
    """What was broken, and the job's events."""

    hits: Sequence[Hit] = ()
    events: Sequence[Manifest] = ()


@dataclass(frozen=True)
class Comparison:
    """With an undisturbed run: number of layers, and those whose final bits differ."""

    layers: int
    differing: tuple[int, ...]


def final_report(
    job: Job, timeline: Timeline, story: Story, comparison: Comparison | None = None
) -> RenderableType:
    """Everything worth keeping of a finished run."""
    parts: list[RenderableType] = [outcome(job, timeline), learning(timeline), losses(job)]
    if story.hits:
        parts.append(blows(story.hits, story.events))
    if comparison is not None:
        parts.append(verdict(comparison))
    return Group(*parts, times(timeline))


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


def blows(hits: Sequence[Hit], events: Sequence[Manifest]) -> Table:
    """Each blow: when, whom it hit, how training went on, and the pause."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("step", "what happened", "agents", "went on with", "pause"):
        table.add_column(heading, overflow="fold")
    for hit in hits:
        plan, pause = _absorbed(hit, events)
        table.add_row(str(hit.step), hit.blow, "\n".join(hit.pods), plan, pause)
    return table


def _absorbed(hit: Hit, events: Sequence[Manifest]) -> tuple[str, str]:
    found = recovery(hit.pods, events)
    if found is None:
        return "no event tells", "-"
    return found.plan, "-" if found.pause_s is None else f"{found.pause_s:.2f} s"


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
