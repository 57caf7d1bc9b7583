"""Follows pods: all that match, then every change, for ever.

kopf's watches give each object a task and a queue, and look up handlers for each event: a sixth of
the operator's time while thousands of pods start. Of jobs and nodes there are fewer events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bamboo_operator.kube import api
from bamboo_operator.kube.api import Api, ApiError, JobKey, Object
from bamboo_operator.kube.labels import JOB_LABEL

log = logging.getLogger(__name__)

AGAIN_S = 1.0
"""Pause before the watch begins again."""
FORBIDDEN_S = 60.0
"""The same if the API server does not allow it."""

_GONE = 410


def _ignore(uids: set[str]) -> None:
    pass


@dataclass(frozen=True)
class Follower:
    """Functions that are called for every pod."""

    there: Callable[[Object], None]  # a pod is there, or has changed
    gone: Callable[[Object], None]  # in its last state; or it does not match any more
    listed: Callable[[set[str]], None] = _ignore  # these UIDs are all that there are


def agents(
    *,
    add: Callable[[JobKey], None],
    seen: Callable[[str], None],
    deleted: Callable[[Object], None],
    is_ours: Callable[[Object], bool],
    is_orphan: Callable[[Object], bool],
) -> Follower:
    """Reports pods with the label of a job.

    deleted: called with a deleted pod in its last state. is_ours: whether an operator has made a
    pod; is_orphan: whether it has, and the pod's job was deleted without it. No other pod causes
    anything.
    """

    def there(pod: Object) -> None:
        seen("pods")
        meta = pod["metadata"]
        job = (meta.get("labels") or {}).get(JOB_LABEL)
        if job and (is_ours(pod) or is_orphan(pod)):
            add((meta["namespace"], job))

    def gone(pod: Object) -> None:
        if is_ours(pod):
            deleted(pod)
        there(pod)

    return Follower(there, gone)


class PodWatch:
    """One watch of a namespace, or of all if none is given. fields, labels: selectors."""

    def __init__(
        self,
        kube: Api,
        follower: Follower,
        namespace: str = "",
        *,
        fields: str = "",
        labels: str = "",
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._kube, self._follower, self._sleep = kube, follower, sleep
        self._path = api.pods(namespace)
        self._select = {"fields": fields, "labels": labels}
        self.listed = asyncio.Event()  # once the first list is complete

    async def run(self) -> None:
        """For ever: list, then watch until the server has forgotten where we were."""
        while True:
            pause_s = AGAIN_S
            try:
                await self._follow()
            except ApiError as error:
                if error.code == 403:
                    pause_s = FORBIDDEN_S
                level = logging.DEBUG if error.code == _GONE else logging.WARNING
                extra = {"error": str(error), **self._select}
                log.log(level, "the pods are not known", extra=extra)
            await self._sleep(pause_s)

    async def _follow(self) -> None:
        seen: set[str] = set()
        since = ""
        async for page, version in self._kube.pages(self._path, **self._select):
            since = version
            for pod in page:
                seen.add(pod["metadata"]["uid"])
                self._follower.there(pod)
        self._follower.listed(seen)
        self.listed.set()
        while True:
            async for event in self._kube.watch(self._path, since=since, **self._select):
                since = self._take(event) or since
            await self._sleep(AGAIN_S)

    def _take(self, event: Object) -> str:
        """The resource version of the event. ApiError if the watch cannot go on."""
        body = event.get("object") or {}
        if event.get("type") == "ERROR":
            raise ApiError(int(body.get("code") or 0), "WatchEnded", str(body.get("message")))
        meta = body.get("metadata") or {}
        if event["type"] == "DELETED":
            self._follower.gone(body)
        elif event["type"] in ("ADDED", "MODIFIED"):
            self._follower.there(body)
        return str(meta.get("resourceVersion") or "")
