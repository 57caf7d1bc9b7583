"""Values of priority classes, which order the jobs that compete."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from bamboo_core.api.spec import JobSpec
from bamboo_operator import api
from bamboo_operator.api import Api, ApiError

log = logging.getLogger(__name__)

MAX_AGE_S = 60.0


class Priorities:
    """The cluster's priority classes, listed again when they are old."""

    def __init__(self, kube: Api, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube, self._clock = kube, clock
        self._values: dict[str, int] = {}
        self._default = 0
        self._listed_at: float | None = None

    async def refresh(self, job: JobSpec | None = None) -> None:
        """If they cannot be listed, the last ones hold; at first, all jobs have priority 0.

        job: whose class is to be known, even if it is new.
        """
        now = self._clock()
        is_new = job is not None and _class_of(job) not in {"", *self._values}
        if self._listed_at is not None and now - self._listed_at <= MAX_AGE_S and not is_new:
            return
        self._listed_at = now
        try:
            classes = await self._kube.list(api.priority_classes())
        except ApiError as error:
            log.warning("the priority classes are not known", extra={"error": str(error)})
            return
        self._values = {x["metadata"]["name"]: int(x.get("value", 0)) for x in classes}
        defaults = [int(x.get("value", 0)) for x in classes if x.get("globalDefault")]
        self._default = min(defaults, default=0)  # of several, Kubernetes takes the lowest

    def of(self, spec: JobSpec) -> int:
        """That of the job's pods. An unknown class counts as none: its pods are refused anyway."""
        return self._values.get(_class_of(spec), self._default)


def _class_of(spec: JobSpec) -> str:
    return (spec.worker.pod_template.get("spec") or {}).get("priorityClassName") or ""
