"""`bamboo quickstart`: trains a job on a real control plane on this machine, start to finish.

Control plane, chart and job are the same as on any cluster. Only the nodes differ: they run pods as
local processes (see bamboo_devcluster).
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from bamboo_cli import local_cluster
from bamboo_cli.chaos import Chaos, ScheduledFault, schedule
from bamboo_cli.display import make_display
from bamboo_cli.errors import CommandError
from bamboo_cli.history import Frame, frame, history
from bamboo_cli.job import Job
from bamboo_cli.kube import GROUP, VERSION, Kube
from bamboo_cli.local_cluster import LocalCluster, provision
from bamboo_cli.manifest import read_spec
from bamboo_cli.page import page
from bamboo_cli.picture import picture
from bamboo_cli.record import from_frames
from bamboo_cli.report import Comparison, RunRecord, final_report, is_success, verdict
from bamboo_cli.report_file import check_file, write_file
from bamboo_cli.screen import Snapshot
from bamboo_cli.timeline import Timeline
from bamboo_cli.watch import follow
from bamboo_cli.weights import differing_layers, final_hashes
from bamboo_core.api.spec import Adjacency, JobSpec

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
    """Options of the command."""

    file: Path = _EXAMPLE
    losses: bool = True  # inject faults while the job trains
    timeout_s: float = 600.0
    picture: Path | None = None  # where to write the SVG
    report: Path | None = None  # where to write the page; None: in the user's state folder
    channel: str | None = None  # in the place of the file's spec.transport.channel
    cluster: local_cluster.ClusterOptions = field(default_factory=local_cluster.ClusterOptions)


def run_quickstart(options: Options, console: Console) -> int:
    """Returns the exit code: 0 if the job completed, all faults were injected, and the bits equal
    the undisturbed run's."""
    timeline = Timeline()
    manifest = over_channel(read_manifest(options.file), options.channel)
    spec = read_spec(manifest, options.file)
    check_room(spec, options.cluster)
    check_file("--picture", options.picture, "run.svg")
    check_file("--report", options.report, "report.html")
    faults = faults_for(spec) if options.losses else ()
    frames: list[Frame] = []
    with provision(options.cluster, console, timeline) as local:
        session = Session(local, console, options.timeout_s)
        chaos = Chaos(local.cluster, faults, time.time)

        def act(snapshot: Snapshot) -> None:
            frames.append(frame(snapshot, time.time()))
            chaos.watch(snapshot)

        job = session.run(manifest, timeline, act)
        comparison = None
        if chaos.hits and job.ended == "Complete":
            comparison = compare(session, manifest, job, timeline)
        record = RunRecord(chaos.hits, session.events(job), chaos.left)
        local.keep, local.job = options.cluster.keep, (job.namespace, job.name)
    console.print(final_report(job, timeline, record, comparison))
    if options.picture is not None:
        draw(options.picture, frames, record, comparison)
    if local.keep:
        local_cluster.print_next_steps(local, console)
    write_page(report_path(options.report), frames, record, comparison, spec, console)
    return 0 if is_success(job, record, comparison) else 1


def report_path(given: Path | None) -> Path:
    """Where the report goes. CommandError if the default folder cannot be made."""
    if given is not None:
        return given
    folder = local_cluster.state_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(
            f"{folder} cannot be made ({error.strerror or error}); name a file with --report."
        ) from error
    return folder / "quickstart-report.html"


def write_page(
    path: Path,
    frames: Sequence[Frame],
    record: RunRecord,
    comparison: Comparison | None,
    spec: JobSpec,
    console: Console,
) -> None:
    """Write the report of the run, and say where it is."""
    shown = history(frames, record, comparison.undisturbed_loss if comparison else ())
    verdicts = [verdict(comparison).plain] if comparison else []
    run = from_frames(frames, record, shown, spec.training.global_batch_size)
    write_file(path, page(run, None, verdicts))
    console.print(f"The report is {path.resolve()}", markup=False, highlight=False, soft_wrap=True)


def draw(
    path: Path, frames: Sequence[Frame], record: RunRecord, comparison: Comparison | None
) -> None:
    undisturbed = comparison.undisturbed_loss if comparison else ()
    equality = verdict(comparison).plain if comparison else ""
    write_file(path, picture(history(frames, record, undisturbed), equality))


