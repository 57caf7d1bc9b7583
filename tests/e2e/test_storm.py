"""A storm on a cluster with GKE's values: notices, a zone that others fill, a tainted pool.

The job waits for room and says why; a real Prometheus sees it, an alert fires and ends, and its
runbook's commands name the causes. Another tenant attacks it. No bit of the result differs.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.layout.commands import commands

from bamboo_cli.job.pods import Seat, seats
from bamboo_cli.job.state import Job
from bamboo_cli.quickstart.final_state import final_hashes
from bamboo_core.controller.view import Slot
from bamboo_devcluster.spec import NodeSpec, Taint
from bamboo_sim.watching.prometheus import queries, rehearsal, scraped
from bamboo_sim.watching.prometheus.server import Server

from .attacker import Attacker
from .conftest import CHECKOUT, SPOT, RecordedCluster
from .jobs import STEPS, Gate, Object, User, eventually, merge, tiny_job
from .operators import Operator

pytestmark = pytest.mark.timeout(300)

ZONES = ("europe-west4-a", "europe-west4-b")
POOL = "cloud.google.com/gke-nodepool"
GPU = Taint("nvidia.com/gpu", "NoSchedule", "present")  # GKE taints all nodes with GPUs
RESEARCH = Taint("team", "NoSchedule", "research")
ALERT = "BambooJobWaitsForCapacity"
ALL_BUT_ONE = (Slot(0, 1), Slot(1, 0), Slot(1, 1))  # the one that stays keeps the state
PLACEMENT = {"pools": [{"zones": list(ZONES), "nodeSelector": SPOT}]}
ENOUGH_S = 90.0
CASES = 300
"""Made-up messages in the middle of the storm."""


def pool(name: str, zone: str, count: int, *taints: Taint) -> list[NodeSpec]:
    """Spot nodes as GKE makes them."""
    labels = SPOT | {POOL: name}
    return [
        NodeSpec(f"{name}-{n}", zone=zone, labels=labels, taints=(GPU, *taints))
        for n in range(1, count + 1)
    ]


A, B = ZONES
MACHINES = (*pool("spot-a", A, 4), *pool("spot-b", B, 2), *pool("research", B, 2, RESEARCH))
"""Two more zones: one with four nodes, one with two and a pool of another team."""


@pytest.fixture
def machines(local: RecordedCluster) -> Iterator[None]:
    """They are there during the test."""
    for node in MACHINES:
        local.cluster.add_node(node)
    yield
    for name in local.cluster.node_states().keys() & {node.name for node in MACHINES}:
        local.cluster.remove_node(name)


def guest_pod(name: str, zone: str) -> Object:
    """Another team's pod that takes a GPU of a zone."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": {"topology.kubernetes.io/zone": zone},
            "tolerations": [{"key": GPU.key, "operator": "Exists"}],
            "containers": [
                {
                    "name": "main",
                    "image": "guest",
                    "command": ["sleep", "600"],
                    "resources": {"limits": {"nvidia.com/gpu": 1}},
                }
            ],
        },
    }


