"""Lifetime of clusters: up, down, killed, and up again."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bamboo_devcluster.cluster import Cluster
from bamboo_devcluster.errors import DirectoryError
from bamboo_devcluster.kube.client import KubeApi
from bamboo_devcluster.nodes.kubelet.images import MACHINE_IMAGE
from bamboo_devcluster.testing import wait_for

SLEEPER = {
    "metadata": {"name": "sleeper"},
    "spec": {
        "nodeName": "node-1",
        "containers": [
            {
                "name": "main",
                "image": MACHINE_IMAGE,
                "command": ["sh", "-c", "setsid sleep 600 & exec sleep 600"],
            }
        ],
    },
}


def command(*words: object, directory: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "bamboo_devcluster", *map(str, words), "--dir", str(directory)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=110, check=False)


def processes_of(directory: Path) -> list[int]:
    """All processes of a cluster, found by command line or working directory."""
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdigit() or int(path.name) == os.getpid():
            continue
        try:
            words = (path / "cmdline").read_bytes().decode(errors="replace")
            cwd = os.readlink(path / "cwd")
        except OSError:
            continue
        if str(directory) in words or cwd.startswith(str(directory)):
            found.append(int(path.name))
    return found


def find_program(directory: Path, name: str) -> int:
    """The process of a cluster that runs a program of this name."""
    for pid in processes_of(directory):
        if Path(f"/proc/{pid}/exe").resolve().name == name:
            return pid
    raise AssertionError(f"{name} does not run")


def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


async def start_sleeper(cluster: Cluster) -> None:
    async with KubeApi.from_directory(cluster.directory, cluster.server) as api:
        path = "/api/v1/namespaces/default"
        await wait_for(api, f"{path}/serviceaccounts/default", bool)
        await api.post(f"{path}/pods", SLEEPER)
        pod = f"{path}/pods/sleeper"
        await wait_for(api, pod, lambda p: p["status"].get("phase") == "Running")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "cluster"
    command("down", directory=tmp_path / "cluster")


def is_private(path: Path) -> bool:
    return path.stat().st_mode & 0o777 == 0o600


async def test_up_killed_up_twice_and_down_twice(directory: Path) -> None:
    up = command("up", "--nodes", 1, directory=directory)
    assert up.returncode == 0, up.stderr
    await check_that_nothing_survives_the_daemon(directory)
    first = command("up", "--nodes", 2, "--zones", "x,y", "--label", "a=b", directory=directory)
    assert first.returncode == 0, first.stderr
    assert "ended without `down`; removing its files" in first.stderr
    assert first.stdout == f"export KUBECONFIG={directory}/kubeconfig\n"
    second = command("up", directory=directory)
    assert "already running" in second.stderr
    assert second.stdout == first.stdout
    with pytest.raises(DirectoryError, match="already running"):
        Cluster.up(directory)
    status = command("status", directory=directory)
    assert "node-1" in status.stdout
    assert "running" in status.stdout
    config = command("kubeconfig", directory=directory)
    assert config.stdout.strip() == str(directory / "kubeconfig")
    assert is_private(directory / "kubeconfig")
    await start_sleeper(Cluster.attach(directory))
    operate_nodes(directory)
    assert command("down", directory=directory).stderr == "The cluster is down.\n"
    assert not processes_of(directory)
    again = command("down", directory=directory)
    assert (again.returncode, "No cluster was running" in again.stderr) == (0, True)


async def check_that_nothing_survives_the_daemon(directory: Path) -> None:
    cluster = Cluster.attach(directory)
    await start_sleeper(cluster)
    assert len(processes_of(directory)) >= 6  # daemon, control plane, the container
    os.kill(cluster.pid, signal.SIGKILL)
    until(lambda: not processes_of(directory))
    status = command("status", directory=directory)
    assert status.returncode == 1
    assert "was killed without `down`" in status.stderr


def operate_nodes(directory: Path) -> None:
    """Use every node and pod command once."""
    steps = [
        ("pod", "kill", "sleeper"),
        ("node", "add", "extra", "--zone", "z", "--taint", "k=v:NoSchedule"),
        ("node", "freeze", "extra"),
        ("node", "thaw", "extra"),
        ("node", "notice", "extra", "--lead", 60),
        ("node", "kill", "extra"),
        ("node", "remove", "extra"),
    ]
    for step in steps:
        result = command(*step, directory=directory)
        assert (result.returncode, result.stderr) == (0, ""), step
    assert "node-2" in command("node", "list", directory=directory).stdout
    wrong = command("node", "kill", "nobody", directory=directory)
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("Error: no node nobody is alive")


async def check_that_a_killed_api_server_comes_back(directory: Path) -> None:
    """Pods keep running meanwhile."""
    os.kill(find_program(directory, "kube-apiserver"), signal.SIGKILL)
    async with KubeApi.from_directory(directory, Cluster.attach(directory).server) as api:
        path = "/api/v1/namespaces/default/pods/sleeper"
        pod = await wait_for(api, path, bool)
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
        node = "/api/v1/nodes/node-1"
        await wait_for(api, node, lambda n: "Ready" in json.dumps(n["status"]["conditions"]))


async def test_a_cluster_survives_its_api_server_but_not_its_owner(
    directory: Path,
) -> None:
    script = f"""
import sys
from pathlib import Path
from bamboo_devcluster.cluster import Cluster
from bamboo_devcluster.spec import NodeSpec
cluster = Cluster.up(Path({str(directory)!r}), nodes=[NodeSpec("node-1")])
print("up", flush=True)
sys.stdin.read()
"""
    argv = [sys.executable, "-c", script]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:  # noqa: ASYNC220
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        await start_sleeper(Cluster.attach(directory))
        await check_that_a_killed_api_server_comes_back(directory)
        owner.kill()
    until(lambda: not processes_of(directory))
    until(lambda: {p.name for p in directory.iterdir()} <= {"lock"})


def test_a_port_in_use_is_reported(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = command("up", "--nodes", 0, "--port", port, directory=directory)
    assert result.returncode == 1
    assert result.stderr.startswith(f"Error: Port {port} that kube-apiserver needs is in use")
    assert len(result.stderr.splitlines()) == 1
    assert not processes_of(directory)
    assert not directory.exists()


def test_foreground_ends_on_sigterm(directory: Path) -> None:
    argv = [sys.executable, "-m", "bamboo_devcluster", "up", "--foreground", "--nodes", "0"]
    with subprocess.Popen([*argv, "--dir", str(directory)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"export KUBECONFIG=")
        process.terminate()
        assert process.wait(30) == 0
    assert not directory.exists()
