"""A cluster in memory around the operator's reconciler, for runs in which the operator ends.

The API server is :class:`MemoryApi`. The scheduler, the kubelets, the garbage collector, Kueue and
the agents are played here: agents train once every seat has had one, and they outlive the operator.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from tests.core.controller.builders import JOB, manifest

from bamboo_core.admission.quota import QUEUE_LABEL
from bamboo_core.api.outcome import Outcome
from bamboo_core.controller.view import TrainingView
from bamboo_core.model.ids import AgentId
from bamboo_operator.kube import api
from bamboo_operator.kube.api import ApiError, Object
from bamboo_operator.kube.labels import JOB_LABEL, STAGE_LABEL
from bamboo_operator.kube.timestamps import instant
from bamboo_operator.trust import seals

from .crash_api import Crash, Fault, FaultyApi
from .crash_kueue import PlayedKueue
from .crash_operator import Operator
from .objects import node_object, pod_object

NAME = "job"
PATH = api.job("ns", NAME)
UIDS = {NAME: JOB.uid}
PLAN = {"plan": [0, 1, 1]}
"""Of the facts: a plan was in force."""
SECRET = api.secret("system", "tls")
PIPELINE_LABEL = "bamboo.dev/pipeline"
HORIZON_S = 400.0
"""A wake-up that is further away is not waited for."""
MOST_ROUNDS = 60


@dataclass
class Training:
    """Knowledge of the agents of a job."""

    was_full: bool = False  # every seat has had an agent since the start or resume
    was_planned: bool = False
    outcome: Outcome | None = None


class World:
    """The cluster. ``wrong``: what must never happen, but has."""

    def __init__(self, fault: Fault | None = None) -> None:
        self.kube = FaultyApi(fault)
        self.now = 1000.0
        self.wrong: list[str] = []
        self.room: dict[str, int] = {}  # node -> pods that the scheduler puts there
        self.trainings = {name: Training() for name in UIDS}
        self.leave_alone = False  # agents that are not needed leave while no operator leads
        self.kueue = PlayedKueue(self.kube)
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
        forged = pod_object("job-p0-s0-i7", owner_uid="uid-8")
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

    def apply(self, name: str = NAME, queue: str = "", **spec: Any) -> None:
        """As kubectl does, with these fields of spec."""
        body, stored = manifest(**spec), self.kube.objects.get(api.job("ns", name)) or {}
        body["metadata"] |= {
            "name": name, "uid": UIDS[name], "creationTimestamp": "2026-01-01T00:00:00Z",
            "generation": stored.get("metadata", {}).get("generation", 0) + 1,
        }  # fmt: skip
        if queue:
            body["metadata"]["labels"] = {QUEUE_LABEL: queue}
        status = {"status": stored["status"]} if "status" in stored else {}
        self.kube.put(api.job("ns", name), body | status)

    def finish(self, name: str = NAME) -> None:
        """The last step is committed, and the arbiter has made that durable."""
        self.trainings[name].outcome = Outcome.COMPLETE
        status = self.kube.objects[api.job("ns", name)].setdefault("status", {})
        ended = {"outcome": "Complete", "reason": "Done"}
        status["arbiter"] = status.get("arbiter", {}) | PLAN | ended

    def raise_steps(self, steps: int, queue: str = "", **spec: Any) -> None:
        """As kubectl does with a job that has ended: its agents are gone, and know nothing."""
        training = manifest()["spec"]["training"] | {"steps": steps}
        self.apply(queue=queue, training=training, **spec)
        self.trainings[NAME] = Training()

    def delete_job(self, name: str = NAME) -> None:
        """As a user does; what the job owns goes later."""
        del self.kube.objects[api.job("ns", name)]

    # ------------------------------------------------------------ what is there

    def spec(self, name: str) -> Object:
        """The spec that holds: a job that Kueue does not admit is suspended."""
        job = self.kube.objects.get(api.job("ns", name))
        if job is None:
            return {}
        is_held = QUEUE_LABEL in job["metadata"].get("labels", {}) and not self.kueue.admits(name)
        return job["spec"] | ({"suspend": True} if is_held else {})

    def is_needed(self, pod: Object) -> bool:
        """Whether the job wants this agent."""
        name = _job(pod)
        spec = self.spec(name)
        has_seat = int(_seat(pod)[1]) < (spec.get("pipelines") or {}).get("count", 0)
        is_over = self.trainings[name].outcome is Outcome.COMPLETE
        return has_seat and not is_over and not spec.get("suspend")

    def pods(self) -> dict[str, Object]:
        """Those that the operator has made, by path."""
        prefix = api.pods("ns") + "/"
        return {
            path: pod
            for path, pod in self.kube.objects.items()
            if path.startswith(prefix) and path not in self.foreign
        }

    def running(self, name: str = "") -> list[Object]:
        """The running pods of all jobs, or of one."""
        return [
            pod
            for pod in self.pods().values()
            if (pod.get("status") or {}).get("phase") == "Running" and name in ("", _job(pod))
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
        if self.is_needed(pod) and node in self.kube.objects:
            self.wrong.append(f"{path} is deleted, but runs and is needed")

    # ------------------------------------------------------------ the others in the cluster

    def play(self) -> None:
        """Scheduler, kubelets, garbage collector, Kueue and agents do what they would do."""
        self._collect_garbage()
        self.kueue.play(instant(self.now))
        used = Counter(p["spec"].get("nodeName") for p in self.pods().values())
        for path, pod in sorted(self.pods().items()):
            status = pod.get("status") or {}
            if status.get("phase") in ("Running", "Failed", "Succeeded"):
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
        for name, training in self.trainings.items():
            spec = self.spec(name)
            grid = spec.get("pipelines") or {"count": 1, "stages": 1}
            if spec.get("suspend"):
                training.was_full = False
            elif len({_seat(p) for p in self.running(name)}) >= grid["count"] * grid["stages"]:
                training.was_full = training.was_planned = True

    def _leave(self) -> None:
        """Agents of jobs that have ended or rest do not wait for an operator."""
        code = {"terminated": {"exitCode": 0, "reason": "Completed"}}
        for path, pod in self.pods().items():
            if not self.is_needed(pod):
                containers = [{"name": "agent", "state": code}]
                pod["status"] = {"phase": "Succeeded", "containerStatuses": containers}
                self.kube.put(path, pod)

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
        gone = {UIDS[name] for name in UIDS if api.job("ns", name) not in self.kube.objects}
        for path, body in list(self.kube.objects.items()):
            owners = body["metadata"].get("ownerReferences") or []
            if owners and gone.issuperset(o["uid"] for o in owners) and path not in self.foreign:
                del self.kube.objects[path]

    def training(self, name: str, real: TrainingView) -> TrainingView:
        """The arbiter's view if it heard these agents."""
        names = frozenset(AgentId(p["metadata"]["name"]) for p in self.running(name))
        known, spec = self.trainings[name], self.spec(name)
        outcome = known.outcome or (Outcome.SUSPENDED if spec.get("suspend") else None)
        view = replace(real, connected=names, epoch=int(known.was_planned))
        if not known.was_full and outcome is None:
            return view
        grid = spec.get("pipelines") or {"count": 1}
        is_planned = outcome is None
        return replace(
            view, members=names if is_planned else frozenset(), planned=is_planned,
            has_state=is_planned, pipelines=grid["count"], outcome=outcome,
            reason="Done", has_begun=True,
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
        """One reconcile of each job; the seconds until the next one is due."""
        again_s: list[float] = []
        for name in UIDS:
            try:
                after_s = await self.operator.reconcile(name)
                again_s += [] if after_s is None else [after_s]
            except Crash:
                await self.operator.close()
                self.kube.is_dead = False
                if self.leave_alone:
                    self._leave()
                self.operator = Operator(self)
                return 0.5
            except ApiError:
                again_s.append(0.5)
        return min(again_s, default=None)

    def picture(self) -> dict[str, Any]:
        """All objects, without UIDs, times, versions and incarnations. Pods whose agents have left
        are left out: they stay for their logs, while an operator deletes agents that still run."""
        found: dict[str, Any] = {}
        for path, body in sorted(self.kube.objects.items()):
            has_left = (body.get("status") or {}).get("phase") == "Succeeded"
            if path in self.foreign or path.startswith(api.nodes()) or has_left:
                continue
            shown = copy.deepcopy(body)
            meta = shown["metadata"]
            for key in ("uid", "resourceVersion", "creationTimestamp"):
                meta.pop(key, None)
            (meta.get("labels") or {}).pop("bamboo.dev/incarnation", None)
            if meta.get("annotations", {}).pop(seals.ANNOTATION, None) is None and "/pods/" in path:
                meta["annotations"]["seal"] = "is missing"
            if path.startswith(f"{api.jobs('ns')}/"):
                shown["status"] = _status(shown.get("status") or {})
            found[_timeless(path)] = _timeless(shown)
        found.get(SECRET, {}).get("data", {}).pop(seals.KEY_NAME, None)
        return found


def _status(status: Object) -> Object:
    """Without what counts attempts and times. Its settled pods have been compared as failures."""
    kept = {k: v for k, v in status.items() if k not in ("arbiter", "pods", "times", "planEpoch")}
    (kept.get("totals") or {}).pop("attempts", None)  # one that did not become durable counts
    starts = (kept.get("failures") or {}).get("starts") or {}
    for key in ("first", "incarnation"):
        starts.pop(key, None)
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


def _job(pod: Object) -> str:
    return str(pod["metadata"]["labels"][JOB_LABEL])


def _seat(pod: Object) -> tuple[str, str, str]:
    labels = pod["metadata"]["labels"]
    return _job(pod), labels.get(PIPELINE_LABEL, ""), labels.get(STAGE_LABEL, "")
