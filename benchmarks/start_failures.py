"""How many pods a job makes whose agents fail to start, and how soon its status names the cause.

    python benchmarks/start_failures.py [--seconds 600] [--only KIND ...]

One job of 2 agents for each kind of failing start, all at once on the development cluster: wrong
commands, one of which runs on, init containers, images, probes, a live sidecar, an eviction, a
kubelet that refuses pods, objects that do not exist, and somebody who deletes pods. In some, real
agents are heard first. A watch counts the pods. Then the causes are mended, a few at a time, and
each job must train.
"""

from __future__ import annotations

import argparse
import copy
import json
import shlex
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from bamboo_cli.errors import ProgramError
from bamboo_cli.quickstart import job_file, local_cluster
from bamboo_cli.quickstart.local_cluster import LocalCluster
from bamboo_cli.quickstart.stopwatch import Stopwatch
from bamboo_devcluster.spec import NodeSpec, Taint
from bamboo_sim.programs import arguments, results_file

Object = dict[str, Any]

NAMESPACE = "default"
SEATS = 2
NODES = 3 * 15  # each agent has a GPU of its own, and nodes that are avoided leave enough
TOGETHER = 3  # jobs that are mended at once: all agents share the cores of this machine
LONGEST_S = 300.0
RUNS_S = LONGEST_S + 120.0  # a pause, and the start of the agents on a busy machine
POLL_S = 1.0
NOTE = (
    "pods: names of pods that a watch has seen within the time, of a job of 2 agents; goal: at most"
    " 12 in 10 minutes. cause_s: from the first pod in trouble of a job that does not run, until a"
    " condition of the job has the words of the cause; goal: 15 s. runs_s: from when the cause is"
    " mended until the job trains; goal: 300 s; the longest pause is 240 s. Both are polled each"
    " second. All agents, the operator and the control plane share the cores of this machine"
)

AGENT = shlex.join([sys.executable, "-P", "-m", "bamboo_agent"])
IDLE = "trap 'exit 143' TERM; sleep 86400 & wait"


@dataclass(frozen=True)
class Kind:
    """A way to fail. template: spec of the pods; words: of the cause, in a condition's message."""

    template: Object
    words: str
    objects: tuple[Object, ...] = ()  # that are missing; to make them mends the cause
    is_template_wrong: bool = False  # to change it mends the cause
    has_broken_nodes: bool = False
    is_deleted: bool = False  # somebody deletes the pods
    is_heard: bool = False  # its agents are real, so the job may train before it is mended
    is_silent: bool = False  # its containers run, and that is the trouble


def container(name: str, script: str, **more: Any) -> Object:
    """A container that knows from the variable READY whether its cause is mended."""
    source = {"configMapKeyRef": {"name": "KIND-mended", "key": "ready", "optional": True}}
    found: Object = {
        "name": name,
        "command": ["sh", "-c", script],
        "env": [{"name": "READY", "valueFrom": source}],
    }
    return found | ({} if name == "agent" else {"image": "tools"}) | more


def agent(otherwise: str, **more: Any) -> Object:
    """The agent's own container, which does something else until its cause is mended."""
    return container("agent", f'[ "$READY" = yes ] && exec {AGENT}; {otherwise}', **more)


