"""A cluster in memory around the operator's reconciler, for runs in which the operator ends.

The API server is :class:`MemoryApi`. The scheduler, the kubelets, the garbage collector and the
agents are played here: agents train once every seat has had one, and they outlive the operator.
"""

from __future__ import annotations

import asyncio
import copy
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tests.core.controller.builders import JOB, manifest

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter.durable import Durable
from bamboo_core.controller.view import JobView, TrainingView
from bamboo_core.job.training import LastReported
from bamboo_core.model.ids import AgentId
from bamboo_operator import api, facts, jobs, seals
from bamboo_operator.api import ApiError, Object
from bamboo_operator.budgets import Budgets
from bamboo_operator.manifests import instant
from bamboo_operator.nodes import Nodes
from bamboo_operator.observe import STAGE_LABEL
from bamboo_operator.reconciler import Ports, Reconciler
from bamboo_operator.trust import Trust
from bamboo_operator.usage import Usage

from .memory_api import MemoryApi
from .objects import node_object, pod_object

PATH = api.job("ns", "job")
SECRET = api.secret("system", "tls")
PIPELINE_LABEL = "bamboo.dev/pipeline"
HORIZON_S = 400.0
"""A wake-up that is further away is not waited for."""
MOST_ROUNDS = 60


class Crash(BaseException):
    """The operator's process has ended."""


class How(StrEnum):
    """What happens at a call."""

    CRASH_BEFORE = "the operator ends before the call"
    CRASH_AFTER = "the call is made, and the operator ends"
    CONFLICT = "409"
    FAILURE = "500"
    LOST = "the call is made, and the answer is lost"


@dataclass(frozen=True)
class Fault:
    """At the call with this number."""

    call: int
    how: How


class FaultyApi(MemoryApi):
    """Counts the calls of all operators; one of them goes wrong."""

    def __init__(self, fault: Fault | None) -> None:
        super().__init__()
        self.fault = fault
        self.calls: list[tuple[str, str]] = []
        self.creating: Callable[[str, Object], None] = lambda path, body: None
        self.deleting: Callable[[str], None] = lambda path: None
        self.is_dead = False  # the operator whose calls these are has ended

    async def _call(self, verb: str, path: str, make: Awaitable[Any]) -> Any:
        if self.is_dead:
            make.close()  # type: ignore[attr-defined]
            raise Crash
        number = len(self.calls)
        self.calls.append((verb, path))
        how = self.fault.how if self.fault is not None and self.fault.call == number else None
        if how in (How.CRASH_BEFORE, How.CONFLICT, How.FAILURE):
            make.close()  # type: ignore[attr-defined]
            if how is How.CRASH_BEFORE:
                self.is_dead = True
                raise Crash
            raise ApiError(*((409, "Conflict") if how is How.CONFLICT else (500, "")), "injected")
        result = await make
        if how is How.CRASH_AFTER:
            self.is_dead = True
            raise Crash
        if how is How.LOST:
            raise ApiError(0, "Unreachable", "injected")
        return result

    async def get(self, path: str) -> Object | None:
        found: Object | None = await self._call("get", path, super().get(path))
        return found

    async def list(self, path: str, *, labels: str = "", fields: str = "") -> list[Object]:
        made = super().list(path, labels=labels, fields=fields)
        found: list[Object] = await self._call("list", path, made)
        return found

    async def create(self, path: str, body: Object) -> Object:
        found: Object = await self._call("create", path, self._create(path, body))
        return found

    async def _create(self, path: str, body: Object) -> Object:
        self.creating(path, body)
        return await super().create(path, body)

    async def replace(self, path: str, body: Object) -> Object:
        found: Object = await self._call("replace", path, super().replace(path, body))
        return found

    async def apply(self, path: str, body: Object, *, manager: str) -> Object:
        found: Object = await self._call("apply", path, super().apply(path, body, manager=manager))
        return found

    async def delete(self, path: str, *, uid: str = "", grace_s: int | None = None) -> bool:
        found: bool = await self._call("delete", path, self._delete(path, uid, grace_s))
        return found

    async def _delete(self, path: str, uid: str, grace_s: int | None) -> bool:
        stored = self.objects.get(path)
        if stored is not None and uid in ("", stored["metadata"]["uid"]):
            self.deleting(path)
        return await super().delete(path, uid=uid, grace_s=grace_s)


