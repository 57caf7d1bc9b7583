"""`bamboo quickstart`: a job trained on a real control plane on this machine, start to finish.

The cluster, the chart and the job are those that a user has elsewhere; only the nodes run their
pods as processes here (see bamboo_devcluster).
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from bamboo_cli import local_cluster
from bamboo_cli.chaos import Chaos, ScheduledFault, schedule
from bamboo_cli.display import make_display
from bamboo_cli.errors import CommandError
from bamboo_cli.job import Job
from bamboo_cli.kube import GROUP, VERSION, Kube
from bamboo_cli.local_cluster import LocalCluster, provision
from bamboo_cli.report import Comparison, RunRecord, final_report, is_success
from bamboo_cli.screen import Snapshot
from bamboo_cli.timeline import Timeline
from bamboo_cli.watch import follow
from bamboo_cli.weights import differing_layers, final_hashes
from bamboo_core.api.spec import Adjacency, JobSpec, from_manifest

_EXAMPLE = local_cluster.CHECKOUT / "examples/quickstart.yaml"
_PHASES = {
    "Pending": "place agents",
    "Starting": "start agents",
    "Running": "train",
    "Recovering": "recover",
}
Manifest = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """What the user asked for. losses: whether nodes are broken while the job trains."""

    file: Path = _EXAMPLE
    losses: bool = True
    timeout_s: float = 600.0
    local: local_cluster.ClusterOptions = field(default_factory=local_cluster.ClusterOptions)


def run_quickstart(options: Options, console: Console) -> int:
    """Run it; the exit code: 0 if the job completed, every fault fell and the bits are right."""
    timeline = Timeline()
    manifest = read_manifest(options.file)
    spec = read_spec(manifest, options.file)
    check_room(spec, options.local)
    faults = strikes_for(spec) if options.losses else ()
    with provision(options.local, console, timeline) as local:
        session = Session(local, console, options.timeout_s)
        chaos = Chaos(local.cluster, faults, time.time)
        job = session.run(manifest, timeline, chaos.watch)
        comparison = None
        if chaos.hits and job.ended == "Complete":
            comparison = compare(session, manifest, job, timeline)
        record = RunRecord(chaos.hits, session.events(job), chaos.left)
        local.keep, local.job = options.local.keep, (job.namespace, job.name)
    console.print(final_report(job, timeline, record, comparison))
    if local.keep:
        local_cluster.tell_how_to_go_on(local, console)
    return 0 if is_success(job, record, comparison) else 1


def strikes_for(spec: JobSpec) -> tuple[ScheduledFault, ...]:
    """What will be broken. CommandError if the job could not show that this changes nothing."""
    count, stages = spec.pipelines.count, spec.pipelines.stages
    faults = schedule(pipelines=count, stages=stages)
    if not faults:
        raise CommandError(
            f"spec.pipelines {count} x {stages} bears no loss; choose 2 stages or more, or give"
            " --no-losses."
        )
    if spec.checkpoint is None:
        raise CommandError(
            "spec.checkpoint is missing, and without the last checkpoint the final bits cannot be"
            " compared; set it, or give --no-losses."
        )
    return faults


def read_manifest(path: Path) -> Manifest:
    """The BambooJob in a file, as JSON. CommandError if there is none."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        found = json.loads(json.dumps(found, default=str))
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise CommandError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict) or found.get("kind") != "BambooJob":
        raise CommandError(f"{path} holds no BambooJob; give a file with exactly one.")
    if found.get("apiVersion") != f"{GROUP}/{VERSION}":
        told = f"apiVersion is {found.get('apiVersion')!r}; it must be {GROUP}/{VERSION}."
        raise CommandError(f"{path}: {told}")
    metadata = found.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not (name and isinstance(name, str)):
        raise CommandError(f"{path}: metadata.name is required; set it.")
    return found


def read_spec(manifest: Manifest, path: Path) -> JobSpec:
    """What the operator will read. CommandError with everything that it would complain of."""
    found = from_manifest(manifest)
    if isinstance(found, list):
        raise CommandError(f"{path}: {'; '.join(str(problem) for problem in found)}.")
    return found


