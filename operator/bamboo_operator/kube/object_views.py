"""Converts objects of the Kubernetes API to the core's views. Only this module knows both.

It makes no requests. A malformed field is treated as absent: nothing that the API server sends may
stop the operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from bamboo_core.admission.claims import NodeRoom
from bamboo_core.api import texts
from bamboo_core.api.spec import AGENT_CONTAINER
from bamboo_core.controller import shortage
from bamboo_core.controller.pod_zones import TYPE_LABEL, ZONE_LABEL
from bamboo_core.controller.view import JobView, NodeView, PodPhase, PodView, parse_pod_name
from bamboo_core.evidence import node_notices
from bamboo_core.evidence.node_notices import NodeNotice, Taint
from bamboo_core.evidence.pod_troubles import CANNOT_START, ENDS_AGAIN, PodTrouble
from bamboo_core.evidence.taints import lasting
from bamboo_core.placement import fitting, node_pools
from bamboo_core.placement.fitting import Amounts, Needs, Place
from bamboo_operator.kube import own_log
from bamboo_operator.kube.api import Object
from bamboo_operator.kube.labels import (
    AVOIDS_ANNOTATION,
    AVOIDS_TYPES_ANNOTATION,
    ON_DEMAND_ANNOTATION,
    TEMPLATE_ANNOTATION,
)
from bamboo_operator.kube.owners import is_owned
from bamboo_operator.kube.timestamps import timestamp

_MOST_LOG_BYTES = 500
"""Of the end of a log: it fits an event, with what is said before it."""


def job_view(body: Object) -> JobView:
    """The BambooJob beside its spec."""
    meta = body["metadata"]
    return JobView(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        generation=int(meta.get("generation", 0)),
        created_at=timestamp(meta.get("creationTimestamp")) or 0.0,
        deleting="deletionTimestamp" in meta,
    )


def pod_views(pods: Iterable[Object], job: JobView) -> tuple[PodView, ...]:
    """The job's agents, sorted by name."""
    views = (_pod_view(pod, job.name) for pod in pods if is_owned(pod, job.uid))
    return tuple(sorted((v for v in views if v is not None), key=lambda view: view.name))


def _pod_view(pod: Object, job: str) -> PodView | None:
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    parsed = parse_pod_name(job, meta["name"])
    if parsed is None:
        return None
    slot, incarnation = parsed
    state = _agent_state(status)
    ended, waiting = state.get("terminated") or {}, state.get("waiting") or {}
    phase = status.get("phase", "Pending")
    refusal, annotations = _refusal(status), meta.get("annotations") or {}
    return PodView(
        name=meta["name"],
        uid=meta["uid"],
        slot=slot,
        incarnation=incarnation,
        phase=PodPhase(phase) if phase in list(PodPhase) else PodPhase.UNKNOWN,
        created_at=timestamp(meta.get("creationTimestamp")) or 0.0,
        zone=(spec.get("nodeSelector") or {}).get(ZONE_LABEL, ""),
        node=spec.get("nodeName") or "",
        started_at=timestamp(status.get("startTime")),
        deleting_at=timestamp(meta.get("deletionTimestamp")),
        exit_code=ended.get("exitCode"),
        exit_reason=ended.get("reason") or "",
        ended_at=_instant(ended.get("finishedAt")),
        waiting=waiting.get("reason") or "",
        untold=_untold(ended),
        trouble=_said(ended) or _shortened(waiting.get("message")),
        template=str(annotations.get(TEMPLATE_ANNOTATION) or ""),
        is_on_demand=annotations.get(ON_DEMAND_ANNOTATION) == "true",
        avoids=frozenset(annotations.get(AVOIDS_ANNOTATION, "").split()),
        avoids_types=frozenset(annotations.get(AVOIDS_TYPES_ANNOTATION, "").split()),
        refused_at=timestamp(refusal.get("lastTransitionTime")),
        refusal=_shortened(refusal.get("message")),
        beside=_beside(pod),
    )


def _beside(pod: Object) -> PodTrouble:
    """The status, read for what it says against the pod and its other containers."""
    status = pod.get("status") or {}
    found = PodTrouble(
        reason=status.get("reason") or "",
        message=_shortened(status.get("message")),
        is_disrupted=is_disrupted(pod),
        runs_on=_runs_on(status),
        has_volumes=_has_volumes(status.get("conditions") or []),
    )
    is_over = status.get("phase") in (PodPhase.SUCCEEDED, PodPhase.FAILED)
    again = set() if is_over else _started_again(pod)
    # The agent's container has not started: what goes first keeps it.
    is_first = not is_over and not _agent_state(status).keys() - {"waiting"}
    for container in status.get("initContainerStatuses") or []:
        blocks = is_first and _blocks(container, again)
        trouble = _of_init_container(
            found, container, ends_again=blocks and _is_again(container, again)
        )
        if trouble is not None:
            return trouble
        if blocks and not found.awaited:
            name = str(container.get("name"))
            works = name not in again and not _newest_end(container).get("exitCode")
            found = replace(found, awaited=name, works=works)
    for container in status.get("containerStatuses") or []:
        if container.get("name") == AGENT_CONTAINER:
            continue
        trouble = _of_sidecar(found, container, is_over=is_over)
        if trouble is not None:
            return trouble
    return found


