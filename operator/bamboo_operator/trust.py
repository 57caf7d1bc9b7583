"""The CA bundle, and our address, in every namespace where agents run.

Jobs own the config map together, so that it goes with the last of them, operator or not.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable

from bamboo_core.controller.view import JobView
from bamboo_operator import api, manifests
from bamboo_operator.api import Api

AGAIN_S = 60.0
"""Somebody may have deleted it."""
MAX_OWNERS = 32
"""With more jobs in a namespace, the others take over as soon as one of these has gone."""


class Trust:
    """Publishes the bundle, but not for every pod."""

    def __init__(
        self, kube: Api, bundle: str, address: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kube, self._clock = kube, clock
        self._bundle, self._address = bundle, address
        self._published: dict[str, float] = {}
        self._owners: defaultdict[str, dict[str, JobView]] = defaultdict(dict)

    async def publish(self, job: JobView) -> None:
        """See to it that the config map is there for the job's agents."""
        owners = self._owners[job.namespace]
        if job.uid not in owners and len(owners) < MAX_OWNERS:
            owners[job.uid] = job
            self._published.pop(job.namespace, None)
        at = self._published.get(job.namespace)
        if at is not None and self._clock() - at < AGAIN_S:
            return
        path = api.config_map(job.namespace, manifests.CA_CONFIG_MAP)
        body = manifests.ca_config_map(
            job.namespace, self._bundle, self._address, owners=owners.values()
        )
        began = self._clock()
        await self._kube.apply(path, body, manager=api.MANAGER)
        self._published[job.namespace] = began

    def forget(self, namespace: str, uids: Iterable[str]) -> None:
        """These jobs are gone; the next one that needs the config map takes their place."""
        owners = self._owners[namespace]
        for uid in uids:
            if owners.pop(uid, None) is not None:
                self._published.pop(namespace, None)
        if not owners:
            del self._owners[namespace]
