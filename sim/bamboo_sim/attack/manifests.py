"""The attack by BambooJobs: made-up manifests go the operator's whole way, in a process of its own.

The production reconciler reads each one from a stub of the API server, twice, and then finds it
deleted. Each must be refused with a problem that names a field, or accepted; then the pods must
have nothing that they may not have. In between comes an honest job, whose pods must stay the same.
"""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import random
import resource
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

from bamboo_core.api import spec as specs
from bamboo_core.api.limits import RECURSION_LIMIT
from bamboo_core.controller.view import JobView
from bamboo_core.model.ids import AgentId
from bamboo_core.validation import reading
from bamboo_operator.arbiters import ports as job_ports
from bamboo_operator.arbiters.led_jobs import Jobs
from bamboo_operator.kube import api
from bamboo_operator.kube.api import ApiError, Object
from bamboo_operator.pods.disruption_budgets import Budgets
from bamboo_operator.pods.node_cache import Nodes
from bamboo_operator.pods.node_usage import Usage
from bamboo_operator.reconcile.ports import Ports
from bamboo_operator.reconcile.reconciler import Reconciler
from bamboo_operator.status import durable_facts
from bamboo_operator.trust.bundle import Trust
from bamboo_operator.trust.seals import Seals
from bamboo_sim.attack import made_manifests
from bamboo_sim.attack.pod_checks import faults
from bamboo_sim.attack.tally import Defects, Tally

NAMESPACE, HONEST = "evil", "honest"
PATIENCE_S = 60.0
MOST_CPU_S = 5.0
"""Of one manifest: two reconciles and the deletion."""
MOST_GROWTH_MB = 400
MOST_STATUS_BYTES = 100_000
_EVERY = 100
_SEALS = Seals(b"the operator's own secret key...")


