"""The figures of jobs and agents that `bamboo top` lists. Pure.

Figures are those of the status, the pauses of a job too. The pauses that an agent caused, and the
last preemption, are read from the events that the API server still has, by default of an hour.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from bamboo_cli.errors import CommandError
from bamboo_cli.job.events import JobEvent, failed_by_themselves, read_events
from bamboo_cli.job.pods import agent_zones, gone_nodes
from bamboo_cli.job.state import Job, Manifest, read_job
from bamboo_cli.job.what_if import plan_in_force
from bamboo_core.api.events import EventReason
from bamboo_core.api.spec import AGENT_CONTAINER
from bamboo_core.controller.view import PodPhase, parse_pod_name

_STARTS = "starts, or waits for the next plan"


@dataclass(frozen=True)
class Pauses:
    """Pauses of training, by the events."""

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
    is_ready: bool  # it takes part in the plan, and its pod is ready
    age_s: float | None
    trouble: str  # why it leaves or does not run
    pauses: Pauses  # that the agent caused


def job_row(manifest: Manifest, events: Iterable[Manifest], now: float | None = None) -> JobRow:
    """now: as for :func:`read_job`."""
    status, spec = manifest.get("status") or {}, manifest["spec"]
    job = read_job(manifest, now)
    speed = 0.0 if job.silent_s or _is_stalled(status) else job.samples_per_s
    batch = float((spec.get("training") or {}).get("globalBatchSize") or 0)
    cost = status.get("cost") or {}
    return JobRow(
        job,
        speed or None,
        speed / batch if batch and speed else None,
        _ready(status),
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
    nodes = list(nodes)
    zones, known = agent_zones(pods, nodes), read_events(events)
    gone, starting = gone_nodes(pods, nodes), _starting(manifest, pods)
    rows = [_agent_row(pod, zones, known, now) for pod in pods]
    troubled = (_with_trouble(row, gone.get(row.node, "")) for row in rows)
    troubled = (_with_trouble(row, _STARTS if row.name in starting else "") for row in troubled)
    return sorted(troubled, key=lambda row: row.name)


def _starting(manifest: Manifest, pods: Iterable[Manifest]) -> set[str]:
    """Agents that run and have no part in the plan. Their pods are ready before they are: what they
    build of model and data takes longer than the start of a container."""
    if read_job(manifest).ended is not None:
        return set()
    try:
        plan = plan_in_force(manifest)
    except CommandError:  # `bamboo explain` says why
        return set()
    names = {pod["metadata"]["name"] for pod in pods if _runs(pod)}
    return names - set(plan.members if plan is not None else ())


def _runs(pod: Manifest) -> bool:
    is_leaving = "deletionTimestamp" in pod["metadata"]
    return (pod.get("status") or {}).get("phase") == PodPhase.RUNNING and not is_leaving


def _with_trouble(row: AgentRow, trouble: str) -> AgentRow:
    """An agent with trouble is not ready, whatever its pod says. The first trouble counts."""
    return replace(row, is_ready=False, trouble=row.trouble or trouble) if trouble else row


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
        if container.get("name") == AGENT_CONTAINER:
            code = (state.get("terminated") or {}).get("exitCode")
            trouble = trouble or (f"ended with exit code {code}" if code else "")
    return AgentRow(
        name,
        zones.get(name, ""),
        pod["spec"].get("nodeName", ""),
        "Terminating" if metadata.get("deletionTimestamp") else status.get("phase", "Pending"),
        conditions.get("Ready", {}).get("status") == "True" and not trouble,
        now - datetime.fromisoformat(made).timestamp() if made else None,
        trouble,
        _caused(known, name),
    )


def _is_stalled(status: Manifest) -> bool:
    found = (c["status"] for c in status.get("conditions") or () if c["type"] == "Stalled")
    return "True" in found


def _ready(status: Manifest) -> str:
    """A job that wants no agents has none to count."""
    said = str(status.get("agentsSummary") or "")
    return "-" if said in ("", "0/0") else said


def _last_loss(known: Sequence[JobEvent]) -> float | None:
    reasons = (EventReason.AGENT_LOST, EventReason.AGENT_LEAVING)
    failed = failed_by_themselves(known)
    found = (e.at for e in known if e.reason in reasons and not e.agents <= failed)
    return max(found, default=None)


def _caused(known: Sequence[JobEvent], agent: str) -> Pauses:
    """Those whose stop names the agent."""
    epochs = {e.epoch for e in known if e.reason == EventReason.STOPPED and agent in e.agents}
    ended = [e for e in known if e.reason == EventReason.RESUMED and e.epoch in epochs]
    return Pauses(len(ended), sum(e.pause_s for e in ended))