def probed(probe: str) -> Kind:
    """The kubelet kills the agent because of this probe."""
    check = {"exec": {"command": ["sh", "-c", '[ "$READY" = yes ]']}}
    limits = {"periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 5}
    return Kind({"containers": [agent(IDLE, **{probe: check | limits})]}, "somebody has killed")


def heard(ending: str) -> Kind:
    """Real agents that something in their own pods ends half a minute later."""
    script = f'{AGENT} & agent=$!; [ "$READY" = yes ] && wait $agent; sleep 30; {ending}'
    return Kind({"containers": [container("agent", script)]}, "after its start", is_heard=True)


def heard_and_probed(delay_s: int) -> Kind:
    """Real agents that the kubelet ends with SIGTERM because of a probe."""
    check = {"exec": {"command": ["sh", "-c", '[ "$READY" = yes ]']}}
    probe = check | {"initialDelaySeconds": delay_s, "periodSeconds": 2, "failureThreshold": 2}
    own = container("agent", f"exec {AGENT}", livenessProbe=probe | {"timeoutSeconds": 5})
    return Kind({"containers": [own]}, "exit code 1", is_heard=True)


def missing(kind: str, words: str, template: Object, **body: Any) -> Kind:
    """The pods name an object that does not exist."""
    found = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "bamboo-job-gone"}} | body
    return Kind(template, words, (found,))


def mounted(source: Object) -> Object:
    """A template whose agents mount a volume of the source."""
    mounts = [{"name": "v", "mountPath": "/mnt/bamboo-bench"}]
    own = {"name": "agent", "volumeMounts": mounts}
    return {"containers": [own], "volumes": [{"name": "v", **source}]}


def claim() -> Kind:
    """The pods name a claim that does not exist. It and its volume are made later."""
    amount = {"storage": "1Gi"}
    common = {"storageClassName": "", "accessModes": ["ReadWriteMany"]}
    volume = {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "bamboo-job-gone"},
        "spec": common | {
            "capacity": amount, "hostPath": {"path": "/tmp/bamboo-start-failures"},
            "claimRef": {"namespace": NAMESPACE, "name": "bamboo-job-gone"},
        },
    }  # fmt: skip
    spec = common | {"resources": {"requests": amount}, "volumeName": "bamboo-job-gone"}
    made = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "bamboo-job-gone"}, "spec": spec,
    }  # fmt: skip
    template = mounted({"persistentVolumeClaim": {"claimName": "bamboo-job-gone"}})
    return Kind(template, "PersistentVolumeClaim bamboo-job-gone", (volume, made))


def kinds() -> dict[str, Kind]:
    """All kinds by name, which is the name of the job."""
    fetch = container("fetch", '[ "$READY" = yes ] || { echo no such bucket >&2; exit 1; }')
    proxy = container("proxy", IDLE)
    full = agent(
        f"head -c 4000000 /dev/zero > /scratch/x; {IDLE}",
        volumeMounts=[{"name": "scratch", "mountPath": "/scratch"}],
    )
    secret = {"secretKeyRef": {"name": "bamboo-job-gone", "key": "key"}}
    broken = {
        "nodeSelector": {"bench": "broken"},
        "tolerations": [{"key": "bench", "operator": "Exists"}],
    }
    return {
        "exits-with-0": Kind({"containers": [agent("exit 0")]}, "ended with exit code 0"),
        "exits-with-1": Kind({"containers": [agent("echo no >&2; exit 1")]}, "exit code 1"),
        "exits-with-3": Kind({"containers": [agent("exit 3")]}, "exit code 3"),
        "exits-with-137": Kind({"containers": [agent("exit 137")]}, "somebody has killed"),
        "no-program": Kind(
            {"containers": [{"name": "agent", "command": ["no-such-program"]}]},
            "exit code 128",
            is_template_wrong=True,
        ),
        "runs-on": Kind(
            {"containers": [{"name": "agent", "command": ["sleep", "86400"]}]},
            "has not heard it yet",
            is_template_wrong=True,
            is_silent=True,
        ),
        "init-fails": Kind({"initContainers": [fetch]}, "no such bucket"),
        "init-image": Kind(
            {"initContainers": [{"name": "fetch", "image": "registry.invalid/none:1"}]},
            "container fetch: ",
            is_template_wrong=True,
        ),
        "sidecar-lives": Kind({"containers": [agent("exit 127"), proxy]}, "exit code 127"),
        "liveness": probed("livenessProbe"),
        "startup": probed("startupProbe"),
        "evicted": Kind(
            {
                "containers": [full],
                "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}],
            },
            "with the reason Evicted",
        ),
        "refused": Kind(broken, "UnexpectedAdmissionError", has_broken_nodes=True),
        "no-secret": missing(
            "Secret",
            "Secret bamboo-job-gone",
            {"containers": [{"name": "agent", "env": [{"name": "KEY", "valueFrom": secret}]}]},
            stringData={"key": "x"},
        ),
        "no-config-map": missing(
            "ConfigMap",
            "ConfigMap bamboo-job-gone",
            mounted({"configMap": {"name": "bamboo-job-gone"}}),
            data={"key": "x"},
        ),
        "no-claim": claim(),
        "heard-exits-with-3": heard("kill -KILL $agent; exit 3"),
        "heard-is-told-to-end": heard("kill -TERM $agent; wait $agent; exit 143"),
        "heard-liveness": heard_and_probed(30),
        "hasty-liveness": heard_and_probed(0),
        "deleted": Kind({"containers": [agent(IDLE)]}, "somebody has deleted", is_deleted=True),
    }


