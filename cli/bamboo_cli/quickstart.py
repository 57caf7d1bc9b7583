"""`bamboo quickstart`: a job trained on a real control plane on this machine, start to finish.

The cluster, the chart and the job are those that a user has elsewhere; only the nodes run their
pods as processes here (see bamboo_devcluster). Whatever happens, the cluster is gone afterwards,
unless it is to be kept.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from bamboo_cli.display import make_display
from bamboo_cli.errors import CommandError
from bamboo_cli.job import Job
from bamboo_cli.kube import Kube
from bamboo_cli.programs import Programs
from bamboo_cli.report import final_report
from bamboo_cli.screen import Snapshot
from bamboo_cli.timeline import Timeline
from bamboo_cli.watch import follow
from bamboo_devcluster import binaries
from bamboo_devcluster.cluster import Cluster, Options
from bamboo_devcluster.spec import NodeSpec, spread_nodes

NAMESPACE = "default"
SYSTEM_NAMESPACE = "bamboo-system"
CHECKOUT = Path(__file__).resolve().parents[2]
_PHASES = {
    "Pending": "place agents",
    "Starting": "start agents",
    "Running": "train",
    "Recovering": "recover",
}


@dataclass(frozen=True)
class Wishes:
    """What the user asked for. ``file`` None: the example of the README."""

    keep: bool = False
    file: Path | None = None
    nodes: int = 12
    zones: int = 3
    timeout_s: float = 600.0


def run_quickstart(wishes: Wishes, console: Console) -> int:
    """Run it; the exit code: 0 if the job completed."""
    timeline = Timeline()
    home = _home(wishes)
    manifest = read_manifest(wishes.file or CHECKOUT / "examples/quickstart.yaml")
    kept = False
    try:
        with timeline.phase("start the cluster"):
            cluster = start_cluster(wishes, home / "cluster", console)
        try:
            programs = make_programs(cluster, home / "helm")
            with timeline.phase("install the operator"):
                console.print("installing the operator with helm")
                install(programs)
            job = train(programs, manifest, wishes=wishes, timeline=timeline, console=console)
            kept = wishes.keep
        finally:
            if not kept:
                with timeline.phase("clean up"):
                    console.print("stopping the cluster")
                    cluster.down()
    finally:
        if not kept:
            shutil.rmtree(home, ignore_errors=True)
    console.print(final_report(job, timeline))
    if kept:
        console.print(how_to_go_on(cluster), markup=False, highlight=False, soft_wrap=True)
    return 0 if job.ended == "Complete" else 1


def _home(wishes: Wishes) -> Path:
    """The folder of everything that the run writes; a kept cluster has a fixed one."""
    if not wishes.keep:
        return Path(tempfile.mkdtemp(prefix="bamboo-quickstart-"))
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local/state")
    return Path(base) / "bamboo" / "quickstart"


def read_manifest(path: Path) -> dict[str, Any]:
    """The BambooJob in a file. CommandError if there is none."""
    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise CommandError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict) or found.get("kind") != "BambooJob":
        raise CommandError(f"{path} holds no BambooJob; give a file with exactly one.")
    return found


def image_map() -> Mapping[str, Any]:
    """What the two images mean on process nodes: their entry points, run by this Python."""
    run = [sys.executable, "-P", "-m"]
    return {
        "images": [
            {"image": "*bamboo-operator*", "command": [*run, "bamboo_operator"]},
            {
                "image": "*bamboo-agent*",
                "command": [*run, "bamboo_agent"],
                "env": {"OMP_NUM_THREADS": "1"},
            },
        ]
    }


def gpu_nodes(count: int, zones: int) -> list[NodeSpec]:
    """``count`` spot nodes with a GPU each, spread over zones, and one node for the operator."""
    names = [f"zone-{chr(ord('a') + zone)}" for zone in range(zones)]
    system = NodeSpec(name="system", zone=names[0], spot=False, gpus=0)
    return [system, *spread_nodes(count, names)]


def start_cluster(wishes: Wishes, directory: Path, console: Console) -> Cluster:
    """The cluster, ready to take pods."""
    console.print(f"starting a Kubernetes control plane and {wishes.nodes} nodes")
    return Cluster.up(
        directory,
        nodes=gpu_nodes(wishes.nodes, wishes.zones),
        images=image_map(),
        options=Options(outlives_caller=wishes.keep),
        say=lambda text: console.print(f"  {text}", markup=False, highlight=False),
    )


def make_programs(cluster: Cluster, home: Path) -> Programs:
    """kubectl and helm for the cluster."""
    paths = binaries.ensure(lambda text: None)
    return Programs(paths["kubectl"], paths["helm"], cluster.kubeconfig, home)


def install(programs: Programs) -> None:
    """The chart, as on any cluster; process nodes have no Services, so agents dial the pod."""
    programs.helm(
        "install", "bamboo", str(CHECKOUT / "charts/bamboo"),
        "--namespace", SYSTEM_NAMESPACE, "--create-namespace", "--wait", "--timeout", "90s",
        "--values", str(CHECKOUT / "charts/bamboo/devcluster-values.yaml"),
    )  # fmt: skip


def train(
    programs: Programs,
    manifest: Mapping[str, Any],
    *,
    wishes: Wishes,
    timeline: Timeline,
    console: Console,
) -> Job:
    """Apply the job and show it until it has ended."""
    name = manifest["metadata"]["name"]
    programs.kubectl("apply", "--filename", "-", stdin=yaml.safe_dump(dict(manifest)))
    kube = Kube(programs.kubeconfig)
    snapshots = follow(kube, NAMESPACE, name, timeout_s=wishes.timeout_s)
    with make_display(console) as display:
        for snapshot in timed(snapshots, timeline):
            timeline.see(snapshot.job)
            display.show(snapshot)
    return snapshot.job


def timed(snapshots: Iterator[Snapshot], timeline: Timeline) -> Iterator[Snapshot]:
    """The snapshots; the time between two of them counts towards the phase of the first."""
    before = timeline.elapsed_s
    phase = "Pending"
    for snapshot in snapshots:
        now = timeline.elapsed_s
        timeline.add(_PHASES.get(phase, phase.lower()), now - before)
        before, phase = now, snapshot.job.phase
        yield snapshot


def how_to_go_on(cluster: Cluster) -> str:
    """What a user of a kept cluster types next."""
    tools = binaries.cache_directory()
    return "\n".join(
        [
            "The cluster stays up. To use it:",
            f"  export KUBECONFIG={cluster.kubeconfig}",
            f"  export PATH={tools}:{Path(sys.executable).parent}:$PATH",
            "  kubectl get nodes -L topology.kubernetes.io/zone",
            "  kubectl get bj",
            "  kubectl describe bj quickstart",
            "  bamboo status quickstart",
            "To end it:",
            f"  bamboo-devcluster down --dir {cluster.directory}",
        ]
    )
