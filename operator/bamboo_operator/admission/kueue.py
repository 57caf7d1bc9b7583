"""Kueue's objects: the Workload of a job, and the flavors that it is admitted with."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bamboo_core.admission import quota
from bamboo_core.admission.quota import QUEUE_LABEL, Deed, Grant
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import JobSpec
from bamboo_core.controller import turn
from bamboo_core.controller.reconcile import CreatePod
from bamboo_core.controller.view import JobView, Slot
from bamboo_operator.admission.priority_classes import Priorities
from bamboo_operator.kube.api import Api, ApiError, Object
from bamboo_operator.kube.labels import JOB_LABEL, PART_OF, WISH_ANNOTATION
from bamboo_operator.kube.owners import is_owned, owner
from bamboo_operator.kube.timestamps import instant
from bamboo_operator.pods import manifests

GROUP = "kueue.x-k8s.io"
PLURAL = "workloads"
VERSIONS = ("v1beta2", "v1beta1")
"""Of Kueue's API, the best first. Where both are served, a job without a priority class cannot do
with the second: its rules refuse every status of an admitted Workload that Kueue stores in the
first (0.16.1)."""
AGAIN_S = 5.0
"""Pause until a Workload is looked at again after something was done about it."""
FLAVOR_AGE_S = 60.0
VERSION_AGE_S = 60.0

_POD_SET = "agents"
_QUEUE = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"  # as in its Workload
_REQUEUED = ("Preempted", "NodeFailures")  # evictions after which the Workload queues again at once
_POD_KEYS = (
    "nodeSelector", "tolerations", "overhead", "resources", "runtimeClassName", "priorityClassName",
)  # fmt: skip
_CONTAINER_KEYS = ("name", "image", "resources", "restartPolicy")


@dataclass(frozen=True)
class Look:
    """A job in a queue."""

    queue: str
    asked: JobSpec  # the user's
    spec: JobSpec  # that holds now
    why: str  # it is suspended though the user's spec is not; empty: it is not
    grant: Grant | None
    body: Object | None  # the Workload
    version: str  # of Kueue's API; empty: the cluster has none that we know


def queue_of(body: Object) -> str:
    """The LocalQueue that a BambooJob names; empty: none."""
    return str((body["metadata"].get("labels") or {}).get(QUEUE_LABEL) or "")


def misnamed(queue: str) -> str:
    """Why no LocalQueue can have this name; empty: one can."""
    if re.fullmatch(_QUEUE, queue):
        return ""
    return (
        f"{queue!r} cannot be the name of a LocalQueue: use lower-case letters, digits, dots and"
        " hyphens, first and last a letter or a digit"
    )


class Kueue:
    """Reads and writes Workloads."""

    def __init__(self, kube: Api, clock: Callable[[], float] = time.time) -> None:
        self._kube, self._clock = kube, clock
        self._priorities = Priorities(kube)
        self._flavors: dict[str, tuple[float, Object]] = {}
        self._served: tuple[float, list[str]] = (0.0, [])  # when asked; versions of the API

    async def look(self, job: JobView, spec: JobSpec, queue: str) -> Look:
        """Read the job's Workload and what it allows."""
        version = await self.version()
        if not version:
            holds, why = quota.order(spec, None)
            _, served = self._served
            return Look(queue, spec, holds, why and _missing(served), None, None, "")
        body = await self._kube.get(_path(version, job.namespace, workload_name(job.name, job.uid)))
        if body is not None and not is_owned(body, job.uid):
            body = None
        grant = None if body is None else await self._grant(body, version, spec)
        holds, why = quota.order(spec, grant)
        return Look(queue, spec, holds, why, grant, body, version)

    async def version(self) -> str:
        """That of Kueue's API in which Workloads are read; empty: there is none that we know."""
        served = await self._versions()
        return next((version for version in VERSIONS if version in served), "")

    async def _versions(self) -> list[str]:
        """Versions of Kueue's API in the cluster. It may be installed or upgraded while we run."""
        (asked_at, known), now = self._served, self._clock()
        if known and now - asked_at <= VERSION_AGE_S:
            return known
        group = await self._kube.get(f"/apis/{GROUP}") or {}
        found = [str(each["version"]) for each in group.get("versions") or []]
        self._served = (now, found)
        return found

    async def settle(
        self,
        job: JobView,
        look: Look,
        *,
        has_pods: bool,
        is_working: bool,
        outcome: Outcome | None,
    ) -> float | None:
        """Do what is due about the Workload. Returns when to look again, in seconds; None: not.

        is_working: the job trains.
        """
        if not look.version:
            return AGAIN_S if look.why else None
        due = quota.deed(
            look.asked, look.grant, look.queue,
            has_pods=has_pods, has_ended=outcome is not None, is_working=is_working,
        )  # fmt: skip
        path = _path(look.version, job.namespace, workload_name(job.name, job.uid))
        match due:
            case Deed.CREATE:
                await self._create(job, look)
            case Deed.DELETE:
                assert look.body is not None
                await self._kube.delete(path, uid=look.body["metadata"]["uid"])
            case Deed.RELEASE | Deed.FINISH | Deed.READY:
                assert look.body is not None
                now, old = instant(self._clock()), look.body.get("status") or {}
                if due is Deed.FINISH:
                    status = _finished(old, now, outcome)
                elif due is Deed.READY:
                    status = _ready(old, now, is_working=is_working)
                else:
                    status = _released(old, now)
                await self._kube.replace(f"{path}/status", look.body | {"status": status})
            case _:
                return None
        return AGAIN_S

    async def forget(self, job: JobView) -> None:
        """Delete the Workload of a job that was complete and goes on: it queues as a new one."""
        if version := await self.version():
            path = _path(version, job.namespace, workload_name(job.name, job.uid))
            body = await self._kube.get(path)
            if body is not None and is_owned(body, job.uid):
                await self._kube.delete(path, uid=body["metadata"]["uid"])

    async def _create(self, job: JobView, look: Look) -> None:
        await self._priorities.refresh([look.asked])
        value = self._priorities.of(look.asked)
        body = workload(job, look.asked, look.queue, priority=value, version=look.version)
        try:
            await self._kube.create(_path(look.version, job.namespace), body)
        except ApiError as error:
            if not error.is_conflict:  # else it is there already
                raise

    async def _grant(self, body: Object, version: str, asked: JobSpec) -> Grant:
        spec, status = body["spec"], body.get("status") or {}
        wish = (body["metadata"].get("annotations") or {}).get(WISH_ANNOTATION, "")
        pods = (spec.get("podSets") or [{}])[0]
        most = int(pods.get("count", 0))
        found = {c["type"]: c for c in status.get("conditions") or []}

        def holds(kind: str) -> bool:
            return bool(found.get(kind, {}).get("status") == "True")

        given = ((status.get("admission") or {}).get("podSetAssignments") or [{}])[0]
        is_evicted, has_quota = holds("Evicted"), holds("QuotaReserved")
        # An eviction stays in the conditions until the next admission.
        is_leaving = is_evicted and has_quota
        said = found.get("Evicted" if is_leaving else "QuotaReserved", {}).get("message", "")
        is_admitted = holds("Admitted") and not is_evicted
        selector: dict[str, str] = {}
        tolerations: list[Any] = []
        for name in sorted(set((given.get("flavors") or {}).values())) if is_admitted else ():
            flavor = (await self._flavor(name, version)).get("spec") or {}
            selector |= flavor.get("nodeLabels") or {}
            tolerations += flavor.get("tolerations") or []
        return Grant(
            queue=str(spec.get("queueName") or ""),
            most=most,
            least=int(pods.get("minCount") or most),
            agents=int(given.get("count") or most) if is_admitted else 0,
            is_admitted=is_admitted,
            has_quota=has_quota,
            is_evicted=is_evicted,
            is_active=spec.get("active") is not False,
            is_finished=holds("Finished"),
            is_ready=holds("PodsReady"),
            message=str(said or ""),
            has_queue=found.get("QuotaReserved", {}).get("reason") != "Inadmissible",
            selector=tuple(sorted(selector.items())),
            tolerations=tuple(tolerations),
            is_of_others=wish not in ("", turn.wish(asked)),
        )

    async def _flavor(self, name: str, version: str) -> Object:
        """Without a flavor of that name, it asks for nothing."""
        known, now = self._flavors.get(name), self._clock()
        if known is None or now - known[0] > FLAVOR_AGE_S:
            path = f"/apis/{GROUP}/{version}/resourceflavors/{name}"
            known = self._flavors[name] = (now, await self._kube.get(path) or {})
        return known[1]


