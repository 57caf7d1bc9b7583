"""How long training pauses when the chart is upgraded: real helm, the development cluster, one job.

    python benchmarks/upgrade_pause.py [--upgrades 5]

The job of examples/quickstart.yaml, without an end. The release is upgraded with other values, so
that the pods of the operator are replaced, first with one replica and then with two. Each upgrade
must make another operator lead the agents, and no pod of an agent may change. The pause is the
longest time between two ends of a step at an agent while the upgrade lasts, less a normal step (the
median).
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console

from bamboo_cli.job.state import Job, read_job
from bamboo_cli.quickstart import job_file, local_cluster
from bamboo_cli.quickstart.local_cluster import SYSTEM_NAMESPACE, LocalCluster
from bamboo_cli.quickstart.stopwatch import Stopwatch
from bamboo_sim.fleet.logs.event_logs import step_ends
from bamboo_sim.programs import arguments, results_file

CHART = local_cluster.CHECKOUT / "charts/bamboo"
NAMESPACE = "default"
STEPS_AFTER = 3  # that end before an upgrade counts as over
WAIT_S = 180.0
POLL_S = 0.2
NOTE = (
    "one, two: replicas of the operator. p50_s, max_s: the longest time between two ends of a step"
    " during an upgrade, less the median; goal: below 1 s. upgrade_s: until helm has returned and"
    " the next operator has made its first plan. All agents, the operator and the control plane"
    " share the cores of this machine"
)


class Bench:
    """The job and its release."""

    def __init__(self, local: LocalCluster, records: Path) -> None:
        self._local, self._records = local, records
        self._name = ""
        self._values = 0

    def upgrade(self, *settings: str) -> None:
        """Returns when the new pods are ready and the old ones gone."""
        self._local.programs.helm(
            "upgrade", "bamboo", str(CHART), "--namespace", SYSTEM_NAMESPACE, "--reuse-values",
            *(f"--set-json={setting}" for setting in settings), "--wait", "--timeout", "100s",
        )  # fmt: skip

    def start(self) -> None:
        """Until the job trains."""
        self.upgrade(f"agents.eventLogDirectory={json.dumps(str(self._records))}")
        manifest: dict[str, Any] = copy.deepcopy(dict(job_file.read_manifest(job_file.EXAMPLE)))
        manifest["spec"]["training"] |= {"steps": 1_000_000, "validateEvery": 1_000_000}
        del manifest["spec"]["checkpoint"]
        self._name = manifest["metadata"]["name"]
        self._local.programs.kubectl(
            "apply", "--namespace", NAMESPACE, "--filename", "-", stdin=json.dumps(manifest)
        )
        until(lambda: self.job().step >= STEPS_AFTER, "the first steps")

    def job(self) -> Job:
        return read_job(self._get("bamboojob", self._name))

    def replicas(self, count: int) -> None:
        """Go on with so many replicas, not measured."""
        self.upgrade(f"replicas={count}")
        ready = time.monotonic()
        until(lambda: self._has_trained_since(ready), "the next steps")

    def measure(self) -> dict[str, float]:
        """One upgrade, which replaces all pods of the operator."""
        epoch, pods = self.job().plan_epoch, self._pods()
        self._values += 1
        began = time.monotonic()
        self.upgrade(f"workers={10 + self._values}")
        until(lambda: self.job().plan_epoch > epoch, "the next operator's first plan")
        over = time.monotonic()
        until(lambda: self._has_trained_since(over), "the steps after the upgrade")
        if self._pods() != pods or self.job().attempt:
            raise RuntimeError("the upgrade has touched the agents")
        steps = [(a, b) for a, b in pairwise(self._ends())]
        step_s = statistics.median(b - a for a, b in steps if b <= began)
        longest_s = max(b - a for a, b in steps if b > began)
        return {
            "pause_s": round(longest_s - step_s, 4),
            "step_s": round(step_s, 4),
            "upgrade_s": round(over - began, 2),
        }

    def _has_trained_since(self, at: float) -> bool:
        return sum(end > at for end in self._ends()) >= STEPS_AFTER

    def _ends(self) -> list[float]:
        folder = self._records / NAMESPACE / self._name / self.job().uid
        return step_ends(folder / f"{min(self._pods())}.jsonl")

    def _pods(self) -> set[str]:
        found = self._get("pods", "--selector", f"bamboo.dev/job={self._name}")
        return {pod["metadata"]["name"] for pod in found["items"]}

    def _get(self, *what: str) -> Any:
        text = self._local.programs.kubectl(
            "get", *what, "--namespace", NAMESPACE, "--output", "json"
        )
        return json.loads(text)


def until(holds: Callable[[], bool], what: str) -> None:
    """RuntimeError after WAIT_S."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {WAIT_S:g} s")
        time.sleep(POLL_S)


def main() -> None:
    """Upgrade, write the file, print the figures."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument(
        "--upgrades", type=arguments.at_least(1), default=5, help="number for each of both"
    )
    options = parser.parse_args()
    samples: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    with local_cluster.provision(local_cluster.ClusterOptions(), Console(), Stopwatch()) as local:
        bench = Bench(local, local.checkpoints.parent / "records")
        bench.start()
        for count, name in ((1, "one"), (2, "two")):
            bench.replicas(count)
            found = [bench.measure() for _ in range(options.upgrades)]
            pauses = [each["pause_s"] for each in found]
            samples[name] = results_file.columns(found)
            figures |= {
                f"{name}_upgrades": len(found),
                f"{name}_p50_s": statistics.median(pauses),
                f"{name}_max_s": max(pauses),
                f"{name}_step_s": statistics.median(each["step_s"] for each in found),
                f"{name}_upgrade_s": statistics.median(each["upgrade_s"] for each in found),
            }
    results_file.write("upgrade_pause", samples=samples, figures=figures, note=NOTE)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
