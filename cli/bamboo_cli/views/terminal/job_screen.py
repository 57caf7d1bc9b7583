"""Renders a job for a terminal. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bamboo_cli.job import left
from bamboo_cli.job.pods import Seat
from bamboo_cli.job.snapshot import Snapshot
from bamboo_cli.job.state import Job
from bamboo_core.controller.view import Slot
from bamboo_core.model.counts import duration, grid_of

_PHASE_STYLES = {
    "Running": "green",
    "Complete": "bold green",
    "Recovering": "bold yellow",
    "Failed": "bold red",
}
_SEAT_STYLES = {"Running": "green", "Succeeded": "cyan", "Failed": "red", "Terminating": "yellow"}
_ZONE_STYLES = ("bright_blue", "bright_magenta", "bright_cyan", "bright_yellow", "bright_green")
_BAR_WIDTH = 40
_MOST_OTHERS = 4
_MAX_ROWS, _MAX_COLUMNS = 16, 12
_ROW_WIDTH = 60  # of the cells; a terminal has 80 characters


def job_screen(snapshot: Snapshot) -> RenderableType:
    """Progress, nodes by zone, grid, recent events."""
    parts: list[RenderableType] = [
        progress_line(snapshot.job),
        figures(snapshot.job),
    ]
    if snapshot.job.metrics or snapshot.job.validation_metrics:
        parts.append(metrics(snapshot.job))
    parts.append(fleet(snapshot.job))
    if snapshot.nodes:
        parts.append(nodes_line(snapshot.nodes))
    parts.append(grid(snapshot))
    parts += [Text(line, style="dim") for line in snapshot.headlines]
    title = f"{snapshot.job.namespace}/{snapshot.job.name}"
    return Panel(Group(*parts), title=Text(title), title_align="left", box=box.ROUNDED)


def phase_text(job: Job) -> Text:
    """The phase, and how old it is if the status tells nothing new any more."""
    if job.silent_s:
        return Text(f"{job.phase} {duration(job.silent_s)} ago", style="yellow")
    return Text(job.phase, style=_PHASE_STYLES.get(job.phase, "white"))


def progress_line(job: Job) -> RenderableType:
    """Phase, step, progress bar."""
    table = Table.grid(padding=(0, 1))
    table.add_row(
        phase_text(job),
        Text(f"step {job.step}/{job.steps}"),
        ProgressBar(total=max(job.steps, 1), completed=job.step, width=_BAR_WIDTH),
    )
    return table


def figures(job: Job) -> Text:
    """Losses, throughput, and what is left."""
    known = [
        f"loss {job.loss:.4f}" if job.loss is not None else "",
        f"validation loss {job.validation_loss:.4f}" if job.validation_loss is not None else "",
        f"{job.samples_per_s:.1f} samples/s" if _is_moving(job) else "",
        _left(job),
    ]
    return _joined(known)


def metrics(job: Job) -> Text:
    """All that the loss returns beside what is minimized: in training, then in validation. And the
    best checkpoint."""
    known = [f"{name} {value:.6g}" for name, value in job.metrics.items()]
    known += [f"validation {name} {value:.6g}" for name, value in job.validation_metrics.items()]
    known += [f"best checkpoint: {job.best}"] if job.best else []
    return _joined(known)


def _left(job: Job) -> str:
    """Time and money to the end."""
    time, usd = left.time_text(job), left.usd_text(job)
    return f"to the end: {time}" + (f", {usd} USD" if usd else "") if time else ""


def _is_moving(job: Job) -> bool:
    """Whether its speed is known, and not of a time long ago."""
    return bool(job.samples_per_s) and not job.silent_s


def fleet(job: Job) -> Text:
    """Pipelines, plan, lost agents. An ended job has no pipelines."""
    known = [
        "" if job.ended else f"pipelines {job.active_pipelines}/{job.pipelines}",
        f"plan {job.plan_epoch}",
        f"redundancy {job.redundancy}" if job.redundancy else "",
        f"lost {job.lost} ({job.lost_noticed} noticed)" if job.lost else "",
    ]
    return _joined(known)


def _joined(parts: Sequence[str]) -> Text:
    return Text("   ".join(part for part in parts if part))


def nodes_line(nodes: Mapping[str, tuple[int, int]]) -> Text:
    styles = zone_styles(nodes)
    text = Text("nodes ready  ")
    for zone, (ready, every) in nodes.items():
        text.append(f"{zone or 'no zone'} {ready}/{every}   ", style=styles[zone])
    return text


def zone_styles(zones: Mapping[str, object]) -> dict[str, str]:
    """Zone -> colour."""
    return {zone: _ZONE_STYLES[i % len(_ZONE_STYLES)] for i, zone in enumerate(sorted(zones))}


def grid(snapshot: Snapshot) -> RenderableType:
    """Pipelines as rows, stages as columns: of the plan, or of the pods' names if none is in force.
    A cell shows the agent's zone and the pod's phase."""
    job = snapshot.job
    seats = _planned(snapshot) if snapshot.plan else snapshot.seats
    slots = [Slot(job.pipelines - 1, job.stages - 1), *seats]
    rows, columns = (max(numbers) + 1 for numbers in zip(*slots, strict=True))
    if rows > _MAX_ROWS or columns > _MAX_COLUMNS:
        return _summary(snapshot)
    styles = zone_styles(dict.fromkeys(seat.zone for seat in seats.values()))
    begin = _common_beginning(styles, columns=columns)
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column(Text(f"{begin}..." if begin else ""))
    for stage in range(columns):
        table.add_column(f"stage {stage}", overflow="fold")
    for pipeline in range(rows):
        cells = (seats.get(Slot(pipeline, stage)) for stage in range(columns))
        shown = (_cell(seat, styles, begin) for seat in cells)
        table.add_row(f"pipeline {pipeline}", *shown)
    others = _others(snapshot) if snapshot.plan else ""
    return Group(table, Text(others, style="dim")) if others else table


def _planned(snapshot: Snapshot) -> dict[Slot, Seat]:
    """The pods by their seats in the plan. An agent takes over other stages than its pod's name
    says."""
    return {
        Slot(number, stage): snapshot.pods[agent]
        for number, pipeline in enumerate(snapshot.plan)
        for stage, agent in enumerate(pipeline)
        if agent is not None and agent in snapshot.pods
    }


def _others(snapshot: Snapshot) -> str:
    """Pods without a seat in the plan."""
    seated = {agent for pipeline in snapshot.plan for agent in pipeline}
    rest = [seat for name, seat in sorted(snapshot.pods.items()) if name not in seated]
    shown = [f"{x.pod} ({', '.join(filter(None, (x.zone, x.phase)))})" for x in rest[:_MOST_OTHERS]]
    shown += [f"{len(rest) - _MOST_OTHERS} more"] if len(rest) > _MOST_OTHERS else []
    return f"without a seat in the plan: {', '.join(shown)}" if rest else ""


def _common_beginning(zones: Collection[str], *, columns: int) -> str:
    """The common beginning of all names, such as ``europe-west4-``, if a row of whole names is too
    long."""
    if len(zones) < 2 or columns * (max(map(len, zones)) + 5) < _ROW_WIDTH:
        return ""
    least, most = min(zones), max(zones)  # all others begin with what these two share
    same = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(least, most, strict=False))
    )
    first, dash, _ = least[:same].rpartition("-")
    return first + dash


def _summary(snapshot: Snapshot) -> Text:
    job = snapshot.job
    counts = Counter(seat.phase for seat in snapshot.seats.values())
    parts = [f"{count} {phase}" for phase, count in sorted(counts.items())]
    missing = job.pipelines * job.stages - len(snapshot.seats)
    parts += [f"{missing} without a pod"] if missing > 0 else []
    return Text(f"{grid_of(job.pipelines, job.stages)}: {', '.join(parts)}")


def _cell(seat: Seat | None, styles: Mapping[str, str], begin: str) -> Text:
    """begin: of the zone's name, which the head of the table has already."""
    if seat is None:
        return Text("-", style="dim")
    text = Text("● ", style=_SEAT_STYLES.get(seat.phase, "dim"))
    text.append(seat.zone.removeprefix(begin) or "?", style=styles.get(seat.zone, "dim"))
    if seat.phase != "Running":
        text.append(f" {seat.phase}", style="dim")
    return text


