"""Objects of jobs that were deleted without them, as by ``kubectl delete --cascade=orphan``.

A budget that is left blocks the evictions of the next job of that name, since the API server takes
none of pods with two budgets. A Workload that is left keeps its quota. The garbage collector has
taken the owner reference off both, so their names say which job they were for. Pods are released
by :mod:`bamboo_operator.reconcile.job_pods`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bamboo_operator.admission import kueue
from bamboo_operator.admission.kueue import Kueue
from bamboo_operator.kube import api
from bamboo_operator.kube.api import Api, ApiError, JobKey, Object
from bamboo_operator.kube.labels import JOB_LABEL, PART_OF
from bamboo_operator.pods.disruption_budgets import budget_name

log = logging.getLogger(__name__)

_NO_UID = "00000000"
"""As long as the end of a name that comes from the UID of the job."""


@dataclass(frozen=True)
class Leftover:
    """An object without an owner that was made for a job."""

    path: str
    body: Object


class Leftovers:
    """Finds and deletes them. namespaces: those that are served; none: all."""

    def __init__(
        self, kube: Api, namespaces: Sequence[str], *, budgets: bool, kueue: Kueue | None
    ) -> None:
        self._kube, self._namespaces = kube, namespaces or ("",)
        self._budgets, self._kueue = budgets, kueue

    async def find(self) -> list[Leftover]:
        """Those that may be left. Call this before the jobs are listed: a job that is made later
        must not lose what is new."""
        found: list[Leftover] = []
        for namespace in self._namespaces:
            if self._budgets:
                found += await self._orphans(api.disruption_budgets, namespace)
            version = await self._kueue.version() if self._kueue is not None else ""
            if version:
                workloads = functools.partial(kueue.workloads, version)
                found += await self._orphans(workloads, namespace)
        return found

    async def _orphans(self, collection: Callable[[str], str], namespace: str) -> list[Leftover]:
        try:
            listed = await self._kube.list(collection(namespace), labels="=".join(PART_OF))
        except ApiError as error:  # jobs go on without it
            log.warning("what deleted jobs have left is not known", extra={"error": str(error)})
            return []
        orphans = [(body, body["metadata"]) for body in listed if _is_orphan(body)]
        return [Leftover(f"{collection(m['namespace'])}/{m['name']}", body) for body, m in orphans]

    async def remove(self, found: Iterable[Leftover], jobs: Iterable[tuple[JobKey, str]]) -> None:
        """Delete those that were made for other jobs than these. jobs: their keys and UIDs."""
        needed = {
            (namespace, made)
            for (namespace, name), uid in jobs
            for made in (budget_name(name, uid), kueue.workload_name(name, uid))
        }
        for left in found:
            meta = left.body["metadata"]
            if (meta["namespace"], meta["name"]) in needed:
                continue
            log.info("deleting what a deleted job has left", extra={"object": meta["name"]})
            try:
                await self._kube.delete(left.path, uid=meta["uid"])
            except ApiError as error:  # the next time
                extra = {"object": meta["name"], "error": str(error)}
                log.warning("an object of a deleted job is not deleted", extra=extra)


def _is_orphan(body: Object) -> bool:
    """Whether it was made for a job, by its name, and nobody owns it."""
    meta = body["metadata"]
    job = (meta.get("labels") or {}).get(JOB_LABEL, "")
    if not job or meta.get("ownerReferences") or "deletionTimestamp" in meta:
        return False
    made = (budget_name(job, _NO_UID), kueue.workload_name(job, _NO_UID))
    return meta["name"][: -len(_NO_UID)] in {name[: -len(_NO_UID)] for name in made}