def manifest(name: str, kind: Kind) -> Object:
    """A small job without an end, whose backoff limit it never reaches."""
    found: Object = copy.deepcopy(dict(job_file.read_manifest(job_file.EXAMPLE)))
    found["metadata"] = {"name": name, "namespace": NAMESPACE}
    spec = found["spec"]
    spec["model"]["args"] = {"layers": 2, "width": 16, "heads": 2, "context": 64, "dropout": 0.0}
    spec["training"] |= {"steps": 1_000_000, "validateEvery": 1_000_000}
    spec["pipelines"] = {"count": 1, "stages": SEATS}
    spec["redundancy"] = {"mode": "None"}
    spec["runPolicy"] = {"backoffLimit": 1000}
    template = json.loads(json.dumps(kind.template).replace("KIND-mended", f"{name}-mended"))
    spec["worker"]["podTemplate"] = {"spec": template}
    del spec["checkpoint"]
    return found


@dataclass
class Job:
    """What is known of a kind's job. Instants are of the monotonic clock."""

    kind: Kind
    pods: set[str] = field(default_factory=set)
    made: int = 0  # pods until the time was over
    live: frozenset[str] = frozenset()  # pods that are not in trouble
    trouble_at: float | None = None  # the job did not run, and a pod of it was in trouble
    named_at: float | None = None
    is_running: bool = False
    runs_s: float | None = None