@dataclass
class Storm:
    """A job of four agents, and what befalls it."""

    local: RecordedCluster
    user: User
    other: User  # of the same cluster
    prometheus: Server
    targets: scraped.Targets
    name: str = "storm"

    def seats(self) -> dict[Slot, Seat]:
        """Slot -> its newest pod that runs, else its newest."""
        return seats(self.name, self.user.pods(self.name), {})

    def await_agents(self) -> Job:
        """Until four agents have nodes and train."""

        def are_there() -> bool:
            self.targets.look()
            return {seat.phase for seat in self.seats().values()} == {"Running"}

        eventually(are_there, timeout_s=ENOUGH_S, explain=lambda: str(self.seats()))
        return self.user.until(
            self.name,
            lambda job: job.has("Running") and job.has("CapacityAvailable"),
            timeout_s=ENOUGH_S,
        )

    def reclaim(self, lead_s: float, *slots: Slot) -> None:
        """The cloud takes the nodes of these seats after a notice."""
        found = self.seats()
        for slot in slots:
            self.local.cluster.notice_node(found[slot].node, lead_s)

    def remove_dead(self) -> None:
        """As a cloud does with the objects of nodes that are gone."""
        for name, state in self.local.cluster.node_states().items():
            if state == "dead":
                self.local.cluster.remove_node(name)

    def firing(self) -> bool:
        """Whether the alert fires for this job."""
        self.targets.look()
        return self.name in rehearsal.firing(self.prometheus).get(ALERT, set())

    def shell(self, line: str, folder: Path) -> str:
        """Return what a command prints for a user whose context names the job's namespace."""
        config = yaml.safe_load(self.local.cluster.kubeconfig.read_text())
        config["contexts"][0]["context"]["namespace"] = self.user.namespace
        (folder / "kubeconfig").write_text(yaml.safe_dump(config))
        programs = [self.user.programs.kubectl_path.parent, Path(sys.executable).parent]
        environment = {
            **os.environ,
            "KUBECONFIG": str(folder / "kubeconfig"),
            "PATH": ":".join(map(str, [*programs, os.environ["PATH"]])),
            "COLUMNS": "400",
        }
        done = subprocess.run(
            ["bash", "-euc", line], env=environment, capture_output=True, text=True, check=False,
            timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def storm(
    local: RecordedCluster,
    user: User,
    machines: None,
    tmp_path: Path,
    spec: dict[str, Any],
    gate: Gate,
) -> Iterator[Storm]:
    """The job trains, and Prometheus watches it."""
    with (
        local.user() as other,
        scraped.watched(local, tmp_path / "prometheus", {ALERT: "2s"}) as watched,
    ):
        found = Storm(local, user, other, *watched)
        other.apply(guest_pod("guest-1", A))
        other.apply(guest_pod("guest-2", A))
        other.kubectl("wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s")
        job = tiny_job(found.name, **gate.slowed(spec))
        more = {"pipelines": {"min": 2}, "checkpoint": {"everySteps": 20}, "placement": PLACEMENT}
        merge(job["spec"], more)
        user.apply(job)
        found.await_agents()
        yield found


def runbook() -> list[str]:
    """The commands on the alert's page."""
    page = f"docs/runbooks/{ALERT}.md"
    return [command.text for command in commands(CHECKOUT) if command.page == page]


def test_a_storm(storm: Storm, tmp_path: Path, gate: Gate, calm: Job) -> None:
    started = time.time()
    storm.reclaim(5.0, *ALL_BUT_ONE)  # no other node takes their agents
    check_shortage(storm, tmp_path)

    storm.remove_dead()
    storm.user.kubectl("taint", "node", "--selector", f"{POOL}=research", "team-")
    storm.other.kubectl("delete", "pod", "--all", "--wait=false")
    assert storm.await_agents().ended is None
    with storm.local.user() as evil:
        check_attack(storm, evil)
    eventually(lambda: not storm.firing(), timeout_s=ENOUGH_S)
    storm.reclaim(10.0, ALL_BUT_ONE[-1])  # now one may
    gate.open()

    job = storm.user.until_ended(storm.name)
    assert (job.ended, job.step, job.attempt) == ("Complete", STEPS, 0), storm.user.news(job)
    assert job.lost >= 3, storm.user.news(job)
    assert final_hashes(job) == final_hashes(calm)
    check_boards(storm, queries.Span(started, time.time(), scraped.SCRAPE_S))


def check_shortage(storm: Storm, folder: Path) -> None:
    """The job waits for room and says why; the alert fires, and the runbook's commands help."""
    pod = rf"{storm.name}-p\d-s\d-i\d( and \d more)?"
    reasons = (
        rf"{pod} in zone {A}: [^;]*insufficient nvidia\.com/gpu \(\d nodes\)",
        rf"{pod} in zone {B}: [^;]*taint team=research:NoSchedule \(2 nodes\)",
    )

    def says_why(text: str) -> bool:
        return all(re.search(reason, text) for reason in reasons)

    waits = storm.user.until(
        storm.name, lambda job: says_why(str(job.condition("CapacityAvailable"))),
        timeout_s=ENOUGH_S,
    )  # fmt: skip
    assert not waits.has("CapacityAvailable")
    eventually(storm.firing, timeout_s=ENOUGH_S, explain=lambda: str(storm.prometheus.alerts()))
    said = {x: storm.shell(x.replace("my-model", storm.name), folder) for x in runbook()}
    (told,) = (text for command, text in said.items() if "bamboo explain" in command)
    explained = " ".join(told.split())  # its lines have 400 columns at most
    assert says_why(explained), explained
    for fact in ("What to do: ", "tolerate the taint"):
        assert fact in explained, explained
    assert any("guest-1" in text for text in said.values()), said


def check_attack(storm: Storm, evil: User) -> None:
    """A tenant copies an agent's pod and attacks every port: the job trains on as if nobody had."""
    operator = Operator(storm.local)

    def facts() -> Object:
        job, pods = storm.user.job(storm.name), storm.user.pods(storm.name)
        return {
            "attempt": job.attempt,
            "lost": job.lost,
            "agents": sorted((p["metadata"]["name"], p["metadata"]["uid"]) for p in pods),
            "restarts": sorted(map(_restarts, (*pods, *operator.pods()))),
        }

    before, step = facts(), storm.user.job(storm.name).step
    attacker = Attacker(evil, storm.user, operator)
    agents = [pod for pod in storm.user.pods(storm.name) if _runs(pod)]
    answer = attacker.depose(agents[0], attacker.forge(agents[0]))
    attacker.forget(agents[0])
    assert answer == f"no operator has made pod {agents[0]['metadata']['name']} for its job"
    assert attacker.strike(agents, random.Random(1), CASES) >= 2 * len(agents) + 2
    storm.user.until(storm.name, lambda job: job.step > step, timeout_s=ENOUGH_S)
    assert facts() == before


def _runs(pod: Object) -> bool:
    return str(pod["status"]["phase"]) == "Running"


def _restarts(pod: Object) -> tuple[str, int]:
    counts = [c["restartCount"] for c in pod["status"].get("containerStatuses") or []]
    return pod["metadata"]["name"], sum(counts)


def check_boards(storm: Storm, span: queries.Span) -> None:
    """Every query has data, the boards show the storm, and no other alert has fired."""
    _, answers = scraped.ask(storm.prometheus, storm.user.namespace, storm.name, span)
    assert [query for query, series in answers.items() if not series] == []
    lost = answers["job: Agents lost, query 1"]
    most = {s.labels["noticed"]: max(v for _, v in s.points) for s in lost}
    assert sum(most.values()) >= 3
    assert most["true"] >= 1
    (missing,) = answers["fleet: Agents missing, query 1"]
    assert {0.0, 3.0} <= {value for _, value in missing.points}
    fired = storm.prometheus.query_range('ALERTS{alertstate="firing"}', *span)
    assert {series.labels["alertname"] for series in fired} == {ALERT}