class World:
    """The cluster. ``wrong``: what must never happen, but has."""

    def __init__(self, fault: Fault | None = None) -> None:
        self.kube = FaultyApi(fault)
        self.now = 1000.0
        self.wrong: list[str] = []
        self.room: dict[str, int] = {}  # node -> pods that the scheduler puts there
        self.was_full = False  # every seat has had an agent since the start or resume
        self.outcome: Outcome | None = None
        self._uids = 0
        self.kube.creating, self.kube.deleting = self._creating, self._deleting
        self.foreign: dict[str, Object] = {}
        self.operator = Operator(self)
        for zone in "abc":
            self.add_node(f"node-{zone}", zone, room=4, **{"bamboo.dev/spot": "true"})
        self.kube.put(SECRET, {"data": {"tls.crt": "certificate"}})
        self.foreign = self._foreign()

    def _foreign(self) -> dict[str, Object]:
        """Objects that the operator must not touch. The pods have its labels, but no seal."""
        forged = pod_object("job-p0-s0-i7", owner_uid=JOB.uid)
        forged["metadata"]["annotations"] = {}
        stranger = pod_object("other", owner_uid="uid-9")
        del stranger["metadata"]["annotations"], stranger["metadata"]["ownerReferences"]
        paths = {
            api.pod("ns", "job-p0-s0-i7"): forged,
            api.pod("ns", "other"): stranger,
            api.config_map("ns", "settings"): {"data": {"a": "b"}},
            api.disruption_budget("ns", "mine"): {"spec": {"minAvailable": 1}},
            api.secret("ns", "key"): {"data": {"a": "b"}},
        }
        return {path: self.kube.put(path, body) for path, body in paths.items()}

    def add_node(self, name: str, zone: str, *, room: int, **labels: str) -> None:
        """A ready node with as many GPUs as pods fit."""
        node = node_object(name, zone, **labels)
        node["status"]["allocatable"]["nvidia.com/gpu"] = str(room)
        self.kube.put(f"{api.nodes()}/{name}", node)
        self.room[name] = room
        self.operator.nodes.changed()

    def remove_node(self, name: str) -> None:
        """Its pods stay until somebody deletes them. The operator's watch tells of it."""
        del self.kube.objects[f"{api.nodes()}/{name}"]
        self.operator.nodes.changed()

    def apply(self, **spec: Any) -> None:
        """As kubectl does, with these fields of spec."""
        body = manifest(**spec)
        stored = self.kube.objects.get(PATH) or {}
        body["metadata"] |= {"uid": JOB.uid, "creationTimestamp": "2026-01-01T00:00:00Z"}
        body["metadata"]["generation"] = stored.get("metadata", {}).get("generation", 0) + 1
        status = {"status": stored["status"]} if "status" in stored else {}
        self.kube.put(PATH, body | status)

    def finish(self) -> None:
        """The last step is committed, and the arbiter has made that durable."""
        self.outcome = Outcome.COMPLETE
        status = self.kube.objects[PATH].setdefault("status", {})
        status["arbiter"] = status.get("arbiter", {}) | {"outcome": "Complete", "reason": "Done"}

    def delete_job(self) -> None:
        """As a user does; what the job owns goes later."""
        del self.kube.objects[PATH]

    # ------------------------------------------------------------ what is there

    @property
    def spec(self) -> Object:
        return dict((self.kube.objects.get(PATH) or {}).get("spec") or {})

    def pods(self) -> dict[str, Object]:
        """Those that the operator has made, by path."""
        prefix = api.pods("ns") + "/"
        return {
            path: pod
            for path, pod in self.kube.objects.items()
            if path.startswith(prefix) and path not in self.foreign
        }

    def running(self) -> list[Object]:
        return [
            p for p in self.pods().values() if (p.get("status") or {}).get("phase") == "Running"
        ]

    # ------------------------------------------------------------ rules

    def _creating(self, path: str, body: Object) -> None:
        if path != api.pods("ns"):
            return
        meta = body["metadata"]
        body["metadata"] = meta | {"creationTimestamp": instant(self.now)}
        self._uids += 1
        meta_uid = {"uid": f"uid-{meta['name']}-{self._uids}"}
        body["metadata"] |= meta_uid
        if not self.operator.seals.is_ours(body):
            self.wrong.append(f"{meta['name']} has no seal")
        seat = _seat(body)
        for pod in self.pods().values():
            phase = (pod.get("status") or {}).get("phase", "Pending")
            there = pod["spec"].get("nodeName")
            is_lost = there and f"{api.nodes()}/{there}" not in self.kube.objects
            if _seat(pod) == seat and phase in ("Pending", "Running") and not is_lost:
                self.wrong.append(f"{meta['name']} is made beside {pod['metadata']['name']}")

    def _deleting(self, path: str) -> None:
        if path in self.foreign:
            self.wrong.append(f"{path} is deleted")
        pod = self.pods().get(path)
        if pod is None or (pod.get("status") or {}).get("phase") != "Running":
            return
        node = f"{api.nodes()}/{pod['spec'].get('nodeName')}"
        is_over = PATH not in self.kube.objects or self.outcome is Outcome.COMPLETE
        pipelines = self.spec.get("pipelines") or {}
        has_seat = int(_seat(pod)[0]) < pipelines.get("count", 0)
        is_needed = not is_over and not self.spec.get("suspend") and has_seat
        if is_needed and node in self.kube.objects:
            self.wrong.append(f"{path} is deleted, but runs and is needed")

    # ------------------------------------------------------------ the others in the cluster

    def play(self) -> None:
        """Scheduler, kubelets, garbage collector and agents do what they would do."""
        if PATH not in self.kube.objects:
            self._collect_garbage()
        used = Counter(p["spec"].get("nodeName") for p in self.pods().values())
        for path, pod in sorted(self.pods().items()):
            status = pod.get("status") or {}
            if status.get("phase") in ("Running", "Failed"):
                continue
            node = self._node_for(pod, used)
            if node is None:
                refusal = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                           "lastTransitionTime": instant(self.now)}  # fmt: skip
                if not status.get("conditions"):
                    pod["status"] = {"phase": "Pending", "conditions": [refusal]}
            else:
                used[node] += 1
                pod["spec"]["nodeName"] = node
                containers = [{"name": "agent", "state": {"running": {}}}]
                pod["status"] = {"phase": "Running", "containerStatuses": containers}
            self.kube.put(path, pod)
        grid = self.spec.get("pipelines") or {"count": 1, "stages": 1}
        if self.spec.get("suspend"):
            self.was_full = False
        elif len({_seat(p) for p in self.running()}) >= grid["count"] * grid["stages"]:
            self.was_full = True

    def _node_for(self, pod: Object, used: Counter[str]) -> str | None:
        selector = pod["spec"].get("nodeSelector") or {}
        is_spot_only = "bamboo.dev/spot" in str(pod["spec"].get("affinity") or {})
        for name, room in sorted(self.room.items()):
            node = self.kube.objects.get(f"{api.nodes()}/{name}")
            labels = node["metadata"]["labels"] if node is not None else {}
            is_spot = "bamboo.dev/spot" in labels
            if node is None or used[name] >= room or (is_spot_only and not is_spot):
                continue
            if selector.items() <= labels.items():
                return name
        return None

    def _collect_garbage(self) -> None:
        for path, body in list(self.kube.objects.items()):
            owners = body["metadata"].get("ownerReferences") or []
            if owners and all(o["uid"] == JOB.uid for o in owners) and path not in self.foreign:
                del self.kube.objects[path]

    def training(self, real: TrainingView) -> TrainingView:
        """What the arbiter would know of the agents."""
        names = frozenset(AgentId(p["metadata"]["name"]) for p in self.running())
        outcome = self.outcome or (Outcome.SUSPENDED if self.spec.get("suspend") else None)
        if self.outcome is None and not self.was_full and outcome is None:
            return replace(real, connected=names)
        grid = self.spec.get("pipelines") or {"count": 1}
        is_planned = outcome is None
        return replace(
            real, connected=names, members=names if is_planned else frozenset(), planned=is_planned,
            pipelines=grid["count"], outcome=outcome, reason="Done", has_begun=True,
        )  # fmt: skip

    # ------------------------------------------------------------ time

    async def settle(self) -> None:
        """Go on until nothing changes any more and nothing is due soon."""
        for _ in range(MOST_ROUNDS):
            self.play()
            before = _frozen(self.kube.objects)
            again_s = await self._round()
            self.play()
            if again_s is not None and again_s > HORIZON_S:
                again_s = None
            if before == _frozen(self.kube.objects) and again_s is None:
                return
            self.now += 0.5 if before != _frozen(self.kube.objects) else (again_s or 0.0) + 0.001
        self.wrong.append("it does not come to rest")

    async def _round(self) -> float | None:
        """One reconcile; the seconds until the next one is due."""
        try:
            return await self.operator.reconcile()
        except Crash:
            await self.operator.close()
            self.kube.is_dead = False
            self.operator = Operator(self)
        except ApiError:
            pass
        return 0.5

    def picture(self) -> dict[str, Any]:
        """All objects, without UIDs, times, versions and incarnations."""
        found: dict[str, Any] = {}
        for path, body in sorted(self.kube.objects.items()):
            if path in self.foreign or path.startswith(api.nodes()):
                continue
            shown = copy.deepcopy(body)
            meta = shown["metadata"]
            for key in ("uid", "resourceVersion", "creationTimestamp"):
                meta.pop(key, None)
            (meta.get("labels") or {}).pop("bamboo.dev/incarnation", None)
            if meta.get("annotations", {}).pop(seals.ANNOTATION, None) is None and "/pods/" in path:
                meta["annotations"]["seal"] = "is missing"
            if path == PATH:
                shown["status"] = _status(shown.get("status") or {})
            found[_timeless(path)] = _timeless(shown)
        found.get(SECRET, {}).get("data", {}).pop(seals.KEY_NAME, None)
        return found


