"""Why a job does not run, and what the loss of each zone would do to it now. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime

from bamboo_cli.errors import CommandError
from bamboo_cli.job.pods import agent_zones
from bamboo_cli.job.remedies import remedy_of
from bamboo_cli.job.state import ConditionLine, Job, Manifest, read_job
from bamboo_cli.job.what_if import Held, Outlook, held, loss
from bamboo_core.api.reasons import ConditionType, Reason
from bamboo_core.api.spec import AGENT_CONTAINER
from bamboo_core.controller.view import UNREADY_S, PodPhase
from bamboo_core.model.counts import duration

_TROUBLE = (  # type, and the statuses that tell of trouble; the gravest first
    (ConditionType.FAILED, ("True",)),
    (ConditionType.ACCEPTED, ("False", "Unknown")),
    (ConditionType.SUSPENDED, ("True",)),
    (ConditionType.STALLED, ("True",)),
    (ConditionType.CAPACITY_AVAILABLE, ("False",)),
    (ConditionType.ZONE_SPREAD_SATISFIED, ("False",)),
    (ConditionType.RUNNING, ("False", "Unknown")),
    (ConditionType.RECOVERING, ("True",)),
    (ConditionType.DEGRADED, ("True",)),
    (ConditionType.CHECKPOINTED, ("False",)),
)
_BESIDE = (Reason.IMAGE_PULL_FAILED, Reason.CONTAINER_CANNOT_START, Reason.CONTAINER_FAILED)
"""Reasons of Stalled that tell of trouble even if it is false: beside agents that are at work."""
_MOST_NAMES = 3

_CHECK_OPERATOR = (
    "check that Bamboo's operator runs (`kubectl get pods -A -l"
    " app.kubernetes.io/name=bamboo-operator`)"
)


@dataclass(frozen=True)
class Finding:
    """Something that keeps the job from running as the spec says."""

    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Explanation:
    """What a user wants to know about a job."""

    job: Job
    findings: Sequence[Finding]  # the gravest first; empty: nothing is wrong
    training: Held | None  # None: no plan is in force, or it cannot be read
    outlooks: Mapping[str, Outlook]  # zone -> what its loss would do; empty: no plan is in force
    is_unreadable: bool = False  # nobody knows whether a plan is in force


def explain(
    manifest: Manifest, pods: Sequence[Manifest], nodes: Sequence[Manifest], now: float
) -> Explanation:
    """now: Unix time in seconds; nodes: may be empty if the user may not see them."""
    job = read_job(manifest, now)
    found = [*_unseen(manifest), *_stale(job), *_conditions(manifest, job, now)]
    if job.ended is None:
        found += [*_unplaced(pods, now), *_not_started(pods, nodes), *_network(job)]
    zones = agent_zones(pods, nodes)
    training: Held | None = None
    is_unreadable = False
    outlooks: dict[str, Outlook] = {}
    try:
        training = held(manifest) if job.ended is None else None
    except CommandError as error:
        is_unreadable = True
        found.append(Finding(str(error)))
    if training is not None:
        for zone in sorted({zones[a] for a in training.durable.members if a in zones}):
            there = {agent for agent, where in zones.items() if where == zone}
            outlooks[zone] = loss(training, there, zones)
    return Explanation(job, _each_remedy_once(found), training, outlooks, is_unreadable)


def _each_remedy_once(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, without remedies that one before has."""
    known, found = {""}, []
    for finding in findings:
        found.append(Finding(finding.text) if finding.remedy in known else finding)
        known.add(finding.remedy)
    return found


def failure(job: Job) -> list[str]:
    """Why a failed job has failed, and what to do, line by line; empty: it has not
    failed."""
    line = job.condition(ConditionType.FAILED)
    if line is None or line.status != "True":
        return []
    said = f"{line.type} ({line.reason})" + (f": {line.message}" if line.message else "")
    remedy = _remedy_of(line, job)
    return [said, *([f"What to do: {remedy}."] if remedy else [])]


def _remedy_of(line: ConditionLine, job: Job) -> str:
    has_checkpoint = job.checkpoint_step is not None
    return remedy_of(line.reason, line.message, has_checkpoint=has_checkpoint)


def _unseen(manifest: Manifest) -> list[Finding]:
    """The operator has not read the newest spec."""
    status, metadata = manifest.get("status") or {}, manifest["metadata"]
    if not status.get("conditions"):
        return [
            Finding(
                "No operator has looked at the job yet.",
                f"{_CHECK_OPERATOR} and that it serves this namespace",
            )
        ]
    if status.get("observedGeneration", 0) < metadata.get("generation", 0):
        text = "The operator has not read the newest spec yet, so what follows is older."
        return [Finding(text, "wait some seconds; if it lasts, read the operator's log")]
    return []


