"""One PodDisruptionBudget for each job, so that ``kubectl drain`` takes one agent at a time.

It says ``minAvailable``, a number of pods. ``maxUnavailable`` would not do: the disruption
controller subtracts it from the replicas of the scale subresource, which are pipelines, not pods.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from bamboo_core.controller.view import JobView
from bamboo_operator.kube import api
from bamboo_operator.kube.api import Api, ApiError, Object
from bamboo_operator.kube.labels import JOB_LABEL, JOB_UID_LABEL, PART_OF
from bamboo_operator.kube.owners import owner

log = logging.getLogger(__name__)

AGAIN_S = 300.0
"""A budget is written again after this time, since somebody may have changed or deleted it."""
RETRY_S = 10.0
"""Pause after an error."""


@dataclass(frozen=True)
class _Written:
    least: int | None  # None: there is no budget
    selected: Mapping[str, str]
    at: float  # seconds since 1970


class Budgets:
    """Writes a job's budget when it changes, and again from time to time."""

    def __init__(self, kube: Api, clock: Callable[[], float] = time.time) -> None:
        self._kube, self._clock = kube, clock
        self._written: dict[str, _Written] = {}

    async def keep(
        self,
        job: JobView,
        least: int | None,
        *,
        pods: Iterable[Object] = (),
        may_be_left: bool = False,
    ) -> float | None:
        """least: pods that must stay; None: no budget. pods: those that there are. Returns the
        pause after an error, in seconds, before this is to be called again.

        may_be_left: an earlier operator may have left a budget, which would block evictions.
        """
        known, now = self._written.get(job.uid), self._clock()
        selected = _selected(job, pods)
        if known is None:
            is_right = least is None and not may_be_left
        elif least is None:
            is_right = known.least is None
        else:
            is_same = (known.least, known.selected) == (least, selected)
            is_right = is_same and now < known.at + AGAIN_S
        if is_right:
            return None
        try:
            if least is None:
                path = api.disruption_budget(job.namespace, budget_name(job.name, job.uid))
                await self._kube.delete(path)
            else:
                body = _budget(job, least, selected)
                path = api.disruption_budget(job.namespace, body["metadata"]["name"])
                await self._kube.apply(path, body, manager=api.MANAGER)
        except ApiError as error:
            text = "the disruption budget is not written"
            log.warning(text, extra={"job": job.name, "error": str(error)})
            return RETRY_S
        self._written[job.uid] = _Written(least, selected, now)
        return None

    def forget(self, uids: Iterable[str]) -> None:
        """These jobs are gone, and with them their budgets."""
        for uid in uids:
            self._written.pop(uid, None)


def budget_name(job: str, uid: str) -> str:
    """Name of a job's PodDisruptionBudget, which no user takes by chance."""
    return f"{job}-agents-{uid[:8]}"


def _selected(job: JobView, pods: Iterable[Object]) -> dict[str, str]:
    """Labels of the pods that the budget is for: those of this very job. A budget of an earlier job
    of the same name may still be there, and a pod with two cannot be evicted.

    Pods of an earlier version of the operator have no label with the UID. While one of them runs,
    the name selects.
    """
    over = ("Succeeded", "Failed")
    alive = (pod for pod in pods if (pod.get("status") or {}).get("phase") not in over)
    if all(JOB_UID_LABEL in (pod["metadata"].get("labels") or {}) for pod in alive):
        return {JOB_LABEL: job.name, JOB_UID_LABEL: job.uid}
    return {JOB_LABEL: job.name}


def _budget(job: JobView, least: int, selected: Mapping[str, str]) -> Object:
    """Evictions leave so many ready pods of the job. Others may always be evicted."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": budget_name(job.name, job.uid),
            "namespace": job.namespace,
            "labels": dict([PART_OF]) | {JOB_LABEL: job.name},
            "ownerReferences": [owner(job)],
        },
        "spec": {
            "minAvailable": least,
            "selector": {"matchLabels": dict(selected)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
