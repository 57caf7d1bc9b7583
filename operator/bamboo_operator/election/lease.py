"""Leader election by one Lease. Only the leader writes status and directs agents.

A Lease expires when it has not changed for long enough on our own clock; instants in the object are
not compared. A container that is started again takes its pod's Lease at once: the kubelet ends one
container of a pod before it starts the next. Every acquisition raises ``leaseTransitions``, which
is the leader's term. The elections of kopf and of the client are not used: with equal priorities
the first stops both operators, and the second cannot create a Lease.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from bamboo_operator.kube import api
from bamboo_operator.kube.api import Api, ApiError, Object

log = logging.getLogger(__name__)


class LeaseLostError(Exception):
    """This process must not lead any longer; it must end."""


@dataclass(frozen=True)
class Pace:
    """Seconds. A leader that cannot renew for give_up_s stops before another may begin."""

    lease_s: float = 15.0
    renew_s: float = 2.0
    give_up_s: float = 10.0


@dataclass(frozen=True)
class Holder:
    """A process in a container of a pod, which takes the Lease. pod_uid may be empty: no pod."""

    pod: str
    pod_uid: str
    process: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    @property
    def identity(self) -> str:
        """Differs from that of all other processes."""
        return "_".join(word for word in (self.pod, self.pod_uid, self.process) if word)

    def has_replaced(self, identity: str) -> bool:
        """Whether that is a process of the same pod, which has ended."""
        before, _, _ = self.identity.rpartition("_")
        return bool(self.pod_uid) and identity.rpartition("_")[0] == before


class Elector:
    """Acquires, holds and releases the Lease."""

    def __init__(
        self,
        kube: Api,
        *,
        namespace: str,
        name: str,
        holder: Holder,
        annotations: dict[str, str] | None = None,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube, self._namespace, self._name = kube, namespace, name
        self._holder, self._clock = holder, clock
        self._annotations = annotations or {}
        self._pace = pace if pace is not None else Pace()
        self._seen: tuple[object, float] | None = None
        self._lease: Object = {}
        self._renewed_at = -math.inf

    async def acquire(self, standby: Callable[[], None] = lambda: None) -> int:
        """Wait until this process leads. Returns its term, higher than all terms before.

        standby: called each time another process is found to lead.
        """
        while True:
            try:
                began_at = self._clock()
                if await self._try():
                    self._renewed_at = began_at
                    return self.term
                standby()
            except ApiError as error:
                log.warning("cannot take the lease", extra={"error": str(error)})
            await asyncio.sleep(self._pace.renew_s)

    @property
    def is_leading(self) -> bool:
        """True while no other operator can lead. False after this process was frozen for long."""
        return self._clock() - self._renewed_at < self._pace.give_up_s

    @property
    def term(self) -> int:
        return int(self._lease["spec"]["leaseTransitions"])

    @property
    def order(self) -> tuple[str, str]:
        """When it was acquired, and where."""
        return self._lease["spec"]["acquireTime"], self._namespace

    async def hold(self) -> None:
        """Renew until cancelled. LeaseLostError: the lease is taken, or cannot be renewed."""
        while True:
            await asyncio.sleep(self._pace.renew_s)
            began_at = self._clock()
            try:
                async with asyncio.timeout(self._pace.give_up_s):
                    self._lease = await self._kube.replace(self._path, self._claimed(self.term))
                self._renewed_at = began_at
            except ApiError as error:
                if error.is_conflict and not await self._is_still_ours():
                    raise LeaseLostError("another operator has taken the lease") from error
                log.warning("cannot renew the lease", extra={"error": str(error)})
            except TimeoutError:
                log.warning("renewing the lease takes too long")
            if not self.is_leading:
                raise LeaseLostError("the lease could not be renewed in time")

    async def release(self) -> None:
        """Let another operator take over at once; best effort."""
        spec = self._lease["spec"] | {"holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            await self._kube.replace(self._path, self._lease | {"spec": spec})
        except ApiError as error:
            log.warning("cannot release the lease", extra={"error": str(error)})

    @property
    def _path(self) -> str:
        return api.lease(self._namespace, self._name)

    async def _try(self) -> bool:
        found = await self._kube.get(self._path)
        if found is None:
            new = self._fresh(1)
            try:
                self._lease = await self._kube.create(api.lease(self._namespace), new)
            except ApiError as error:
                if error.is_conflict:
                    return False
                raise
            return True
        if not self._is_free(found):
            return False
        term = int(found["spec"].get("leaseTransitions") or 0) + 1
        self._lease = found
        try:
            self._lease = await self._kube.replace(self._path, self._claimed(term))
        except ApiError as error:
            if error.is_conflict:
                return False
            raise
        return True

    def _is_free(self, found: Object) -> bool:
        spec = found.get("spec") or {}
        if not spec.get("holderIdentity") or self._holder.has_replaced(spec["holderIdentity"]):
            return True
        mark = found["metadata"]["resourceVersion"]
        if self._seen is None or self._seen[0] != mark:
            self._seen = (mark, self._clock())
        age_s = self._clock() - self._seen[1]
        return age_s > float(spec.get("leaseDurationSeconds") or self._pace.lease_s)

    async def _is_still_ours(self) -> bool:
        """The conflict may come from our own write whose answer was lost."""
        try:
            found = await self._kube.get(self._path)
        except ApiError:
            return True
        holder = ((found or {}).get("spec") or {}).get("holderIdentity")
        if found is None or holder != self._holder.identity:
            return False
        self._lease = found
        return True

    def _fresh(self, term: int) -> Object:
        meta = {"name": self._name, "namespace": self._namespace}
        self._lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": meta,
            "spec": {},
        }
        return self._claimed(term)

    def _claimed(self, term: int) -> Object:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = self._lease["spec"]
        spec = {
            "holderIdentity": self._holder.identity,
            "leaseDurationSeconds": int(self._pace.lease_s),
            "leaseTransitions": term,
            "renewTime": now,
            "acquireTime": now if term != before.get("leaseTransitions") else before["acquireTime"],
        }
        meta = dict(self._lease["metadata"])
        if self._annotations:
            meta["annotations"] = (meta.get("annotations") or {}) | self._annotations
        return self._lease | {"metadata": meta, "spec": spec}
