"""The agents' pods as the operator makes them.

bamboo_agent.supervisor.config reads the environment variables.
"""

from __future__ import annotations

import copy

from bamboo_core.api.spec import (
    AGENT_CONTAINER,
    JobSpec,
    WorkerSpec,
)
from bamboo_core.controller import pod_zones, turn
from bamboo_core.controller.pod_zones import TYPE_LABEL, ZONE_LABEL
from bamboo_core.controller.reconcile import CreatePod
from bamboo_core.controller.view import JobView
from bamboo_core.placement import fitting
from bamboo_core.placement.node_pools import SPOT_LABELS
from bamboo_core.validation import reserved
from bamboo_operator.kube.api import Object
from bamboo_operator.kube.labels import (
    AVOIDS_ANNOTATION,
    AVOIDS_TYPES_ANNOTATION,
    INCARNATION_LABEL,
    JOB_LABEL,
    JOB_UID_ANNOTATION,
    JOB_UID_LABEL,
    ON_DEMAND_ANNOTATION,
    PIPELINE_LABEL,
    STAGE_LABEL,
    TEMPLATE_ANNOTATION,
)
from bamboo_operator.kube.owners import owner
from bamboo_operator.trust import seals
from bamboo_operator.trust.bundle import ADDRESS_KEY, CA_CONFIG_MAP, CA_KEY
from bamboo_operator.trust.identity import AUDIENCE, SERVER_NAME

_TOKEN_LIFE_S = 3600
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_POD_SECURITY: Object = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def pod(
    spec: JobSpec,
    job: JobView,
    action: CreatePod,
    *,
    operator_address: str,
    event_logs: str = "",
    seal: str = "",
) -> Object:
    """An agent's pod: the user's template, overridden by what belongs to the operator.

    event_logs: absolute folder for the agents' event logs; empty: no event logs. seal: by which
    the operator knows the pod again; empty: none.
    """
    template = copy.deepcopy(spec.worker.pod_template)
    meta, body = template.get("metadata") or {}, template.get("spec") or {}
    others = [c for c in body.get("containers") or [] if c["name"] != AGENT_CONTAINER]
    own: Object = next(
        (c for c in body.get("containers") or [] if c["name"] == AGENT_CONTAINER), {}
    )
    identity = _identity_env(spec, job, action, operator_address)
    identity += _keys_env(spec.worker, own)
    identity += _recording_env(job, event_logs)
    place = spec.placement.selector(action.zone, on_demand=action.is_on_demand)
    selector = {**(body.get("nodeSelector") or {}), **place}
    if action.zone:
        selector[ZONE_LABEL] = action.zone
    body.update(
        containers=[_common(c) for c in (_container(spec.worker, own, identity), *others)],
        volumes=[*(body.get("volumes") or []), _identity_volume()],
        restartPolicy="Never",
        terminationGracePeriodSeconds=spec.worker.grace_period_s,
        automountServiceAccountToken=body.get("automountServiceAccountToken", False),
        enableServiceLinks=False,
    )
    body.setdefault("serviceAccountName", "default")
    if body.get("initContainers"):
        body["initContainers"] = [_common(c) for c in body["initContainers"]]
    body["securityContext"] = _POD_SECURITY | (body.get("securityContext") or {})
    if selector:
        body["nodeSelector"] = selector
    if more := fitting.tolerations(spec.worker):
        body["tolerations"] = [*(body.get("tolerations") or []), *more]
    annotations = _annotations(meta.get("annotations") or {}, job, seal)
    annotations[TEMPLATE_ANNOTATION] = turn.template(spec)
    if not action.zone and pod_zones.keeps_apart(spec):
        body["affinity"] = _apart(body.get("affinity") or {}, spec, job, action)
    if spec.placement.on_demand is not None and not action.is_on_demand:
        body["affinity"] = _on_spot(body.get("affinity") or {})
    elif action.is_on_demand:
        annotations[ON_DEMAND_ANNOTATION] = "true"
    if action.avoids or action.avoids_types:
        body["affinity"] = _avoiding(body.get("affinity") or {}, action)
        annotations |= _avoided(action)
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