def _node(zone: str) -> Object:
    labels = {"topology.kubernetes.io/zone": zone, "pool": "a", "bamboo.dev/spot": "true"}
    return {
        "metadata": {"name": f"node-{zone}", "uid": f"uid-{zone}", "labels": labels},
        "status": {
            "allocatable": {"nvidia.com/gpu": "8", "cpu": "96", "memory": "96Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


class _Stub:
    """The API server: one job, its pods, and three nodes."""

    def __init__(self) -> None:
        self.job: str | None = None
        self.status: Object = {}
        self.pods: dict[str, Object] = {}

    async def get(self, path: str) -> Object | None:
        """The job, parsed again."""
        if self.job is None:
            return None
        body: Object = json.loads(self.job)
        body["metadata"]["resourceVersion"] = "1"
        return body | {"status": json.loads(json.dumps(self.status))}

    async def list(self, path: str, *, labels: str = "", fields: str = "") -> list[Object]:
        """Nodes, or pods."""
        return [_node(z) for z in "abc"] if path == api.nodes() else list(self.pods.values())

    async def create(self, path: str, body: Object) -> Object:
        """A pod."""
        name = body["metadata"]["name"]
        if name in self.pods:
            raise ApiError(409, "AlreadyExists", name)
        pod: Object = json.loads(json.dumps(body))
        pod["metadata"]["uid"] = f"uid-{name}"
        self.pods[name] = pod
        return pod

    async def apply(self, path: str, body: Object, *, manager: str) -> Object:
        """The status by one of its two writers, or another object, which is not kept."""
        if path.endswith("/status"):
            new = json.loads(json.dumps(body["status"]))
            kept = {k: x for k, x in self.status.items() if (k == "arbiter") != ("arbiter" in new)}
            self.status = kept | new
        return body

    async def delete(self, path: str, *, uid: str = "", grace_s: int | None = None) -> bool:
        """A pod."""
        return self.pods.pop(path.rpartition("/")[2], None) is not None


class _Served:
    """The operator's process."""

    def __init__(self) -> None:
        self._stub = _Stub()
        kube: Any = self._stub
        self._jobs = Jobs(term=1, ports=self._job_ports())
        self._reconciler = Reconciler(
            Ports(
                kube=kube,
                jobs=self._jobs,
                nodes=Nodes(kube, Usage(_SEALS.is_ours)),
                trust=Trust(kube, "bundle", "op:1"),
                on_forced=lambda: None,
                operator_address="op:1",
                seals=_SEALS,
                again=lambda job, s: None,
                record=lambda job, record: None,
                budgets=Budgets(kube),
            )
        )
        self._defects = Defects()
        logging.getLogger().addHandler(self._defects)

    def _job_ports(self) -> job_ports.Ports:
        async def persist(
            job: JobView, durable: Any, leader_facts: durable_facts.LeaderFacts
        ) -> None:
            await durable_facts.write(self._stub, job, durable, leader_facts)  # type: ignore[arg-type]

        async def dismiss(job: JobView, agent: AgentId, reason: str) -> None:
            await self._stub.delete(agent)

        return job_ports.Ports(
            persist=persist,
            dismiss=dismiss,
            record=lambda job, record: None,
            wake=lambda job: None,
            wake_later=lambda job: None,
            is_leading=lambda: True,
            heard_at=lambda now: now,
            idle_s=time.monotonic,
        )

    async def case(self, name: str, text: str) -> Object:
        """Return what came of a manifest."""
        began = time.process_time()
        self._stub.job, self._stub.status, self._stub.pods = text, {}, {}
        self._defects.causes.clear()
        found, pods = list[str](), list[Object]()
        try:
            for _ in range(2):
                await self._reconciler.reconcile(NAMESPACE, name)
                await self._settle()
            pods = list(self._stub.pods.values())
            found = self._judge(name, json.loads(text), pods)
            self._stub.job = None
            await self._reconciler.reconcile(NAMESPACE, name)
            if self._stub.pods:
                found.append(f"left: {len(self._stub.pods)} pods")
        except Exception as error:
            found.append(f"exception: {error!r}"[:400])
        found += [f"exception: {cause}" for cause in self._defects.causes]
        return {
            "faults": found,
            "is_accepted": _condition(self._stub.status).get("status") == "True",
            "pods": len(pods),
            "first": pods[:2] if name == HONEST else [],
            "cpu_s": time.process_time() - began,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }

    async def _settle(self) -> None:
        """Until the arbiter's facts are written."""
        while tasks := [task for actor in self._jobs.all() for task in actor._tasks]:
            await asyncio.gather(*tasks)

    def _judge(self, name: str, body: Object, pods: list[Object]) -> list[str]:
        said = _condition(self._stub.status)
        spec = reading.from_manifest(body)
        if len(json.dumps(self._stub.status)) > MOST_STATUS_BYTES:
            return ["status: it is too large"]
        if isinstance(spec, list):
            named = all(p.field.startswith("spec") and p.message for p in spec)
            is_told = said.get("reason") == "SpecInvalid" and said["message"].startswith("spec")
            is_good = bool(spec) and named and is_told and not pods
            return [] if is_good else [f"refusal: {spec[:3]} {said} {len(pods)} pods"]
        if said.get("status") != "True":
            return [f"refusal: accepted, but {said}"]
        if specs.from_json(specs.to_json(spec)) != spec:
            return ["spec: agents would read another one"]
        seats = spec.pipelines.count * spec.pipelines.stages
        found = [f"pod: {x}" for pod in pods for x in faults(pod, job=name, namespace=NAMESPACE)]
        found += [f"pod: {pod['metadata']['name']}" for pod in pods if not _SEALS.is_ours(pod)]
        return found[:3] + ([f"pod: {len(pods)} of {seats}"] if len(pods) > seats else [])


def _condition(status: Object) -> Object:
    """The one that says whether the job is accepted."""
    conditions = status.get("conditions") or []
    return next((c for c in conditions if c["type"] == "Accepted"), {})


def serve(pipe: Connection) -> None:
    """The operator's process: answers each manifest with what came of it."""
    sys.setrecursionlimit(RECURSION_LIMIT)
    asyncio.run(_serve(pipe))


async def _serve(pipe: Connection) -> None:
    served = _Served()
    while True:
        try:
            name, text = pipe.recv()
        except EOFError:
            return
        pipe.send(await served.case(name, text))


class Attack:
    """One run. ``tally``: what came of it."""

    def __init__(self, seed: int) -> None:
        self.tally = Tally()
        self.slowest_s = self.peak_mb = 0.0
        self.pods = 0
        self._rng = random.Random(seed)
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._honest: Object | None = None

    def run(self, cases: int) -> Tally:
        """So many cases, then the end of the process."""
        try:
            if self._look("the beginning"):
                for number in range(cases):
                    name = f"job-{number}"
                    text = made_manifests.text(self._rng, name, NAMESPACE)
                    if not self._strike(name, text):
                        break
                    if number % _EVERY == _EVERY - 1 and not self._look(text):
                        break
                self._look("the end")
        finally:
            self._pipe.close()
            self._process.kill()
            self._process.join()
        return self.tally

    def _ask(self, name: str, text: str) -> Object | None:
        """Return what came of it; None: the process hangs or has ended."""
        try:
            self._pipe.send((name, text))
            if self._pipe.poll(PATIENCE_S):
                found: Object = self._pipe.recv()
                return found
            self.tally.breach("hang", text)
        except (EOFError, OSError) as error:
            self.tally.breach("crash", f"{error!r} {text}")
        return None

    def _strike(self, name: str, text: str) -> bool:
        found = self._ask(name, text)
        if found is None:
            return False
        self.tally.cases["accepted" if found["is_accepted"] else "refused"] += 1
        self.pods += found["pods"]
        self.slowest_s = max(self.slowest_s, found["cpu_s"])
        for fault in found["faults"]:
            kind, _, what = fault.partition(": ")
            self.tally.breach(kind, f"{what} after {text}")
        if found["cpu_s"] > MOST_CPU_S:
            self.tally.breach("slow", f"{found['cpu_s']:.1f} s for {text}")
        growth_mb = found["peak_mb"] - self.peak_mb
        self.peak_mb = found["peak_mb"]
        if growth_mb > MOST_GROWTH_MB:
            self.tally.breach("memory", f"{growth_mb:.0f} MB more after {text}")
        return True

    def _look(self, after: str) -> bool:
        """Whether the honest job still gets the same pods."""
        found = self._ask(HONEST, made_manifests.valid(HONEST, NAMESPACE))
        if found is None:
            return False
        if self._honest is None:
            self._honest, self.peak_mb = found, found["peak_mb"]
        is_same = all(found[key] == self._honest[key] for key in ("first", "faults"))
        if is_same and found["is_accepted"] and found["pods"] and not found["faults"]:
            return True
        self.tally.breach("touched", f"the honest job gets {str(found)[:300]} after {after}")
        return False


def run(cases: int, seed: int) -> dict[str, Any]:
    """The figures of one attack."""
    attack = Attack(seed)
    tally = attack.run(cases)
    return {
        "cases": dict(tally.cases),
        "breaches": dict(tally.breaches),
        "told": tally.told,
        "pods": attack.pods,
        "slowest_cpu_s": round(attack.slowest_s, 2),
        "peak_mb": round(attack.peak_mb),
    }
