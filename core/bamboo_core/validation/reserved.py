"""Names and a port of an agent's pod that belong to Bamboo, and what a template takes of them.

The operator puts them into each pod beside what the template has. The API server would refuse the
pod, the container would not start, or two programs would listen at one port. So they are refused
whoever may use the template.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from bamboo_core.api.records import Problem
from bamboo_core.api.spec import AGENT_CONTAINER

HEALTH_PORT: Final = 21466
"""Of each agent: health and metrics. Rare, and below the ports that Linux gives out by itself."""
METRICS_PORT: Final = "bamboo-metrics"
"""Name of that port, for the chart's PodMonitor."""
IDENTITY_VOLUME: Final = "bamboo-identity"
IDENTITY_FOLDER: Final = "/var/run/bamboo"
"""Where the agent finds its token and the operator's certificate."""
VARIABLES: Final = "BAMBOO_"
"""Beginning of the variables by which the operator configures the agent."""
OFFERED_VARIABLES: Final = frozenset({"BAMBOO_LOG_LEVEL", "BAMBOO_THREADS"})
"""Of these, the ones that users may set."""

_SAME_FOLDER = "/run/bamboo"  # in most images /var/run is a link to /run


def problems(spec: dict[str, Any], *, path: str) -> Iterator[Problem]:
    """All that is taken already. The types of the spec's lists have been checked."""
    yield from _volumes(spec, f"{path}.volumes")
    for key in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(key, [])):
            where = f"{path}.{key}[{index}]"
            yield from _ports(container, f"{where}.ports")
            yield from _mounts(container, f"{where}.volumeMounts")
            yield from _sources(container, f"{where}.envFrom")


def is_reserved(variable: object) -> bool:
    """Whether an environment variable of this name is for the operator only."""
    name = str(variable)
    return name.startswith(VARIABLES) and name not in OFFERED_VARIABLES


def _volumes(spec: dict[str, Any], path: str) -> Iterator[Problem]:
    owners = {IDENTITY_VOLUME: "the agent's own volume"}
    for index, volume in enumerate(spec.get("volumes", [])):
        name, where = volume["name"], f"{path}[{index}]"
        if name in owners:
            yield _taken(f"{where}.name", name, "the name", owners[name], "another name")
        owners.setdefault(name, where)


def _ports(container: dict[str, Any], path: str) -> Iterator[Problem]:
    for index, port in enumerate(container.get("ports", [])):
        where = f"{path}[{index}]"
        if port.get("name") == METRICS_PORT:
            whose = "the agent's own port"
            yield _taken(f"{where}.name", METRICS_PORT, "the name", whose, "another name")
        for key in ("containerPort", "hostPort"):
            if port.get(key) == HEALTH_PORT and port.get("protocol", "TCP") == "TCP":
                whose = "the agent's health and metrics"
                yield _taken(f"{where}.{key}", HEALTH_PORT, "the port", whose, "another port")


def _mounts(container: dict[str, Any], path: str) -> Iterator[Problem]:
    """Below the agent's own folder, which is read-only, nothing can be mounted either. No other
    container gets the agent's token."""
    owners = dict[str, str]()
    for index, mount in enumerate(container.get("volumeMounts", [])):
        given, where = mount.get("mountPath"), f"{path}[{index}]"
        if mount.get("name") == IDENTITY_VOLUME:
            text = f"{IDENTITY_VOLUME!r} has the agent's token, which is for the agent only; remove"
            yield Problem(f"{where}.name", f"{text} the mount")
        if not isinstance(given, str):
            continue
        folder = _plain(given)
        if container["name"] == AGENT_CONTAINER and _is_within(folder):
            text = f"{given!r} is in {IDENTITY_FOLDER}, where the agent has its token; choose"
            yield Problem(f"{where}.mountPath", f"{text} another folder")
        elif folder in owners:
            yield _taken(f"{where}.mountPath", given, "the path", owners[folder], "another path")
        owners.setdefault(folder, where)


def _plain(path: str) -> str:
    """The same path without ``.``, ``..`` and double slashes."""
    parts = list[str]()
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def _is_within(folder: str) -> bool:
    owned = (IDENTITY_FOLDER, _SAME_FOLDER)
    return any(folder == own or folder.startswith(f"{own}/") for own in owned)


def _sources(container: dict[str, Any], path: str) -> Iterator[Problem]:
    for index, source in enumerate(container.get("envFrom", [])):
        prefix = source.get("prefix")
        if isinstance(prefix, str) and prefix.startswith(VARIABLES):
            text = f"{prefix!r} is reserved; choose one without {VARIABLES}"
            yield Problem(f"{path}[{index}].prefix", text)


def _taken(field: str, value: object, role: str, owner: str, remedy: str) -> Problem:
    return Problem(field, f"{value!r} is {role} of {owner} too; choose {remedy}")
