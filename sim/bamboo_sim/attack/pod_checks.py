"""What no pod of a job may have on a cluster whose users are not all trusted.

Written from the pod security standards of Kubernetes (level ``restricted``) and docs/security.md,
without the operator's own rules: they are what is attacked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from bamboo_operator.kube.api import Object

_VOLUMES = {
    "name", "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
    "projected", "secret",
}  # fmt: skip
_WORD = re.compile("(?!.{64})[A-Za-z0-9](|[A-Za-z0-9._-]*[A-Za-z0-9])")
_NAME = re.compile(f"((?![^/]{{254}})[a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?{_WORD.pattern}")
_OFFERED = "bamboo-job-"
_NO_VALUE: tuple[Any, ...] = (None, False, "", [], {})
"""Which Kubernetes takes as if the field were not there."""


def faults(pod: Object, *, job: str, namespace: str) -> list[str]:
    """Return what is wrong with a pod that the operator wants to make for that job."""
    return [*_identity(pod, job, namespace), *_pod(pod["spec"]), *_secrets(_sources(pod["spec"]))]


def _identity(pod: Object, job: str, namespace: str) -> Iterator[str]:
    meta = pod["metadata"]
    owners = [(o["name"], o["uid"], o.get("controller")) for o in meta["ownerReferences"]]
    if owners != [(job, f"uid-{job}", True)]:
        yield f"owners {owners}"
    if meta["namespace"] != namespace or not meta["name"].startswith(f"{job}-p"):
        yield f"it is {meta['namespace']}/{meta['name']}"
    if meta["labels"].get("bamboo.dev/job") != job:
        yield f"labels {meta['labels']}"
    if meta.keys() - {"name", "namespace", "labels", "annotations", "ownerReferences", "uid"}:
        yield f"metadata {sorted(meta)}"
    strings = [*meta["labels"].values(), *meta["annotations"].values()]
    if not all(isinstance(x, str) for x in strings):
        yield "a label or an annotation is no string"
    elif not all(
        _NAME.fullmatch(k) and _WORD.fullmatch(x or "a") for k, x in meta["labels"].items()
    ):
        yield f"labels {meta['labels']}"
    agents = [c for c in pod["spec"]["containers"] if c["name"] == "agent"]
    if len(agents) != 1:
        yield f"{len(agents)} agents"
    for agent in agents:
        said = [e.get("value") for e in agent["env"] if e["name"] == "BAMBOO_JOB"]
        if said != [f"{namespace}/{job}"]:
            yield f"BAMBOO_JOB is {said}"
    try:
        json.dumps(pod, allow_nan=False)
    except ValueError as error:
        yield repr(error)


def _pod(spec: Object) -> Iterator[str]:
    for key in ("hostNetwork", "hostPID", "hostIPC", "nodeName", "ephemeralContainers",
                "serviceAccount"):  # fmt: skip
        if spec.get(key) not in _NO_VALUE:
            yield f"{key} {spec[key]!r}"
    if spec.get("restartPolicy") != "Never":
        yield "restartPolicy"
    if spec.get("serviceAccountName") not in ("default", None, ""):
        if not str(spec["serviceAccountName"]).startswith(_OFFERED):
            yield f"serviceAccountName {spec['serviceAccountName']!r}"
    elif spec.get("automountServiceAccountToken") is not False:
        yield "the token of the default service account is mounted"
    if str(spec.get("priorityClassName")).startswith("system-"):
        yield "priorityClassName"
    for toleration in spec.get("tolerations") or []:
        key = toleration.get("key")
        if not key or str(key).startswith("node-role.kubernetes.io/"):
            yield f"toleration {toleration}"
    yield from _placed(spec)
    context = spec.get("securityContext") or {}
    if context.get("runAsNonRoot") is not True:
        yield "runAsNonRoot of the pod"
    if not _is_confined(context.get("seccompProfile")):
        yield "seccompProfile of the pod"
    for key in ("sysctls", "seLinuxOptions", "windowsOptions"):
        if context.get(key) not in _NO_VALUE:
            yield f"{key} of the pod"
    if context.get("runAsUser") in (0, "0"):
        yield "runAsUser of the pod"
    for volume in spec.get("volumes") or []:
        if strange := {key for key, x in volume.items() if x not in _NO_VALUE} - _VOLUMES:
            yield f"volume {strange}"
    for container in [*spec["containers"], *(spec.get("initContainers") or [])]:
        yield from _container(container)


def _placed(spec: Object) -> Iterator[str]:
    """Rules that touch pods of other namespaces, and labels of nodes that nobody can have."""
    affinity = spec.get("affinity") or {}
    for kind in ("podAffinity", "podAntiAffinity"):
        rules = affinity.get(kind)
        for terms in rules.values() if isinstance(rules, dict) else ():
            yield from _far(terms)
    for key, value in (spec.get("nodeSelector") or {}).items():
        if not _NAME.fullmatch(key) or (value and not _WORD.fullmatch(value)):
            yield f"nodeSelector {key!r}: {value!r}"


def _far(terms: Any) -> Iterator[str]:
    """Terms of a rule about pods. An empty selector of namespaces means all of them."""
    given = [term for term in terms if isinstance(term, dict)] if isinstance(terms, list) else []
    inner = [term.get("podAffinityTerm") for term in given]
    for term in [*given, *(x for x in inner if isinstance(x, dict))]:
        if term.get("namespaces") not in _NO_VALUE or term.get("namespaceSelector") is not None:
            yield f"pods of other namespaces {term}"


def _container(container: Object) -> Iterator[str]:
    context = container.get("securityContext") or {}
    capabilities = context.get("capabilities") or {}
    if context.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    if capabilities.get("add") not in _NO_VALUE or "ALL" not in (capabilities.get("drop") or []):
        yield f"capabilities {capabilities}"
    if context.get("privileged") not in _NO_VALUE or context.get("runAsNonRoot") is False:
        yield "privileged or root"
    if context.get("runAsUser") in (0, "0") or context.get("procMount") not in (None, "Default"):
        yield "runAsUser or procMount"
    if context.get("seccompProfile") and not _is_confined(context["seccompProfile"]):
        yield "seccompProfile"
    for key in ("seLinuxOptions", "windowsOptions"):
        if context.get(key) not in _NO_VALUE:
            yield key
    if container.get("volumeDevices") not in _NO_VALUE:
        yield "volumeDevices"
    for port in container.get("ports") or []:
        if port.get("hostPort") not in (*_NO_VALUE, 0) or port.get("hostIP") not in _NO_VALUE:
            yield f"port {port}"
    asked = [container.get(key) for key in ("livenessProbe", "readinessProbe", "startupProbe")]
    hooks = container.get("lifecycle")
    if isinstance(hooks, dict):
        asked += hooks.values()
    for action in asked:
        for way in action.values() if isinstance(action, dict) else ():
            if isinstance(way, dict) and way.get("host") not in _NO_VALUE:
                yield f"the node asks {way['host']!r}"


def _sources(spec: Object) -> list[Any]:
    """From where Kubernetes mounts or reads something. Elsewhere the API server refuses it."""
    found = [*(spec.get("volumes") or [])]
    for container in [*spec["containers"], *(spec.get("initContainers") or [])]:
        found += [variable.get("valueFrom") for variable in container.get("env") or []]
        found += container.get("envFrom") or []
    return found


def _secrets(value: Any, key: str = "") -> Iterator[str]:
    """Names of Secrets anywhere inside."""
    if isinstance(value, dict):
        name = {"secret": value.get("secretName", value.get("name")),
                "secretRef": value.get("name"), "secretKeyRef": value.get("name"),
                "nodePublishSecretRef": value.get("name")}.get(key, _OFFERED)  # fmt: skip
        if not str(name).startswith(_OFFERED):
            yield f"Secret {name!r}"
        for inner, item in value.items():
            if inner == "csi" and item not in _NO_VALUE:
                yield "a CSI driver"
            if inner == "serviceAccountToken" and item not in _NO_VALUE and not _is_ours(item):
                yield f"the token {item}"
            yield from _secrets(item, inner)
    elif isinstance(value, list):
        for item in value:
            yield from _secrets(item)


def _is_ours(token: Any) -> bool:
    return isinstance(token, dict) and token.get("audience") == "bamboo-operator"


def _is_confined(profile: Any) -> bool:
    return isinstance(profile, dict) and profile.get("type", "") in ("RuntimeDefault", "Localhost")