def workloads(version: str, namespace: str = "") -> str:
    """Collection of Workloads; of all namespaces if none is given."""
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{GROUP}/{version}{within}/{PLURAL}"


def _path(version: str, namespace: str, name: str = "") -> str:
    """Path of a Workload; without a name, that of the collection."""
    return workloads(version, namespace) + (f"/{name}" if name else "")


def _missing(served: Sequence[str]) -> str:
    """Why no Workload can be made."""
    if not served:
        return "Kueue is not installed in the cluster: install it, or remove the job's label"
    return (
        f"the cluster's Kueue has the API versions {', '.join(served)}, and Bamboo knows"
        f" {', '.join(VERSIONS)}: install another version of one of them, or remove the job's label"
    )


def workload_name(job: str, uid: str) -> str:
    """Name of a job's Workload. A later job of the same name has another one."""
    mark = hashlib.sha256(uid.encode()).hexdigest()[:8]
    return f"bamboojob-{job[:40].rstrip('.-')}-{mark}"


def workload(job: JobView, spec: JobSpec, queue: str, *, priority: int, version: str) -> Object:
    """The object by which Kueue counts the job's pods."""
    most, least = quota.seats(spec)
    pods: Object = {"name": _POD_SET, "count": most, "template": {"spec": _pod(job, spec)}}
    if least < most:
        pods["minCount"] = least
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": "Workload",
        "metadata": {
            "name": workload_name(job.name, job.uid),
            "namespace": job.namespace,
            "annotations": {WISH_ANNOTATION: turn.wish(spec)},
            "labels": dict([PART_OF]) | {JOB_LABEL: job.name, "kueue.x-k8s.io/job-uid": job.uid},
            "ownerReferences": [owner(job)],
        },
        "spec": {"queueName": queue, "priority": priority, "podSets": [pods]},
    }


