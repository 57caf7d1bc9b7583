"""What 1,000 jobs of 8 agents on 1,000 nodes cost the operator, in processor time and bytes.

    python benchmarks/operator_scale.py [--jobs 1000] [--passes 5]

The production reconciler, actors and arbiters run in this process. The API server is a dictionary
of JSON texts. Encoding and parsing on the operator's side count; the server's own work does not.
HTTP, TLS, gRPC and the fields that a real server adds (managedFields) are missing. A pass
reconciles every job once, as each resync does (every 15 s).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from bamboo_core.api.spec import JobSpec, from_manifest
from bamboo_core.controller.reconcile import step
from bamboo_core.controller.view import ClusterView, JobView, Memory, TrainingView
from bamboo_core.model.ids import AgentId
from bamboo_core.placement import fitting
from bamboo_core.protocol.messages import Heartbeat, Hello
from bamboo_operator import api, facts, jobs, observe
from bamboo_operator.nodes import Nodes
from bamboo_operator.reconciler import Ports, Reconciler
from bamboo_operator.seals import Seals
from bamboo_operator.trust import Trust
from bamboo_operator.usage import Usage
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_sim import arguments, results_file
from bamboo_wire import decode, encode

PIPELINES, STAGES, ZONES, NODES, GPUS = 2, 4, "abc", 1000, 8
NAMESPACE, RESYNC_S, TICKS_A_SECOND, HEARTBEATS_A_SECOND = "ns", 15.0, 4, 5
Object = dict[str, Any]


class JsonApi:
    """Objects as JSON texts. own_s: processor time of the server's own work."""

    def __init__(self) -> None:
        self.folders: dict[tuple[str, str], dict[str, bytes]] = {}
        self.requests: Counter[str] = Counter()
        self.bytes = {"received": 0, "sent": 0}
        self.own_s = 0.0
        self._version = 0

    @contextmanager
    def _served(self, verb: str) -> Any:
        start = time.process_time()
        self.requests[verb] += 1
        yield
        self.own_s += time.process_time() - start

    def put(self, path: str, body: Object) -> bytes:
        """Store the object, also under its job's label."""
        self._version += 1
        folder, _, name = path.rpartition("/")
        meta = body["metadata"]
        meta.setdefault("uid", f"uid-{name}")
        meta.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        meta["resourceVersion"] = str(self._version)
        text = json.dumps(body).encode()
        self.folders.setdefault((folder, ""), {})[name] = text
        job = (meta.get("labels") or {}).get(observe.JOB_LABEL)
        if job is not None:
            labels = f"{observe.JOB_LABEL}={job}"
            self.folders.setdefault((folder, labels), {})[name] = text
        return text

    def text(self, path: str) -> bytes | None:
        """What is stored."""
        folder, _, name = path.rpartition("/")
        return self.folders.get((folder, ""), {}).get(name)

    def _answer(self, text: bytes) -> Any:
        self.bytes["received"] += len(text)
        return json.loads(text.decode())

    def _asked(self, body: Object) -> bytes:
        text = json.dumps(body).encode()
        self.bytes["sent"] += len(text)
        return text

    async def get(self, path: str) -> Object | None:
        """See Api."""
        with self._served("get"):
            text = self.text(path)
        return None if text is None else self._answer(text)

    async def list(self, path: str, *, labels: str = "", fields: str = "") -> list[Object]:
        """See Api."""
        with self._served("list"):
            items = b",".join(self.folders.get((path, labels), {}).values())
        found: list[Object] = self._answer(b'{"items":[' + items + b"]}")["items"]
        return found

    async def create(self, path: str, body: Object) -> Object:
        """See Api."""
        asked = self._asked(body)
        with self._served("create"):
            text = self.put(f"{path}/{body['metadata']['name']}", json.loads(asked))
        found: Object = self._answer(text)
        return found

    async def replace(self, path: str, body: Object) -> Object:
        """See Api."""
        raise NotImplementedError("the operator replaces its lease only")

    async def apply(self, path: str, body: Object, *, manager: str) -> Object:
        """See Api."""
        asked = self._asked(body)
        with self._served("apply"):
            new = json.loads(asked)
            if path.endswith("/status"):
                path = path.removesuffix("/status")
                new = self._with_status(path, new["status"])
            text = self.put(path, new)
        found: Object = self._answer(text)
        return found

    def _with_status(self, path: str, status: Object) -> Object:
        """Each of the two writers replaces its own fields."""
        stored: Object = json.loads(self.text(path) or b"{}")
        old = stored.get("status") or {}
        kept = {k: v for k, v in old.items() if (k == "arbiter") != ("arbiter" in status)}
        return stored | {"status": kept | status}

    async def delete(self, path: str, *, uid: str = "", grace_s: int | None = None) -> bool:
        """See Api."""
        raise NotImplementedError("nothing is deleted here")