def _of_init_container(
    found: PodTrouble, container: Object, *, ends_again: bool
) -> PodTrouble | None:
    """None: nothing is wrong with it. ends_again: it runs, or has just ended, between two ends."""
    state = container.get("state") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    name = str(container.get("name"))
    if ends_again:
        words = _end_words(_newest_end(container))
        return replace(found, container=name, state=ENDS_AGAIN, words=words)
    if ended.get("exitCode"):
        said = _last_words(container) or _said(ended)
        return replace(
            found,
            container=name,
            state=ended.get("reason") or "",
            words=said,
            exit_code=ended["exitCode"],
        )
    return _waits(found, container, waiting)


def _of_sidecar(found: PodTrouble, container: Object, *, is_over: bool) -> PodTrouble | None:
    """The trouble of an ordinary container beside the agent's; None: there is none.

    Its end is no end of the agent, so it has no exit code. When a pod ends, so do they all.
    """
    state = container.get("state") or {}
    ended = state.get("terminated") or {}
    if ended.get("exitCode") and not is_over:
        return replace(
            found,
            container=str(container.get("name")),
            state=ended.get("reason") or "",
            words=_end_words(ended),
            is_over=True,
        )
    return _waits(found, container, state.get("waiting") or {})


def _waits(found: PodTrouble, container: Object, waiting: Object) -> PodTrouble | None:
    reason = waiting.get("reason")
    if reason not in CANNOT_START:
        return None
    ends_before = _last_words(container) if reason == ENDS_AGAIN else ""
    said = ends_before or _shortened(waiting.get("message"))
    name = str(container.get("name"))
    return replace(found, container=name, state=waiting["reason"], words=said)


def _started_again(pod: Object) -> set[str]:
    """The init containers that the kubelet starts again whenever they end."""
    containers = (pod.get("spec") or {}).get("initContainers") or []
    return {str(c.get("name")) for c in containers if c.get("restartPolicy") == "Always"}


def _blocks(container: Object, again: set[str]) -> bool:
    """Whether the agent's container waits for this init container, which has been started."""
    state = container.get("state") or {}
    if container.get("name") in again:
        return "terminated" in state or ("running" in state and not container.get("started"))
    return "running" in state


def _is_again(container: Object, again: set[str]) -> bool:
    """Whether it has failed before, and is started again."""
    return container.get("name") in again and bool(_newest_end(container).get("exitCode"))


def _newest_end(container: Object) -> Object:
    """Empty: it has not ended yet."""
    states = (container.get(name) or {} for name in ("state", "lastState"))
    ends: Iterator[Object] = (state["terminated"] for state in states if state.get("terminated"))
    return next(ends, {})


def _has_volumes(conditions: Iterable[Object]) -> bool | None:
    """None: the kubelet is older than the condition."""
    for condition in conditions:
        if condition.get("type") == "PodReadyToStartContainers":
            return bool(condition.get("status") == "True")
    return None


def _last_words(container: Object) -> str:
    """How a container ended that the kubelet starts again and again; empty: it does not."""
    last: Object = (container.get("lastState") or {}).get("terminated") or {}
    return _end_words(last) if last else ""


def _end_words(ended: Object) -> str:
    words = _said(ended)
    return f"it ended with exit code {ended.get('exitCode')}{': ' * bool(words)}{words}"


def _runs_on(status: Object) -> bool:
    """Whether an ordinary container beside the agent's has not ended."""
    return any(
        container.get("name") != AGENT_CONTAINER
        and "terminated" not in (container.get("state") or {})
        for container in status.get("containerStatuses") or []
    )


def _said(ended: Object) -> str:
    """A container's last words. Agents say what has ended them in one line. Several lines are the
    end of a log, and the last of them tells most."""
    message = texts.whole(ended.get("message") or "").partition(texts.UNTOLD)[0]
    words = texts.whole(own_log.without(message))
    if "\n" in words:
        return texts.end(words, _MOST_LOG_BYTES)
    return texts.cut(words, texts.MOST_LINE_BYTES)


def _untold(ended: Object) -> str:
    """Which hooks were not told all steps."""
    return _shortened((ended.get("message") or "").partition(texts.UNTOLD)[2])


def _shortened(message: str | None) -> str:
    return texts.cut(texts.whole(message or ""), texts.MOST_LINE_BYTES)


def has_exit_code(pod: Object) -> bool:
    """True if the agent's container has ended, and the kubelet has reported how."""
    return "terminated" in _agent_state(pod.get("status") or {})