def check_room(spec: JobSpec, local: local_cluster.ClusterOptions) -> None:
    """CommandError if the job could never start on the nodes: each has one GPU."""
    stages = spec.pipelines.stages
    least = spec.pipelines.min * stages
    if "nvidia.com/gpu" in spec.worker.asks and local.nodes < least:
        raise CommandError(
            f"--nodes {local.nodes} is too few: the job needs at least {least} agents, each on a"
            f" node of its own; give --nodes {least} or more."
        )
    is_spread = spec.placement.adjacency is Adjacency.ALTERNATE
    if is_spread and stages > 1 and min(local.zones, local.nodes) < 2:
        raise CommandError(
            "--zones 1 is too few: neighbours in a pipeline never share a zone; give --zones 2 or"
            " more, or set spec.placement.adjacency to Cluster."
        )


def placed(manifest: Manifest, checkpoints: Path, name: str | None = None) -> Manifest:
    """The job with its checkpoints in a folder, and under another name if one is given."""
    found = copy.deepcopy(manifest)
    found["metadata"]["name"] = name or manifest["metadata"]["name"]
    if found["spec"].get("checkpoint") is None:
        found["spec"].pop("checkpoint", None)  # null: the API server would complain of it
    else:
        found["spec"]["checkpoint"]["uri"] = f"file://{checkpoints}"
    return found


class Session:
    """Runs jobs on the local cluster and shows them."""

    def __init__(self, local: LocalCluster, console: Console, timeout_s: float) -> None:
        self._local, self._console, self._timeout_s = local, console, timeout_s
        self._kube = Kube(local.programs.kubeconfig)

    def run(
        self,
        manifest: Manifest,
        timeline: Timeline,
        act: Callable[[Snapshot], None],
        *,
        name: str | None = None,
    ) -> Job:
        """Apply the job and show it until it has ended; ``act`` sees every snapshot."""
        manifest = placed(manifest, self._local.checkpoints, name)
        name = manifest["metadata"]["name"]
        self._console.print(f"applying BambooJob {name}")
        programs = self._local.programs
        programs.kubectl("apply", "--filename", "-", stdin=yaml.safe_dump(manifest))
        namespace = manifest["metadata"].get("namespace", self._kube.namespace)
        self._local.job = (namespace, name)
        snapshots = follow(self._kube, namespace, name, timeout_s=self._timeout_s)
        with make_display(self._console) as display:
            for snapshot in timed(snapshots, timeline):
                timeline.see(snapshot.job)
                display.show(snapshot)
                act(snapshot)
        return snapshot.job

    def events(self, job: Job) -> list[Mapping[str, Any]]:
        """What the operator has told of the job."""
        return self._kube.events(job.namespace, job.uid)


def compare(session: Session, manifest: Manifest, job: Job, timeline: Timeline) -> Comparison:
    """Run the same job undisturbed; the layers whose final bits differ."""
    alone = Timeline(now=timeline.now)
    name = f"{manifest['metadata']['name']}-undisturbed"
    with timeline.phase("the same undisturbed, to compare"):
        undisturbed = session.run(manifest, alone, lambda snapshot: None, name=name)
    if undisturbed.ended != "Complete":
        raise CommandError(f"the undisturbed run {name} has ended as {undisturbed.ended}.")
    ours, theirs = final_hashes(job), final_hashes(undisturbed)
    return Comparison(layers=len(ours), differing=tuple(differing_layers(ours, theirs)))


def timed(snapshots: Iterator[Snapshot], timeline: Timeline) -> Iterator[Snapshot]:
    """The snapshots; the time between two of them counts towards the phase of the first."""
    before = timeline.elapsed_s
    phase = "Pending"
    for snapshot in snapshots:
        now = timeline.elapsed_s
        timeline.add(_PHASES.get(phase, phase.lower()), now - before)
        before, phase = now, snapshot.job.phase
        yield snapshot
