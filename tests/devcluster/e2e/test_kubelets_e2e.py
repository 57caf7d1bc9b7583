"""What only kubelet nodes can do: one-way cuts, Services, exec. And that they leave nothing."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from bamboo_devcluster.cluster import Cluster, Options
from bamboo_devcluster.errors import NodeError
from bamboo_devcluster.nodes.kubelet.cgroups import hierarchies
from bamboo_devcluster.programs import binaries
from bamboo_devcluster.spec import NodeSpec
from bamboo_devcluster.testing import wait_for

ECHO = """
import os, socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('0.0.0.0', 9000))
print('up')
while True:
    data, sender = s.recvfrom(100)
    print('heard', data.decode())
"""
SEND = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.sendto(sys.argv[2].encode(), (sys.argv[1], 9000))
"""


ON_KUBELETS = pytest.mark.parametrize("devcluster", ["kubelet"], indirect=True)
ON_PROCESSES = pytest.mark.parametrize("devcluster", ["process"], indirect=True)


def kubectl(bench, *words: str) -> str:
    program = binaries.ensure(print, ["kubectl"])["kubectl"]
    command = [str(program), f"--kubeconfig={bench.cluster.kubeconfig}", "-n", bench.namespace]
    done = subprocess.run(
        [*command, *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@ON_KUBELETS
async def test_a_cut_drops_one_direction(bench) -> None:
    address = {}
    for n in (1, 2):
        await bench.run_pod(ECHO, name=f"pod-{n}", nodeName=f"node-{n}")
    for n in (1, 2):
        await bench.wait_log("up", name=f"pod-{n}")
        pod = await bench.wait_pod(lambda p: True, name=f"pod-{n}")
        address[n] = pod["status"]["podIP"]

    def send(source: int, target: int, word: str) -> None:
        kubectl(bench, "exec", f"pod-{source}", "--", "python", "-c", SEND, address[target], word)

    bench.cluster.cut_node("node-1", "node-2")
    with pytest.raises(NodeError, match="node-2 is not cut off from node-1; its cuts: none"):
        bench.cluster.heal_node("node-2", "node-1")
    send(1, 2, "lost")
    send(2, 1, "other-way")
    await bench.wait_log("heard other-way", name="pod-1")
    bench.cluster.heal_node("node-1", "node-2")
    send(1, 2, "healed")
    assert "lost" not in await bench.wait_log("heard healed", name="pod-2")
    with pytest.raises(NodeError, match="cannot be cut off from itself"):
        bench.cluster.cut_node("node-1", "node-1")


@ON_PROCESSES
async def test_process_nodes_cannot_be_cut(bench) -> None:
    for act in (bench.cluster.cut_node, bench.cluster.heal_node):
        with pytest.raises(NodeError, match="start the cluster with `--node-kind kubelet`"):
            act("node-1", "node-2")


@ON_KUBELETS
async def test_a_service_reaches_a_pod_on_another_node(bench) -> None:
    serve = "import http.server as h\nprint('up')\n"
    serve += "h.HTTPServer(('', 8080), h.SimpleHTTPRequestHandler).serve_forever()"
    await bench.run_pod(serve, name="server", nodeName="node-1", labels={"app": "web"})
    await bench.wait_log("up", name="server")
    spec = {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}
    service = await bench.create("services", "web", spec=spec)
    script = f"""
import time, urllib.request
for _ in range(200):  # until kube-proxy knows it
    try:
        print(urllib.request.urlopen('http://{service["spec"]["clusterIP"]}', timeout=2).status)
        break
    except OSError:
        time.sleep(0.1)
"""
    assert await bench.output(script, nodeName="node-2") == "200\n"


def processes_of(directory: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(directory) in words and path.parent.name != str(os.getpid()):
            found.append(words.replace("\0", " "))
    return found


def left_by(directory: Path) -> list[str]:
    """Return what a cluster has left on this machine: processes, mounts, interfaces."""
    found = processes_of(directory)
    mounts = Path("/proc/self/mountinfo").read_text()
    found += [line for line in mounts.splitlines() if str(directory) in line]
    for alias in Path("/sys/class/net").glob("bdc*/ifalias"):
        if alias.read_text().strip() == str(directory):
            found.append(str(alias))
    return found


def shared_things() -> set[str]:
    """The control groups and interfaces of all clusters."""
    tops = (*hierarchies(), Path("/sys/class/net"))
    return {str(path) for top in tops for path in top.glob("bdc*")}


@pytest.mark.usefixtures("kubelet_cluster")  # skips where there are no kubelets
def test_nothing_is_left_of_a_cluster_that_ends_or_is_killed(tmp_path) -> None:
    before = shared_things()
    directory = tmp_path / "c"
    options = Options(node_kind="kubelet", outlives_caller=True)
    cluster = Cluster.up(directory, nodes=[NodeSpec("a"), NodeSpec("b")], options=options)
    assert len(shared_things()) > len(before)
    assert left_by(directory)
    cluster.freeze_node("a")  # frozen processes must end too
    cluster.kill_node("b")
    cluster.remove_node("b")
    cluster.down()
    assert left_by(directory) == []
    assert shared_things() == before

    cluster = Cluster.up(directory, nodes=[NodeSpec("a"), NodeSpec("b")], options=options)
    cluster.freeze_node("b")  # the kernel cannot end it before it is thawed
    os.kill(cluster.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while found := processes_of(directory / "nodes" / "a-"):  # the kernel ends them
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    cluster.down()
    assert left_by(directory) == []
    assert shared_things() == before
    assert not directory.exists()


@ON_KUBELETS
async def test_the_node_of_an_agent_is_a_real_one(bench) -> None:
    node = await wait_for(bench.api, "/api/v1/nodes/node-1", bool)
    info = node["status"]["nodeInfo"]
    assert info["containerRuntimeVersion"].startswith("containerd://")
    assert info["kubeletVersion"] == f"v{binaries.KUBERNETES_VERSION}"