def faults_for(spec: JobSpec) -> tuple[ScheduledFault, ...]:
    """The faults to inject. CommandError if the job cannot show that they change nothing."""
    count, stages = spec.pipelines.count, spec.pipelines.stages
    faults = schedule(pipelines=count, stages=stages)
    if not faults:
        raise CommandError(
            f"spec.pipelines {count} x {stages} tolerates no loss; choose 2 stages or more, or give"
            " --no-losses."
        )
    if spec.checkpoint is None:
        raise CommandError(
            "spec.checkpoint is missing; the last checkpoint is needed to compare the final states."
            " Set it, or give --no-losses."
        )
    return faults


def read_manifest(path: Path) -> Manifest:
    """The BambooJob in a file. CommandError if the file does not contain exactly one."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        found = json.loads(json.dumps(found, default=str))
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise CommandError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict) or found.get("kind") != "BambooJob":
        raise CommandError(f"{path} contains no BambooJob; give a file with exactly one.")
    if found.get("apiVersion") != f"{GROUP}/{VERSION}":
        problem = f"apiVersion is {found.get('apiVersion')!r}; it must be {GROUP}/{VERSION}."
        raise CommandError(f"{path}: {problem}")
    metadata = found.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not (name and isinstance(name, str)):
        raise CommandError(f"{path}: metadata.name is required; set it.")
    return found


def over_channel(manifest: Manifest, channel: str | None) -> Manifest:
    """The job with another channel; None: as it is."""
    spec = manifest.get("spec")
    if channel is None or not isinstance(spec, dict):
        return manifest
    given = spec.get("transport")
    transport = (given if isinstance(given, dict) else {}) | {"channel": channel}
    return manifest | {"spec": spec | {"transport": transport}}


def check_room(spec: JobSpec, local: local_cluster.ClusterOptions) -> None:
    """CommandError if the job cannot start on these nodes, which have one GPU each."""
    stages = spec.pipelines.stages
    least = spec.pipelines.min * stages
    if "nvidia.com/gpu" in spec.worker.asks and local.nodes < least:
        raise CommandError(
            f"--nodes {local.nodes} is too few: the job needs at least {least} agents, one on each"
            f" node; give --nodes {least} or more."
        )
    is_spread = spec.placement.adjacency is Adjacency.ALTERNATE
    if is_spread and stages > 1 and min(local.zones, local.nodes) < 2:
        raise CommandError(
            "--zones 1 is too few: neighbouring stages must be in different zones; give --zones 2"
            " or more, or set spec.placement.adjacency to Cluster."
        )


def placed(manifest: Manifest, checkpoints: Path, name: str | None = None) -> Manifest:
    """The job with its checkpoints in a folder, and renamed if a name is given."""
    found = copy.deepcopy(manifest)
    found["metadata"]["name"] = name or manifest["metadata"]["name"]
    if found["spec"].get("checkpoint") is None:
        found["spec"].pop("checkpoint", None)  # the API server rejects null
    else:
        found["spec"]["checkpoint"]["uri"] = f"file://{checkpoints}"
    return found


class Session:
    """Runs jobs on the local cluster and shows their progress."""

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
            for snapshot in timed(snapshots, timeline):
                timeline.see(snapshot.job)
                display.show(snapshot)
                act(snapshot)
        return snapshot.job

    def events(self, job: Job) -> list[Mapping[str, Any]]:
        return self._kube.events(job.namespace, job.uid)


def compare(session: Session, manifest: Manifest, job: Job, timeline: Timeline) -> Comparison:
    """Run the same job without faults, and compare the final states."""
    alone = Timeline(now=timeline.now)
    name = f"{manifest['metadata']['name']}-undisturbed"
    with timeline.phase("train undisturbed, to compare"):
        undisturbed = session.run(manifest, alone, lambda snapshot: None, name=name)
    if undisturbed.ended != "Complete":
        raise CommandError(f"the undisturbed run {name} ended as {undisturbed.ended}.")
    ours, theirs = final_hashes(job), final_hashes(undisturbed)
    return Comparison(
        layers=len(ours),
        differing=tuple(differing_layers(ours, theirs)),
        undisturbed_loss=[(p.step, p.loss) for p in alone.points if p.loss is not None],
    )


def timed(snapshots: Iterator[Snapshot], timeline: Timeline) -> Iterator[Snapshot]:
    """Pass the snapshots on; the time between two counts towards the phase of the first."""
    before = timeline.elapsed_s
    phase = "Pending"
    for snapshot in snapshots:
        now = timeline.elapsed_s
        timeline.add(_PHASES.get(phase, phase.lower()), now - before)
        before, phase = now, snapshot.job.phase
        yield snapshot