def manifest(name: str) -> Object:
    return {
        "apiVersion": "bamboo.dev/v1alpha1",
        "kind": "BambooJob",
        "metadata": {"name": name, "namespace": NAMESPACE, "generation": 1},
        "spec": {
            "model": {"factory": "my_package.models:build", "args": {"width": 1024}},
            "data": {"factory": "my_package.data:train"},
            "training": {
                "steps": 10000,
                "globalBatchSize": 512,
                "microBatchSize": 4,
                "optimizer": {"factory": "torch.optim:AdamW", "args": {"lr": 0.0003}},
            },
            "pipelines": {"count": PIPELINES, "stages": STAGES},
            "redundancy": {"mode": "Replica"},
            "checkpoint": {"uri": f"file:///checkpoints/{name}", "everySteps": 500},
            "worker": {"image": "agent:1", "resources": {"limits": {"nvidia.com/gpu": 1}}},
        },
    }


def node(index: int) -> Object:
    zone = ZONES[index % len(ZONES)]
    labels = {"topology.kubernetes.io/zone": zone, "cloud.google.com/gke-spot": "true"}
    return {
        "metadata": {"name": f"node-{index}", "labels": labels},
        "spec": {},
        "status": {
            "allocatable": {"nvidia.com/gpu": str(GPUS), "cpu": "96", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"bootID": f"boot-{index}"},
        },
    }