def _annotations(given: Object, job: JobView, seal: str) -> Object:
    """The user's annotations, without those that only the operator may set."""
    reserved = (AVOIDS_ANNOTATION, AVOIDS_TYPES_ANNOTATION, ON_DEMAND_ANNOTATION, seals.ANNOTATION)
    found = {key: value for key, value in given.items() if key not in reserved}
    found[JOB_UID_ANNOTATION] = job.uid
    return found | ({seals.ANNOTATION: seal} if seal else {})


def _avoiding(affinity: Object, action: CreatePod) -> Object:
    """The user's affinity without the nodes and instance types that the pod avoids.

    The API server allows one value in a rule about a node's name.
    """
    if action.avoids:
        key = "metadata.name"
        rules = [{"key": key, "operator": "NotIn", "values": [name]} for name in action.avoids]
        affinity = _narrowed(affinity, "matchFields", rules)
    if action.avoids_types:
        types = {"key": TYPE_LABEL, "operator": "NotIn", "values": list(action.avoids_types)}
        affinity = _narrowed(affinity, "matchExpressions", [types])
    return affinity


def _avoided(action: CreatePod) -> dict[str, str]:
    """Annotations from which the operator knows later what the pod avoids."""
    found = {AVOIDS_ANNOTATION: action.avoids, AVOIDS_TYPES_ANNOTATION: action.avoids_types}
    return {name: " ".join(values) for name, values in found.items() if values}


def _apart(affinity: Object, spec: JobSpec, job: JobView, action: CreatePod) -> Object:
    """The user's affinity, in any zone but those of the slot's neighbours.

    The scheduler keeps pods that come later out of this one's zone by the same rule. So it names
    the neighbours by their incarnations: those that replace them may be in its zone.
    """
    around = sorted({slot.stage for slot in pod_zones.neighbours(spec, action.slot)})
    present = sorted({*action.apart, action.incarnation})
    rules = [
        {"key": key, "operator": "In", "values": [str(value) for value in values]}
        for key, values in ((STAGE_LABEL, around), (INCARNATION_LABEL, present))
    ]
    same = {JOB_LABEL: job.name, PIPELINE_LABEL: str(action.slot.pipeline)}
    selector = {"matchLabels": same, "matchExpressions": rules}
    on_pods = dict(affinity.get("podAntiAffinity") or {})
    rule = {"labelSelector": selector, "topologyKey": ZONE_LABEL}
    on_pods[_REQUIRED] = [*(on_pods.get(_REQUIRED) or []), rule]
    # A node without a zone would be apart from all others.
    has_zone = [{"key": ZONE_LABEL, "operator": "Exists"}]
    return _narrowed(affinity, "matchExpressions", has_zone) | {"podAntiAffinity": on_pods}


