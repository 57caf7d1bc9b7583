"""The objects that the operator writes, as plain dicts: pods, config map, events.

bamboo_agent.supervisor.config reads the environment variables.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from datetime import UTC, datetime

from bamboo_core.api.pod_template import AGENT_CONTAINER
from bamboo_core.api.spec import JobSpec, WorkerSpec
from bamboo_core.controller.pod_zones import ZONE_LABEL
from bamboo_core.controller.reconcile import CreatePod
from bamboo_core.controller.view import JobView
from bamboo_operator import api
from bamboo_operator.api import Object
from bamboo_operator.config import AUDIENCE, SERVER_NAME
from bamboo_operator.observe import AVOIDS_ANNOTATION, JOB_LABEL, STAGE_LABEL

CA_CONFIG_MAP = "bamboo-operator-ca"
CA_KEY = "ca.crt"
ADDRESS_KEY = "address"

_IDENTITY_DIR = "/var/run/bamboo"
_TOKEN_LIFE_S = 3600
_HEALTH_PORT = 8080
_POD_SECURITY: Object = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def pod(
    spec: JobSpec, job: JobView, action: CreatePod, *, operator_address: str, event_logs: str = ""
) -> Object:
    """An agent's pod: the user's template, overridden by what belongs to the operator.

    event_logs: absolute folder for the agents' event logs; empty: no event logs.
    """
    template = copy.deepcopy(spec.worker.pod_template)
    meta, body = template.get("metadata") or {}, template.get("spec") or {}
    others = [c for c in body.get("containers") or [] if c["name"] != AGENT_CONTAINER]
    own: Object = next(
        (c for c in body.get("containers") or [] if c["name"] == AGENT_CONTAINER), {}
    )
    identity = _identity_env(spec, job, action, operator_address)
    identity += _recording_env(job, event_logs)
    selector = dict(body.get("nodeSelector") or {})
    if action.zone:
        selector[ZONE_LABEL] = action.zone
    body.update(
        containers=[_restricted(c) for c in (_container(spec.worker, own, identity), *others)],
        volumes=[*(body.get("volumes") or []), _identity_volume()],
        restartPolicy="Never",
        terminationGracePeriodSeconds=spec.worker.grace_period_s,
        automountServiceAccountToken=body.get("automountServiceAccountToken", False),
        enableServiceLinks=False,
    )
    body.setdefault("serviceAccountName", "default")
    if body.get("initContainers"):
        body["initContainers"] = [_restricted(c) for c in body["initContainers"]]
    body["securityContext"] = _POD_SECURITY | (body.get("securityContext") or {})
    if selector:
        body["nodeSelector"] = selector
    annotations = dict(meta.get("annotations") or {})
    annotations.pop(AVOIDS_ANNOTATION, None)
    if action.avoids:
        body["affinity"] = _avoiding(body.get("affinity") or {}, action.avoids)
        annotations[AVOIDS_ANNOTATION] = " ".join(action.avoids)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": action.name,
            "namespace": job.namespace,
            "labels": {**(meta.get("labels") or {}), **labels(job), **_slot_labels(action)},
            "annotations": annotations,
            "ownerReferences": [owner(job)],
        },
        "spec": body,
    }


def _avoiding(affinity: Object, nodes: Iterable[str]) -> Object:
    """The user's affinity without these nodes.

    Terms are alternatives, so each gets the rule. The API server allows one value in a rule about
    a node's name.
    """
    rules = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in nodes]
    on_nodes = dict(affinity.get("nodeAffinity") or {})
    given = (on_nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{"matchFields": []}]
    # A term without any rule matches no node, and that must stay so.
    terms = [x | {"matchFields": [*(x.get("matchFields") or []), *rules]} for x in given if x]
    on_nodes[_REQUIRED] = {"nodeSelectorTerms": terms or given}
    return affinity | {"nodeAffinity": on_nodes}


def labels(job: JobView) -> dict[str, str]:
    """Labels of the job's pods. They select pods; ownership is checked by UID."""
    return {
        JOB_LABEL: job.name,
        "app.kubernetes.io/name": "bamboo-agent",
        "app.kubernetes.io/part-of": "bamboo",
        "app.kubernetes.io/managed-by": "bamboo-operator",
    }


def _slot_labels(action: CreatePod) -> dict[str, str]:
    return {
        "bamboo.dev/pipeline": str(action.slot.pipeline),
        STAGE_LABEL: str(action.slot.stage),
        "bamboo.dev/incarnation": str(action.incarnation),
    }


def owner(job: JobView, *, controls: bool = True) -> Object:
    """Makes the garbage collector delete the object with the job, even without the operator."""
    found = {
        "apiVersion": api.API_VERSION,
        "kind": "BambooJob",
        "name": job.name,
        "uid": job.uid,
    }
    return found | ({"controller": True} if controls else {})


