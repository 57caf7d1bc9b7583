"""What the operator does with many jobs on a real API server, and what that costs it.

    python benchmarks/operator_scale.py [--jobs 1250] [--pods-per-job 8] [--connected 400]
                                        [--agents 512]

The operator is a process of its own, with the chart's rights, and speaks HTTP to a real
kube-apiserver with etcd. Scheduler, kubelets and agents are played: see bamboo_sim.scale. All share
this machine.

    create     jobs are applied as fast as the API server takes them: the last pod is made
    steady     jobs with --connected agents train, the pods of the others are silent: processor
               seconds and resident memory of the operator, from /proc
    restart    SIGKILL: until it is ready, and until these agents are welcome; no pod is touched
    directive  another fleet, one large job: one agent is lost; from the instant at which others
               tell the operator, until each agent has its directive; delivery is the part of it
               after the planner has answered
"""

from __future__ import annotations

import argparse
import asyncio
import math
import re
import resource
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bamboo_core.api.events import EventReason
from bamboo_devcluster.kube.client import Object
from bamboo_operator.kube import api
from bamboo_operator.trust.bundle import CA_CONFIG_MAP, CA_KEY
from bamboo_sim.programs import arguments, results_file
from bamboo_sim.scale import control_plane, kubelets
from bamboo_sim.scale.agents import Operator
from bamboo_sim.scale.control_plane import ControlPlane
from bamboo_sim.scale.fleet import Processes
from bamboo_sim.scale.operator_process import OperatorProcess, usage

STAGES = 4
LARGE_STAGES = 8
JOBS_OF_A_NAMESPACE = 50
MICROBATCHES = 8  # of a pipeline
STEP_S = 10.0
FIRST_PODS = 8000  # those of 1,000 jobs
_SAMPLE_S = 5.0
_POLL_S = 1.0
_TELL_S = 20.0
_LIMIT_S = 600.0


def manifest(namespace: str, name: str, *, pipelines: int, stages: int) -> Object:
    """A job of one agent per device."""
    training = {
        "steps": 1_000_000,
        "globalBatchSize": 4 * pipelines * MICROBATCHES,
        "microBatchSize": 4,
        "optimizer": {"factory": "torch.optim:AdamW", "args": {"lr": 0.0003}},
    }
    return {
        "apiVersion": api.API_VERSION,
        "kind": "BambooJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "model": {"factory": "my_package.models:build", "args": {"width": 1024}},
            "data": {"factory": "my_package.data:train"},
            "training": training,
            "pipelines": {"count": pipelines, "stages": stages},
            "redundancy": {"mode": "Replica"},
            "worker": {"image": "agent:1", "resources": {"limits": {"nvidia.com/gpu": 1}}},
        },
    }


def quantile(values: list[float], share: float) -> float:
    """The smallest of the sorted values that at least this share of them does not exceed."""
    return values[max(0, math.ceil(share * len(values)) - 1)]


async def until(
    done: Callable[[], Awaitable[bool]], what: str, found: Callable[[], object] = lambda: ""
) -> None:
    """Ask again and again. TimeoutError says what has not happened, and what was found."""
    try:
        async with asyncio.timeout(_LIMIT_S):
            while not await done():  # noqa: ASYNC110 - other processes are asked
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise TimeoutError(f"not within {_LIMIT_S:g} s: {what}; {found()}") from None


