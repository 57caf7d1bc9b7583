"""Runs jobs on the local cluster, and shows and times them until they end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml
from rich.console import Console

from bamboo_cli.cluster.kube import Kube
from bamboo_cli.cluster.watch import follow
from bamboo_cli.job.snapshot import Snapshot
from bamboo_cli.job.state import Job
from bamboo_cli.quickstart.job_file import Manifest, placed
from bamboo_cli.quickstart.local_cluster import LocalCluster
from bamboo_cli.quickstart.stopwatch import Stopwatch
from bamboo_cli.views.terminal.live_display import make_display

_PHASES = {
    "Pending": "place agents",
    "Starting": "start agents",
    "Running": "train",
    "Recovering": "recover",
}


class Session:
    """Runs jobs on the local cluster and shows their progress."""

    def __init__(self, local: LocalCluster, console: Console, timeout_s: float) -> None:
        self._local, self._console, self._timeout_s = local, console, timeout_s
        self._kube = Kube(local.programs.kubeconfig)

    def run(
        self,
        manifest: Manifest,
        stopwatch: Stopwatch,
        act: Callable[[Snapshot], None],
        *,
        name: str | None = None,
    ) -> Job:
        """Apply the job and show it until it ends; ``act`` gets every snapshot."""
        manifest = placed(manifest, self._local.checkpoints, name)
        name = manifest["metadata"]["name"]
        self._console.print(f"applying BambooJob {name}")
        programs = self._local.programs
        programs.kubectl("apply", "--filename", "-", stdin=yaml.safe_dump(manifest))
        namespace = manifest["metadata"].get("namespace", self._kube.namespace)
        self._local.job = (namespace, name)
        snapshots = follow(self._kube, namespace, name, timeout_s=self._timeout_s)
        with make_display(self._console) as display:
            for snapshot in timed(snapshots, stopwatch):
                display.show(snapshot)
                act(snapshot)
        return snapshot.job

    def events(self, job: Job) -> list[Mapping[str, Any]]:
        return self._kube.events(job.namespace, job.uid)


def timed(snapshots: Iterator[Snapshot], stopwatch: Stopwatch) -> Iterator[Snapshot]:
    """Pass the snapshots on; the time between two counts towards the phase of the first."""
    before = stopwatch.elapsed_s
    phase = "Pending"
    for snapshot in snapshots:
        now = stopwatch.elapsed_s
        stopwatch.add(_PHASES.get(phase, phase.lower()), now - before)
        before, phase = now, snapshot.job.phase
        yield snapshot
