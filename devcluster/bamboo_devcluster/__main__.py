"""The `bamboo-devcluster` command."""

import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from bamboo_devcluster.cluster import NODE_KINDS, Cluster, Options
from bamboo_devcluster.directory import is_running, stop_cluster
from bamboo_devcluster.errors import DevclusterError, SpecError
from bamboo_devcluster.programs import binaries, kueue
from bamboo_devcluster.spec import NodeSpec, Taint, spread_nodes

_Command = TypeVar("_Command", bound=Callable[..., Any])


class _Group(click.Group):
    """Prints the package's errors as one sentence and exits with code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DevclusterError as error:
            raise click.ClickException(str(error)) from error


def _default_directory() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "bamboo" / "devcluster"


def _with_directory(command: _Command) -> _Command:
    option = click.option(
        "--dir",
        "directory",
        type=click.Path(path_type=Path),
        default=_default_directory,
        envvar="BAMBOO_DEVCLUSTER_DIR",
        help="Directory of the cluster (also BAMBOO_DEVCLUSTER_DIR).",
    )
    return option(command)


def _with_machine(command: _Command) -> _Command:
    options = (
        click.option("--region", default="region-1", show_default=True),
        click.option("--gpus", default=1, show_default=True, type=click.IntRange(min=0)),
        click.option("--instance-type", default="process", show_default=True),
        click.option("--spot/--no-spot", default=True, show_default=True),
        click.option("--cpu", default="8", show_default=True),
        click.option("--memory", default="32Gi", show_default=True),
        click.option("--label", "labels", multiple=True, metavar="KEY=VALUE"),
        click.option("--taint", "taints", multiple=True, metavar="KEY=VALUE:EFFECT"),
    )
    return functools.reduce(lambda inner, option: option(inner), reversed(options), command)


def _machine(values: dict[str, Any]) -> dict[str, Any]:
    labels: dict[str, str] = {}
    for text in values.pop("labels"):
        key, equals, value = text.partition("=")
        if not equals:
            raise SpecError("label", f"{text!r} is not of the form key=value")
        if key in labels:
            raise SpecError("label", f"{key!r} is given twice; give one --label for each key")
        labels[key] = value
    taints: dict[tuple[str, str], Taint] = {}
    for text in values.pop("taints"):
        taint = Taint.parse(text)
        if (taint.key, taint.effect) in taints:
            pair = f"{taint.key!r} with {taint.effect}"
            raise SpecError("taint", f"{pair} is given twice; give one --taint for each of them")
        taints[taint.key, taint.effect] = taint
    return {**values, "labels": labels, "taints": tuple(taints.values())}


def _report(text: str) -> None:
    click.echo(text, err=True)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Run a real Kubernetes control plane whose nodes run pods as local processes, or kubelets."""


@main.command()
@_with_directory
@click.option("--nodes", default=3, show_default=True, type=click.IntRange(min=0))
@click.option("--zones", default="zone-a,zone-b,zone-c", show_default=True)
@_with_machine
@click.option("--images", type=click.Path(path_type=Path), help="Image map file (YAML).")
@click.option(
    "--node-kind",
    type=click.Choice(NODE_KINDS),
    default=NODE_KINDS[0],
    show_default=True,
    help="kubelet: real kubelets with containerd; needs root.",
)
@click.option(
    "--image-archive",
    "image_archives",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Archive of images that kubelet nodes have (docker save); may be repeated.",
)
@click.option(
    "--port",
    default=0,
    type=click.IntRange(0, 65535),
    help="Port of the API server; 0: any free port.",
)
@click.option(
    "--foreground", is_flag=True, help="Stay in the foreground; Ctrl-C stops the cluster."
)
def up(
    directory: Path, nodes: int, zones: str, images: Path | None, node_kind: str,
    image_archives: tuple[Path, ...], port: int, foreground: bool, **machine: Any,
) -> None:  # fmt: skip
    """Start a cluster; do nothing if it is already running."""
    if foreground:
        signal.signal(
            signal.SIGTERM, signal.default_int_handler
        )  # SIGTERM interrupts a start, like Ctrl-C
    if is_running(directory.absolute()):
        cluster = Cluster.attach(directory)
        _report(f"The cluster in {directory} is already running.")
    else:
        cluster = Cluster.up(
            directory,
            nodes=spread_nodes(nodes, zones.split(","), **_machine(machine)),
            options=Options(
                images=images,
                api_port=port,
                outlives_caller=not foreground,
                node_kind=node_kind,
                image_archives=image_archives,
            ),
            report=_report,
        )
    wanted = {signal.SIGINT, signal.SIGTERM} if foreground else set()
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)  # before the output says that it is up
    click.echo(f"export KUBECONFIG={cluster.kubeconfig}")
    if foreground:
        _report("Press Ctrl-C to stop the cluster.")
        signal.sigwait(wanted)
        cluster.down()


