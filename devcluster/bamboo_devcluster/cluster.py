"""A development cluster as a Python object: up, nodes, down.

    with Cluster.up(directory, nodes=[NodeSpec("a"), NodeSpec("b", zone="zone-b")]) as cluster:
        subprocess.run(["kubectl", "--kubeconfig", cluster.kubeconfig, "get", "nodes"])

The daemon (see `daemon`) does the work. It is a child process that dies with this one, so nothing
is left behind however this process ends.
"""

import contextlib
import http.client
import json
import math
import os
import ssl
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any
from urllib.parse import urlsplit

import yaml

from bamboo_devcluster.directory import (
    is_running,
    prepare_directory,
    remove_files,
    stop_cluster,
    unusable,
)
from bamboo_devcluster.errors import DevclusterError, DirectoryError, NodeError, SpecError
from bamboo_devcluster.layout import Layout
from bamboo_devcluster.spec import ImageMap, NodeSpec

NODE_KINDS = ("process", "kubelet")
_STATE = {"server", "control", "pid", "answers_within_s"}
_GIVE_UP_S = 10.0


def _ignore(text: str) -> None:
    del text


@dataclass(frozen=True)
class Options:
    """Options for starting a cluster."""

    images: Path | Mapping[str, Any] | None = None  # an image map file, or its parsed content
    api_port: int = 0
    crash_loop_backoff_s: float = 10.0
    outlives_caller: bool = False
    node_kind: str = "process"  # or kubelet: needs root and containerd
    image_archives: Sequence[Path] = ()  # kubelet nodes: docker or OCI archives that they have
    audit: bool = False  # the API server writes down what service accounts ask; see `audit`


class Cluster:
    """A running cluster: start one with `up`, or `attach` to one."""

    def __init__(self, directory: Path, state: Mapping[str, Any]) -> None:
        self._layout = Layout(directory)
        self._state = dict(state)
        self._child: subprocess.Popen[bytes] | None = None

    @classmethod
    def up(
        cls,
        directory: Path,
        *,
        nodes: Sequence[NodeSpec] = (),
        images: Path | Mapping[str, Any] | None = None,
        options: Options | None = None,
        report: Callable[[str], None] = _ignore,
    ) -> "Cluster":
        """Start a cluster in `directory` and return once every node is ready for pods.

        Raises DirectoryError if a cluster is already running there; the files of a killed one are
        removed first. `report` receives progress as sentences. A start that fails or is
        interrupted leaves no files, unless the error refers to its logs.
        """
        options = options or Options()
        config = _make_config(nodes, images or options.images, options)
        root = prepare_directory(Path(directory).absolute(), report)
        try:
            (root / "config.json").write_text(json.dumps(config))
            child, status = _spawn(root, own_session=options.outlives_caller)
        except OSError as error:
            with contextlib.suppress(OSError):
                remove_files(root)
            raise unusable(root, error) from error
        try:
            with status:
                state = _await_ready(status, child, root, report)
        except BaseException as error:  # also Ctrl-C
            _give_up(child, root, keep=str(Layout(root).logs) in str(error))
            raise
        cluster = cls(root, state)
        cluster._child = child
        return cluster

    @classmethod
    def attach(cls, directory: Path) -> "Cluster":
        """Return the cluster that is running in `directory`."""
        root = Path(directory).absolute()
        try:
            state = json.loads((root / "cluster.json").read_text())
        except (FileNotFoundError, NotADirectoryError):
            raise DirectoryError(f"No cluster is running in {root}; start it with `up`.") from None
        except OSError as error:
            raise unusable(root, error) from error
        except ValueError:
            state = None
        if not is_running(root):
            raise DirectoryError(
                f"The cluster in {root} was killed without `down`; `up` replaces it."
            )
        if not isinstance(state, dict) or not state.keys() >= _STATE:
            raise DirectoryError(
                f"{root}/cluster.json is damaged, so that the cluster cannot be used; end it with"
                f" `bamboo-devcluster down --dir {root}`."
            )
        return cls(root, state)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    @property
    def directory(self) -> Path:
        """The cluster's directory."""
        return self._layout.root

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig; self-contained."""
        return self._layout.kubeconfig

    @property
    def audit_log(self) -> Path:
        """The API server's audit log; a file only with `Options(audit=True)`. See `audit`."""
        return self._layout.audit_log

    @property
    def server(self) -> str:
        """The API server's URL."""
        return str(self._state["server"])

    @property
    def pid(self) -> int:
        """The daemon's process id."""
        return int(self._state["pid"])

    def node_states(self) -> dict[str, str]:
        """Machine name -> running, frozen or dead."""
        answer: dict[str, str] = self._request("GET", "/nodes")
        return answer

    def add_node(self, spec: NodeSpec) -> None:
        """Add a machine, or replace a dead one; return once it is ready for pods."""
        self._do("add", spec=spec.to_json())

    def kill_node(self, name: str) -> None:
        """The instance vanishes: all its processes are killed, its heartbeats stop."""
        self._do("kill", name=name)

    def freeze_node(self, name: str) -> None:
        """Stop all processes of the machine and its heartbeats."""
        self._do("freeze", name=name)

    def thaw_node(self, name: str) -> None:
        """Resume a frozen machine."""
        self._do("thaw", name=name)

    def remove_node(self, name: str) -> None:
        """Kill the machine and delete its node object."""
        self._do("remove", name=name)

    def notice_node(self, name: str, lead_s: float) -> None:
        """Reclaim the machine with notice: taint it, delete its pods, kill it after lead_s."""
        if not 0 <= lead_s < math.inf:
            raise SpecError("lead", f"{lead_s:g} is not a number of seconds; give 0 or more")
        self._do("notice", name=name, lead_s=lead_s)

    def cut_node(self, name: str, other: str) -> None:
        """Drop every packet from one node to another; the other direction stays."""
        self._do("cut", name=name, other=other)

    def heal_node(self, name: str, other: str) -> None:
        """Undo `cut_node`."""
        self._do("heal", name=name, other=other)

    def break_devices(self, name: str) -> None:
        """The machine refuses new pods that ask for a GPU, as after a reboot without its plugin."""
        self._do("break_devices", name=name)

    def repair_devices(self, name: str) -> None:
        """Undo `break_devices`."""
        self._do("repair_devices", name=name)

    def kill_pod(self, namespace: str, name: str) -> None:
        """SIGKILL the processes of a pod."""
        self._do("kill_pod", namespace=namespace, name=name)

    def down(self) -> None:
        """Stop everything and delete the cluster's files. Safe to call twice."""
        stop_cluster(self.directory)
        if self._child:
            self._child.wait()
            self._child = None

    def _do(self, action: str, **arguments: Any) -> None:
        self._request("POST", f"/do/{action}", arguments)

    def _request(self, method: str, path: str, body: object = None) -> Any:
        url = urlsplit(str(self._state["control"]))
        keys = self._layout.pki
        try:
            context = ssl.create_default_context(cafile=str(keys / "ca.crt"))
            context.load_cert_chain(keys / "admin.crt", keys / "admin.key")
            connection = http.client.HTTPSConnection(
                url.hostname or "",
                url.port,
                context=context,
                timeout=self._state["answers_within_s"],
            )
            try:
                connection.request(method, path, json.dumps(body))
                response = connection.getresponse()
                answer = json.loads(response.read())
            finally:
                connection.close()
        except OSError as error:
            raise DevclusterError(
                f"The cluster in {self.directory} does not answer ({error}); is it still up?"
            ) from error
        if response.status >= 400:
            raise NodeError(answer["error"])
        return answer


