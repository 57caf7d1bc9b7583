"""What ``worker.podTemplate`` may say: the API server does not look into it, so we do.

A user who may create BambooJobs but no pods must not gain the node through us; and some fields
belong to the operator.
"""

from __future__ import annotations

from typing import Any

from bamboo_core.records import Problem

AGENT_CONTAINER = "agent"
"""Name of the container that runs the agent; a template may add to it and put others beside it."""

_OWNED = ("restartPolicy", "nodeName", "terminationGracePeriodSeconds", "hostname", "subdomain")
_HOST = ("hostNetwork", "hostPID", "hostIPC")
_LISTS = ("containers", "initContainers", "volumes", "tolerations", "imagePullSecrets")


def problems(template: dict[str, Any], *, path: str) -> list[Problem]:
    """What is wrong with a pod template; empty if nothing."""
    found = [
        Problem(f"{path}.{key}", "is not supported; only metadata and spec are")
        for key in template
        if key not in ("metadata", "spec")
    ]
    for key in ("metadata", "spec"):
        if not isinstance(template.get(key, {}), dict):
            found.append(Problem(f"{path}.{key}", "must be an object"))
    return found or _spec_problems(template.get("spec", {}), f"{path}.spec")


def _spec_problems(spec: dict[str, Any], path: str) -> list[Problem]:
    found = [
        Problem(f"{path}.{key}", "is set by the operator; remove it")
        for key in _OWNED
        if key in spec
    ]
    found += [
        Problem(f"{path}.{key}", "would open the node to the job; remove it")
        for key in _HOST
        if spec.get(key)
    ]
    for key in _LISTS:
        entries = spec.get(key, [])
        if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
            found.append(Problem(f"{path}.{key}", "must be a list of objects"))
        else:
            found += _list_problems(entries, key, f"{path}.{key}")
    return found


def _list_problems(entries: list[dict[str, Any]], key: str, path: str) -> list[Problem]:
    found = []
    for index, entry in enumerate(entries):
        where = f"{path}[{index}]"
        if key == "volumes" and "hostPath" in entry:
            found.append(Problem(f"{where}.hostPath", "would open the node to the job; remove it"))
        if key in ("containers", "initContainers"):
            found += _container_problems(entry, where)
        elif key != "tolerations" and not entry.get("name"):
            found.append(Problem(f"{where}.name", "is required; set it"))
    return found


def _container_problems(container: dict[str, Any], path: str) -> list[Problem]:
    found = []
    if not container.get("name"):
        found.append(Problem(f"{path}.name", "is required; set it"))
    if (container.get("securityContext") or {}).get("privileged"):
        where = f"{path}.securityContext.privileged"
        found.append(Problem(where, "would open the node to the job; remove it"))
    for index, variable in enumerate(container.get("env") or []):
        name = str(variable.get("name", "")) if isinstance(variable, dict) else ""
        if name.startswith("BAMBOO_"):
            where = f"{path}.env[{index}].name"
            found.append(Problem(where, f"{name!r} is reserved; choose one without BAMBOO_"))
    return found
