"""The environment, command and working directory of a container, as a kubelet computes them.

Pure functions of the pod and the config maps and secrets that it refers to.
"""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bamboo_devcluster.kube.quantities import divide_quantity
from bamboo_devcluster.spec import Image

Object = dict[str, Any]
GPU = "nvidia.com/gpu"
SIMULATED_DEVICES = "SIMULATED_DEVICES"
_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]\Z")


class ConfigError(Exception):
    """The container cannot be configured yet; `kubectl describe` shows the text."""


@dataclass(frozen=True)
class PodFacts:
    """The values to which a pod's references resolve."""

    pod: Object
    pod_ip: str
    host_ip: str
    allocatable: Mapping[str, str]
    config_maps: Mapping[str, Object | None] = field(default_factory=dict)
    secrets: Mapping[str, Object | None] = field(default_factory=dict)


def referenced_objects(container: Object) -> set[tuple[str, str]]:
    """Return ("configmaps" | "secrets", name) for everything the container's env refers to."""
    found = set()
    for source in container.get("envFrom") or []:
        for key, kind in (("configMapRef", "configmaps"), ("secretRef", "secrets")):
            if key in source:
                found.add((kind, source[key]["name"]))
    for item in container.get("env") or []:
        value_from = item.get("valueFrom") or {}
        for key, kind in (("configMapKeyRef", "configmaps"), ("secretKeyRef", "secrets")):
            if key in value_from:
                found.add((kind, value_from[key]["name"]))
    return found


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace $(NAME) by its value. `$$` is a dollar sign; unknown names stay as they are."""

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return _REFERENCE.sub(replace, text)


def container_env(container: Object, facts: PodFacts, base: Mapping[str, str]) -> dict[str, str]:
    """Return the full environment; raise ConfigError if something is missing."""
    env = dict(base)
    for source in container.get("envFrom") or []:
        env.update(_env_from(source, facts))
    for item in container.get("env") or []:
        value = _env_value(item, container, facts, env)
        if value is not None:
            env[item["name"]] = value
    return env


def simulated_devices(container: Object) -> dict[str, str]:
    """A variable that names the devices that the container asks for and that do not exist."""
    asked = (container.get("resources") or {}).get("limits") or {}
    return {SIMULATED_DEVICES: GPU} if GPU in asked else {}


def container_argv(container: Object, image: Image | None, env: Mapping[str, str]) -> list[str]:
    """Return command and args, expanded; the image supplies what the pod omits."""
    command, args = container.get("command"), container.get("args")
    if command:
        words = [*command, *(args or [])]
    elif image:
        words = [*image.command, *(image.args if args is None else args)]
    else:
        words = []
    return [expand(word, env) for word in words]


def field_value(path: str, facts: PodFacts) -> str:
    """Return the value of a fieldRef path."""
    pod = facts.pod
    metadata, spec = pod["metadata"], pod["spec"]
    if match := _SUBSCRIPT.match(path):
        return str((metadata.get(match[1]) or {}).get(match[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        items = sorted((metadata.get(path.removeprefix("metadata.")) or {}).items())
        return "\n".join(f"{key}={_quoted(value)}" for key, value in items)
    values = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.hostIP": facts.host_ip,
        "status.hostIPs": facts.host_ip,
        "status.podIP": facts.pod_ip,
        "status.podIPs": facts.pod_ip,
    }
    if path not in values:
        raise ConfigError(f"unsupported fieldPath: {path}")
    return str(values[path])


def resource_value(reference: Object, container: Object, facts: PodFacts) -> str:
    """Return the value of a resourceFieldRef; without a limit, the node's allocatable."""
    kind, _, name = reference["resource"].partition(".")
    resources = container.get("resources") or {}
    text = (resources.get(kind) or {}).get(name)
    if text is None:
        text = facts.allocatable.get(name, "0") if kind == "limits" else "0"
    return divide_quantity(str(text), str(reference.get("divisor") or "0"))


def decode_data(item: Object | None, kind: str) -> dict[str, bytes]:
    """Return the data of a config map or secret as bytes."""
    if item is None:
        return {}
    if kind == "secrets":
        return {k: base64.b64decode(v) for k, v in (item.get("data") or {}).items()}
    data = {k: str(v).encode() for k, v in (item.get("data") or {}).items()}
    binary = {k: base64.b64decode(v) for k, v in (item.get("binaryData") or {}).items()}
    return {**data, **binary}


def _env_from(source: Object, facts: PodFacts) -> dict[str, str]:
    prefix = source.get("prefix", "")
    key = "configMapRef" if "configMapRef" in source else "secretRef"
    kind = "configmaps" if key == "configMapRef" else "secrets"
    item = _lookup(kind, source[key], facts)
    return {prefix + k: v.decode(errors="replace") for k, v in decode_data(item, kind).items()}


def _env_value(
    item: Object, container: Object, facts: PodFacts, env: Mapping[str, str]
) -> str | None:
    source = item.get("valueFrom")
    if not source:
        return expand(item.get("value", ""), env)
    if "fieldRef" in source:
        return field_value(source["fieldRef"]["fieldPath"], facts)
    if "resourceFieldRef" in source:
        return resource_value(source["resourceFieldRef"], _resource_owner(source, container, facts),
                              facts)  # fmt: skip
    for key, kind in (("configMapKeyRef", "configmaps"), ("secretKeyRef", "secrets")):
        if key in source:
            return _key_value(kind, source[key], facts)
    raise ConfigError(f"env {item['name']}: unsupported valueFrom {sorted(source)}")


def _resource_owner(source: Object, container: Object, facts: PodFacts) -> Object:
    name = source["resourceFieldRef"].get("containerName")
    candidates: list[Object] = [c for c in facts.pod["spec"]["containers"] if c["name"] == name]
    return candidates[0] if candidates else container


def _key_value(kind: str, reference: Object, facts: PodFacts) -> str | None:
    item = _lookup(kind, reference, facts)
    data = decode_data(item, kind)
    if reference["key"] in data:
        return data[reference["key"]].decode(errors="replace")
    if reference.get("optional"):
        return None
    namespace = facts.pod["metadata"]["namespace"]
    what = "ConfigMap" if kind == "configmaps" else "Secret"
    raise ConfigError(
        f"couldn't find key {reference['key']} in {what} {namespace}/{reference['name']}"
    )


def _lookup(kind: str, reference: Object, facts: PodFacts) -> Object | None:
    known = facts.config_maps if kind == "configmaps" else facts.secrets
    item = known.get(reference["name"])
    if item is None and not reference.get("optional"):
        raise ConfigError(f'{kind.removesuffix("s")} "{reference["name"]}" not found')
    return item


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
