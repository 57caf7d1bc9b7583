"""Fields of the pod template that do not do what they say: those that the operator overrides, and
a deadline of the pods.

A new job with one is refused, so that nobody takes for granted what has no effect. A job that has
trained is told, and goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bamboo_core.api.records import Problem
from bamboo_core.api.spec import AGENT_CONTAINER, JobSpec, PlacementSpec, WorkerSpec

PREFIX = "bamboo.dev/"
LABELS = ("app.kubernetes.io/name", "app.kubernetes.io/part-of", "app.kubernetes.io/managed-by")
_ZONE = "topology.kubernetes.io/zone"
_PATH = "spec.worker.podTemplate"
_OWN = "is set by the operator and has no effect here; remove it"


def problems(spec: JobSpec) -> list[Problem]:
    """One for each such field. A part of a wrong type is left to other checks."""
    template, worker = spec.worker.pod_template, spec.worker
    body = _object(template.get("spec"))
    return [
        *_metadata(_object(template.get("metadata"))),
        *_links(body),
        *_deadline(body),
        *_selector(_object(body.get("nodeSelector")), spec.placement),
        *_container(body, worker),
    ]


def _metadata(metadata: Mapping[str, Any]) -> Iterator[Problem]:
    for key, value in metadata.items():
        if key not in ("labels", "annotations") and value:
            yield Problem(f"{_PATH}.metadata.{key}", _OWN)
    for key in _object(metadata.get("labels")):
        if key in LABELS or key.startswith(PREFIX):
            yield Problem(f"{_PATH}.metadata.labels.{key}", _OWN)
    for key in _object(metadata.get("annotations")):
        if key.startswith(PREFIX):
            yield Problem(f"{_PATH}.metadata.annotations.{key}", _OWN)


def _links(body: Mapping[str, Any]) -> Iterator[Problem]:
    if body.get("enableServiceLinks"):
        text = "is always false, since agents find each other without it; remove it"
        yield Problem(f"{_PATH}.spec.enableServiceLinks", text)


def _deadline(body: Mapping[str, Any]) -> Iterator[Problem]:
    if body.get("activeDeadlineSeconds") is not None:
        text = (
            "ends each agent after that time, and another one begins: remove it, and set"
            " spec.runPolicy.activeDeadlineSeconds to end the job"
        )
        yield Problem(f"{_PATH}.spec.activeDeadlineSeconds", text)


def _selector(own: Mapping[str, Any], placement: PlacementSpec) -> Iterator[Problem]:
    """Labels of nodes that the placement asks for with another value."""
    path = f"{_PATH}.spec.nodeSelector"
    zone = own.get(_ZONE)
    if zone and placement.zones and zone not in placement.zones:
        yield Problem(
            f"{path}.{_ZONE}",
            f"is {zone!r}, but spec.placement.zones names {', '.join(placement.zones)}, which goes"
            " first; remove it here, or name the zone there",
        )
    for index, pool in enumerate(placement.pools):
        for key, value in pool.node_selector.items():
            if own.get(key) not in (None, "", value):
                yield Problem(
                    f"{path}.{key}",
                    f"is {own[key]!r}, but spec.placement.pools[{index}].nodeSelector says"
                    f" {value!r}, which goes first; remove one of them",
                )


def _container(body: Mapping[str, Any], worker: WorkerSpec) -> Iterator[Problem]:
    """The agent's own container."""
    for index, container in enumerate(_objects(body.get("containers"))):
        if container.get("name") != AGENT_CONTAINER:
            continue
        path = f"{_PATH}.spec.containers[{index}]"
        image, resources = container.get("image"), container.get("resources")
        if image and image != worker.image:
            text = f"is {str(image)[:80]!r}, but the agents run spec.worker.image; set it there"
            yield Problem(f"{path}.image", text)
        if resources and worker.resources and resources != worker.resources:
            text = "has no effect beside spec.worker.resources; set all of them there"
            yield Problem(f"{path}.resources", text)
        if container.get("args") and not container.get("command"):
            text = "has no effect, since the agent takes no arguments; remove it, or set command"
            yield Problem(f"{path}.args", f"{text}, too, to something that starts the agent")
        given = {str(variable.get("name")): variable for variable in worker.env}
        for number, variable in enumerate(_objects(container.get("env"))):
            other = given.get(str(variable.get("name", "")))
            if other is not None and other != variable:
                text = f"{variable.get('name')!r} is in spec.worker.env, too, which goes first"
                yield Problem(f"{path}.env[{number}].name", f"{text}; remove one of them")


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> Iterable[Mapping[str, Any]]:
    return [x for x in value if isinstance(x, dict)] if isinstance(value, list) else []
