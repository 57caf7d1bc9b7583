"""When a job's agents ran and where, and which of them were lost, from pods and events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from bamboo_cli.job.events import GONE, JobEvent, failed_by_themselves, is_resume
from bamboo_cli.job.pods import agent_zones
from bamboo_cli.job.state import Manifest, instant
from bamboo_cli.run.model import NO_ZONE, Gone, Life, Span
from bamboo_core.api.events import EventReason
from bamboo_core.controller.view import parse_pod_name
from bamboo_core.placement.node_pools import pool_of


def places_of(
    job: str, pods: Sequence[Manifest], nodes: Sequence[Manifest], scheduled: Iterable[Manifest]
) -> dict[str, tuple[str, str]]:
    """Agent -> zone and pool. For a pod that is gone, the event says on which node it was."""
    labels = {n["metadata"]["name"]: n["metadata"].get("labels") or {} for n in nodes}
    pools = {node: pool_of(found) for node, found in labels.items()}
    zones = agent_zones(pods, nodes)
    found = {
        name: (zones.get(name, ""), pools.get(pod["spec"].get("nodeName", ""), ""))
        for pod in pods
        if parse_pod_name(job, name := pod["metadata"]["name"]) is not None
    }
    for event in scheduled:
        name = (event.get("involvedObject") or {}).get("name", "")
        node = event.get("message", "").rpartition(" to ")[2]
        if name in found or parse_pod_name(job, name) is None or node not in labels:
            continue
        stand_in = {"metadata": {"name": name}, "spec": {"nodeName": node}}
        found[name] = (agent_zones([stand_in], nodes).get(name, ""), pools[node])
    return {name: (zone, pool) for name, (zone, pool) in found.items() if zone or pool}


def began_at(job: str, scheduled: Iterable[Manifest]) -> dict[str, float]:
    """Agent -> when its pod got a node, for those of which an event is left."""
    found: dict[str, float] = {}
    for event in scheduled:
        name = (event.get("involvedObject") or {}).get("name", "")
        at = instant(event.get("eventTime") or event.get("firstTimestamp"))
        if at is not None and parse_pod_name(job, name) is not None:
            found[name] = at
    return found


def lives_of(
    job: str,
    known: Sequence[JobEvent],
    pods: Iterable[Manifest],
    places: Mapping[str, tuple[str, str]],
    whole: Span,
    began: Mapping[str, float] = MappingProxyType({}),
) -> list[Life]:
    """When each agent ran. A pod that exists says so itself; any other agent ran from when its pod
    got a node (``began``), else from the first plan with it, until it was gone.

    An agent without a seat may run on and come back, so a pod that runs ends only with its loss.
    """
    spans, gone = _planned(known, whole, began), _last_words(known)
    for pod in pods:
        name, status = pod["metadata"]["name"], pod.get("status") or {}
        begin = instant(status.get("startTime"))
        if parse_pod_name(job, name) is None or begin is None:
            continue
        said = gone.get(name)
        runs_on = said is not None and said.reason == EventReason.AGENT_LEFT and _is_alive(status)
        ended = whole.end if said is None or runs_on else said.at
        spans[name] = Span(begin, min(_finished(status) or ended, whole.end))
    found = []
    for name, span in spans.items():
        zone, pool = places.get(name, ("", ""))
        begin, end = max(span.begin, whole.begin), min(span.end, whole.end)
        if end > begin:
            found.append(Life(name, zone or NO_ZONE, pool, Span(begin, end)))
    return sorted(found, key=lambda life: (life.span.begin, life.agent))


def _planned(known: Sequence[JobEvent], whole: Span, began: Mapping[str, float]) -> dict[str, Span]:
    """Agent -> from its begin, or the first plan with it, until an event tells its end, or the job
    rests, or a plan is without it and no later one has it.

    Plans after the loss of an event may be missing; then the agent lives until the next plan.
    """
    begins: dict[str, float] = {}
    ends: dict[str, float] = {}
    before = whole.begin
    for event in known:
        if event.reason == EventReason.PLANNED:
            for agent in event.agents:
                begins.setdefault(agent, event.at)
                ends.pop(agent, None)
            for agent in begins.keys() - event.agents:
                ends.setdefault(agent, event.at)
        elif event.reason in GONE:
            begins |= {agent: event.at for agent in event.agents & began.keys() - begins.keys()}
            ends |= dict.fromkeys(event.agents & begins.keys(), event.at)
        elif event.reason == EventReason.SUSPENDED:
            ends = dict.fromkeys(begins, event.at) | ends
        elif is_resume(event):  # an earlier version has told nothing when the job came to rest
            ends = dict.fromkeys(begins, before) | ends
        before = event.at
    return {
        agent: Span(min(begin, began.get(agent, begin)), ends.get(agent, whole.end))
        for agent, begin in begins.items()
    }


def _last_words(known: Iterable[JobEvent]) -> dict[str, JobEvent]:
    """Agent -> the event that tells that it has left or is lost, unless a later plan has it."""
    found: dict[str, JobEvent] = {}
    for event in known:
        if event.reason == EventReason.PLANNED:
            found = {agent: said for agent, said in found.items() if agent not in event.agents}
        elif event.reason in GONE:
            found |= dict.fromkeys(event.agents, event)
    return found


def _is_alive(status: Manifest) -> bool:
    """Whether a pod has not ended."""
    return status.get("phase") not in ("Succeeded", "Failed")


def _finished(status: Manifest) -> float | None:
    """When the agent's container ended; None: it has not."""
    for container in status.get("containerStatuses") or []:
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("finishedAt"):
            return instant(ended["finishedAt"])
    return None


def gone_of(known: Sequence[JobEvent], places: Mapping[str, tuple[str, str]]) -> list[Gone]:
    """Agents that are lost, and those that left after a notice and did not come back; not those
    that were let go, or that failed by themselves."""
    failed = failed_by_themselves(known)
    noticed: set[str] = set()
    left: dict[str, Gone] = {}
    lost: dict[str, Gone] = {}
    for event in known:
        if event.reason == EventReason.AGENT_LEAVING:
            noticed |= event.agents
        elif event.reason == EventReason.PLANNED:
            left = {agent: gone for agent, gone in left.items() if agent not in event.agents}
        elif event.reason in GONE:
            is_loss = event.reason == EventReason.AGENT_LOST
            agents = (event.agents if is_loss else event.agents & noticed) - failed
            for agent in sorted(agents):
                zone = places.get(agent, ("", ""))[0] or NO_ZONE
                gone = Gone(event.at, agent, zone, agent in noticed)
                (lost if is_loss else left).setdefault(agent, gone)
    return sorted((left | lost).values(), key=lambda gone: gone.at)