class Stage:
    """A control plane, an operator and its fake world. most: agents that connect, of all pods."""

    def __init__(
        self, plane: ControlPlane, pods: int, most: int, given: argparse.Namespace
    ) -> None:
        self.plane, self.pods, self.most = plane, pods, most
        self.operator = OperatorProcess(plane, profile=given.profile)
        self.nodes = math.ceil(1.2 * pods / control_plane.GPUS_OF_A_NODE) + 6
        self.kubelets = kubelets.Kubelets(plane.api, self.nodes)
        self.agents = Processes(given.processes, given.step_s)
        self.met: dict[str, kubelets.RunningPod] = {}  # that have an agent, by UID
        self._address: Operator | None = None

    def say(self, text: str) -> None:
        """Progress for whoever watches."""
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)

    async def begin(self) -> None:
        """Nodes and a ready operator."""
        await control_plane.add_nodes(self.plane.api, self.nodes)
        self.say(f"{self.nodes} nodes")
        self.operator.start()
        self.say(f"operator ready after {await self.operator.until_ready():.1f} s")

    def close(self, keep_log: str | None) -> None:
        """End the processes. keep_log: where the operator's log goes."""
        self.operator.stop()
        self.agents.close()
        if keep_log:
            Path(keep_log).write_bytes(self.operator.log.read_bytes())

    async def create(self, jobs: list[Object]) -> dict[str, Any]:
        """Apply all jobs; wait until all pods are made, then until all of them run."""
        namespaces = sorted({job["metadata"]["namespace"] for job in jobs})
        await control_plane.each(
            control_plane.add_namespace(self.plane.api, name) for name in namespaces
        )
        before, began = usage(self.operator.pid), time.monotonic()
        await control_plane.each(
            self.plane.api.post(api.jobs(job["metadata"]["namespace"]), job) for job in jobs
        )
        applied_s = time.monotonic() - began

        told, first_s = began, 0.0

        async def made() -> bool:
            nonlocal told, first_s
            if not first_s and len(self.kubelets.seen) >= min(FIRST_PODS, self.pods):
                first_s = time.monotonic() - began
            if time.monotonic() - told >= _TELL_S:
                told = time.monotonic()
                self.say(f"{len(self.kubelets.seen)} pods made, {len(self.kubelets.running)} run")
            return len(self.kubelets.seen) >= self.pods

        await until(made, f"{self.pods} pods", lambda: f"there are {len(self.kubelets.seen)}")
        made_s = time.monotonic() - began
        cpu_s = usage(self.operator.pid).cpu_s - before.cpu_s
        requests = _requests(await self.operator.metrics())
        self.say(f"{self.pods} pods made after {made_s:.1f} s, {cpu_s:.1f} s of the operator")
        self.say(f"requests of the operator: {requests}")
        await self.kubelets.until(self.pods, _LIMIT_S)
        run_s = time.monotonic() - began
        self.say(f"{self.pods} pods run after {run_s:.1f} s")
        return {
            "jobs": len(jobs),
            "pods": self.pods,
            "jobs_applied_s": round(applied_s, 1),
            "first_pods": min(FIRST_PODS, self.pods),
            "first_pods_made_s": round(first_s, 1),
            "pods_made_s": round(made_s, 1),
            "pods_run_s": round(run_s, 1),
            "cpu_s": round(cpu_s, 1),
            "requests": requests,  # of the operator, until the last pod was made
        }

    async def connect(self, namespace: str) -> dict[str, Any]:
        """All agents connect; wait until every job trains."""
        path = f"/api/v1/namespaces/{namespace}/configmaps/{CA_CONFIG_MAP}"
        bundle = (await self.plane.api.get(path))["data"][CA_KEY].encode()
        began, self._address = time.monotonic(), Operator(self.operator.port, bundle)

        async def directed() -> bool:
            await self._join()
            state = await self.agents.state()
            told = f"{state['connected']} connected, {state['directed']} have directives"
            self.say(f"{told} {state['error'][:200]}")
            return bool(state["running_jobs"] >= self.jobs)

        await until(directed, f"{self.most} agents with directives")
        return {"all_directed_s": round(time.monotonic() - began, 1)}

    async def _join(self) -> None:
        """Pods without an agent get one."""
        assert self._address is not None
        if new := self._new():
            self.met |= {pod.uid: pod for pod in new}
            await self.agents.add(await self.kubelets.with_tokens(new), self._address)

    def _new(self) -> list[kubelets.RunningPod]:
        """Pods that get an agent now: replacements, and whole jobs while there is room."""
        known = {pod.job for pod in self.met.values()}
        found: list[kubelets.RunningPod] = []
        for job, pods in sorted(kubelets.of_jobs(self.kubelets.running.values()).items()):
            if job in known or len(self.met) + len(found) + len(pods) <= self.most:
                found += [pod for pod in pods if pod.uid not in self.met]
        return found

    async def steady(self, seconds: float) -> dict[str, Any]:
        """Measure the operator's processor time and memory while all jobs train."""
        state, began = await self.agents.state(), time.monotonic()
        first = last = usage(self.operator.pid)
        others = {n: usage(p).cpu_s for n, p in self._others().items()}
        requests = _requests(await self.operator.metrics())
        shares, at = [], began
        while time.monotonic() - began < seconds:
            await asyncio.sleep(_SAMPLE_S)
            now, found = time.monotonic(), usage(self.operator.pid)
            shares.append(round((found.cpu_s - last.cpu_s) / (now - at), 3))
            at, last = now, found
        after, wall_s = await self.agents.state(), at - began
        asked = _requests(await self.operator.metrics())
        figures = {
            "pods": len(self.kubelets.running),
            "agents": after["connected"],
            "seconds": round(wall_s, 1),
            "cpu_share": round((last.cpu_s - first.cpu_s) / wall_s, 3),
            "cpu_shares": shares,
            "rss_bytes": last.rss_bytes,
            "peak_rss_bytes": last.peak_bytes,
            "heartbeat_s": after["heartbeat_s"],
            "heartbeats_per_s": round((after["beats"] - state["beats"]) / wall_s, 1),
            "commits_per_s": round((after["committed"] - state["committed"]) / wall_s, 1),
            "sessions_lost": after["sessions"] - state["sessions"],
            "requests_per_s": {
                k: round((n - requests.get(k, 0)) / wall_s, 1)
                for k, n in asked.items()
                if n > requests.get(k, 0)
            },
            "other_cpu_shares": {
                n: round((usage(p).cpu_s - others[n]) / wall_s, 3)
                for n, p in self._others().items()
            },
        }
        self.say(f"steady: {figures}")
        return figures

    def _others(self) -> dict[str, int]:
        agents = {f"agents_{i}": pid for i, pid in enumerate(self.agents.pids)}
        return {**self.plane.pids, **agents}

    async def restart(self) -> dict[str, Any]:
        """SIGKILL, a new process, and what became of pods and agents."""
        before = await self._versions()
        self.operator.kill()
        began = time.monotonic()
        self.operator.start()
        ready_s = await self.operator.until_ready()
        self.say(f"ready again after {ready_s:.1f} s")

        async def back() -> bool:
            await self._join()
            state = await self.agents.state()
            self.say(f"connected {state['connected']}, running jobs {state['running_jobs']}")
            at = state["welcomed_at"]
            return len(at) >= self.most and at[0] > began and state["running_jobs"] >= self.jobs

        await until(back, "all agents back")
        state, trains_s = await self.agents.state(), time.monotonic() - began
        after = await self._versions()
        welcomed = state["welcomed_at"]
        found = {
            "ready_s": round(ready_s, 2),
            "first_session_s": round(welcomed[0] - began, 2),
            "all_sessions_s": round(welcomed[-1] - began, 2),
            "all_train_s": round(trains_s, 2),
            "pods_before": len(before),
            "pods_changed": sum(after.get(uid) != version for uid, version in before.items()),
            "pods_created": len(after.keys() - before.keys()),
            "peak_rss_bytes": usage(self.operator.pid).peak_bytes,
        }
        self.say(f"restart: {found}")
        return found

    @property
    def jobs(self) -> int:
        """Number of jobs with agents."""
        return len(kubelets.of_jobs(self.met.values()))

    async def _versions(self) -> dict[str, str]:
        found = await self.plane.api.get("/api/v1/pods")
        metas = (pod["metadata"] for pod in found["items"])
        return {meta["uid"]: meta["resourceVersion"] for meta in metas}

    async def lose(self, job: str, index: int) -> dict[str, list[float]]:
        """Seconds from the loss until the operator stops the others, until its planner has
        answered, and, sorted, until each of the others has its directive."""
        at = await self.agents.lose(job, index)

        async def directed() -> bool:
            state = await self.agents.state()
            return bool(state["directed_at"][0] > at)

        await until(directed, "directives after a loss")
        times = {
            "stop_s": [self.operator.logged_at(reason=EventReason.STOPPED)],
            "plan_s": [self.operator.logged_at(result="Decision")],
            "directive_s": (await self.agents.state())["directed_at"],
        }
        return {name: [x - at for x in values] for name, values in times.items()}