def _on_spot(affinity: Object) -> Object:
    """The user's affinity, on nodes with one of the labels of spot nodes."""
    on_nodes = dict(affinity.get("nodeAffinity") or {})
    given = (on_nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [None]
    rules = [{"key": k, "operator": "In", "values": [v]} for k, v in SPOT_LABELS]
    terms = [
        (x or {}) | {"matchExpressions": [*((x or {}).get("matchExpressions") or []), rule]}
        for x in given
        if x != {}  # a term without any rule matches no node
        for rule in rules
    ]
    on_nodes[_REQUIRED] = {"nodeSelectorTerms": terms or given}
    return affinity | {"nodeAffinity": on_nodes}


def _narrowed(affinity: Object, key: str, rules: list[Object]) -> Object:
    """The user's affinity with more rules for the node. Each of its terms, one of which must fit,
    gets them."""
    on_nodes = dict(affinity.get("nodeAffinity") or {})
    given = (on_nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{key: []}]
    # A term without any rule matches no node, and that must stay so.
    terms = [x | {key: [*(x.get(key) or []), *rules]} for x in given if x]
    on_nodes[_REQUIRED] = {"nodeSelectorTerms": terms or given}
    return affinity | {"nodeAffinity": on_nodes}


def labels(job: JobView) -> dict[str, str]:
    """Labels of the job's pods. They select pods; ownership is checked by UID."""
    return {
        JOB_LABEL: job.name,
        JOB_UID_LABEL: job.uid,
        "app.kubernetes.io/name": "bamboo-agent",
        "app.kubernetes.io/part-of": "bamboo",
        "app.kubernetes.io/managed-by": "bamboo-operator",
    }


def _slot_labels(action: CreatePod) -> dict[str, str]:
    return {
        PIPELINE_LABEL: str(action.slot.pipeline),
        STAGE_LABEL: str(action.slot.stage),
        INCARNATION_LABEL: str(action.incarnation),
    }


def _common(container: Object) -> Object:
    """A container as every one of the pod is. Its last words are those that it logs, unless it
    writes others: so the status tells why it has failed."""
    return {"terminationMessagePolicy": "FallbackToLogsOnError"} | _restricted(container)


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
    env = {e["name"]: e for e in [*(own.get("env") or []), *worker.env]}
    env |= {e["name"]: e for e in identity}
    if told_in := own.get("terminationMessagePath"):
        env["BAMBOO_TERMINATION_FILE"] = {"name": "BAMBOO_TERMINATION_FILE", "value": told_in}
    container.update(
        name=AGENT_CONTAINER,
        image=worker.image,
        ports=[
            *(own.get("ports") or []),
            {"name": reserved.METRICS_PORT, "containerPort": reserved.HEALTH_PORT},
        ],
        env=list(env.values()),
        volumeMounts=[
            *(own.get("volumeMounts") or []),
            {
                "name": reserved.IDENTITY_VOLUME,
                "mountPath": reserved.IDENTITY_FOLDER,
                "readOnly": True,
            },
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
        "BAMBOO_ADDRESS_FILE": f"{reserved.IDENTITY_FOLDER}/{ADDRESS_KEY}",
        "BAMBOO_OPERATOR_NAME": SERVER_NAME,
        "BAMBOO_JOB": f"{job.namespace}/{job.name}",
        "BAMBOO_ZONE": action.zone,
        "BAMBOO_TOKEN_FILE": f"{reserved.IDENTITY_FOLDER}/token",
        "BAMBOO_CA_FILE": f"{reserved.IDENTITY_FOLDER}/{CA_KEY}",
        "BAMBOO_GRACE_S": str(spec.worker.grace_period_s),
        "BAMBOO_HEALTH_PORT": str(reserved.HEALTH_PORT),
        "BAMBOO_NOTICES": ",".join(spec.worker.notices),
    }
    return [
        from_field("BAMBOO_AGENT", "metadata.name"),
        from_field("BAMBOO_POD_UID", "metadata.uid"),
        from_field("BAMBOO_POD_IP", "status.podIP"),
        from_field("BAMBOO_NODE", "spec.nodeName"),
        *({"name": name, "value": value} for name, value in values.items()),
    ]


def _keys_env(worker: WorkerSpec, own: Object) -> list[Object]:
    """The names of the Secrets from which the agent takes keys of a bucket, for its errors: those
    of the keys' variables, else all that may have them."""
    variables = {e["name"]: e for e in [*(own.get("env") or []), *worker.env]}
    given = [variables[name].get("valueFrom") or {} for name in _KEYS if name in variables]
    sources = given if given else own.get("envFrom") or []
    found = [x.get("secretKeyRef") or x.get("secretRef") or {} for x in sources]
    names = dict.fromkeys(x["name"] for x in found if x.get("name"))
    return [{"name": "BAMBOO_KEYS_FROM", "value": ",".join(names)}]


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
    return {"name": reserved.IDENTITY_VOLUME, "projected": {"sources": sources}}
