"""What pods take of the nodes: those of the whole cluster, or of the namespaces that are served.

One watch of the pods that have a node and have not ended. Of each, only its node, its owner and its
requests are kept: some hundred bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

from bamboo_core.placement import fitting
from bamboo_core.placement.fitting import Amounts
from bamboo_operator import api
from bamboo_operator.api import Api, ApiError, Object

log = logging.getLogger(__name__)

PLACED = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""Field selector of the pods that count."""

AGAIN_S = 1.0
"""Pause before the watch begins again."""
FORBIDDEN_S = 60.0
"""The same if the API server does not allow it."""

_MOST_CHANGES = 4096
"""Of which the nodes are known; whoever is further behind looks at all nodes."""

_GONE = 410
_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class _Placed:
    namespace: str
    node: str
    owner: str  # UID of the controller; empty: none
    asks: Amounts


class Usage:
    """Pods on nodes, by UID."""

    def __init__(self) -> None:
        self.version = 0  # grows with every change
        self._pods: dict[str, _Placed] = {}
        self._on: dict[str, dict[str, _Placed]] = {}  # node -> its pods
        self._owned: dict[str, Counter[str]] = {}  # owner -> number of its pods by node
        self._changes: deque[str] = deque(maxlen=_MOST_CHANGES)  # a node for each version
        self._shapes: dict[tuple[tuple[str, Fraction], ...], Amounts] = {}  # equal requests are one

    def put(self, pod: Object) -> None:
        """A pod is there, or has changed."""
        meta, spec = pod["metadata"], pod.get("spec") or {}
        node, phase = spec.get("nodeName"), (pod.get("status") or {}).get("phase")
        if not node or phase in _ENDED:
            self.drop(meta["uid"])
            return
        asked = fitting.requests(spec)
        asks = self._shapes.setdefault(tuple(sorted(asked.items())), asked)
        placed = _Placed(meta.get("namespace", ""), node, _owner(meta), asks)
        if self._pods.get(meta["uid"]) == placed:
            return
        self.drop(meta["uid"])
        self._pods[meta["uid"]] = placed
        self._on.setdefault(node, {})[meta["uid"]] = placed
        self._owned.setdefault(placed.owner, Counter())[node] += 1
        self._touch(node)

    def drop(self, uid: str) -> None:
        """A pod is gone, or has ended."""
        placed = self._pods.pop(uid, None)
        if placed is None:
            return
        there, owned = self._on[placed.node], self._owned[placed.owner]
        del there[uid]
        if not there:
            del self._on[placed.node]
        owned[placed.node] -= 1
        if not owned[placed.node]:
            del owned[placed.node]
        if not owned:
            del self._owned[placed.owner]
        self._touch(placed.node)

    def keep(self, uids: set[str], namespace: str) -> None:
        """Drop all other pods of the namespace; of all namespaces if none is given."""
        for uid in [u for u, placed in self._pods.items() if u not in uids]:
            if namespace in ("", self._pods[uid].namespace):
                self.drop(uid)

    def _touch(self, node: str) -> None:
        self.version += 1
        self._changes.append(node)

    def changed_since(self, version: int) -> set[str] | None:
        """Nodes whose pods have changed after that version; None: too long ago to say."""
        count = self.version - version
        return set(islice(reversed(self._changes), count)) if count <= len(self._changes) else None

    def on(self, node: str, *, but: AbstractSet[str] = frozenset()) -> dict[str, Fraction]:
        """What all pods on the node take of it. but: owners whose pods do not count."""
        total: dict[str, Fraction] = {}
        for placed in self._on.get(node, {}).values():
            if placed.owner in but:
                continue
            for name, amount in placed.asks.items():
                total[name] = total.get(name, Fraction(0)) + amount
        return total

    def owned(self, uid: str) -> Counter[str]:
        """Node -> number of pods on it that the owner controls; none if it has no UID yet."""
        return self._owned.get(uid, Counter()) if uid else Counter()


def _owner(meta: Object) -> str:
    owners = meta.get("ownerReferences") or []
    return next((owner.get("uid", "") for owner in owners if owner.get("controller")), "")


class UsageWatch:
    """Keeps a Usage up to date."""

    def __init__(
        self,
        kube: Api,
        usage: Usage,
        namespace: str = "",
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._kube, self._usage, self._namespace = kube, usage, namespace
        self._sleep = sleep
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
                log.log(level, "the pods on the nodes are not known", extra={"error": str(error)})
            await self._sleep(pause_s)

    async def _follow(self) -> None:
        path = api.pods(self._namespace)
        seen: set[str] = set()
        since = ""
        async for page, version in self._kube.pages(path, fields=PLACED):
            since = version
            for pod in page:
                seen.add(pod["metadata"]["uid"])
                self._usage.put(pod)
        self._usage.keep(seen, self._namespace)
        self.listed.set()
        while True:
            async for event in self._kube.watch(path, fields=PLACED, since=since):
                since = self._take(event) or since
            await self._sleep(AGAIN_S)

    def _take(self, event: Object) -> str:
        """The resource version of the event. ApiError if the watch cannot go on."""
        body = event.get("object") or {}
        if event.get("type") == "ERROR":
            raise ApiError(int(body.get("code") or 0), "WatchEnded", str(body.get("message")))
        meta = body.get("metadata") or {}
        if event["type"] == "DELETED":  # also if it does not match the selector any more
            self._usage.drop(meta.get("uid", ""))
        elif event["type"] in ("ADDED", "MODIFIED"):
            self._usage.put(body)
        return str(meta.get("resourceVersion") or "")
