"""What a pod template may hold on a cluster whose users are not all trusted.

Everything that is not listed here is refused. A pod that passes also satisfies the level
``restricted`` of Kubernetes' pod security standards, with the operator's defaults. Further than
those, it cannot use any Secret or service account that nobody has offered to jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from bamboo_core.api.records import Problem

OFFERED = "bamboo-job-*"
"""Secrets and service accounts with such names are offered to jobs unless the chart says else."""

_TRUSTED = "where all users are trusted, the chart's value podTemplate.trusted allows it"

_ALIKE = 0.75
"""Of two names that are probably meant to be the same, by difflib's ratio."""

_METADATA = frozenset({"labels", "annotations"})
_POD = frozenset(
    {
        "activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "containers",
        "dnsConfig", "dnsPolicy", "enableServiceLinks", "hostAliases", "hostUsers",
        "imagePullSecrets", "initContainers", "nodeSelector", "os", "overhead",
        "preemptionPolicy", "priorityClassName", "readinessGates", "resourceClaims", "resources",
        "runtimeClassName", "schedulerName", "schedulingGates", "securityContext",
        "serviceAccountName", "setHostnameAsFQDN", "shareProcessNamespace", "tolerations",
        "topologySpreadConstraints", "volumes",
    }
)  # fmt: skip
_CONTAINER = frozenset(
    {
        "args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle",
        "livenessProbe", "name", "ports", "readinessProbe", "resizePolicy", "resources",
        "restartPolicy", "securityContext", "startupProbe", "stdin", "stdinOnce",
        "terminationMessagePath", "terminationMessagePolicy", "tty", "volumeMounts", "workingDir",
    }
)  # fmt: skip
_POD_SECURITY = frozenset(
    {
        "appArmorProfile", "fsGroup", "fsGroupChangePolicy", "runAsGroup", "runAsNonRoot",
        "runAsUser", "seLinuxChangePolicy", "seccompProfile", "supplementalGroups",
        "supplementalGroupsPolicy",
    }
)  # fmt: skip
_CONTAINER_SECURITY = frozenset(
    {
        "allowPrivilegeEscalation", "appArmorProfile", "capabilities", "procMount",
        "readOnlyRootFilesystem", "runAsGroup", "runAsNonRoot", "runAsUser", "seccompProfile",
    }
)  # fmt: skip
_VOLUMES = frozenset(
    {
        "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "name",
        "persistentVolumeClaim", "projected", "secret",
    }
)  # fmt: skip
_PROJECTED = frozenset(
    {"clusterTrustBundle", "configMap", "downwardAPI", "secret", "serviceAccountToken"}
)
_SOURCES = frozenset({"configMapKeyRef", "fieldRef", "resourceFieldRef", "secretKeyRef"})
_ENV_FROM = frozenset({"configMapRef", "prefix", "secretRef"})
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_HOOKS = ("postStart", "preStop")
_POD_AFFINITIES = ("podAffinity", "podAntiAffinity")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_APP_ARMOR = "container.apparmor.security.beta.kubernetes.io/"
_ANNOTATIONS = {
    "iam.amazonaws.com/role": "gives the pod a role of the cloud (kube2iam, kiam)",
    "sidecar.istio.io/userVolume": "lets a webhook add volumes to the pod (Istio)",
    "sidecar.istio.io/proxyImage": "lets a webhook add a container to the pod (Istio)",
    "k8s.v1.cni.cncf.io/": "gives the pod other networks (Multus)",
    "v1.multus-cni.io/": "gives the pod other networks (Multus)",
    "cdi.k8s.io/": "gives the pod devices of the node (CDI)",
    "io.kubernetes.cri-o.": "changes the pod's sandbox (CRI-O)",
    "io.katacontainers.": "changes the pod's virtual machine (Kata Containers)",
}
"""Beginnings of annotations by which programs on a cluster give a pod more than its spec says."""
_LABELS = {"aadpodidbinding": "gives the pod an identity of the cloud (AAD Pod Identity)"}