class Scale:
    """An operator without its edges. cpu_s of a pass excludes the API server's own work."""

    def __init__(self, count: int) -> None:
        self.kube, self.names = JsonApi(), [f"job-{n}" for n in range(count)]
        for name in self.names:
            self.kube.put(api.job(NAMESPACE, name), manifest(name))
        for index in range(NODES):
            self.kube.put(f"{api.nodes()}/node-{index}", node(index))
        self.jobs = jobs.Jobs(term=1, ports=self._job_ports())
        self.reconciler = Reconciler(
            Ports(
                kube=self.kube,
                jobs=self.jobs,
                nodes=Nodes(self.kube, Usage()),
                trust=Trust(self.kube, "bundle", "op:1"),
                on_forced=lambda: None,
                operator_address="op:1",
                seals=Seals(b"key"),
                again=lambda job, after_s: None,
            )
        )

    def _job_ports(self) -> jobs.Ports:
        async def dismiss(job: JobView, agent: AgentId, reason: str) -> None:
            raise NotImplementedError("nobody is dismissed here")

        return jobs.Ports(
            persist=lambda job, durable, line: facts.write(self.kube, job, durable, line),
            dismiss=dismiss,
            record=lambda job, record: None,
            wake=lambda job: None,
            wake_later=lambda job: None,
            is_leading=lambda: True,
        )

    async def reconcile_all(self) -> Object:
        """Reconcile every job once; what it cost."""
        kube = self.kube
        before = (kube.requests.copy(), dict(kube.bytes), kube.own_s, time.process_time())
        for name in self.names:
            await self.reconciler.reconcile(NAMESPACE, name)
        while tasks := [task for actor in self.jobs.all() for task in actor._tasks]:
            await asyncio.gather(*tasks)
        cpu_s = time.process_time() - before[3] - (kube.own_s - before[2])
        moved = {f"{k}_bytes": n - before[1][k] for k, n in kube.bytes.items()}
        return {"cpu_s": round(cpu_s, 3), **moved, "requests": dict(kube.requests - before[0])}

    def run_pods(self) -> int:
        """Play scheduler and kubelets: run every pod on a node of its zone. The number of pods."""
        folder = api.pods(NAMESPACE)
        names = list(self.kube.folders[folder, ""])
        used: Counter[str] = Counter()
        for name in names:
            body = json.loads(self.kube.text(f"{folder}/{name}") or b"")
            zone = body["spec"]["nodeSelector"]["topology.kubernetes.io/zone"]
            there = [n for n in range(NODES) if ZONES[n % len(ZONES)] == zone]
            index = there[used[zone] // GPUS % len(there)]  # full nodes take more: none is counted
            used[zone] += 1
            running = {"name": "agent", "ready": True, "state": {"running": {}}}
            body["spec"]["nodeName"] = f"node-{index}"
            body["status"] = {"phase": "Running", "containerStatuses": [running]}
            self.kube.put(f"{folder}/{name}", body)
        return len(names)


def cpu_s(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def core_alone(scale: Scale) -> float:
    """Seconds for the core's `step` of every job, without building the views."""
    spec = from_manifest(manifest("job-0"))
    assert isinstance(spec, JobSpec)
    texts = scale.kube.folders[api.nodes(), ""].values()
    needs = fitting.needs(spec.worker, spec.placement)
    nodes = tuple(observe.node_view(json.loads(text), needs, {}) for text in texts)
    job = JobView(NAMESPACE, "job-0", "uid-job-0", 1, 0.0)
    key = (api.pods(NAMESPACE), f"{observe.JOB_LABEL}=job-0")
    pods = observe.pod_views([json.loads(t) for t in scale.kube.folders[key].values()], job)
    view = ClusterView(nodes, pods)
    assert len(pods) == PIPELINES * STAGES

    def all_jobs() -> None:
        for _ in scale.names:
            step(spec, view, TrainingView(), Memory(), job=job, now=1e9)

    return cpu_s(all_jobs)


def heartbeats(scale: Scale, count: int = 20000) -> float:
    """Seconds for one heartbeat: parse, translate, hand to the arbiter."""
    agent = AgentId("job-0-p0-s0-i0")
    actor = scale.jobs.all()[0]
    hello = Hello(agent, "uid", "node-0", "a", "", "127.0.0.1:1", "127.0.0.1:2")
    session = actor.connect(hello)
    text = encode.agent_message(Heartbeat(7, 3, 12345)).SerializeToString()

    def beat() -> None:
        for _ in range(count):
            message = decode.agent_message(pb.AgentMessage.FromString(text))
            actor.receive(session, message)

    return cpu_s(beat) / count


def ticks(scale: Scale, count: int = 12) -> float:
    """Seconds for one tick of every actor."""

    def all_actors() -> None:
        for _ in range(count):
            for actor in scale.jobs.all():
                actor.tick()

    return cpu_s(all_actors) / count


async def measure(count: int, passes: int) -> tuple[Object, Object]:
    """Samples and figures."""
    scale = Scale(count)
    create = await scale.reconcile_all()
    pods = scale.run_pods()
    settle = await scale.reconcile_all()
    steady = [await scale.reconcile_all() for _ in range(passes)]
    tick_s, beat_s, core_s = ticks(scale), heartbeats(scale), core_alone(scale)
    await scale.jobs.close()
    pass_s = statistics.median(sample["cpu_s"] for sample in steady)
    stored = sum(
        len(t) for (_, label), f in scale.kube.folders.items() if not label for t in f.values()
    )
    figures = {
        "jobs": count,
        "pods": pods,
        "create_pass_cpu_s": create["cpu_s"],
        "steady_pass_cpu_s": pass_s,
        "steady_pass_received_bytes": steady[-1]["received_bytes"],
        "steady_pass_writes": sum(s["requests"].get("apply", 0) for s in steady),
        "core_step_all_jobs_cpu_s": round(core_s, 3),
        "tick_all_jobs_cpu_s": round(tick_s, 4),
        "resync_and_ticks_share_of_a_core": round(pass_s / RESYNC_S + tick_s * TICKS_A_SECOND, 3),
        "heartbeat_cpu_us": round(beat_s * 1e6, 1),
        "heartbeats_share_of_a_core": round(beat_s * HEARTBEATS_A_SECOND * pods, 2),
        "process_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "stored_objects_bytes": stored,
    }
    return {"create": create, "settle": settle, "steady": steady}, figures


def main() -> None:
    """Measure, write the file, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=arguments.at_least(1), default=1000)
    parser.add_argument("--passes", type=arguments.at_least(1), default=5)
    given = parser.parse_args()
    samples, figures = asyncio.run(measure(given.jobs, given.passes))
    note = (
        "API server in memory; without HTTP, TLS, gRPC and managedFields. process_rss_bytes is the"
        " peak of this process, the API server's texts (stored_objects_bytes, pods twice) included."
    )
    path = results_file.write("operator_scale", samples=samples, figures=figures, note=note)
    print(*(f"{name}: {value}" for name, value in figures.items()), f"-> {path}", sep="\n")


if __name__ == "__main__":
    main()
