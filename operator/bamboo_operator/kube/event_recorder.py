"""Kubernetes Events about a job. Equal ones between two commits share an object with a count; so
do stops for the same reason, whose texts differ by the number of the plan only.

Facts become annotations ``bamboo.dev/NAME``. Best effort: an event that cannot be written is
dropped and counted, and nothing waits for it. One job takes no more than its share: of the queue,
and of one reason's events in a time.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType

from bamboo_core.api import texts
from bamboo_core.api.events import ANNOTATION_PREFIX, EventFact, EventReason
from bamboo_core.controller.view import JobView
from bamboo_operator.kube import api
from bamboo_operator.kube.api import Api, ApiError, Object
from bamboo_operator.kube.timestamps import instant, precise_instant

log = logging.getLogger(__name__)

_EPOCH = re.compile(r"^epoch \d+: ")
_MAX_WAITING = 1000
_MAX_WAITING_OF_JOB = 100
_MOST_OF_REASON = 60
_PERIOD_S = 60.0
_MAX_KNOWN = 5000


class Recorder:
    """Queues events; `run` writes them."""

    def __init__(self, kube: Api, *, identity: str, clock: Callable[[], float] = time.time) -> None:
        self._kube, self._identity, self._clock = kube, identity, clock
        self._waiting: asyncio.Queue[Object] = asyncio.Queue(_MAX_WAITING)
        self._waiting_of: Counter[str] = Counter()  # by the job's UID
        self._known: OrderedDict[str, Object] = OrderedDict()
        self._resumed: OrderedDict[str, int] = OrderedDict()  # job's UID -> pauses that are over
        self._lately: Counter[tuple[str, str]] = Counter()  # by the job's UID and the reason
        self._lately_since = 0.0
        self.dropped = 0

    def record(
        self,
        job: JobView,
        *,
        severity: str,
        reason: str,
        message: str,
        facts: Mapping[EventFact, str | int | float] = MappingProxyType({}),
    ) -> None:
        """severity: Normal or Warning; reason: CamelCase; facts: by their names in EventFact."""
        text = texts.cut(message, texts.MOST_EVENT_BYTES)
        digest = self._digest(job.uid, reason, text)
        now = self._clock()
        if not self._has_room(job, reason, now):
            self.dropped += 1
            return
        known = self._known.get(digest)
        name = f"{job.name}.{int(now * 1e6):x}.{digest}"  # in order of time: kubectl lists by name
        event = known or self._new(job, name, severity, reason, text, now)
        annotations = {f"{ANNOTATION_PREFIX}{name}": str(value) for name, value in facts.items()}
        event |= {
            "metadata": event["metadata"] | {"annotations": annotations},
            "message": text,
            "count": event["count"] + 1,
            "lastTimestamp": instant(now),
        }
        self._known[digest] = event
        while len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        self._waiting.put_nowait(dict(event))
        self._waiting_of[job.uid] += 1

    def _digest(self, uid: str, reason: str, text: str) -> str:
        """A name for what has happened. While training stands still, agents are stopped and asked
        again and again, and each time the same is said."""
        if reason == EventReason.STOPPED:
            text = _EPOCH.sub("", text)
        over = self._resumed.get(uid, 0)
        if reason == EventReason.RESUMED:
            self._resumed[uid] = over + 1
            self._resumed.move_to_end(uid)
            while len(self._resumed) > _MAX_KNOWN:
                self._resumed.popitem(last=False)
        return hashlib.sha256(f"{uid}/{reason}/{over}/{text}".encode()).hexdigest()[:16]

    def _has_room(self, job: JobView, reason: str, now: float) -> bool:
        """Whether the job may have one more event of the reason; counts it."""
        if not self._lately_since <= now < self._lately_since + _PERIOD_S:
            self._lately.clear()
            self._lately_since = now
        if self._waiting.full() or self._waiting_of[job.uid] >= _MAX_WAITING_OF_JOB:
            return False
        self._lately[job.uid, reason] += 1
        return self._lately[job.uid, reason] <= _MOST_OF_REASON

    def _new(
        self, job: JobView, name: str, severity: str, reason: str, message: str, now: float
    ) -> Object:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": job.namespace},
            "involvedObject": {
                "apiVersion": api.API_VERSION,
                "kind": "BambooJob",
                "name": job.name,
                "namespace": job.namespace,
                "uid": job.uid,
            },
            "type": severity,
            "reason": reason,
            "message": message,
            "source": {"component": "bamboo-operator"},
            "reportingComponent": "bamboo-operator",
            "reportingInstance": self._identity,
            "firstTimestamp": instant(now),
            "eventTime": precise_instant(now),  # requires an action
            "action": "Train",
            "count": 0,
        }

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            event = await self._waiting.get()
            meta = event["metadata"]
            path = f"{api.events(meta['namespace'])}/{meta['name']}"
            try:
                await self._kube.apply(path, event, manager=api.MANAGER)
            except ApiError as error:
                self.dropped += 1
                # Nobody can read events of a namespace that is gone.
                level = logging.DEBUG if error.is_absence else logging.WARNING
                log.log(level, "an event was dropped", extra={"error": str(error)})
            finally:
                self._waiting_of -= Counter({event["involvedObject"]["uid"]: 1})
                self._waiting.task_done()

    async def flush(self, timeout_s: float) -> None:
        """Wait until all queued events are written, for at most ``timeout_s``."""
        try:
            await asyncio.wait_for(self._waiting.join(), timeout_s)
        except TimeoutError:
            log.warning("events were not written in time")