def _make_config(
    nodes: Sequence[NodeSpec], images: Path | Mapping[str, Any] | None, options: Options
) -> dict[str, Any]:
    """Return the daemon's configuration; raise SpecError if it is invalid."""
    for index, node in enumerate(nodes):
        if node.name in [other.name for other in nodes[:index]]:
            raise SpecError(f"nodes[{index}].name", f"{node.name!r} is given twice")
    parsed: object = {"images": []}
    if isinstance(images, Mapping):
        parsed = dict(images)
    elif images is not None:
        parsed = read_images(images)
    ImageMap.parse(parsed)
    return {
        "nodes": [node.to_json() for node in nodes],
        "images": parsed,
        "api_port": options.api_port,
        "crash_loop_backoff_s": options.crash_loop_backoff_s,
        "node_kind": options.node_kind,
        "image_archives": _archives(options),
        "audit": options.audit,
        "dies_with": 0 if options.outlives_caller else os.getpid(),
    }


def _archives(options: Options) -> list[str]:
    if options.node_kind not in NODE_KINDS:
        kinds = " or ".join(NODE_KINDS)
        raise SpecError("node_kind", f"{options.node_kind!r} is no kind of node; give {kinds}")
    paths = [Path(path).absolute() for path in options.image_archives]
    if paths and options.node_kind != "kubelet":
        raise SpecError("image_archives", "process nodes have no images; give an image map")
    for path in paths:
        if not path.is_file():
            raise SpecError("image_archives", f"{path} is not a file; write it with `docker save`")
    return [str(path) for path in paths]


def read_images(path: Path) -> object:
    """Return the parsed content of an image map file."""
    ImageMap.load(path)
    return yaml.safe_load(path.read_text())


def _spawn(root: Path, *, own_session: bool) -> tuple["subprocess.Popen[bytes]", IO[bytes]]:
    with (root / "logs" / "daemon.log").open("ab") as log:
        reader, writer = os.pipe()
        child = subprocess.Popen(
            [sys.executable, "-m", "bamboo_devcluster.daemon", str(root), str(writer)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(writer,),
            start_new_session=own_session,
        )
    os.close(writer)
    return child, os.fdopen(reader, "rb")


def _give_up(child: "subprocess.Popen[bytes]", root: Path, *, keep: bool) -> None:
    """Stop a daemon that is not ready; remove its files unless `keep`."""
    child.terminate()
    try:
        child.wait(_GIVE_UP_S)
    except subprocess.TimeoutExpired:  # it blocks while it builds programs
        child.kill()
        child.wait()
    if not keep and not is_running(root):  # else the cluster belongs to a concurrent `up`
        stop_cluster(root)


def _await_ready(
    status: IO[bytes],
    child: "subprocess.Popen[bytes]",
    root: Path,
    report: Callable[[str], None],
) -> Mapping[str, Any]:
    for line in status:
        message = json.loads(line)
        if "progress" in message:
            report(message["progress"])
        elif "error" in message:
            child.wait()
            raise DevclusterError(message["error"])
        elif "ready" in message:
            state: Mapping[str, Any] = message["ready"]
            return state
    code = child.wait()
    log = Layout(root).logs / "daemon.log"
    lines = log.read_text(errors="replace").strip().splitlines()
    last = f"{lines[-1]} (see {log})" if lines else "nothing was logged"
    raise DevclusterError(f"The cluster's daemon exited with code {code}: {last}")
