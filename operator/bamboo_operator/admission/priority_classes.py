"""Values of priority classes, which order the jobs that compete."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from bamboo_core.api.spec import JobSpec
from bamboo_operator.kube import api
from bamboo_operator.kube.api import Api, ApiError

log = logging.getLogger(__name__)

MAX_AGE_S = 60.0


class Priorities:
    """The cluster's priority classes, listed again when they are old."""

    def __init__(self, kube: Api, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube, self._clock = kube, clock
        self._values: dict[str, int] = {}
        self._default = 0
        self._missing = set[str]()  # classes that did not exist at the last list
        self._listed_at: float | None = None

    async def refresh(self, jobs: Iterable[JobSpec] = ()) -> None:
        """If they cannot be listed, the last ones hold; at first, all jobs have priority 0.

        jobs: whose classes are to be known, even if they are new. A class that does not exist is
        looked for once.
        """
        now = self._clock()
        wanted = {_class_of(job) for job in jobs} - {""}
        is_new = not wanted <= self._values.keys() | self._missing
        is_old = self._listed_at is None or now - self._listed_at > MAX_AGE_S
        if not is_old and not is_new:
            return
        self._listed_at = now
        try:
            classes = await self._kube.list(api.priority_classes())
        except ApiError as error:
            log.warning("the priority classes are not known", extra={"error": str(error)})
            return
        self._values = {x["metadata"]["name"]: int(x.get("value", 0)) for x in classes}
        self._missing = (wanted | (set() if is_old else self._missing)) - self._values.keys()
        defaults = [int(x.get("value", 0)) for x in classes if x.get("globalDefault")]
        self._default = min(defaults, default=0)  # of several, Kubernetes takes the lowest

    def of(self, spec: JobSpec) -> int:
        """That of the job's pods. An unknown class counts as none: its pods are refused anyway."""
        return self._values.get(_class_of(spec), self._default)


def _class_of(spec: JobSpec) -> str:
    return (spec.worker.pod_template.get("spec") or {}).get("priorityClassName") or ""
