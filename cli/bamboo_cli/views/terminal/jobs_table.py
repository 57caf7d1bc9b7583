"""Tables of jobs and of a job's agents for a terminal. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from bamboo_cli.job import left
from bamboo_cli.job.listing import AgentRow, JobRow, Pauses
from bamboo_cli.job.state import Job, paused_text
from bamboo_cli.views.terminal.fitting_table import Column, FittingTable
from bamboo_cli.views.terminal.job_screen import phase_text
from bamboo_core.api.reasons import ConditionType
from bamboo_core.model.counts import duration

_MOST_ZONES = 4


def jobs_view(rows: Sequence[JobRow], now: float, *, has_namespaces: bool) -> RenderableType:
    """A table of jobs. now: Unix time in seconds."""
    if not rows:
        return Text("There are no BambooJobs here; `bamboo top -A` shows those of all namespaces.")
    has_prices = any(row.usd_per_h is not None for row in rows)
    jobs = [row.job for row in rows]
    columns = [
        Column("job", [_name(job, has_namespaces=has_namespaces) for job in jobs]),
        Column("phase", [phase_text(job) for job in jobs]),
        Column("step", [f"{job.step}/{job.steps}" for job in jobs]),
        Column("steps/s", [_figure(row.steps_per_s, ".3g") for row in rows], rank=3),
        Column("samples/s", [_figure(row.samples_per_s, ".1f") for row in rows], rank=6),
        Column("loss", [_figure(job.loss, ".4f") for job in jobs], rank=1),
        Column("agents", [row.ready for row in rows]),
        Column("zones", [_zones(row.zones) for row in rows], rank=4, wraps=True),
        Column("pauses", [_pauses(Pauses(job.pauses, job.paused_s)) for job in jobs], rank=2),
        Column("last preemption", [_ago(row.last_loss_at, now) for row in rows], rank=5),
    ]
    if has_prices:
        columns.append(Column("USD/h", [_price(row) for row in rows], rank=3))
    for heading, text in (("time left", left.time_text), ("USD left", left.usd_text)):
        if any(found := [text(job) for job in jobs]):
            columns.append(Column(heading, [each or "-" for each in found], rank=2))
    return FittingTable(columns)


def agents_view(row: JobRow, agents: Sequence[AgentRow], now: float) -> RenderableType:
    """The job's line, why it stands still if it does, then a table of its agents. All agents of a
    job are in the same step."""
    ages = ["-" if a.age_s is None else duration(a.age_s) for a in agents]
    columns = [
        Column("agent", [a.name for a in agents]),
        Column("zone", [a.zone or "-" for a in agents]),
        Column("node", [a.node or "-" for a in agents], rank=4),
        Column("phase", [a.phase for a in agents]),
        Column("ready", ["yes" if a.is_ready else "no" for a in agents], rank=1),
        Column("age", ages, rank=3),
        Column("pauses", [_pauses(a.pauses) for a in agents], rank=2),
        Column("trouble", [a.trouble for a in agents], wraps=True),
    ]
    parts: list[RenderableType] = [jobs_view([row], now, has_namespaces=True)]
    stalled = row.job.condition(ConditionType.STALLED)
    if stalled is not None and stalled.status == "True":
        parts.append(Text(f"Stalled ({stalled.reason}): {stalled.message}", style="yellow"))
    if row.job.network:
        parts.append(Text(f"Network: {row.job.network}"))
    return Group(*parts, FittingTable(columns))


def _name(job: Job, *, has_namespaces: bool) -> str:
    return f"{job.namespace}/{job.name}" if has_namespaces else job.name


def _price(row: JobRow) -> str:
    known = _figure(row.usd_per_h, ".2f")
    return f"{known}+?" if row.has_unpriced else known


def _figure(value: float | None, digits: str) -> str:
    return "-" if value is None else format(value, digits)


def _zones(zones: Mapping[str, int]) -> str:
    listed = Counter(zones).most_common(_MOST_ZONES)
    rest = len(zones) - len(listed)
    return " ".join(f"{zone or '?'}:{count}" for zone, count in listed) + (f" +{rest}" * (rest > 0))


def _pauses(found: Pauses) -> str:
    return f"{found.count} ({paused_text(found.seconds)})" if found.count else "-"


def _ago(at: float | None, now: float) -> str:
    return "-" if at is None else f"{duration(now - at)} ago"
