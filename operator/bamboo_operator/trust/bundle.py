"""The CA bundle and the operator's address, in every namespace where agents run.

The jobs own the config map together, so it is deleted with the last of them, even without the
operator. After ``kubectl delete --cascade=orphan`` it has no owner, and the operator deletes it.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Set

from bamboo_core.controller.view import JobView
from bamboo_operator.kube import api
from bamboo_operator.kube.api import Api, ApiError, Object
from bamboo_operator.kube.labels import PART_OF
from bamboo_operator.kube.owners import owner

log = logging.getLogger(__name__)

CA_CONFIG_MAP = "bamboo-operator-ca"
CA_KEY = "ca.crt"
ADDRESS_KEY = "address"

AGAIN_S = 60.0
"""Publish again after so long, in case the config map was deleted."""
TOGETHER_S = 5.0
"""New owners of a config map that is there are written after so long, with those that follow."""
MAX_OWNERS = 32
"""Owners of a config map. Further jobs in the namespace become owners when one of these is gone."""


class Trust:
    """Publishes the bundle once for many pods."""

    def __init__(
        self, kube: Api, bundle: str, address: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kube, self._clock = kube, clock
        self._bundle, self._address = bundle, address
        self._published: dict[str, float] = {}
        self._has_news: set[str] = set()  # namespaces with owners that are not written yet
        self._owners: defaultdict[str, dict[str, JobView]] = defaultdict(dict)

    async def publish(self, job: JobView) -> None:
        """Ensure that the config map exists for the job's agents."""
        owners = self._owners[job.namespace]
        if job.uid not in owners and len(owners) < MAX_OWNERS:
            owners[job.uid] = job
            self._has_news.add(job.namespace)
        at = self._published.get(job.namespace)
        pause_s = TOGETHER_S if job.namespace in self._has_news else AGAIN_S
        if at is not None and self._clock() - at < pause_s:
            return
        path = api.config_map(job.namespace, CA_CONFIG_MAP)
        body = _config_map(job.namespace, self._bundle, self._address, owners=owners.values())
        began, written = self._clock(), [*owners]
        await self._kube.apply(path, body, manager=api.MANAGER)
        self._published[job.namespace] = began
        if [*owners] == written:
            self._has_news.discard(job.namespace)

    def renew(self, bundle: str) -> None:
        """Publish another bundle from now on."""
        self._bundle = bundle
        self._published.clear()

    async def forget(self, namespace: str, uids: Iterable[str]) -> None:
        """These jobs are gone. The next job that needs the config map becomes an owner. If they
        were the last ones, the config map is deleted."""
        gone, owners = set(uids), self._owners[namespace]
        had_owners = bool(owners)
        for uid in gone & owners.keys():
            del owners[uid]
            self._published.pop(namespace, None)
        if owners:
            return
        del self._owners[namespace]
        self._has_news.discard(namespace)
        if had_owners:
            await self._delete(namespace, gone)

    async def _delete(self, namespace: str, gone: Set[str]) -> None:
        """Best effort: what is left holds nothing secret."""
        path = api.config_map(namespace, CA_CONFIG_MAP)
        try:
            body = await self._kube.get(path)
            if body is None or not _is_left(body, gone):
                return
            await self._kube.delete(path, uid=body["metadata"]["uid"])
        except ApiError as error:
            extra = {"namespace": namespace, "error": str(error)}
            log.warning("the config map of deleted jobs is not deleted", extra=extra)
        owners = self._owners.get(namespace)
        if not owners:
            return
        self._published.pop(namespace, None)  # a new job has published it meanwhile
        try:
            await self.publish(next(iter(owners.values())))
        except ApiError as error:  # each reconcile of that job tries again
            extra = {"namespace": namespace, "error": str(error)}
            log.warning("the config map of a new job is not written", extra=extra)


def _is_left(body: Object, gone: Set[str]) -> bool:
    """Whether an operator made the config map and nobody else owns it, such as a job that was not
    looked at yet."""
    meta = body["metadata"]
    is_ours = (meta.get("labels") or {}).get(PART_OF[0]) == PART_OF[1]
    return is_ours and all(each["uid"] in gone for each in meta.get("ownerReferences") or ())


def _config_map(namespace: str, bundle: str, address: str, *, owners: Iterable[JobView]) -> Object:
    """The CA bundle and the operator's address, for agents in this namespace.

    The address may change with the operator's pod; the kubelet keeps the mounted file up to date.
    owners: jobs; the garbage collector deletes the config map when all of them are gone.
    """
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": CA_CONFIG_MAP,
            "namespace": namespace,
            "labels": dict([PART_OF]),
            "ownerReferences": [owner(job, controls=False) for job in owners],
        },
        "data": {CA_KEY: bundle, ADDRESS_KEY: address},
    }