def _restricted(container: Object) -> Object:
    """With what the pod security level ``restricted`` asks of each container.

    On a trusted cluster the template may say else; a privileged container is refused with these.
    """
    given = container.get("securityContext") or {}
    capabilities = given.get("capabilities") or {}
    if given.get("privileged") or capabilities.get("add"):
        return container
    secured = {"allowPrivilegeEscalation": False} | given
    secured["capabilities"] = {"drop": ["ALL"]} | capabilities
    return container | {"securityContext": secured}


def _container(worker: WorkerSpec, own: Object, identity: list[Object]) -> Object:
    container = dict(own)
    container.setdefault("args", [])
    container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    env = {e["name"]: e for e in [*(own.get("env") or []), *worker.env]}
    env |= {e["name"]: e for e in identity}
    container.update(
        name=AGENT_CONTAINER,
        image=worker.image,
        env=list(env.values()),
        volumeMounts=[
            *(own.get("volumeMounts") or []),
            {"name": "bamboo-identity", "mountPath": _IDENTITY_DIR, "readOnly": True},
        ],
    )
    if worker.resources:
        container["resources"] = worker.resources
    return {key: value for key, value in container.items() if value != []}


def _identity_env(
    spec: JobSpec, job: JobView, action: CreatePod, operator_address: str
) -> list[Object]:
    def from_field(name: str, path: str) -> Object:
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}

    values = {
        "BAMBOO_OPERATOR_ADDRESS": operator_address,
        "BAMBOO_ADDRESS_FILE": f"{_IDENTITY_DIR}/{ADDRESS_KEY}",
        "BAMBOO_OPERATOR_NAME": SERVER_NAME,
        "BAMBOO_JOB": f"{job.namespace}/{job.name}",
        "BAMBOO_ZONE": action.zone,
        "BAMBOO_TOKEN_FILE": f"{_IDENTITY_DIR}/token",
        "BAMBOO_CA_FILE": f"{_IDENTITY_DIR}/{CA_KEY}",
        "BAMBOO_GRACE_S": str(spec.worker.grace_period_s),
        "BAMBOO_HEALTH_PORT": str(_HEALTH_PORT),
    }
    return [
        from_field("BAMBOO_AGENT", "metadata.name"),
        from_field("BAMBOO_POD_UID", "metadata.uid"),
        from_field("BAMBOO_POD_IP", "status.podIP"),
        from_field("BAMBOO_NODE", "spec.nodeName"),
        *({"name": name, "value": value} for name, value in values.items()),
    ]


def _recording_env(job: JobView, event_logs: str) -> list[Object]:
    """Each job has its own folder, even if it is created again under the same name."""
    if not event_logs:
        return []
    folder = f"{event_logs}/{job.namespace}/{job.name}/{job.uid}"
    return [{"name": "BAMBOO_EVENT_LOG", "value": folder}]


def _identity_volume() -> Object:
    token = {"path": "token", "audience": AUDIENCE, "expirationSeconds": _TOKEN_LIFE_S}
    bundle = {
        "name": CA_CONFIG_MAP,
        "items": [{"key": k, "path": k} for k in (CA_KEY, ADDRESS_KEY)],
    }
    sources = [{"serviceAccountToken": token}, {"configMap": bundle}]
    return {"name": "bamboo-identity", "projected": {"sources": sources}}


def ca_config_map(
    namespace: str, bundle: str, address: str, *, owners: Iterable[JobView]
) -> Object:
    """The CA bundle and the operator's address, for agents in this namespace.

    The address may change with the operator's pod; the kubelet keeps the mounted file up to date.
    owners: jobs; the garbage collector deletes the config map when all of them are gone.
    """
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": CA_CONFIG_MAP,
            "namespace": namespace,
            "labels": {"app.kubernetes.io/part-of": "bamboo"},
            "ownerReferences": [owner(job, controls=False) for job in owners],
        },
        "data": {CA_KEY: bundle, ADDRESS_KEY: address},
    }


def budget_name(job: JobView) -> str:
    """Of the job's PodDisruptionBudget."""
    return f"{job.name}-agents"


def disruption_budget(job: JobView, least: int) -> Object:
    """Evictions leave so many ready pods of the job. Others may always be evicted."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": budget_name(job),
            "namespace": job.namespace,
            "labels": {"app.kubernetes.io/part-of": "bamboo", JOB_LABEL: job.name},
            "ownerReferences": [owner(job)],
        },
        "spec": {
            "minAvailable": least,
            "selector": {"matchLabels": {JOB_LABEL: job.name}},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def instant(at: float) -> str:
    """RFC 3339, whole seconds, UTC."""
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def precise_instant(at: float) -> str:
    """RFC 3339, microseconds, UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