@dataclass(frozen=True)
class PodRules:
    """Permissions of the administrator beyond the lists. Names may end in * for any ending."""

    trusted: bool = False  # allow everything that the API server does
    secrets: tuple[str, ...] = (OFFERED,)
    service_accounts: tuple[str, ...] = (OFFERED,)
    csi_drivers: tuple[str, ...] = ()  # of volumes inside the template


RESTRICTED = PodRules()
"""Nothing beyond the lists and what is offered by its name."""


def problems(
    metadata: dict[str, Any], spec: dict[str, Any], *, path: str, rules: PodRules
) -> list[Problem]:
    """All that the rules forbid. The types of metadata, spec and their lists have been checked."""
    return [
        *_metadata(metadata, f"{path}.metadata"),
        *_unlisted(spec, _POD, f"{path}.spec"),
        *_security(spec.get("securityContext"), _POD_SECURITY, f"{path}.spec.securityContext"),
        *_account(spec, f"{path}.spec", rules),
        *_scheduling(spec, f"{path}.spec"),
        *_affinity(spec, f"{path}.spec"),
        *_volumes(spec, f"{path}.spec", rules),
        *_containers(spec, f"{path}.spec", rules),
    ]


def env_problems(env: Iterable[dict[str, Any]], *, path: str, rules: PodRules) -> list[Problem]:
    """All that the rules forbid in a list of environment variables."""
    return [p for i, entry in enumerate(env) for p in _variable(entry, f"{path}[{i}]", rules)]


def _metadata(metadata: dict[str, Any], path: str) -> Iterator[Problem]:
    yield from _unlisted(metadata, _METADATA, path)
    for key, value in metadata.get("annotations", {}).items():
        is_profile = value == "runtime/default" or value.startswith("localhost/")
        if key.startswith(_APP_ARMOR) and not is_profile:
            yield _refused(f"{path}.annotations.{key}", "switches AppArmor off")
    for kind, gives in (("annotations", _ANNOTATIONS), ("labels", _LABELS)):
        for key in metadata.get(kind, {}):
            if why := next((x for begin, x in gives.items() if key.startswith(begin)), ""):
                yield _refused(f"{path}.{kind}.{key}", why)


def _security(given: Any, listed: frozenset[str], path: str) -> Iterator[Problem]:
    """A securityContext of a pod or a container."""
    context = _object(given)
    yield from _unlisted(context, listed, path)
    user = context.get("runAsUser")
    if user is not None and (not isinstance(user, int) or user < 1):
        yield _refused(f"{path}.runAsUser", f"is {user!r}; agents must not run as root")
    for key in ("runAsGroup", "fsGroup", "supplementalGroups"):
        groups = context.get(key)
        if any(group == 0 for group in (groups if isinstance(groups, list) else [groups])):
            yield _refused(f"{path}.{key}", "is 0; agents must not be in root's group")
    for key, wanted in (("runAsNonRoot", True), ("allowPrivilegeEscalation", False)):
        if context.get(key, wanted) not in (wanted, None):
            yield _refused(f"{path}.{key}", f"must be {str(wanted).lower()}")
    drop = _object(context.get("capabilities")).get("drop", ["ALL"])
    if not isinstance(drop, list) or "ALL" not in drop:
        yield _refused(f"{path}.capabilities.drop", "must contain ALL")
    if _object(context.get("capabilities")).get("add"):
        yield _refused(f"{path}.capabilities.add", "would open the node to the job")
    if context.get("procMount") not in (None, "Default"):
        yield _refused(f"{path}.procMount", "would open the node to the job")
    for key in ("seccompProfile", "appArmorProfile"):
        kind = _object(context.get(key)).get("type", "RuntimeDefault")
        if kind not in ("RuntimeDefault", "Localhost"):
            yield _refused(f"{path}.{key}.type", f"is {kind!r}; it must be RuntimeDefault")


