"""A cluster on this machine with Bamboo installed, for the duration of a with block.

However the block ends, the cluster and all its files are removed. With ``keep`` they stay, unless
Ctrl-C or SIGTERM ends the block.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

import bamboo_cli
from bamboo_cli.errors import CommandError
from bamboo_cli.quickstart.programs import Programs
from bamboo_cli.quickstart.stopwatch import Stopwatch
from bamboo_core.model.counts import counted
from bamboo_devcluster.cluster import Cluster, Options
from bamboo_devcluster.programs import binaries
from bamboo_devcluster.spec import NodeSpec, spread_nodes

SYSTEM_NAMESPACE = "bamboo-system"
CHECKOUT = Path(bamboo_cli.__file__).resolve().parents[2]


@dataclass(frozen=True)
class ClusterOptions:
    """Options of the command."""

    keep: bool = False
    nodes: int = 12  # with a GPU each, spread over the zones
    zones: int = 3


@dataclass
class LocalCluster:
    """A cluster with the operator installed."""

    cluster: Cluster
    programs: Programs
    checkpoints: Path
    keep: bool = False  # do not remove it at the end of the block
    job: tuple[str, str] | None = None  # namespace and name of the job applied last


@contextmanager
def provision(
    options: ClusterOptions, console: Console, stopwatch: Stopwatch
) -> Iterator[LocalCluster]:
    """Start the cluster, install the operator, remove everything at the end."""
    chart = CHECKOUT / "charts/bamboo"
    if not chart.is_dir():
        raise CommandError(f"{chart} does not exist; run this command from a checkout.")
    home = _home(options)
    cluster: Cluster | None = None
    found: LocalCluster | None = None
    with _termination_as_interrupt():
        try:
            with stopwatch.phase("start the cluster"):
                cluster = start_cluster(options, home / "cluster", console)
            found = LocalCluster(cluster, make_programs(cluster, home), home / "checkpoints")
            with stopwatch.phase("install the operator"):
                console.print("installing the operator with helm")
                install(found.programs, chart)
            yield found
        except Exception:
            if found is not None and options.keep:
                found.keep = True  # so that the failure can be examined
                print_next_steps(found, console)
            raise
        finally:
            if found is None or not found.keep:
                with stopwatch.phase("clean up"), _signals_ignored():
                    _remove(home, cluster, console, is_ours=not options.keep)


def _home(options: ClusterOptions) -> Path:
    """The folder for all files of the run; fixed for a kept cluster."""
    if not options.keep:
        try:
            return Path(tempfile.mkdtemp(prefix="bamboo-quickstart-"))
        except OSError as error:
            raise CommandError(
                f"cannot create a temporary folder ({error.strerror or error}); free some space, or"
                " set TMPDIR to another folder."
            ) from error
    return state_folder() / "quickstart"


def state_folder() -> Path:
    """The folder for what stays after a run."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local/state")
    return Path(base) / "bamboo"


def _remove(home: Path, cluster: Cluster | None, console: Console, *, is_ours: bool) -> None:
    """is_ours: the folder was created for this run; else another cluster may use it."""
    if cluster is not None:
        console.print("stopping the cluster")
        cluster.down()
    if cluster is not None or is_ours:
        shutil.rmtree(home, ignore_errors=True)


def print_next_steps(local: LocalCluster, console: Console) -> None:
    """Print the commands for using and removing a kept cluster."""
    console.print("\n".join(_steps(local)), markup=False, highlight=False, soft_wrap=True)


def _steps(local: LocalCluster) -> Iterator[str]:
    folders = (local.programs.kubectl_path.parent, Path(sys.executable).parent)
    yield "The cluster stays up. To use it:"
    yield f"  export KUBECONFIG={shlex.quote(str(local.cluster.kubeconfig))}"
    yield f"  export PATH={shlex.quote(':'.join(map(str, folders)))}:$PATH"
    yield "  kubectl get nodes -L topology.kubernetes.io/zone"
    if local.job is None:
        yield "  kubectl get pods --all-namespaces"
    else:
        job = f"{local.job[1]} --namespace {local.job[0]}"
        yield "  kubectl get bj --all-namespaces"
        yield f"  kubectl describe bj {job}"
        yield f"  bamboo status {job}"
    yield "To remove it:"
    yield f"  bamboo-devcluster down --dir {shlex.quote(str(local.cluster.directory))}"
    yield f"  rm -r {shlex.quote(str(local.checkpoints.parent))}  # its checkpoints"


def image_map() -> Mapping[str, Any]:
    """The commands that process nodes run for the two images, with this Python."""
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
    """``count`` spot nodes with one GPU each, spread over zones, and one node for the operator."""
    names = [f"zone-{chr(ord('a') + zone)}" for zone in range(zones)]
    system = NodeSpec(name="system", zone=names[0], spot=False, gpus=0)
    return [system, *spread_nodes(count, names)]


def start_cluster(options: ClusterOptions, directory: Path, console: Console) -> Cluster:
    console.print(
        f"starting a Kubernetes control plane: {counted(options.nodes, 'GPU node')} in"
        f" {counted(options.zones, 'zone')}, and a node for the operator"
    )
    return Cluster.up(
        directory,
        nodes=gpu_nodes(options.nodes, options.zones),
        images=image_map(),
        options=Options(outlives_caller=options.keep),
        report=lambda text: console.print(f"  {text}", markup=False, highlight=False),
    )


def make_programs(cluster: Cluster, home: Path) -> Programs:
    paths = binaries.ensure(lambda text: None)
    return Programs(paths["kubectl"], paths["helm"], cluster.kubeconfig, home / "helm")


def install(programs: Programs, chart: Path, files: Sequence[Path] = ()) -> None:
    """Install the chart.

    files: further values; those of the development cluster come first.
    """
    values = [chart / "devcluster-values.yaml", *files]
    programs.helm(
        "install", "bamboo", str(chart),
        "--namespace", SYSTEM_NAMESPACE, "--create-namespace", "--wait", "--timeout", "90s",
        *(f"--values={file}" for file in values),
    )  # fmt: skip


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, like Ctrl-C."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """A second Ctrl-C must not interrupt the clean-up."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