def _status(status: Object) -> Object:
    """Without what counts attempts and times. Its settled pods have been compared as failures."""
    kept = {k: v for k, v in status.items() if k not in ("arbiter", "pods", "times", "planEpoch")}
    return kept | {"outcome": (status.get("arbiter") or {}).get("outcome")}


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_timeless(v) for v in value]
    if isinstance(value, str):
        value = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", value)
        return re.sub(r"-i\d+\b", "-iN", value)
    return value


def _frozen(objects: dict[str, Object]) -> str:
    return re.sub(r"'resourceVersion': '\d+'", "", repr(sorted(objects.items())))


def _seat(pod: Object) -> tuple[str, str]:
    labels = pod["metadata"].get("labels") or {}
    return labels.get(PIPELINE_LABEL, ""), labels.get(STAGE_LABEL, "")


class _Jobs(jobs.Jobs):
    """The production actors, which see the training that the world plays."""

    def __init__(self, world: World, ports: jobs.Ports) -> None:
        super().__init__(term=1, ports=ports)
        self._world = world

    def lead(
        self, job: JobView, spec: JobSpec, durable: Durable, reported: LastReported
    ) -> jobs.JobActor:
        actor = super().lead(job, spec, durable, reported)
        real = actor.view
        actor.view = lambda: self._world.training(real())  # type: ignore[method-assign]
        return actor