class Bench:
    """All jobs of a run."""

    def __init__(self, local: LocalCluster, chosen: Mapping[str, Kind]) -> None:
        self._local, self._programs = local, local.programs
        self.jobs = {name: Job(kind) for name, kind in chosen.items()}
        self._deletes = threading.Event()
        self._watch: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Make the nodes that refuse pods, the watch of pods, and the jobs."""
        for index, zone in enumerate(("zone-a", "zone-b")):
            taint = Taint("bench", "NoSchedule", "broken")
            spec = NodeSpec(
                f"broken-{index}", zone, labels={"bench": "broken"}, taints=(taint,)
            )  # fmt: skip
            self._local.cluster.add_node(spec)
            self._local.cluster.break_devices(spec.name)
        argv = [
            str(self._programs.kubectl_path), "--kubeconfig", str(self._local.cluster.kubeconfig),
            "get", "pods", "--namespace", NAMESPACE, "--selector", "bamboo.dev/job", "--watch",
            "--output", 'jsonpath={.metadata.labels.bamboo\\.dev/job} {.metadata.name}{"\\n"}',
        ]  # fmt: skip
        self._watch = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._count, daemon=True).start()
        self._deletes.set()
        for name, job in self.jobs.items():
            self._apply(manifest(name, job.kind))
        threading.Thread(target=self._delete, daemon=True).start()

    def _count(self) -> None:
        assert self._watch is not None
        assert self._watch.stdout is not None
        for line in self._watch.stdout:
            job, _, pod = line.strip().partition(" ")
            if job in self.jobs:
                self.jobs[job].pods.add(pod)

    def _delete(self) -> None:
        """Somebody who deletes pods as fast as they come."""
        names = [name for name, job in self.jobs.items() if job.kind.is_deleted]
        while names and self._deletes.is_set():
            with suppress(ProgramError):  # the pods may be gone already
                self._delete_once(names)
            time.sleep(POLL_S / 2)

    def _delete_once(self, names: Sequence[str]) -> None:
        found = self._kubectl(
            "delete", "pods", f"--selector=bamboo.dev/job in ({','.join(names)})",
            "--grace-period=0", "--force", "--wait=false", "--output=name",
        )  # fmt: skip
        for name in names if found.strip() else ():
            job = self.jobs[name]
            job.trouble_at = job.trouble_at or time.monotonic()

    def observe(self, seconds: float) -> None:
        """Look at all jobs until the time is over."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._look()
            time.sleep(POLL_S)
        for job in self.jobs.values():
            job.made = len(job.pods)
        if self._watch is None or self._watch.poll() is not None:
            raise RuntimeError("the watch of the pods has ended, so that they are not counted")

    def _look(self) -> None:
        now = time.monotonic()
        live: dict[str, set[str]] = {name: set() for name in self.jobs}
        in_trouble: set[str] = set()
        for pod in self._list("pods", "--selector", "bamboo.dev/job"):
            name = pod["metadata"]["labels"]["bamboo.dev/job"]
            job = self.jobs.get(name)
            if job is not None and not is_in_trouble(pod, job.kind):
                live[name].add(pod["metadata"]["name"])
            elif job is not None:
                in_trouble.add(name)
        for name, job in self.jobs.items():
            job.live = frozenset(live[name])
        for body in self._list("bamboojobs"):
            name = body["metadata"]["name"]
            job = self.jobs.get(name)
            if job is None:
                continue
            status = conditions(body)
            said = " ".join(each.get("message", "") for each in status.values())
            job.is_running = status.get("Running", {}).get("status") == "True"
            if name in in_trouble and job.trouble_at is None and not job.is_running:
                job.trouble_at = now
            if job.named_at is None and job.kind.words in said:
                job.named_at = time.monotonic()

    def mend(self, names: Sequence[str]) -> None:
        """Mend the causes of some jobs, wait until they train, and delete them."""
        began: dict[str, float] = {}
        before: dict[str, frozenset[str]] = {}  # pods that know nothing of the mend
        self._look()
        for name in names:
            job = self.jobs[name]
            before[name] = job.live if job.kind.is_heard else frozenset()
            self._mend(name, job.kind)
            began[name] = time.monotonic()
        left = set(names)
        while left:
            self._look()
            for name in list(left):
                job, passed_s = self.jobs[name], time.monotonic() - began[name]
                if job.is_running and not job.live & before[name]:
                    job.runs_s = round(passed_s, 1)
                elif passed_s < RUNS_S:
                    continue
                left.discard(name)
                self._kubectl("delete", "bamboojob", name, "--wait=false")
            time.sleep(POLL_S)

    def _mend(self, name: str, kind: Kind) -> None:
        for body in kind.objects:
            self._apply(body)
        if kind.is_deleted:
            self._deletes.clear()
        if kind.has_broken_nodes:
            for index in range(2):
                self._local.cluster.repair_devices(f"broken-{index}")
        if kind.is_template_wrong:
            self._patch(name, {"worker": {"podTemplate": None}})
        ready = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"ready": "yes"}}
        self._apply(ready | {"metadata": {"name": f"{name}-mended"}})

    def _patch(self, name: str, spec: Object) -> None:
        body = json.dumps({"spec": spec})
        self._kubectl("patch", "bamboojob", name, "--type=merge", f"--patch={body}")

    def _apply(self, body: Object) -> None:
        self._kubectl("apply", "--filename", "-", stdin=json.dumps(body))

    def _list(self, *what: str) -> list[Object]:
        found: Object = json.loads(self._kubectl("get", *what, "--output", "json"))
        return list(found["items"])

    def _kubectl(self, verb: str, *arguments: str, stdin: str | None = None) -> str:
        return self._programs.kubectl(verb, "--namespace", NAMESPACE, *arguments, stdin=stdin)

    def close(self) -> None:
        """End the watch and the deletions."""
        self._deletes.clear()
        if self._watch is not None:
            self._watch.terminate()
            self._watch.wait()


