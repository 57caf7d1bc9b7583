"""The jobs that want room, and whose turn it is: feeds :mod:`bamboo_core.admission.line`.

Every reconcile notes its job here. A pass over all of them is made again when a job, a node or a
pod on a node has changed, but a long pass not at once. Without jobs that wait to start, or that
have lost what they are assured of, none is made.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bamboo_core.admission import claims as claiming
from bamboo_core.admission import line as admission
from bamboo_core.admission.claims import Claim, Shape
from bamboo_core.admission.line import Decision
from bamboo_core.api import limits, records
from bamboo_core.api.spec import JobSpec
from bamboo_core.controller import pod_zones
from bamboo_core.controller import turn as turns
from bamboo_core.controller.turn import Turn, Word
from bamboo_core.controller.view import JobView, NodeViews
from bamboo_core.placement import fitting
from bamboo_core.validation import reading
from bamboo_core.validation.pod_rules import RESTRICTED, PodRules
from bamboo_operator.admission.held_tasks import HeldTasks
from bamboo_operator.admission.kueue import queue_of
from bamboo_operator.admission.priority_classes import Priorities
from bamboo_operator.kube import api, object_views
from bamboo_operator.kube.api import Api, ApiError, JobKey, Object
from bamboo_operator.pods.node_cache import Nodes
from bamboo_operator.pods.node_usage import Usage
from bamboo_operator.status import durable_facts, statuses

log = logging.getLogger(__name__)

PAUSE = 4.0
"""A pass comes at most so many times its own length after the one before."""


@dataclass(frozen=True)
class Entry:
    """A job that wants room, as its last reconcile saw it."""

    job: JobView
    spec: JobSpec
    is_training: bool  # live agents hold the state of the training
    assured: int = 0  # agents that it gets back before other jobs
    is_whole: bool = False  # every seat has an agent on a node
    is_hurt: bool = False  # it has fewer agents than it gets back before other jobs
    closed: frozenset[str] = frozenset()  # zones where the scheduler refuses its pods
    # The API server refuses its pods, they fail, or the job cannot be reconciled.
    is_refused: bool = False
    is_unheard: bool = False  # no scheduler says anything about its pods
    # zone -> its pods there that have no node; "": in any zone
    waiting: Mapping[str, int] = field(default_factory=dict)

    @property
    def has_minimum(self) -> bool:
        """Its smallest grid has nodes."""
        return self.is_whole or self.assured > 0


class Line:
    """All jobs that want room. The operator's parts that it asks: API, nodes, usage."""

    def __init__(
        self,
        kube: Api,
        nodes: Nodes,
        usage: Usage,
        *,
        wake: Callable[[str, str], None],
        rules: PodRules = RESTRICTED,
        clock: Callable[[], float] = time.time,
        pause: float = PAUSE,
    ) -> None:
        self._kube, self._nodes, self._usage = kube, nodes, usage
        self._wake, self._rules, self._clock, self._pause = wake, rules, clock, pause
        self._later: asyncio.TimerHandle | None = None
        self._priorities = Priorities(kube)
        self._entries: dict[JobKey, Entry] = {}
        self._shape_keys: dict[JobKey, str] = {}
        self._waiting: set[JobKey] = set()  # not all agents, and has not begun to train or is hurt
        self._version = 0
        self._lock = asyncio.Lock()
        self._decided = Decision({})
        self._versions: tuple[int, int] = (-1, -1)  # of the last pass
        self._seen: list[Object] = []  # the nodes of the last pass
        self._not_before = 0.0  # in the event loop's time
        self._shapes: dict[str, tuple[NodeViews, Shape]] = {}

    # ------------------------------------------------------------ who is in the line

    async def load(self, namespaces: Sequence[str], held: HeldTasks) -> None:
        """Take all jobs that there are, so that the first reconcile sees its competitors. Those
        that have trained hold their tasks before jobs that wait can take the room."""
        for namespace in namespaces or ("",):
            try:
                async for body in self._kube.each(api.jobs(namespace)):
                    self._take(body, held)
            except ApiError as error:  # each job comes in with its first reconcile
                log.warning("the jobs are not known yet", extra={"error": str(error)})

    def seen(self, body: Object) -> None:
        """A job has been created: known before its first reconcile, it is part of the next pass."""
        meta = body["metadata"]
        if not body.get("status") and (meta["namespace"], meta["name"]) not in self._entries:
            self._take(body)

    def _take(self, body: Object, held: HeldTasks | None = None) -> None:
        """A job that cannot be read stays out until its reconcile, which tells why."""
        try:
            self._enter(body, held)
        except Exception as error:
            name = body["metadata"].get("name")
            log.warning("a job cannot be read", extra={"job": name, "error": repr(error)})

    def _enter(self, body: Object, held: HeldTasks | None) -> None:
        job, spec = object_views.job_view(body), reading.read(body)
        if isinstance(spec, list) or spec.suspend or job.deleting:
            return
        memory = statuses.read_memory(body)
        if memory.terminal is not None:
            return
        if held is not None and memory.trained:
            held.hold(job, limits.tasks(spec), is_started=True)
        is_started = durable_facts.has_plan(body)
        found = reading.from_manifest(body, rules=self._rules, is_started=is_started)
        if isinstance(found, list) or queue_of(body):
            return  # whether Kueue admits it, its reconcile finds out
        agents, assured = self._usage.owned(job.uid).total(), turns.limited(memory, spec)
        is_training = memory.trained and agents > 0
        fails = not is_training and bool(memory.failures.starts.slots)
        is_hurt = agents < assured
        self.note(Entry(job, spec, is_training, assured, is_hurt=is_hurt, is_refused=fails))

    def note(self, entry: Entry) -> None:
        """The job wants room. What is known about its refusals stays."""
        key = (entry.job.namespace, entry.job.name)
        known = self._entries.get(key)
        if known == entry:
            return
        if known is None or known.spec != entry.spec:
            self._shape_keys[key] = _shape_key(entry.spec)
        self._entries[key] = entry
        self._version += 1
        if entry.is_whole or (entry.is_training and not entry.is_hurt):
            self._waiting.discard(key)
        else:
            self._waiting.add(key)
        if known is not None and entry.has_minimum and not known.has_minimum:
            self._wake_first()

    def refuse(self, namespace: str, name: str) -> None:
        """The job cannot use its turn until it is noted again; others need not wait for it."""
        known = self._entries.get((namespace, name))
        if known is not None and not known.is_refused:
            self.note(replace(known, is_refused=True))
            self._wake_first()

    def leave(self, namespace: str, name: str) -> None:
        """The job wants no room, or is gone."""
        key = (namespace, name)
        if self._entries.pop(key, None) is not None:
            del self._shape_keys[key]
            self._waiting.discard(key)
            self._version += 1
            self._wake_first()

    @property
    def keys(self) -> list[JobKey]:
        """Namespaces and names of all jobs in the line."""
        return list(self._entries)

    def _wake_first(self) -> None:
        """Someone's reconcile has to make the next pass, which wakes the others. That of a job with
        all its agents makes none."""
        askers, entries = self._decided.askers, self._entries.items()
        first = [key for key, x in entries if x.job.uid in askers and not x.is_whole]
        for key in first or self._next():
            self._wake(*key)

    def _next(self) -> list[JobKey]:
        """If nobody asks for nodes: the first that waits, and can be reconciled. If nobody waits,
        no pass is made any more: all that were held back."""
        if self._waiting:
            waiting = [key for key in self._entries if key in self._waiting]
            return [min(waiting, key=lambda key: self._entries[key].is_refused)]
        lacking = ((key, x.job.uid) for key, x in self._entries.items() if not x.is_whole)
        last = [(key, self._decided.turns.get(uid)) for key, uid in lacking]
        held = (Word.KEEPS, Word.WAITS)
        return [key for key, turn in last if turn is not None and turn.word in held]

    # ------------------------------------------------------------ whose turn it is

    async def turn(self, job: JobView) -> Turn:
        """That of a job in the line."""
        if self._is_free(job):
            return Turn(Word.GROWS)
        clock = asyncio.get_running_loop().time
        if (known := await self._last(job)) is not None:
            return known
        async with self._lock:
            if (known := await self._last(job)) is not None:
                return known
            # A new job waits, and others come meanwhile; one pass serves them all.
            if (wait_s := self._not_before - clock()) > 0:
                await asyncio.sleep(wait_s)
            if self._is_free(job):
                return Turn(Word.GROWS)
            began, before = clock(), self._decided.turns
            await self._pass()
            self._not_before = clock() + self._pause * (clock() - began)
            self._tell(before, job)
            return self._decided.turns.get(job.uid, Turn(Word.GROWS))

    async def _last(self, job: JobView) -> Turn | None:
        """The job's turn after the last pass, if it holds or the next pass is not due yet."""
        known = self._decided.turns.get(job.uid)
        if known is not None and await self._is_old():
            if asyncio.get_running_loop().time() >= self._not_before:
                return None
            self._come_back(job)
        return known

    def _come_back(self, job: JobView) -> None:
        """Wake the job when the next pass may be made; it will wake the others."""
        loop = asyncio.get_running_loop()
        if self._later is None or self._later.when() <= loop.time():
            key = (job.namespace, job.name)
            self._later = loop.call_at(self._not_before, self._wake_or_first, key)

    def _wake_or_first(self, key: JobKey) -> None:
        """The job may have left meanwhile, or have got all its agents."""
        entry = self._entries.get(key)
        if entry is not None and not entry.is_whole:
            self._wake(*key)
        else:
            self._wake_first()

    def _is_free(self, job: JobView) -> bool:
        """Whether it has all its agents, or nobody waits to start."""
        own = self._entries.get((job.namespace, job.name))
        return not self._waiting or (own is not None and own.is_whole)

    async def _is_old(self) -> bool:
        """Whether something has changed since the last pass."""
        nodes = await self._nodes.list()
        versions = (self._version, self._usage.version)
        return versions != self._versions or nodes is not self._seen

    async def _pass(self) -> None:
        self._seen = await self._nodes.list()
        self._versions = (self._version, self._usage.version)
        claims = await self._claims()
        room = await self._nodes.room({entry.job.uid for entry in self._entries.values()})
        now = self._clock()
        self._decided = admission.decide(claims, room, self._decided.patience, now=now)

    def _tell(self, before: Mapping[str, Turn], caller: JobView) -> None:
        """Wake jobs that may do something else now."""
        for (namespace, name), entry in self._entries.items():
            uid = entry.job.uid
            turn, old = self._decided.turns.get(uid), before.get(uid)
            if turn is None or old is None or uid == caller.uid:
                continue
            if turn.word is not old.word:
                self._wake(namespace, name)

    async def _claims(self) -> list[Claim]:
        known = [key for key, entry in self._entries.items() if not entry.is_whole]
        await self._priorities.refresh(self._entries[key].spec for key in known)
        # Jobs may have left meanwhile. The classes of new ones are not known yet.
        there = {key: self._entries[key] for key in known if key in self._entries}
        wanting = {key: entry for key, entry in there.items() if not entry.is_whole}
        shapes = await self._shapes_of(wanting)
        return [
            claiming.claim(
                entry.job,
                entry.spec,
                shapes[key],
                priority=self._priorities.of(entry.spec),
                held=self._usage.owned(entry.job.uid),
                is_training=entry.is_training,
                assured=entry.assured,
                closed=entry.closed,
                is_refused=entry.is_refused,
                is_unheard=entry.is_unheard,
                waiting=entry.waiting,
            )
            for key, entry in wanting.items()
        ]

    async def _shapes_of(self, wanting: Mapping[JobKey, Entry]) -> dict[JobKey, Shape]:
        """One object for equal jobs as long as the nodes look the same."""
        found: dict[str, tuple[NodeViews, Shape]] = {}
        keys = {job: self._shape_keys[job] for job in wanting}
        for job, key in keys.items():
            if key in found:
                continue
            spec, known = wanting[job].spec, self._shapes.get(key)
            views = await self._nodes.views(spec)
            if known is None or known[0] is not views:
                known = (views, _shape(spec, views))
            found[key] = known
        self._shapes = found
        return {job: found[key][1] for job, key in keys.items()}


def _shape_key(spec: JobSpec) -> str:
    worker, placement = spec.worker, records.encode(spec.placement)
    parts = [worker.resources, worker.pod_template, placement, pod_zones.keeps_apart(spec)]
    return json.dumps(parts, sort_keys=True)


def _shape(spec: JobSpec, views: NodeViews) -> Shape:
    sites = list(pod_zones.sites(spec, views))
    needs = fitting.needs(spec.worker, spec.placement)
    return Shape(
        needs.asks,
        tuple(node.name for node, is_usable in sites if is_usable),
        frozenset(node.name for node, _ in sites),
        frozenset(_wishes(spec)),
    )


def _wishes(spec: JobSpec) -> list[str]:
    """Zones and labels of the nodes that it waits for while there are none."""
    own = (spec.worker.pod_template.get("spec") or {}).get("nodeSelector") or {}
    return [
        json.dumps([zone, {**own, **spec.placement.selector(zone)}], sort_keys=True)
        for zone in spec.placement.named_zones or ("",)
    ]
