"""What pods take of the nodes: those of the whole cluster, or of the namespaces that are served.

One watch of the pods that have a node and have not ended. Of each, only its node, its owner and its
requests are kept: some hundred bytes.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import islice

from bamboo_core.placement import fitting
from bamboo_core.placement.fitting import Amount, Amounts
from bamboo_operator.kube.api import Api, Object
from bamboo_operator.kube.labels import JOB_LABEL
from bamboo_operator.kube.owners import owner_of
from bamboo_operator.kube.pod_watch import Follower, PodWatch

PLACED = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""Field selector of the pods that count."""

_MOST_CHANGES = 4096
"""Of which the nodes are known; whoever is further behind looks at all nodes."""

_MOST_SHAPES = 4096
"""Different requests that pods share; then sharing begins again, so that old ones are forgotten."""

_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class _Placed:
    namespace: str
    node: str
    owner: str  # UID of the job for which an operator has made it; empty: it is a stranger's
    asks: Amounts
    stray: str = ""  # UID of the job that it names, and which cannot use it; mostly empty
    name: str = ""  # of a stray


class Usage:
    """Pods on nodes, by UID. is_ours: whether an operator has made a pod for the job that it names.

    Owner references prove nothing: a forged one would give a job room, or its turn, that it has
    not.
    """

    def __init__(self, is_ours: Callable[[Object], bool]) -> None:
        self._is_ours = is_ours
        self.version = 0  # grows with every change
        self._pods: dict[str, _Placed] = {}
        self._on: dict[str, dict[str, _Placed]] = {}  # node -> its pods
        self._owned: dict[str, Counter[str]] = {}  # owner -> number of its pods by node
        self._strays: dict[str, set[str]] = {}  # UID of a job -> names of pods
        self._changes: deque[str] = deque(maxlen=_MOST_CHANGES)  # a node for each version
        self._shapes: dict[tuple[tuple[str, Amount], ...], Amounts] = {}  # equal requests are one

    def put(self, pod: Object) -> None:
        """A pod is there, or has changed."""
        meta, spec = pod["metadata"], pod.get("spec") or {}
        node, phase = spec.get("nodeName"), (pod.get("status") or {}).get("phase")
        if not node or phase in _ENDED:
            self.drop(meta["uid"])
            return
        asked = fitting.requests(spec)
        if len(self._shapes) >= _MOST_SHAPES:
            self._shapes.clear()
        asks = self._shapes.setdefault(tuple(sorted(asked.items())), asked)
        owner = self._owner(pod)
        stray = _stray_of(pod, owner)
        name = meta["name"] if stray else ""
        placed = _Placed(meta.get("namespace", ""), node, owner, asks, stray, name)
        if self._pods.get(meta["uid"]) == placed:
            return
        self.drop(meta["uid"])
        self._pods[meta["uid"]] = placed
        self._on.setdefault(node, {})[meta["uid"]] = placed
        self._owned.setdefault(placed.owner, Counter())[node] += 1
        if placed.stray:
            self._strays.setdefault(placed.stray, set()).add(placed.name)
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
        if placed.stray:
            self._strays[placed.stray].discard(placed.name)
            if not self._strays[placed.stray]:
                del self._strays[placed.stray]
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

    def on(self, node: str, *, but: AbstractSet[str] = frozenset()) -> dict[str, Amount]:
        """Resources that all pods on the node take. but: owners whose pods do not count."""
        total: dict[str, Amount] = {}
        for placed in self._on.get(node, {}).values():
            if placed.owner in but:
                continue
            for name, amount in placed.asks.items():
                total[name] = total.get(name, 0) + amount
        return total

    def owned(self, uid: str) -> Counter[str]:
        """Node -> number of the job's pods on it; none if it has no UID yet."""
        return self._owned.get(uid, Counter()) if uid else Counter()

    def strays(self, uid: str) -> list[str]:
        """Names of pods on nodes that name the job with this UID as their controller, and that it
        cannot use: their seal is wrong, or their label of the job. Anybody may have made them."""
        return sorted(self._strays.get(uid, ()))

    def is_agent(self, uid: str) -> bool:
        """Whether an operator has made a pod with this UID, and it has a node and has not ended."""
        return uid in self._pods and bool(self._pods[uid].owner)

    def _owner(self, pod: Object) -> str:
        owner = owner_of(pod)
        return owner.uid if owner is not None and self._is_ours(pod) else ""


def _stray_of(pod: Object, sealed_by: str) -> str:
    """UID of the job of which the pod is a stray; empty: it is none. sealed_by: UID of the job for
    which an operator has made it."""
    owner, meta = owner_of(pod), pod["metadata"]
    if owner is None or "deletionTimestamp" in meta:
        return ""
    is_labelled = (meta.get("labels") or {}).get(JOB_LABEL) == owner.job
    return "" if sealed_by and is_labelled else owner.uid


def watch(
    kube: Api,
    usage: Usage,
    namespace: str = "",
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> PodWatch:
    """Keeps a Usage up to date."""
    follower = Follower(
        usage.put,
        lambda pod: usage.drop(pod["metadata"]["uid"]),
        lambda uids: usage.keep(uids, namespace),
    )
    return PodWatch(kube, follower, namespace, fields=PLACED, sleep=sleep)
