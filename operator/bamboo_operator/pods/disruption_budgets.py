"""One PodDisruptionBudget for each job, so that ``kubectl drain`` takes one agent at a time.

It says ``minAvailable``, a number of pods. ``maxUnavailable`` would not do: the disruption
controller subtracts it from the replicas of the scale subresource, which are pipelines, not pods.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bamboo_core.controller.view import JobView
from bamboo_operator.kube import api
from bamboo_operator.kube.api import Api, ApiError, Object
from bamboo_operator.kube.labels import JOB_LABEL
from bamboo_operator.kube.owners import owner

log = logging.getLogger(__name__)

AGAIN_S = 300.0
"""A budget is written again after this time, since somebody may have changed or deleted it."""
RETRY_S = 10.0
"""Pause after an error."""


@dataclass(frozen=True)
class _Written:
    least: int | None  # None: there is no budget
    at: float  # seconds since 1970


class Budgets:
    """Writes a job's budget when it changes, and again from time to time."""

    def __init__(self, kube: Api, clock: Callable[[], float] = time.time) -> None:
        self._kube, self._clock = kube, clock
        self._written: dict[str, _Written] = {}

    async def keep(
        self, job: JobView, least: int | None, *, may_be_left: bool = False
    ) -> float | None:
        """least: pods that must stay; None: no budget. Returns the pause after an error, in
        seconds, before this is to be called again.

        may_be_left: an earlier operator may have left a budget, which would block evictions.
        """
        known, now = self._written.get(job.uid), self._clock()
        if known is None:
            is_right = least is None and not may_be_left
        else:
            is_right = known.least == least and (least is None or now < known.at + AGAIN_S)
        if is_right:
            return None
        try:
            if least is None:
                path = api.disruption_budget(job.namespace, budget_name(job))
                await self._kube.delete(path)
            else:
                body = _budget(job, least)
                path = api.disruption_budget(job.namespace, body["metadata"]["name"])
                await self._kube.apply(path, body, manager=api.MANAGER)
        except ApiError as error:
            text = "the disruption budget is not written"
            log.warning(text, extra={"job": job.name, "error": str(error)})
            return RETRY_S
        self._written[job.uid] = _Written(least, now)
        return None

    def forget(self, uids: Iterable[str]) -> None:
        """These jobs are gone, and with them their budgets."""
        for uid in uids:
            self._written.pop(uid, None)


def budget_name(job: JobView) -> str:
    """Name of the job's PodDisruptionBudget, which no user takes by chance."""
    return f"{job.name}-agents-{job.uid[:8]}"


def _budget(job: JobView, least: int) -> Object:
    """Evictions leave so many ready pods of the job. Others may always be evicted."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": budget_name(job),
            "namespace": job.namespace,
            "labels": {"app.kubernetes.io/part-of": "bamboo", JOB_LABEL: job.name},
            "ownerReferences": [owner(job)],
        },
        "spec": {
            "minAvailable": least,
            "selector": {"matchLabels": {JOB_LABEL: job.name}},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
