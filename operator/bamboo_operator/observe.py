"""Converts objects of the Kubernetes API to the core's views. Only this module knows both.

It makes no requests. A malformed field is treated as absent: nothing that the API server sends may
stop the operator.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from bamboo_core.api import pod_template, quantities
from bamboo_core.api import spec as specs
from bamboo_core.api.pod_rules import RESTRICTED, PodRules
from bamboo_core.api.records import Problem
from bamboo_core.api.spec import JobSpec
from bamboo_core.controller.pod_zones import ZONE_LABEL
from bamboo_core.controller.view import JobView, NodeView, PodPhase, PodView, parse_pod_name
from bamboo_operator.api import Object

JOB_LABEL = "bamboo.dev/job"
STAGE_LABEL = "bamboo.dev/stage"
AVOIDS_ANNOTATION = "bamboo.dev/avoids"
"""Names of the nodes on which a pod must not be placed, separated by spaces."""
DEPARTURE_TAINTS = frozenset(
    {
        "cloud.google.com/impending-node-termination",
        "aws-node-termination-handler/spot-itn",
        "aws-node-termination-handler/scheduled-maintenance",
        "karpenter.sh/disrupted",
        "ToBeDeletedByClusterAutoscaler",
        "node.cloudprovider.kubernetes.io/shutdown",
    }
)
"""Taints by which a cloud or an autoscaler announces that the node is about to go."""

_SPOT_LABELS = (
    ("cloud.google.com/gke-spot", "true"),
    ("cloud.google.com/gke-preemptible", "true"),
    ("eks.amazonaws.com/capacityType", "SPOT"),
    ("karpenter.sh/capacity-type", "spot"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
    ("node.kubernetes.io/lifecycle", "spot"),
    ("bamboo.dev/spot", "true"),
)
_NO_LIMIT = 1 << 20
_DEEPEST = 100


def timestamp(text: str | None) -> float | None:
    """Seconds since 1970 from RFC 3339."""
    if not text:
        return None
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


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


def is_owned(pod: Object, uid: str) -> bool:
    """True if the job with that UID controls the pod. Names may recur, UIDs do not."""
    owners = pod["metadata"].get("ownerReferences") or []
    return any(owner.get("uid") == uid and owner.get("controller") for owner in owners)


def is_agent(pod: Object, job: str) -> bool:
    """True if a BambooJob of that name controls the pod, or did before it was deleted."""
    owners = pod["metadata"].get("ownerReferences") or []
    return any(
        o.get("kind") == "BambooJob" and o.get("name") == job and o.get("controller")
        for o in owners
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
        exit_reason=ended.get("reason") or status.get("reason") or "",
        waiting=waiting.get("reason") or "",
        trouble=(ended.get("message") or waiting.get("message") or "").strip()[:1000],
        avoids=frozenset((meta.get("annotations") or {}).get(AVOIDS_ANNOTATION, "").split()),
    )


def has_exit_code(pod: Object) -> bool:
    """True if the agent's container has ended, and the kubelet has reported how."""
    return "terminated" in _agent_state(pod.get("status") or {})


def _agent_state(status: Object) -> Object:
    for container in status.get("containerStatuses") or []:
        if container.get("name") == pod_template.AGENT_CONTAINER:
            state: Object = container.get("state") or {}
            return state
    return {}


def job_spec(body: Object, rules: PodRules = RESTRICTED) -> JobSpec | list[Problem]:
    """The spec of a BambooJob, or what is wrong with it. rules: what pods may have."""
    depth = _depth(body.get("spec"))
    if depth > _DEEPEST:
        text = f"is nested {depth} levels deep; at most {_DEEPEST} are supported: flatten the args"
        return [Problem("spec", text)]
    return specs.from_manifest(body, rules=rules)


def _depth(value: object) -> int:
    """Levels of objects and lists, counted without recursion."""
    depth = 0
    level: list[Any] = [value]
    while level := [x for x in level if isinstance(x, dict | list)]:
        depth += 1
        level = [y for x in level for y in (x.values() if isinstance(x, dict) else x)]
    return depth


def node_views(nodes: Iterable[Object], spec: JobSpec) -> tuple[NodeView, ...]:
    """All nodes, with how many of the job's agents fit on each."""
    return tuple(sorted((_node_view(node, spec) for node in nodes), key=lambda view: view.name))


def _node_view(node: Object, spec: JobSpec) -> NodeView:
    meta, body, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    labels = meta.get("labels") or {}
    ready = any(
        c.get("type") == "Ready" and c.get("status") == "True"
        for c in status.get("conditions") or []
    )
    taints = {taint.get("key") for taint in body.get("taints") or []}
    return NodeView(
        name=meta["name"],
        machine=machine(node),
        zone=labels.get(ZONE_LABEL, ""),
        ready=ready,
        schedulable=not body.get("unschedulable", False),
        spot=any(labels.get(key) == value for key, value in _SPOT_LABELS),
        departing=bool(taints & DEPARTURE_TAINTS),
        agents=_agents_that_fit(status.get("allocatable") or {}, spec),
    )


def machine(node: Object) -> str:
    """Node UID and boot ID. A name may come back with another machine."""
    boot_id = ((node.get("status") or {}).get("nodeInfo") or {}).get("bootID", "")
    return f"{node['metadata']['uid']}/{boot_id}"


def _agents_that_fit(allocatable: dict[str, Any], spec: JobSpec) -> int:
    wanted = spec.worker.asks
    fits = [_NO_LIMIT if not wanted else int(quantities.parse(allocatable.get("pods", _NO_LIMIT)))]
    for name, amount in wanted.items():
        each = quantities.parse(amount)
        if each > 0:
            fits.append(int(quantities.parse(allocatable.get(name, 0)) / each))
    return min(fits)