def _requests(metrics: dict[str, float]) -> dict[str, float]:
    """Number of the operator's requests by verb and resource."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        if name.startswith("bamboo_operator_kube_api_requests_total"):
            words = re.findall(r'(resource|verb)="([^"]*)"', name)
            key = " ".join(value for _, value in sorted(words, reverse=True))
            found[key] = found.get(key, 0.0) + value
    return found


async def staged(
    pods: int,
    most: int,
    given: argparse.Namespace,
    work: Callable[[Stage], Awaitable[dict[str, Any]]],
) -> dict[str, Any]:
    """Do the work on a new stage."""
    with tempfile.TemporaryDirectory(prefix="bamboo-scale-") as folder:
        async with control_plane.running(Path(folder) / "plane") as plane:
            stage = Stage(plane, pods, most, given)
            runs = asyncio.create_task(stage.kubelets.run())
            ends: set[asyncio.Future[Any]] = {runs}
            try:
                await stage.begin()
                working = asyncio.ensure_future(work(stage))
                ends |= {working, asyncio.create_task(stage.operator.until_end())}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for other in ends - {working}:
                    if other.done() and not working.done():
                        working.cancel()
                        other.result()
                return working.result()
            finally:
                for task in ends:
                    task.cancel()
                await asyncio.gather(*ends, return_exceptions=True)
                stage.close(given.keep_log)


async def fleet_of_jobs(stage: Stage, given: argparse.Namespace) -> dict[str, Any]:
    """Parts create, steady and restart."""
    pipelines = given.pods_per_job // STAGES
    jobs = [
        manifest(f"team-{n // JOBS_OF_A_NAMESPACE}", f"job-{n}", pipelines=pipelines, stages=STAGES)
        for n in range(given.jobs)
    ]
    found: dict[str, Any] = {"create": await stage.create(jobs)}
    found["connect"] = await stage.connect("team-0")
    await asyncio.sleep(given.settle_s)
    found["steady"] = await stage.steady(given.steady_s)
    if given.profile is None:
        found["restart"] = await stage.restart()
    return found


async def large_job(stage: Stage, given: argparse.Namespace) -> dict[str, Any]:
    """Part directive."""
    pipelines = given.agents // LARGE_STAGES
    job = manifest("team-0", "large", pipelines=pipelines, stages=LARGE_STAGES)
    await stage.create([job])
    await stage.connect("team-0")
    await asyncio.sleep(2 * given.step_s)
    found = []
    for loss in range(given.losses):
        times = await stage.lose("team-0/large", (3 + 17 * loss) * LARGE_STAGES // 2)
        directive_s = times["directive_s"]
        seconds = {
            "stop_s": times["stop_s"][0],
            "plan_s": times["plan_s"][0],
            "p50_s": quantile(directive_s, 0.5),
            "p99_s": quantile(directive_s, 0.99),
        }
        rounded = {name: round(x, 3) for name, x in seconds.items()}
        found.append(rounded | {"agents": len(directive_s)})
        stage.say(f"directive: {found[-1]}")
        await asyncio.sleep(2 * given.step_s)
    return results_file.columns(found)


def _parse() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=arguments.at_least(0), default=1250)
    parser.add_argument("--pods-per-job", type=arguments.at_least(STAGES), default=8)
    parser.add_argument("--connected", type=arguments.at_least(STAGES), default=400)
    parser.add_argument("--agents", type=arguments.at_least(0), default=512)
    parser.add_argument("--losses", type=arguments.at_least(1), default=3)
    parser.add_argument("--processes", type=arguments.at_least(1), default=2)
    parser.add_argument("--steady-s", type=arguments.amount, default=60.0)
    parser.add_argument("--settle-s", type=arguments.amount, default=30.0)
    parser.add_argument("--step-s", type=arguments.amount, default=STEP_S)
    parser.add_argument("--profile", type=Path, help="cProfile's file of the operator")
    parser.add_argument("--keep-log", help="where the operator's log goes")
    parser.add_argument("--no-record", action="store_true", help="write no result")
    return parser.parse_args()


def figures(samples: dict[str, Any]) -> dict[str, Any]:
    """The figures that the docs quote."""
    found: dict[str, Any] = {}
    if "create" in samples:
        create, steady = samples["create"], samples["steady"]
        found |= {
            "create_jobs": create["jobs"],
            "create_pods": create["pods"],
            "create_s": create["pods_made_s"],
            "create_first_pods": create["first_pods"],
            "create_first_pods_s": create["first_pods_made_s"],
            "create_cpu_s": create["cpu_s"],
            "steady_pods": steady["pods"],
            "steady_agents": steady["agents"],
            "steady_cpu_share": steady["cpu_share"],
            "steady_peak_rss_bytes": steady["peak_rss_bytes"],
            "steady_heartbeat_s": steady["heartbeat_s"],
            "steady_sessions_lost": steady["sessions_lost"],
        }
    if "restart" in samples:  # not with --profile
        restart = samples["restart"]
        touched = restart["pods_changed"] + restart["pods_created"]
        found |= {
            "restart_pods": restart["pods_before"],
            "restart_ready_s": restart["ready_s"],
            "restart_first_session_s": restart["first_session_s"],
            "restart_all_sessions_s": restart["all_sessions_s"],
            "restart_pods_touched": touched,
        }
    if "directive" in samples:
        directive = samples["directive"]
        found |= {
            "directive_agents": min(directive["agents"]),
            "directive_p50_s": statistics.median(directive["p50_s"]),
            "directive_p99_s": statistics.median(directive["p99_s"]),
            "delivery_p50_s": _delivery_s(directive, "p50_s"),
            "delivery_p99_s": _delivery_s(directive, "p99_s"),
        }
    return found


def _delivery_s(directive: dict[str, Any], quantile: str) -> float:
    """From the plan; the median of all losses."""
    whole: list[float] = directive[quantile]
    pairs = zip(whole, directive["plan_s"], strict=True)
    delivery = [whole_s - plan_s for whole_s, plan_s in pairs]
    return float(round(statistics.median(delivery), 3))


def main() -> None:
    """Measure, write the file, print the figures."""
    given = _parse()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    samples: dict[str, Any] = {}
    if given.jobs:
        pods = given.jobs * (given.pods_per_job // STAGES) * STAGES
        most = min(pods, given.connected // given.pods_per_job * given.pods_per_job)
        fleet = staged(pods, most, given, lambda stage: fleet_of_jobs(stage, given))
        samples = asyncio.run(fleet)
    if given.agents:
        large = staged(given.agents, given.agents, given, lambda stage: large_job(stage, given))
        samples["directive"] = asyncio.run(large)
    found = figures(samples)
    print(*(f"{name}: {value}" for name, value in found.items()), sep="\n")
    if not given.no_record:
        note = (
            "Scheduler, kubelets and agents are played, on the same machine; etcd does not wait"
            " for its disk. At most 64 agents of a process connect at once."
        )
        path = results_file.write("operator_scale", samples=samples, figures=found, note=note)
        print(f"-> {path}")


if __name__ == "__main__":
    main()