def _account(spec: dict[str, Any], path: str, rules: PodRules) -> Iterator[Problem]:
    """Its token is for accounts that are offered; the default one may have rights for others."""
    name = _account_name(spec)
    is_offered = _is_among(name, rules.service_accounts)
    if name != "default" and not is_offered:
        yield _not_offered(f"{path}.serviceAccountName", name, "serviceAccounts")
    if spec.get("automountServiceAccountToken") and not is_offered:
        where = f"{path}.automountServiceAccountToken"
        yield _not_offered(where, name, "serviceAccounts", "mounts the token of service account ")


def _account_name(spec: dict[str, Any]) -> Any:
    """Only what is left out is the default one: other values are wrong, or other accounts."""
    name = spec.get("serviceAccountName")
    return "default" if name is None or name == "" else name


def _scheduling(spec: dict[str, Any], path: str) -> Iterator[Problem]:
    for index, toleration in enumerate(spec.get("tolerations", [])):
        key = toleration.get("key")
        where = f"{path}.tolerations[{index}].key"
        if not key:
            yield Problem(where, "is missing, so it tolerates every taint; name the taint")
        elif str(key).startswith("node-role.kubernetes.io/"):
            yield _refused(where, f"is {key!r}; agents must not run beside the control plane")
    name = spec.get("priorityClassName")
    if name is not None and str(name).startswith("system-"):
        text = f"is {name!r}, which is for the cluster's own pods; choose another class"
        yield Problem(f"{path}.priorityClassName", text)


def _affinity(spec: dict[str, Any], path: str) -> Iterator[Problem]:
    """The scheduler applies a rule against pods the other way round, too: to pods that come later.

    An empty namespaceSelector stands for all namespaces.
    """
    for kind in _POD_AFFINITIES:
        rules = _object(_object(spec.get("affinity")).get(kind))
        where = f"{path}.affinity.{kind}"
        for index, term in enumerate(_list(rules.get(_REQUIRED))):
            yield from _namespaces(term, f"{where}.{_REQUIRED}[{index}]")
        for index, weighted in enumerate(_list(rules.get(_PREFERRED))):
            place = f"{where}.{_PREFERRED}[{index}].podAffinityTerm"
            yield from _namespaces(_object(weighted).get("podAffinityTerm"), place)


def _namespaces(term: Any, path: str) -> Iterator[Problem]:
    for key in ("namespaceSelector", "namespaces"):
        if _object(term).get(key) is not None:
            yield _refused(f"{path}.{key}", "reaches pods of other namespaces")


def _volumes(spec: dict[str, Any], path: str, rules: PodRules) -> Iterator[Problem]:
    account = _account_name(spec)
    for index, volume in enumerate(spec.get("volumes", [])):
        where = f"{path}.volumes[{index}]"
        yield from _unlisted(volume, _VOLUMES, where)
        if volume.get("secret") is not None:
            name = _object(volume["secret"]).get("secretName")
            yield from _secret(name, f"{where}.secret.secretName", rules)
        yield from _csi(volume.get("csi"), f"{where}.csi", rules)
        sources = _object(volume.get("projected")).get("sources")
        for number, source in enumerate(_list(sources)):
            place = f"{where}.projected.sources[{number}]"
            yield from _projected(_object(source), account, place, rules)


def _csi(given: Any, path: str, rules: PodRules) -> Iterator[Problem]:
    if given is None:
        return
    driver = _object(given).get("driver")
    if not _is_among(driver, rules.csi_drivers):
        yield _not_offered(f"{path}.driver", driver, "csiDrivers")
    reference = _object(given).get("nodePublishSecretRef")
    if reference is not None:
        name = _object(reference).get("name")
        yield from _secret(name, f"{path}.nodePublishSecretRef.name", rules)


def _projected(
    source: dict[str, Any], account: Any, path: str, rules: PodRules
) -> Iterator[Problem]:
    yield from _unlisted(source, _PROJECTED, path)
    if source.get("secret") is not None:
        name = _object(source["secret"]).get("name")
        yield from _secret(name, f"{path}.secret.name", rules)
    if source.get("serviceAccountToken") and not _is_among(account, rules.service_accounts):
        where = f"{path}.serviceAccountToken"
        text = "mounts a token of service account "
        yield _not_offered(where, account, "serviceAccounts", text)