@main.command()
@_with_directory
def down(directory: Path) -> None:
    """Stop a cluster and delete its files; do nothing if there is none."""
    was_running = stop_cluster(directory.absolute())
    _report("The cluster is down." if was_running else f"No cluster was running in {directory}.")


@main.command()
@_with_directory
def status(directory: Path) -> None:
    """Show whether the cluster is running, and its nodes. Exit code 1 if it is not."""
    cluster = Cluster.attach(directory)
    click.echo(f"up: {cluster.server}, process {cluster.pid}, {cluster.directory}")
    _print_nodes(cluster)


@main.command()
@_with_directory
def kubeconfig(directory: Path) -> None:
    """Print the path of the administrator's kubeconfig."""
    click.echo(Cluster.attach(directory).kubeconfig)


@main.command("binaries")
@click.option("--kubelet", is_flag=True, help="Also those of kubelet nodes.")
@click.option("--kueue", "with_kueue", is_flag=True, help="Also build Kueue, for tests with it.")
def get_binaries(kubelet: bool, with_kueue: bool) -> None:
    """Download or build all programs; print their folder."""
    paths = binaries.ensure(_report, (*binaries.PROGRAMS, *(binaries.KUBELET if kubelet else ())))
    if with_kueue:
        paths = {**paths, "kueue": kueue.ensure(_report).manager}
    for folder in sorted({str(path.parent) for path in paths.values()}):
        click.echo(folder)


@main.group()
def node() -> None:
    """Add nodes and make them fail."""


@node.command("add")
@_with_directory
@click.argument("name")
@click.option("--zone", default="zone-a", show_default=True)
@_with_machine
def add_node(directory: Path, name: str, zone: str, **machine: Any) -> None:
    """Add a machine. A dead one with the same name is replaced."""
    Cluster.attach(directory).add_node(NodeSpec(name=name, zone=zone, **_machine(machine)))


@node.command("list")
@_with_directory
def list_nodes(directory: Path) -> None:
    """List the machines and their states."""
    _print_nodes(Cluster.attach(directory))


@node.command("notice")
@_with_directory
@click.argument("name")
@click.option(
    "--lead", "lead_s", default=30.0, show_default=True, help="Seconds until the machine is killed."
)
def notice_node(directory: Path, name: str, lead_s: float) -> None:
    """Reclaim a machine with notice: taint it, delete its pods, kill it after the lead time."""
    Cluster.attach(directory).notice_node(name, lead_s)


def _add_node_command(name: str, help_text: str, act: Callable[[Cluster, str], None]) -> None:
    @node.command(name, help=help_text)
    @_with_directory
    @click.argument("name")
    def command(directory: Path, name: str) -> None:
        act(Cluster.attach(directory), name)


_add_node_command("kill", "Make a machine vanish: SIGKILL, no more heartbeats.", Cluster.kill_node)
_add_node_command("remove", "Kill a machine and delete its node object.", Cluster.remove_node)
_add_node_command("freeze", "Stop a machine's processes and heartbeats.", Cluster.freeze_node)
_add_node_command("thaw", "Resume a frozen machine.", Cluster.thaw_node)


def _add_link_command(name: str, help_text: str, act: Callable[[Cluster, str, str], None]) -> None:
    @node.command(name, help=help_text)
    @_with_directory
    @click.argument("name")
    @click.argument("other")
    def command(directory: Path, name: str, other: str) -> None:
        act(Cluster.attach(directory), name, other)


_add_link_command("cut", "Drop all packets from NAME to OTHER, one way.", Cluster.cut_node)
_add_link_command("heal", "Undo `cut NAME OTHER`.", Cluster.heal_node)


@main.group()
def pod() -> None:
    """Make pods fail."""


@pod.command("kill")
@_with_directory
@click.argument("name", metavar="NAMESPACE/NAME")
def kill_pod(directory: Path, name: str) -> None:
    """SIGKILL the processes of a pod; its node reports exit code 137."""
    namespace, slash, pod_name = name.partition("/")
    if not slash:
        namespace, pod_name = "default", name
    Cluster.attach(directory).kill_pod(namespace, pod_name)


def _print_nodes(cluster: Cluster) -> None:
    states = cluster.node_states()
    width = max(map(len, states), default=0)
    for name, state in states.items():
        click.echo(f"{name:{width}}  {state}")


if __name__ == "__main__":
    main()
