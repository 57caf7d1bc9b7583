"""An explanation for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bamboo_cli.job import left
from bamboo_cli.job.diagnosis import Explanation
from bamboo_cli.job.state import Job
from bamboo_cli.job.what_if import Fate, Outlook, seats_text
from bamboo_core.model.counts import duration

_STYLES = {
    Fate.NOTHING: "dim",
    Fate.CONTINUES: "green",
    Fate.WAITS: "yellow",
    Fate.RESTORES: "bold red",
    Fate.UNKNOWN: "bold red",
}


def explain_view(found: Explanation) -> RenderableType:
    """Why the job does not run, then the zones."""
    parts: list[RenderableType] = [_state(found.job)]
    if until_end := left.sentence(found.job):
        parts.append(Text(until_end))
    for finding in found.findings:
        parts.append(Text(f"- {finding.text}"))
        if finding.remedy:
            parts.append(Text(f"  What to do: {finding.remedy}.", style="green"))
    if not found.findings:
        parts.append(Text("Nothing is wrong with it."))
    if why := found.job.redundancy_reason:
        parts.append(Text(f"Redundancy {found.job.redundancy}, taken by Auto: {why}."))
    parts += _zones(found)
    return Group(*parts)


def _state(job: Job) -> Text:
    where = f"{job.phase} at step {job.step} of {job.steps}"
    text = f"{job.namespace}/{job.name} is {where}."
    if job.silent_s:
        text = f"{job.namespace}/{job.name} was {where} {duration(job.silent_s)} ago."
    return Text(text, style="bold")


def _zones(found: Explanation) -> Iterator[RenderableType]:
    if found.job.ended is not None:
        return
    if found.is_unreadable:
        yield Text("What a loss would do is not known.", style="dim")
        return
    if found.training is None:
        yield Text("No plan is in force, so a loss costs no training.", style="dim")
        return
    mode = found.training.spec.redundancy.mode
    yield Text(f"\nWhat the loss of a zone would do now (redundancy {mode}):")
    if not found.outlooks:
        yield Text(
            "The zones of the agents are not known: their pods are gone, or their nodes have no"
            " zone label."
        )
        return
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("zone", "agents", "seats", "then"):
        table.add_column(heading, overflow="fold")
    for zone, outlook in found.outlooks.items():
        seats = seats_text(found.training, outlook.agents)
        table.add_row(zone, str(len(outlook.agents)), seats, then(outlook))
    yield table


def then(outlook: Outlook) -> Text:
    """The fate, then what happens."""
    text = Text(str(outlook.fate), style=_STYLES[outlook.fate])
    return text.append(f": {outlook.text}", style="default")