def _network(job: Job) -> list[Finding]:
    if not job.is_network_slow:
        return []
    return [
        Finding(
            f"The network gives less than spec.transport.bandwidthGbps: {job.network}.",
            "see who else uses it, and whether the machines limit it; a slow network makes each"
            " step longer",
        )
    ]


def _stale(job: Job) -> list[Finding]:
    if not job.silent_s:
        return []
    age = duration(job.silent_s)
    text = f"The status says that the job trains, but has told nothing new for {age}"
    return [Finding(f"{text}, so what follows may have changed.", _CHECK_OPERATOR)]


def _conditions(manifest: Manifest, job: Job, now: float) -> list[Finding]:
    since = {
        condition["type"]: condition.get("lastTransitionTime")
        for condition in (manifest.get("status") or {}).get("conditions") or []
    }
    found = []
    for kind, statuses in _TROUBLE:
        line = job.condition(kind)
        if line is None or _is_usual(job, kind):
            continue
        if line.status not in statuses and line.reason not in _BESIDE:
            continue
        text = f"{kind} {_since(since[kind], line.status, now)} ({line.reason})"
        text += f": {line.message}" if line.message else ""
        found.append(Finding(text, _remedy_of(line, job)))
    return found


def _is_usual(job: Job, kind: str) -> bool:
    """Nothing to explain: an ended job does not run, a new one has no checkpoint yet, and how a job
    is protected changes with the plan that it is getting."""
    if kind == ConditionType.FAILED:
        return False
    line = job.condition(kind)
    is_late = kind == ConditionType.CHECKPOINTED and line is not None and line.reason == "NoneYet"
    is_suspended = job.has(ConditionType.SUSPENDED) and kind == ConditionType.RUNNING
    is_changing = job.has(ConditionType.RECOVERING) and kind == ConditionType.DEGRADED
    return job.ended is not None or is_late or is_suspended or is_changing


def _since(text: str | None, status: str, now: float) -> str:
    """The status and its age. The reason may have changed since."""
    if not text:
        return f"is {status}"
    return f"has been {status} for {duration(now - datetime.fromisoformat(text).timestamp())}"


def _unplaced(pods: Iterable[Manifest], now: float) -> list[Finding]:
    """Pods without a node, grouped by what the scheduler says."""
    groups: dict[str, list[Manifest]] = {}
    for pod in pods:
        is_ended = (pod.get("status") or {}).get("phase") in (PodPhase.SUCCEEDED, PodPhase.FAILED)
        if pod["spec"].get("nodeName") or is_ended:
            continue
        groups.setdefault(_scheduler_says(pod), []).append(pod)
    return [
        Finding(f"{_count(waiting, 'without a node')}{_longest(waiting, now)}: {said}")
        for said, waiting in groups.items()
    ]


def _scheduler_says(pod: Manifest) -> str:
    for condition in (pod.get("status") or {}).get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] != "True":
            return str(condition.get("message") or condition.get("reason") or "no reason is given")
    return "the scheduler has not looked at them yet; check that kube-scheduler runs"


def _longest(pods: Sequence[Manifest], now: float) -> str:
    made = [pod["metadata"].get("creationTimestamp") for pod in pods]
    known = [datetime.fromisoformat(text).timestamp() for text in made if text]
    return f", for up to {duration(now - min(known))}" if known else ""


def _not_started(pods: Iterable[Manifest], nodes: Iterable[Manifest]) -> list[Finding]:
    """Containers that wait, grouped by cause, and nodes that no longer answer."""
    unready = {node["metadata"]["name"] for node in nodes if not _is_ready(node)}
    groups: dict[str, list[Manifest]] = {}
    for pod in pods:
        for cause in _waits_for(pod, unready):
            groups.setdefault(cause, []).append(pod)
    return [
        Finding(f"{_count(waiting, 'with a node but no running container')}: {cause}")
        for cause, waiting in groups.items()
    ]


def _is_ready(node: Manifest) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return all(c["status"] == "True" for c in conditions if c["type"] == "Ready")


def _waits_for(pod: Manifest, unready: AbstractSet[str]) -> list[str]:
    status, node = pod.get("status") or {}, pod["spec"].get("nodeName")
    if not node or status.get("phase") != PodPhase.PENDING:
        return []
    containers = [
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]
    found = []
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting")
        if waiting:
            name = container.get("name", "")
            what = "" if name == AGENT_CONTAINER else f"container {name}: "
            said = f": {waiting['message']}" if waiting.get("message") else ""
            found.append(f"{what}{waiting.get('reason', 'waits')}{said}")
    if node in unready:
        goes_on = f"if it stays so for {UNREADY_S:.0f} s, the operator replaces the agent"
        return [f"node {node} is not ready; {goes_on}"]
    return found or ["the kubelet has not reported yet"]


def _count(pods: Sequence[Manifest], how: str) -> str:
    names = sorted(pod["metadata"]["name"] for pod in pods)
    listed = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
    return f"{len(pods)} agent{'s' if len(pods) > 1 else ''} {how} ({listed})"