def conditions(job: Job) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("condition", "status", "reason", "message"):
        table.add_column(heading, overflow="fold")
    for line in job.conditions:
        table.add_row(line.type, line.status, line.reason, line.message)
    return table


def checkpoint_line(job: Job) -> Text:
    if job.checkpoint_step is None:
        return Text("no complete checkpoint yet", style="dim")
    text = f"newest checkpoint: step {job.checkpoint_step}"
    if any(job.checkpoint_path in line.message for line in job.conditions):
        return Text(text)  # the condition names the path
    return Text(f"{text}, {job.checkpoint_path}")


def plain_line(snapshot: Snapshot) -> str:
    """One line for logs."""
    nodes = " ".join(f"{zone}={ready}/{all_}" for zone, (ready, all_) in snapshot.nodes.items())
    running = sum(seat.phase == "Running" for seat in snapshot.seats.values())
    job = snapshot.job
    speed = "-" if job.silent_s else f"{job.samples_per_s:.1f}"
    loss = "-" if job.loss is None else f"{job.loss:.4f}"
    agents = "" if job.ended else f" agents {running}/{job.pipelines * job.stages}"
    return (
        f"{phase_text(job).plain:<10} step {job.step}/{job.steps} loss {loss}"
        f" samples/s {speed}{agents} nodes {nodes}"
    )
