"""One PodDisruptionBudget for each job, so that ``kubectl drain`` takes one agent at a time.

It says ``minAvailable``, a number of pods. ``maxUnavailable`` would not do: the disruption
controller subtracts it from the replicas of the scale subresource, which are pipelines, not pods.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from bamboo_core.controller.view import JobView
from bamboo_operator import api, manifests
from bamboo_operator.api import Api, ApiError

log = logging.getLogger(__name__)


class Budgets:
    """Writes a job's budget when it changes."""

    def __init__(self, kube: Api) -> None:
        self._kube = kube
        self._written: dict[str, int | None] = {}  # None: there is no budget

    async def keep(self, job: JobView, least: int | None, *, may_be_left: bool = False) -> None:
        """least: pods that must stay; None: no budget. After an error the next call tries again.

        may_be_left: an earlier operator may have left a budget, which would block evictions.
        """
        is_known = job.uid in self._written or not may_be_left
        if is_known and self._written.get(job.uid) == least:
            return
        try:
            if least is None:
                path = api.disruption_budget(job.namespace, manifests.budget_name(job))
                await self._kube.delete(path)
                self._written[job.uid] = None
                return
            body = manifests.disruption_budget(job, least)
            path = api.disruption_budget(job.namespace, body["metadata"]["name"])
            await self._kube.apply(path, body, manager=api.MANAGER)
            self._written[job.uid] = least
        except ApiError as error:
            text = "the disruption budget is not written"
            log.warning(text, extra={"job": job.name, "error": str(error)})

    def forget(self, uids: Iterable[str]) -> None:
        """These jobs are gone, and with them their budgets."""
        for uid in uids:
            self._written.pop(uid, None)
