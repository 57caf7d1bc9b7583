"""Owner references: which job controls an object, and how an object says so."""

from __future__ import annotations

from dataclasses import dataclass

from bamboo_core.controller.view import JobView
from bamboo_operator.kube import api
from bamboo_operator.kube.api import Object


@dataclass(frozen=True)
class Owner:
    """The job that controls a pod, as the pod says."""

    job: str
    uid: str


def owner(job: JobView, *, controls: bool = True) -> Object:
    """Makes the garbage collector delete the object with the job, even without the operator."""
    found = {
        "apiVersion": api.API_VERSION,
        "kind": "BambooJob",
        "name": job.name,
        "uid": job.uid,
    }
    return found | ({"controller": True} if controls else {})


def owner_of(pod: Object) -> Owner | None:
    """The BambooJob that the pod names as its controller; None if it names none."""
    for reference in pod["metadata"].get("ownerReferences") or []:
        group = str(reference.get("apiVersion", "")).split("/")[0]
        is_job = reference.get("kind") == "BambooJob" and group == api.GROUP
        if reference.get("controller") and is_job:
            return Owner(str(reference.get("name", "")), str(reference.get("uid", "")))
    return None


def is_owned(pod: Object, uid: str) -> bool:
    """True if the job with that UID controls the pod. Names may recur, UIDs do not."""
    references = pod["metadata"].get("ownerReferences") or []
    return any(x.get("uid") == uid and x.get("controller") for x in references)


def is_agent(pod: Object, job: str) -> bool:
    """True if a BambooJob of that name controls the pod, or did before it was deleted."""
    references = pod["metadata"].get("ownerReferences") or []
    return any(
        x.get("kind") == "BambooJob" and x.get("name") == job and x.get("controller")
        for x in references
    )


def job_of(body: Object) -> tuple[str, str] | None:
    """Namespace and name of the BambooJob that controls an object; None: none does."""
    meta = body.get("metadata") or {}
    for reference in meta.get("ownerReferences") or []:
        if reference.get("kind") == "BambooJob" and reference.get("controller"):
            return str(meta.get("namespace") or ""), str(reference.get("name"))
    return None
