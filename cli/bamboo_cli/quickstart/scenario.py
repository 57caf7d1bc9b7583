"""Trains a job on a real control plane on this machine, start to finish.

Control plane, chart and job are the same as on any cluster. Only the nodes differ: they run pods as
local processes (see bamboo_devcluster).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from bamboo_cli.errors import CommandError
from bamboo_cli.estimate.manifest import read_spec
from bamboo_cli.job.snapshot import Snapshot
from bamboo_cli.job.state import Job
from bamboo_cli.quickstart import local_cluster
from bamboo_cli.quickstart.closing_report import final_report, verdict
from bamboo_cli.quickstart.final_state import (
    Comparison,
    differing_layers,
    digest,
    final_hashes,
)
from bamboo_cli.quickstart.injection import Injector
from bamboo_cli.quickstart.job_file import (
    EXAMPLE,
    Manifest,
    check_room,
    faults_for,
    over_channel,
    over_grid,
    read_manifest,
)
from bamboo_cli.quickstart.local_cluster import provision
from bamboo_cli.quickstart.session import Session
from bamboo_cli.quickstart.stopwatch import Stopwatch
from bamboo_cli.quickstart.verdict import is_success
from bamboo_cli.run.faults import FaultLog
from bamboo_cli.run.from_watching import Frame, frame, from_frames, loss_curve
from bamboo_cli.run.model import Run
from bamboo_cli.views.output_file import check_file, write_file
from bamboo_cli.views.page import page
from bamboo_cli.views.svg.picture import picture


@dataclass(frozen=True)
class Options:
    """Options of the command."""

    file: Path = EXAMPLE
    losses: bool = True  # inject faults while the job trains
    timeout_s: float = 600.0
    picture: Path | None = None  # where to write the SVG
    report: Path | None = None  # where to write the page; None: in the user's state folder
    channel: str | None = None  # in the place of the file's spec.transport.channel
    grid: str | None = None  # in the place of the file's spec.pipelines
    cluster: local_cluster.ClusterOptions = field(default_factory=local_cluster.ClusterOptions)


def run_quickstart(options: Options, console: Console) -> int:
    """Returns the exit code: 0 if the job completed, all faults were injected, and the bits equal
    the undisturbed run's."""
    stopwatch = Stopwatch()
    manifest = over_channel(read_manifest(options.file), options.channel)
    manifest = over_grid(manifest, options.grid)
    spec = read_spec(manifest, options.file)
    check_room(spec, options.cluster)
    check_file("--picture", options.picture, "run.svg")
    check_file("--report", options.report, "report.html")
    faults = faults_for(spec) if options.losses else ()
    frames: list[Frame] = []
    with provision(options.cluster, console, stopwatch) as local:
        session = Session(local, console, options.timeout_s)
        injector = Injector(local.cluster, faults, time.time)

        def act(snapshot: Snapshot) -> None:
            frames.append(frame(snapshot, time.time()))
            injector.watch(snapshot)

        job = session.run(manifest, stopwatch, act)
        comparison: Comparison | None = None
        if injector.hits and job.ended == "Complete":
            comparison = compare(session, manifest, job, stopwatch)
        is_kept = job.ended == "Complete" and spec.checkpoint is not None
        final = digest(final_hashes(job)) if is_kept else ""
        log = FaultLog(injector.hits, session.events(job), injector.left)
        local.keep, local.job = options.cluster.keep, (job.namespace, job.name)
    undisturbed = comparison.undisturbed_loss if comparison else ()
    run = from_frames(frames, log, spec.training.global_batch_size, undisturbed)
    equality = verdict(comparison).plain if comparison else ""
    console.print(final_report(run, stopwatch, log, comparison))
    if options.picture is not None:
        write_file(options.picture, picture(run, equality))
    if local.keep:
        local_cluster.print_next_steps(local, console)
    write_page(report_path(options.report), run, equality, console)
    if final:
        console.print(
            f"The final state is {final}: the same on every grid, whatever is lost.",
            highlight=False,
            soft_wrap=True,
        )
    return 0 if is_success(job, log, comparison) else 1


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


def write_page(path: Path, run: Run, equality: str, console: Console) -> None:
    """Write the report of the run, and say where it is."""
    write_file(path, page(run, None, [equality] if equality else []))
    console.print(f"The report is {path.resolve()}", markup=False, highlight=False, soft_wrap=True)


def compare(session: Session, manifest: Manifest, job: Job, stopwatch: Stopwatch) -> Comparison:
    """Run the same job without faults, and compare the final states."""
    frames: list[Frame] = []
    name = f"{manifest['metadata']['name']}-undisturbed"
    with stopwatch.phase("train undisturbed, to compare"):
        undisturbed = session.run(
            manifest,
            Stopwatch(now=stopwatch.now),
            lambda snapshot: frames.append(frame(snapshot, time.time())),
            name=name,
        )
    if undisturbed.ended != "Complete":
        raise CommandError(f"the undisturbed run {name} ended as {undisturbed.ended}.")
    ours, theirs = final_hashes(job), final_hashes(undisturbed)
    return Comparison(
        layers=len(ours),
        differing=tuple(differing_layers(ours, theirs)),
        undisturbed_loss=loss_curve(frames),
    )
