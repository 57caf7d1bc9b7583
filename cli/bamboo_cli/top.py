"""`bamboo top`: the jobs of a namespace, or the agents of a job, with figures. Pure.

Figures are those of the status, the pauses of a job too. The pauses that an agent caused, and the
last preemption, are read from the events that the API server still has, by default of an hour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import Group, RenderableType
from rich.text import Text

from bamboo_cli.explain import agent_zones
from bamboo_cli.fitting import Column, FittingTable
from bamboo_cli.job import Job, Manifest, duration, read_job
from bamboo_cli.recoveries import JobEvent, read_events
from bamboo_cli.screen import phase_text
from bamboo_core.api.events import EventFact, EventReason
from bamboo_core.controller.view import parse_pod_name

_MOST_ZONES = 4


@dataclass(frozen=True)
class Pauses:
    """Of training, by the events."""

    count: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class JobRow:
    """One job. None: not known."""

    job: Job
    samples_per_s: float | None
    steps_per_s: float | None
    ready: str  # agents connected / wanted
    zones: Mapping[str, int]  # zone -> agents that run
    last_loss_at: float | None  # Unix time of the newest loss or notice, by the events
    usd_per_h: float | None = None  # of the nodes that it uses and that have a price
    has_unpriced: bool = False  # some have none


@dataclass(frozen=True)
class AgentRow:
    """One agent's pod."""

    name: str
    zone: str
    node: str
    phase: str
    is_ready: bool
    age_s: float | None
    trouble: str  # why it leaves or does not run
    pauses: Pauses  # that the agent caused


def job_row(manifest: Manifest, events: Iterable[Manifest], now: float | None = None) -> JobRow:
    """now: as for :func:`read_job`."""
    status, spec = manifest.get("status") or {}, manifest["spec"]
    job = read_job(manifest, now)
    speed = 0.0 if job.silent_s else job.samples_per_s
    batch = float((spec.get("training") or {}).get("globalBatchSize") or 0)
    cost = status.get("cost") or {}
    return JobRow(
        job,
        speed or None,
        speed / batch if batch and speed else None,
        str(status.get("agentsSummary", "-")),
        {zone["zone"]: zone.get("running", 0) for zone in status.get("agents") or []},
        _last_loss(read_events(events)),
        cost.get("dollarsPerHour"),
        bool(cost.get("unpricedNodes")),
    )


def agent_rows(
    manifest: Manifest,
    pods: Iterable[Manifest],
    nodes: Iterable[Manifest],
    events: Iterable[Manifest],
    now: float,
) -> list[AgentRow]:
    """One row for each pod, by name. now: Unix time in seconds."""
    name = manifest["metadata"]["name"]
    pods = [pod for pod in pods if parse_pod_name(name, pod["metadata"]["name"]) is not None]
    zones, known = agent_zones(pods, nodes), read_events(events)
    rows = [_agent_row(pod, zones, known, now) for pod in pods]
    return sorted(rows, key=lambda row: row.name)


def _agent_row(
    pod: Manifest, zones: Mapping[str, str], known: Sequence[JobEvent], now: float
) -> AgentRow:
    metadata, status = pod["metadata"], pod.get("status") or {}
    name, made = metadata["name"], metadata.get("creationTimestamp")
    conditions = {c["type"]: c for c in status.get("conditions") or []}
    unplaced = conditions.get("PodScheduled", {})
    trouble = "" if unplaced.get("status") != "False" else str(unplaced.get("message", ""))
    for container in status.get("containerStatuses") or []:
        state = container.get("state") or {}
        trouble = trouble or (state.get("waiting") or {}).get("reason", "")
    return AgentRow(
        name,
        zones.get(name, ""),
        pod["spec"].get("nodeName", ""),
        "Terminating" if metadata.get("deletionTimestamp") else status.get("phase", "Pending"),
        conditions.get("Ready", {}).get("status") == "True",
        now - datetime.fromisoformat(made).timestamp() if made else None,
        trouble,
        _caused(known, name),
    )


def _last_loss(known: Iterable[JobEvent]) -> float | None:
    reasons = (EventReason.AGENT_LOST, EventReason.AGENT_LEAVING)
    return max((e.at for e in known if e.reason in reasons), default=None)


def _caused(known: Sequence[JobEvent], agent: str) -> Pauses:
    """Those whose stop names the agent."""
    epochs = {e.epoch for e in known if e.reason == EventReason.STOPPED and agent in e.agents}
    ended = [e for e in known if e.reason == EventReason.RESUMED and e.epoch in epochs]
    return Pauses(len(ended), sum(float(e.facts.get(EventFact.PAUSE_S, 0.0)) for e in ended))


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
    return FittingTable(columns)


def agents_view(row: JobRow, agents: Sequence[AgentRow], now: float) -> RenderableType:
    """The job's line, then a table of its agents. All agents of a job are in the same step."""
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
    return Group(jobs_view([row], now, has_namespaces=True), FittingTable(columns))


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
    return f"{found.count} ({found.seconds:.1f} s)" if found.count else "-"


def _ago(at: float | None, now: float) -> str:
    return "-" if at is None else f"{duration(now - at)} ago"
