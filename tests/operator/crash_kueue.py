"""Kueue, as far as the operator sees it: it admits Workloads, and takes their quota back."""

from __future__ import annotations

import copy

from bamboo_operator.admission.kueue import GROUP
from bamboo_operator.kube.api import Object
from bamboo_operator.kube.owners import job_of

from .memory_api import MemoryApi

API = f"/apis/{GROUP}"
WORKLOADS = f"{API}/v1beta2/namespaces/ns/workloads"


class PlayedKueue:
    """It admits every Workload unless ``is_full``."""

    def __init__(self, kube: MemoryApi) -> None:
        self._kube = kube
        self.is_full = False  # admits no more
        self.preempts = False  # the next Workload that is admitted loses its quota

    def install(self) -> None:
        """The cluster has Kueue's API."""
        self._kube.put(API, {"versions": [{"version": "v1beta2"}]})

    def _workloads(self) -> dict[str, Object]:
        """By path."""
        found = self._kube.objects.items()
        return {path: body for path, body in found if path.startswith(f"{WORKLOADS}/")}

    def ended(self) -> list[bool]:
        """For each Workload, whether it is finished."""
        return [_holds(body, "Finished") for body in self._workloads().values()]

    def admits(self, name: str) -> bool:
        """Whether the job of that name may have pods."""
        mine = [body for body in self._workloads().values() if job_of(body) == ("ns", name)]
        return any(_holds(body, "Admitted") and not _holds(body, "Evicted") for body in mine)

    def play(self, now: str) -> None:
        """Kueue's controllers."""
        for path, body in self._workloads().items():
            before = copy.deepcopy(body)
            if _holds(body, "Finished"):
                continue
            if self.preempts and _holds(body, "Admitted"):
                _say(body, now, Evicted="True")
                self.preempts = False
            elif not self.is_full and not _holds(body, "QuotaReserved"):
                _say(body, now, QuotaReserved="True", Admitted="True", Evicted="False")
                count = body["spec"]["podSets"][0]["count"]
                given = {"name": "agents", "count": count, "flavors": {}}
                body["status"]["admission"] = {"clusterQueue": "cq", "podSetAssignments": [given]}
            if body != before:
                self._kube.put(path, body)


def _holds(body: Object, kind: str) -> bool:
    conditions = (body.get("status") or {}).get("conditions") or []
    return any(c["type"] == kind and c["status"] == "True" for c in conditions)


def _say(body: Object, now: str, **conditions: str) -> None:
    status = body.setdefault("status", {})
    known = {c["type"]: c for c in status.get("conditions") or []}
    for kind, word in conditions.items():
        reason = "Preempted" if kind == "Evicted" else "Test"
        said = {"type": kind, "status": word, "reason": reason, "message": f"Kueue says {kind}"}
        known[kind] = said | {"lastTransitionTime": now}
    status["conditions"] = list(known.values())