class Operator:
    """One process of the operator: it knows nothing but what the API says."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.seals = seals.Seals(b"")
        self._reconciler: Reconciler | None = None
        self._usage = Usage(self._is_ours)
        self.nodes = Nodes(world.kube, self._usage, clock=lambda: world.now)
        self._seen: set[str] = set()
        self.jobs = _Jobs(world, self._job_ports())

    def _is_ours(self, pod: Object) -> bool:
        return self.seals.is_ours(pod)  # by the key that has been loaded

    def _job_ports(self) -> jobs.Ports:
        kube = self._world.kube

        async def persist(job: JobView, durable: Durable, line: facts.Line) -> None:
            await facts.write(kube, job, durable, line)

        async def dismiss(job: JobView, agent: AgentId, reason: str) -> None:
            await kube.delete(api.pod(job.namespace, agent))

        return jobs.Ports(
            persist=persist,
            dismiss=dismiss,
            record=lambda job, record: None,
            wake=lambda job: None,
            wake_later=lambda job: None,
            is_leading=lambda: True,
        )

    async def _start(self) -> Reconciler:
        world = self._world
        self.seals = await seals.load(world.kube, "system", "tls")
        return Reconciler(
            Ports(
                kube=world.kube,
                jobs=self.jobs,
                nodes=self.nodes,
                trust=Trust(world.kube, "bundle", "op:1", clock=lambda: world.now),
                on_forced=lambda: None,
                operator_address="op:1",
                seals=self.seals,
                again=lambda job, s: None,
                budgets=Budgets(world.kube),
                clock=lambda: world.now,
            )
        )

    async def reconcile(self) -> float | None:
        """One reconcile with what the watches would have shown. Crash, ApiError."""
        if self._reconciler is None:
            self._reconciler = await self._start()
        present = {p["metadata"]["uid"]: p for p in self._world.pods().values()}
        for uid in self._seen - present.keys():
            self._usage.drop(uid)
        for pod in present.values():
            self._usage.put(pod)
        self._seen = set(present)
        try:
            return await self._reconciler.reconcile("ns", "job")
        finally:
            await self._written()

    async def _written(self) -> None:
        while tasks := [task for actor in self.jobs.all() for task in actor._tasks]:
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result

    async def close(self) -> None:
        """The end of the process."""
        await self.jobs.close()