def _containers(spec: dict[str, Any], path: str, rules: PodRules) -> Iterator[Problem]:
    for key in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(key, [])):
            where = f"{path}.{key}[{index}]"
            yield from _unlisted(container, _CONTAINER, where)
            yield from _security(
                container.get("securityContext"), _CONTAINER_SECURITY, f"{where}.securityContext"
            )
            yield from env_problems(container.get("env", []), path=f"{where}.env", rules=rules)
            yield from _env_from(container, where, rules)
            yield from _ports(container, where)
            yield from _probes(container, where)


def _variable(entry: dict[str, Any], path: str, rules: PodRules) -> Iterator[Problem]:
    source = _object(entry.get("valueFrom"))
    yield from _unlisted(source, _SOURCES, f"{path}.valueFrom")
    if source.get("secretKeyRef") is not None:
        name = _object(source["secretKeyRef"]).get("name")
        yield from _secret(name, f"{path}.valueFrom.secretKeyRef.name", rules)


def _env_from(container: dict[str, Any], path: str, rules: PodRules) -> Iterator[Problem]:
    for index, source in enumerate(container.get("envFrom", [])):
        where = f"{path}.envFrom[{index}]"
        yield from _unlisted(source, _ENV_FROM, where)
        if source.get("secretRef") is not None:
            name = _object(source["secretRef"]).get("name")
            yield from _secret(name, f"{where}.secretRef.name", rules)


def _ports(container: dict[str, Any], path: str) -> Iterator[Problem]:
    for index, port in enumerate(container.get("ports", [])):
        for key in ("hostPort", "hostIP"):
            if port.get(key):
                yield _refused(f"{path}.ports[{index}].{key}", "would open the node to the job")


def _probes(container: dict[str, Any], path: str) -> Iterator[Problem]:
    """The kubelet would send requests to any address that a probe names."""
    hooks = _object(container.get("lifecycle"))
    actions = [(key, container.get(key)) for key in _PROBES]
    actions += [(f"lifecycle.{key}", hooks.get(key)) for key in _HOOKS]
    for key, action in actions:
        for way in ("httpGet", "tcpSocket"):
            if _object(_object(action).get(way)).get("host"):
                text = "lets the node send requests to any host"
                yield _refused(f"{path}.{key}.{way}.host", text)


def _secret(name: Any, path: str, rules: PodRules) -> Iterator[Problem]:
    if not _is_among(name, rules.secrets):
        yield _not_offered(path, name, "secrets")


def _unlisted(given: dict[str, Any], listed: frozenset[str], path: str) -> Iterator[Problem]:
    for key, value in given.items():
        if key not in listed and value not in (None, False, "", [], {}):
            meant = get_close_matches(key, listed, n=1, cutoff=_ALIKE)
            question = f" (do you mean {meant[0]}?)" if meant else ""
            yield _refused(f"{path}.{key}", f"is not allowed in a pod template{question}")


def _refused(path: str, text: str) -> Problem:
    return Problem(path, f"{text}; remove it ({_TRUSTED})")


def _not_offered(path: str, name: Any, value: str, text: str = "is ") -> Problem:
    remedy = f"use one that the chart's value podTemplate.{value} names"
    if value != "csiDrivers":
        remedy += f" ({OFFERED} by default)"
    return Problem(path, f"{text}{str(name)[:80]!r}, which is not offered to jobs; {remedy}")


def _is_among(name: Any, patterns: Iterable[str]) -> bool:
    if not isinstance(name, str):
        return False
    return any(
        name == p or (p.endswith("*") and name.startswith(p.removesuffix("*"))) for p in patterns
    )


def _object(value: Any) -> dict[str, Any]:
    """An empty one for a value of another type, which the API server refuses."""
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    """An empty one, likewise."""
    return value if isinstance(value, list) else []
