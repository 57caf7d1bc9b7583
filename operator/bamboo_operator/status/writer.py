"""Writes the status of a job when it has changed, but mere progress not too often."""

from __future__ import annotations

from bamboo_core.controller.view import Condition, JobView
from bamboo_operator.kube import api
from bamboo_operator.kube.api import Api, Object
from bamboo_operator.status import statuses

PROGRESS_S = 5.0
"""Least time between two writes of a status that differs only in progress."""
WRITES_PER_S = 10.0
"""Such writes of all jobs together."""


class StatusWriter:
    """Remembers when each job's status was written."""

    def __init__(self, kube: Api) -> None:
        self._kube = kube
        self._written_at: dict[str, float] = {}  # by the job's UID; seconds since 1970

    async def write(
        self, job: JobView, old: Object, new: Object, *, sharing: int, now: float
    ) -> tuple[float | None, Object]:
        """Write the new status, unless nothing but progress has changed and the last write is
        recent. ``old`` is the present one. sharing: number of jobs whose progress is written.

        Returns after how many seconds to try again, None if it is written, and the status that
        is in the API now.
        """
        if {k: v for k, v in old.items() if k != "arbiter"} == new:
            return None, new
        pause_s = max(PROGRESS_S, sharing / WRITES_PER_S)
        left_s = self._written_at.get(job.uid, 0.0) + pause_s - now
        if left_s > 0 and statuses.differ_in_progress_only(old, new):
            return left_s, old
        await self._apply(job, new)
        self._written_at[job.uid] = now
        return None, new

    async def write_conditions(
        self, job: JobView, body: Object, conditions: tuple[Condition, ...]
    ) -> Object:
        """Write these conditions and leave the rest, but for the estimate: nobody measures it.

        Returns the new status."""
        others = ("arbiter", "estimate")
        old = {k: v for k, v in (body.get("status") or {}).items() if k not in others}
        old.setdefault("phase", "Pending")
        new = old | {
            "observedGeneration": job.generation,
            "conditions": statuses.conditions(conditions, job.generation),
        }
        await self._apply(job, new)
        return new

    def forget(self, uid: str) -> None:
        """The job is gone."""
        self._written_at.pop(uid, None)

    async def _apply(self, job: JobView, status: Object) -> None:
        path = api.job_status(job.namespace, job.name)
        await self._kube.apply(path, statuses.envelope(job, status), manager=api.STATUS_MANAGER)