def conditions(body: Object) -> dict[str, Object]:
    """The conditions of a job by their types."""
    found = (body.get("status") or {}).get("conditions") or []
    return {condition["type"]: condition for condition in found}


def is_in_trouble(pod: Object, kind: Kind) -> bool:
    """Whether the API shows that the pod does not start as it should. No kind lacks room, so a pod
    that waits for a node does so for a moment only."""
    status = pod.get("status") or {}
    if status.get("phase") in ("Failed", "Succeeded"):
        return True
    found = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    states = [each.get("state") or {} for each in found]
    if any("terminated" in state and state["terminated"]["exitCode"] for state in states):
        return True
    if kind.is_silent and any("running" in state for state in states):
        return True
    waits = Counter((state.get("waiting") or {}).get("reason", "") for state in states)
    is_stuck = bool(waits.keys() - {"", "PodInitializing", "ContainerCreating"})
    # A volume that cannot be mounted shows only in events.
    return is_stuck or (bool(kind.objects) and bool(waits["ContainerCreating"]))


def cause_s(job: Job) -> float | None:
    """Seconds until the cause was named; None: never."""
    if job.named_at is None:
        return None
    return round(max(0.0, job.named_at - (job.trouble_at or job.named_at)), 1)


def figures(jobs: Mapping[str, Job]) -> dict[str, Any]:
    """ValueError if a cause was never named, or a job did not train in the end."""
    named = {name: cause_s(job) for name, job in jobs.items()}
    if unnamed := sorted(name for name, seconds in named.items() if seconds is None):
        raise ValueError(f"no condition has named the cause of {', '.join(unnamed)}")
    if idle := sorted(name for name, job in jobs.items() if job.runs_s is None):
        raise ValueError(f"did not train within {RUNS_S:g} s: {', '.join(idle)}")
    return {
        "kinds": len(jobs),
        "most_pods": max(job.made for job in jobs.values()),
        "slowest_cause_s": max(seconds for seconds in named.values() if seconds is not None),
        "slowest_run_s": max(job.runs_s for job in jobs.values() if job.runs_s is not None),
    }


def main() -> None:
    """Let all jobs fail, mend them, write the file, print the figures."""
    known = kinds()
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--seconds", type=arguments.at_least(1), default=600, help="of failing")
    parser.add_argument("--only", nargs="+", choices=known, default=list(known), help="kinds")
    options = parser.parse_args()
    chosen = {name: known[name] for name in options.only}
    choice = local_cluster.ClusterOptions(nodes=NODES)
    with local_cluster.provision(choice, Console(), Stopwatch()) as local:
        bench = Bench(local, chosen)
        try:
            bench.start()
            bench.observe(options.seconds)
            names = list(chosen)
            for first in range(0, len(names), TOGETHER):
                bench.mend(names[first : first + TOGETHER])
        finally:
            bench.close()
    rows = [
        {"kind": name, "pods": job.made, "cause_s": cause_s(job), "runs_s": job.runs_s}
        for name, job in bench.jobs.items()
    ]
    print(results_file.dumps(results_file.columns(rows)))
    found = figures(bench.jobs)
    if len(chosen) == len(known):
        samples = {"seconds": options.seconds, **results_file.columns(rows)}
        results_file.write("start_failures", samples=samples, figures=found, note=NOTE)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
