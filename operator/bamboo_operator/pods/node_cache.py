"""The cluster's nodes, and what their pods leave of them. One LIST serves many jobs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from bamboo_core.admission.claims import NodeRoom
from bamboo_core.api import records
from bamboo_core.api.spec import JobSpec
from bamboo_core.controller.view import NodeView, NodeViews
from bamboo_core.placement import fitting
from bamboo_core.placement.fitting import Needs
from bamboo_operator.kube import api, object_views
from bamboo_operator.kube.api import Api, Object
from bamboo_operator.pods.node_usage import Usage

MAX_AGE_S = 10.0
_MOST_GONE = 16_384


@dataclass
class _Shared:
    """The nodes as jobs with the same needs see them."""

    needs: Needs
    is_used: bool = True  # since the nodes were listed
    version: int = -1  # of the usage; -1: other nodes have been listed since
    stale: set[str] = field(default_factory=set)  # nodes that have been listed anew, and differ
    # By node: ``agents`` is what fits beside all pods, below 0 where they take more than it has.
    known: dict[str, NodeView] = field(default_factory=dict)
    views: NodeViews = field(default_factory=NodeViews)  # never below 0


@dataclass
class _Left:
    """Room that the pods leave on the nodes, by name; ``version`` and ``stale`` as above."""

    ours: frozenset[str]  # UIDs of jobs whose pods may go
    version: int = -1
    stale: set[str] = field(default_factory=set)
    known: dict[str, NodeRoom] = field(default_factory=dict)


def _shown(view: NodeView) -> NodeView:
    return view if view.agents >= 0 else replace(view, agents=0)


class Nodes:
    """A list of all nodes, fetched again after a change or when it is old."""

    def __init__(
        self, kube: Api, usage: Usage, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kube, self._usage, self._clock = kube, usage, clock
        self._nodes: list[Object] = []
        self._by_name: dict[str, Object] = {}
        self._shared: dict[str, _Shared] = {}
        self._left = _Left(frozenset())
        self._fetched_at: float | None = None
        self._lists = 0  # that have begun
        self._gone: dict[str, None] = {}  # UIDs of pods whose node was missing, oldest first
        self._lock = asyncio.Lock()

    def changed(self) -> None:
        """A node has changed; the list may be wrong."""
        self._fetched_at = None

    async def list(self) -> list[Object]:
        async with self._lock:
            if self._fetched_at is None or self._clock() - self._fetched_at > MAX_AGE_S:
                began = self._clock()
                self._lists += 1
                # Set first: a change during the LIST makes it stale again.
                self._fetched_at = began
                try:
                    nodes = await self._kube.list(api.nodes())
                    self._nodes = sorted(nodes, key=lambda node: str(node["metadata"]["name"]))
                    before = self._by_name
                    self._by_name = {node["metadata"]["name"]: node for node in self._nodes}
                    self._forget_unused()
                    self._compare(before)
                except BaseException:
                    self._fetched_at = None
                    raise
            return self._nodes

    def strays(self, uid: str) -> Sequence[str]:
        """Names of pods on nodes that a job with this UID controls, and cannot use."""
        return self._usage.strays(uid)

    async def confirm(self, pods: Iterable[Object]) -> None:
        """List the nodes again if the node of one of these pods is missing: our list may be older.

        Call it after the pods have been listed, and before a missing node is taken for gone. Each
        pod causes one list at most.
        """
        bound = [(pod["metadata"]["uid"], (pod.get("spec") or {}).get("nodeName")) for pod in pods]
        lists = self._lists
        await self.list()
        missing = [uid for uid, node in bound if node and node not in self._by_name]
        if all(uid in self._gone for uid in missing):
            return
        if self._lists == lists:  # else this one began after the pods were listed
            self.changed()
            await self.list()
        self._gone |= {u: None for u, node in bound if node and node not in self._by_name}
        while len(self._gone) > _MOST_GONE:
            self._gone.pop(next(iter(self._gone)))

    async def find(self, name: str) -> Object | None:
        """A node of the list; None: it may be newer than the list."""
        await self.list()
        return self._by_name.get(name)

    async def views(self, spec: JobSpec, uid: str = "") -> NodeViews:
        """All nodes as a job sees them, sorted by name. Jobs with the same needs share the work.

        uid: of the job; the room that its own pods take is room for it.
        """
        await self.list()
        worker, placement = spec.worker, spec.placement
        labels = records.encode((placement.pools, placement.on_demand))
        key = json.dumps([worker.resources, worker.pod_template, labels], sort_keys=True)
        if key not in self._shared:
            self._shared[key] = _Shared(fitting.needs(worker, placement))
        shared = self._shared[key]
        shared.is_used = True
        if shared.version != self._usage.version or shared.stale:
            self._update(shared)
        own = {n: k for n, k in self._usage.owned(uid).items() if n in shared.known}
        if not own:
            return shared.views
        known = ((shared.known[name], count) for name, count in own.items())
        return shared.views.changed(replace(x, agents=max(0, x.agents + n)) for x, n in known)

    async def room(self, ours: AbstractSet[str]) -> dict[str, NodeRoom]:
        """Room that the pods leave on all nodes, by name. Made again only where it has changed.

        ours: UIDs of the jobs in the line, whose pods may go."""
        await self.list()
        left = self._left
        for uid in left.ours ^ ours:
            left.stale.update(self._usage.owned(uid))
        left.ours = frozenset(ours)
        changed = self._changed(left)
        if changed is None:
            left.known, changed = {}, self._by_name.keys()
        for name in changed:
            all_pods, others = self._usage.on(name), self._usage.on(name, but=left.ours)
            left.known[name] = object_views.node_room(self._by_name[name], all_pods, others)
        left.version = self._usage.version
        left.stale.clear()
        return dict(left.known)

    def _changed(self, made: _Shared | _Left) -> AbstractSet[str] | None:
        """Nodes of which something has to be made again; None: all."""
        changed = self._usage.changed_since(made.version) if made.version >= 0 else None
        return None if changed is None else (changed | made.stale) & self._by_name.keys()

    def _update(self, shared: _Shared) -> None:
        """Make the views of nodes again that have changed, or whose pods have."""
        changed = self._changed(shared)
        if changed is None:
            shared.known = {name: self._view(name, shared) for name in self._by_name}
            shared.views = NodeViews(map(_shown, shared.known.values()))
        else:
            new = {name: self._view(name, shared) for name in changed}
            shared.known |= new
            shared.views = shared.views.changed(map(_shown, new.values()))
        shared.version = self._usage.version
        shared.stale.clear()

    def _view(self, name: str, shared: _Shared) -> NodeView:
        return object_views.node_view(self._by_name[name], shared.needs, self._usage.on(name))

    def _forget_unused(self) -> None:
        """The nodes were listed."""
        self._shared = {key: shared for key, shared in self._shared.items() if shared.is_used}
        for shared in self._shared.values():
            shared.is_used = False

    def _compare(self, before: dict[str, Object]) -> None:
        """Which views have to be made again."""
        after = self._by_name
        is_same = before.keys() == after.keys()
        stale = {n for n in after if _version(after[n]) != _version(before[n])} if is_same else ()
        views: list[_Shared | _Left] = [*self._shared.values(), self._left]
        for made in views:
            made.stale.update(stale)
            if not is_same:
                made.version = -1


def _version(node: Object) -> str:
    return str(node["metadata"].get("resourceVersion", ""))