def is_disrupted(pod: Object) -> bool:
    """Whether a controller, the scheduler or the node takes the pod away, as its status says."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(
        c.get("type") == "DisruptionTarget" and c.get("status") == "True" for c in conditions
    )


def _agent_state(status: Object) -> Object:
    for container in status.get("containerStatuses") or []:
        if container.get("name") == AGENT_CONTAINER:
            state: Object = container.get("state") or {}
            return state
    return {}


def _refusal(status: Object) -> Object:
    """The condition by which the scheduler says that it finds no node; empty: there is none."""
    for condition in status.get("conditions") or []:
        kind, reason = condition.get("type"), condition.get("reason")
        if (kind, condition.get("status"), reason) == ("PodScheduled", "False", "Unschedulable"):
            found: Object = condition
            return found
    return {}


def node_view(node: Object, needs: Needs, taken: Amounts) -> NodeView:
    """A node as a job sees it. taken: what the pods on it take.

    ``agents`` is below 0 where the pods take more than the node has.
    """
    meta, body, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    labels, taints = meta.get("labels") or {}, tuple(body.get("taints") or [])
    conditions: list[Object] = status.get("conditions") or []
    says = next((c for c in conditions if c.get("type") == "Ready"), {})
    ready = says.get("status") == "True"
    notice = node_notice(node)
    allocatable = status.get("allocatable")
    zone = labels.get(ZONE_LABEL, "")
    is_departing = notice is not None and not notice.is_hint
    place = Place(meta["name"], zone, labels, taints)
    lacks = fitting.mismatch(needs, replace(place, taints=lasting(taints)))
    closed = "" if lacks else fitting.mismatch(needs, place)
    agents, scarce = fitting.room(needs.asks, fitting.free(allocatable, taken))
    whole = fitting.free(allocatable, {})
    suits = not lacks and fitting.room(needs.asks, whole)[0] > 0
    is_held_back = shortage.is_taint(lacks) and agents > 0
    if lacks:
        agents = min(0, agents)
    elif closed and not is_departing:
        lacks = shortage.at_present(closed)
    elif agents <= 0:
        lacks = (shortage.insufficient if scarce in whole else shortage.offers_no)(scarce)
    return NodeView(
        name=meta["name"],
        machine=machine(node),
        zone=zone,
        ready=ready,
        unready_since=0.0 if ready else timestamp(says.get("lastTransitionTime")) or 0.0,
        schedulable=not closed and not body.get("unschedulable", False),
        spot=node_pools.is_spot(labels),
        departing=is_departing,
        notice=notice,
        agents=agents,
        suits=suits,
        lacks=lacks,
        is_held_back=is_held_back,
        instance_type=labels.get(TYPE_LABEL, ""),
    )


def node_room(node: Object, taken: Amounts, by_others: Amounts) -> NodeRoom:
    """Room that the pods on a node leave. taken: by all; by_others: by those of other owners."""
    labels = node["metadata"].get("labels") or {}
    allocatable = (node.get("status") or {}).get("allocatable")
    whole = fitting.free(allocatable, by_others)
    return NodeRoom(labels.get(ZONE_LABEL, ""), fitting.free(allocatable, taken), whole)


def node_notice(node: Object) -> NodeNotice | None:
    """The notice in the node's taints and conditions that it will end; None: there is none."""
    body, status = node.get("spec") or {}, node.get("status") or {}
    taints = [_taint(taint) for taint in body.get("taints") or []]
    messages = [
        str(c.get("message") or "")
        for c in status.get("conditions") or []
        if c.get("type") == "Ready" and c.get("status") != "True"
    ]
    return node_notices.find(
        taints,
        is_unschedulable=bool(body.get("unschedulable")),
        ready_message=" ".join(messages),
    )


def _taint(taint: Object) -> Taint:
    value, since = str(taint.get("value") or ""), _instant(taint.get("timeAdded"))
    return Taint(str(taint.get("key")), value, since)


def _instant(text: Any) -> float | None:
    """None if it is absent or malformed."""
    try:
        return timestamp(text)
    except (ValueError, AttributeError):
        return None


def node_facts(node: Object) -> Object:
    """The fields of a node that matter to jobs. A kubelet reports every few minutes even if nothing
    has changed."""
    meta, status = node["metadata"], node.get("status") or {}
    conditions = [c for c in status.get("conditions") or [] if c.get("type") == "Ready"]
    return {
        "uid": meta["uid"],
        "labels": meta.get("labels"),
        "spec": node.get("spec"),
        "allocatable": status.get("allocatable"),
        "ready": [(c.get("status"), c.get("message")) for c in conditions],
        "boot": (status.get("nodeInfo") or {}).get("bootID"),
    }


def machine(node: Object) -> str:
    """Node UID and boot ID. A name may come back with another machine."""
    boot_id = ((node.get("status") or {}).get("nodeInfo") or {}).get("bootID", "")
    return f"{node['metadata']['uid']}/{boot_id}"
