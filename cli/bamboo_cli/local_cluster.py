"""A cluster on this machine with Bamboo installed, for as long as a with block lasts.

Whatever ends the block, the cluster and everything that it wrote is gone afterwards, unless it is
to be kept; then only Ctrl-C or SIGTERM removes it once it is up.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from bamboo_cli.errors import CommandError
from bamboo_cli.programs import Programs
from bamboo_cli.timeline import Timeline
from bamboo_devcluster import binaries
from bamboo_devcluster.cluster import Cluster, Options
from bamboo_devcluster.spec import NodeSpec, spread_nodes

SYSTEM_NAMESPACE = "bamboo-system"
CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class ClusterOptions:
    """What the user asked for. nodes: with a GPU, spread over the zones."""

    keep: bool = False
    nodes: int = 12
    zones: int = 3


@dataclass
class LocalCluster:
    """The cluster, its programs, a folder for checkpoints.

    keep: whether it stays; job: namespace and name of the one that was applied last.
    """

    cluster: Cluster
    programs: Programs
    checkpoints: Path
    keep: bool = False
    job: tuple[str, str] | None = None


@contextmanager
def provision(
    options: ClusterOptions, console: Console, timeline: Timeline
) -> Iterator[LocalCluster]:
    """Start, install, hand over, remove."""
    chart = CHECKOUT / "charts/bamboo"
    if not chart.is_dir():
        raise CommandError(f"there is no chart in {chart}; run this command from a checkout.")
    home = _home(options)
    cluster: Cluster | None = None
    found: LocalCluster | None = None
    with _termination_as_interrupt():
        try:
            with timeline.phase("start the cluster"):
                cluster = start_cluster(options, home / "cluster", console)
            found = LocalCluster(cluster, make_programs(cluster, home), home / "checkpoints")
            with timeline.phase("install the operator"):
                console.print("installing the operator with helm")
                install(found.programs, chart)
            yield found
        except Exception:
            if found is not None and options.keep:
                found.keep = True  # what went wrong can be looked at
                tell_how_to_go_on(found, console)
            raise
        finally:
            if found is None or not found.keep:
                with timeline.phase("clean up"), _undisturbed():
                    _remove(home, cluster, console, is_ours=not options.keep)


def _home(options: ClusterOptions) -> Path:
    """The folder of everything that the run writes; a kept cluster has a fixed one."""
    if not options.keep:
        try:
            return Path(tempfile.mkdtemp(prefix="bamboo-quickstart-"))
        except OSError as error:
            raise CommandError(
                f"no folder for temporary files can be made ({error.strerror or error}); free some"
                " space, or name another place in TMPDIR."
            ) from error
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local/state")
    return Path(base) / "bamboo" / "quickstart"


def _remove(home: Path, cluster: Cluster | None, console: Console, *, is_ours: bool) -> None:
    """``is_ours``: the folder was made for this run; else another cluster may live in it."""
    if cluster is not None:
        console.print("stopping the cluster")
        cluster.down()
    if cluster is not None or is_ours:
        shutil.rmtree(home, ignore_errors=True)


def tell_how_to_go_on(local: LocalCluster, console: Console) -> None:
    """What a user of a kept cluster types next."""
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
    yield "To end it:"
    yield f"  bamboo-devcluster down --dir {shlex.quote(str(local.cluster.directory))}"
    yield f"  rm -r {shlex.quote(str(local.checkpoints.parent))}  # its checkpoints"


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


def start_cluster(options: ClusterOptions, directory: Path, console: Console) -> Cluster:
    """The cluster, ready to take pods."""
    console.print(
        f"starting a Kubernetes control plane: {options.nodes} GPU nodes in {options.zones} zones,"
        " and a node for the operator"
    )
    return Cluster.up(
        directory,
        nodes=gpu_nodes(options.nodes, options.zones),
        images=image_map(),
        options=Options(outlives_caller=options.keep),
        say=lambda text: console.print(f"  {text}", markup=False, highlight=False),
    )


def make_programs(cluster: Cluster, home: Path) -> Programs:
    """kubectl and helm for the cluster."""
    paths = binaries.ensure(lambda text: None)
    return Programs(paths["kubectl"], paths["helm"], cluster.kubeconfig, home / "helm")


def install(programs: Programs, chart: Path, **values: str) -> None:
    """The chart, as on any cluster; process nodes have no Services, so agents dial the pod.

    values: of the chart, with __ where its paths have a dot.
    """
    settings = [f"--set-string={name.replace('__', '.')}={text}" for name, text in values.items()]
    programs.helm(
        "install", "bamboo", str(chart),
        "--namespace", SYSTEM_NAMESPACE, "--create-namespace", "--wait", "--timeout", "90s",
        "--values", str(chart / "devcluster-values.yaml"), *settings,
    )  # fmt: skip


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C does not leave half of it behind."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