def _pod(job: JobView, spec: JobSpec) -> Object:
    """The part of an agent's pod that Kueue counts: its requests, and which nodes it may use."""
    action = CreatePod("agent", Slot(0, 0), 0, zone="")
    whole: Object = manifests.pod(spec, job, action, operator_address="")["spec"]
    found: Object = {key: whole[key] for key in _POD_KEYS if key in whole}
    for kind in ("containers", "initContainers"):
        if kind in whole:
            found[kind] = [{k: c[k] for k in _CONTAINER_KEYS if k in c} for c in whole[kind]]
    if "nodeAffinity" in (whole.get("affinity") or {}):
        found["affinity"] = {"nodeAffinity": whole["affinity"]["nodeAffinity"]}
    return found | {"restartPolicy": "Never"}


def _released(status: Object, now: str) -> Object:
    """After an eviction, when the pods are gone: no quota, and queued again if Kueue took it for
    others. In other cases Kueue itself queues it when it may."""
    evicted: Object = next(
        (c for c in status.get("conditions") or [] if c["type"] == "Evicted"), {}
    )
    reason = str(evicted.get("reason") or "Suspended")
    text = str(evicted.get("message") or "the agents have left")
    changed = {k: v for k, v in status.items() if k != "admission"}
    for kind, is_true, why in (
        ("QuotaReserved", False, "Pending"),
        ("Admitted", False, "NoReservation"),
        ("Requeued", reason in _REQUEUED, reason),
        ("PodsReady", False, "WaitForStart"),
    ):
        changed = _with(changed, kind, is_true=is_true, reason=why, message=text, now=now)
    return changed


def _ready(status: Object, now: str, *, is_working: bool) -> Object:
    """By the reason, Kueue knows a job that has not started from one that has to recover."""
    before: Object = next(
        (c for c in status.get("conditions") or [] if c["type"] == "PodsReady"), {}
    )
    if not is_working:
        reason, text = "WaitForRecovery", "the job does not train now"
    elif before.get("reason") in ("WaitForRecovery", "Recovered"):
        reason, text = "Recovered", "the job trains again"
    else:
        reason, text = "Started", "the job trains"
    return _with(status, "PodsReady", is_true=is_working, reason=reason, message=text, now=now)


def _finished(status: Object, now: str, outcome: Outcome | None) -> Object:
    reason = "Succeeded" if outcome is Outcome.COMPLETE else "Failed"
    return _with(
        status, "Finished", is_true=True, reason=reason, message="the job has ended", now=now
    )


def _with(
    status: Object, kind: str, *, is_true: bool, reason: str, message: str, now: str
) -> Object:
    others = [c for c in status.get("conditions") or [] if c["type"] != kind]
    word = "True" if is_true else "False"
    added = {
        "type": kind,
        "status": word,
        "reason": reason,
        "message": message,
        "lastTransitionTime": now,
    }
    return status | {"conditions": [*others, added]}
