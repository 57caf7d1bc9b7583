"""Nodes of any kind: kill, freeze, notice, replace."""

import contextlib
import time
from pathlib import Path

import pytest

from bamboo_devcluster.errors import NodeError
from bamboo_devcluster.nodes.kubelet.images import MACHINE_IMAGE
from bamboo_devcluster.spec import NodeSpec, Taint
from bamboo_devcluster.testing import wait_for

SLEEP = "import time\nprint('up')\nwhile True: time.sleep(0.1)"


def is_node_ready(node) -> bool:
    conditions = (node or {}).get("status", {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


async def get_node(bench, name):
    return await bench.api.get(f"/api/v1/nodes/{name}")


async def wait_node(bench, name, condition, timeout_s=30):
    return await wait_for(bench.api, f"/api/v1/nodes/{name}", condition, timeout_s=timeout_s)


@pytest.fixture
def own_node(bench, node_name):
    """A node on which only this test's pods run."""
    bench.cluster.add_node(NodeSpec(node_name, zone="zone-own", gpus=2))
    yield node_name
    bench.cluster.remove_node(node_name)


def test_a_node_is_described(bench, node_name) -> None:
    spec = NodeSpec(
        node_name, zone="z", region="r", spot=False, gpus=3, instance_type="t", cpu="4",
        memory="8Gi", labels={"pool": "p"}, taints=(Taint("only", "NoSchedule", "me"),),
    )  # fmt: skip
    bench.cluster.add_node(spec)
    assert bench.cluster.node_states()[node_name] == "running"
    bench.cluster.remove_node(node_name)
    assert node_name not in bench.cluster.node_states()


async def test_labels_capacity_and_taints(bench, own_node) -> None:
    node = await get_node(bench, own_node)
    labels = node["metadata"]["labels"]
    assert labels["topology.kubernetes.io/zone"] == "zone-own"
    assert labels["karpenter.sh/capacity-type"] == "spot"
    assert labels["nvidia.com/gpu.count"] == "2"
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "2"
    assert is_node_ready(node)


async def test_the_lease_is_renewed(bench, own_node) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{own_node}"
    first = (await bench.api.get(path))["spec"]["renewTime"]
    await wait_for(bench.api, path, lambda lease: lease["spec"]["renewTime"] > first)


async def run_pod_with_child(bench, node, beat) -> None:
    """A pod whose container forks a child that writes forever."""
    script = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    while True:
        open({str(beat)!r}, 'w').write(str(time.time())); time.sleep(0.05)
print('up')
time.sleep(600)
"""
    volume = {"name": "h", "hostPath": {"path": str(beat.parent)}}
    mount = {"name": "h", "mountPath": str(beat.parent)}
    await bench.run_pod(
        script, nodeName=node, volumes=[volume], container={"volumeMounts": [mount]}
    )
    await bench.wait_log("up")


async def test_pods_of_a_killed_node_are_replaced_elsewhere(bench, own_node, tmp_path) -> None:
    await run_pod_with_child(bench, own_node, tmp_path / "beat")
    labels = {"app": "web"}
    prefer = {
        "weight": 100,
        "preference": {
            "matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [own_node]}
            ]
        },
    }
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [prefer]}}
    main = {"name": "main", "image": MACHINE_IMAGE, "command": ["python", "-c", SLEEP]}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [main], "affinity": affinity},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    await bench.create("deployments", "web", spec=spec)
    path = bench.path("deployments", "web")
    await wait_for(bench.api, path, lambda d: d["status"].get("availableReplicas") == 1)
    pods = (await bench.api.get(bench.path("pods")))["items"]
    assert [pod["spec"]["nodeName"] for pod in pods] == [own_node, own_node]

    began = time.monotonic()
    bench.cluster.kill_node(own_node)
    last = (tmp_path / "beat").stat().st_mtime_ns
    await wait_node(bench, own_node, lambda n: not is_node_ready(n))
    assert time.monotonic() - began < 15
    assert (tmp_path / "beat").stat().st_mtime_ns == last
    pod = await bench.wait_pod(lambda p: True)
    assert pod["status"]["phase"] == "Running"  # its node cannot report any more

    def runs_elsewhere(found):
        web = [p for p in found["items"] if p["metadata"]["name"].startswith("web-")]
        places = [p["spec"].get("nodeName") for p in web if is_up(p)]
        return places and own_node not in places

    def is_up(pod):
        return pod["status"].get("phase") == "Running" and not pod["metadata"].get(
            "deletionTimestamp"
        )

    await wait_for(bench.api, bench.path("pods"), runs_elsewhere, timeout_s=40)


async def test_a_node_back_under_the_same_name_is_another_machine(bench, own_node) -> None:
    before = await get_node(bench, own_node)
    await bench.run_pod(SLEEP, nodeName=own_node)
    await bench.wait_log("up")
    bench.cluster.kill_node(own_node)
    assert bench.cluster.node_states()[own_node] == "dead"
    bench.cluster.add_node(NodeSpec(own_node, zone="zone-own", gpus=2))
    after = await get_node(bench, own_node)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["status"]["nodeInfo"]["bootID"] != before["status"]["nodeInfo"]["bootID"]
    pod = await bench.wait_phase("Failed")
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("ContainerStatusUnknown", 137)


async def test_a_pod_that_may_restart_runs_again_on_the_new_machine(bench, own_node) -> None:
    await bench.run_pod(SLEEP, nodeName=own_node, restartPolicy="Always")
    await bench.wait_log("up")
    bench.cluster.kill_node(own_node)
    bench.cluster.add_node(NodeSpec(own_node, zone="zone-own", gpus=2))
    pod = await bench.wait_pod(
        lambda p: (
            p["status"]["containerStatuses"][0]["restartCount"] == 1
            and "running" in p["status"]["containerStatuses"][0]["state"]
        )
    )
    assert pod["status"]["phase"] == "Running"


async def test_a_frozen_node_stops_and_resumes(bench, own_node, tmp_path) -> None:
    """A pod deleted meanwhile ends after the thaw."""
    script = f"""
import time
n = 0
while True:
    n += 1; open({str(tmp_path / "count")!r}, 'w').write(str(n)); print(n); time.sleep(0.05)
"""
    volume = {"name": "h", "hostPath": {"path": str(tmp_path)}}
    mount = {"name": "h", "mountPath": str(tmp_path)}
    await bench.run_pod(
        script, nodeName=own_node, volumes=[volume], container={"volumeMounts": [mount]},
        tolerations=[{"operator": "Exists"}],
    )  # fmt: skip
    await bench.run_pod(SLEEP, name="doomed", nodeName=own_node, terminationGracePeriodSeconds=1)
    await bench.wait_log("3")
    await bench.wait_log("up", name="doomed")
    bench.cluster.freeze_node(own_node)
    assert bench.cluster.node_states()[own_node] == "frozen"
    await bench.api.delete(bench.path("pods", "doomed"))
    frozen_at = (tmp_path / "count").stat().st_mtime_ns
    await wait_node(bench, own_node, lambda n: not is_node_ready(n))
    assert (tmp_path / "count").stat().st_mtime_ns == frozen_at
    doomed = await bench.wait_pod(lambda p: True, name="doomed")
    assert doomed["metadata"]["deletionTimestamp"]
    bench.cluster.thaw_node(own_node)
    await wait_node(bench, own_node, is_node_ready)
    await wait_for(
        bench.api, bench.path("pods", "pod"),
        lambda p: (tmp_path / "count").stat().st_mtime_ns > frozen_at,
    )  # fmt: skip
    await bench.wait_gone(name="doomed")


async def test_a_notice_taints_drains_and_kills(bench, own_node, tmp_path) -> None:
    script = f"""
import signal, sys, time
def bye(*_):
    open({str(tmp_path / "bye")!r}, 'w').close(); sys.exit(143)
signal.signal(15, bye)
print('up')
while True: time.sleep(0.1)
"""
    volume = {"name": "h", "hostPath": {"path": str(tmp_path)}}
    mount = {"name": "h", "mountPath": str(tmp_path)}
    await bench.run_pod(
        script, nodeName=own_node, volumes=[volume], container={"volumeMounts": [mount]}
    )
    await bench.wait_log("up")
    bench.cluster.notice_node(own_node, lead_s=3)
    node = await get_node(bench, own_node)
    assert "devcluster/spot-notice" in [t["key"] for t in node["spec"]["taints"]]
    await bench.wait_gone()
    assert (tmp_path / "bye").exists()
    await wait_node(bench, own_node, lambda n: not is_node_ready(n))
    assert bench.cluster.node_states()[own_node] == "dead"


async def test_a_force_deleted_pod_is_stopped(bench, own_node, tmp_path) -> None:
    script = f"""
import time
print('up')
while True:
    open({str(tmp_path / "beat")!r}, 'w').close(); time.sleep(0.05)
"""
    volume = {"name": "h", "hostPath": {"path": str(tmp_path)}}
    mount = {"name": "h", "mountPath": str(tmp_path)}
    await bench.run_pod(
        script, nodeName=own_node, volumes=[volume], container={"volumeMounts": [mount]}
    )
    await bench.wait_log("up")
    assert pod_folders(bench, own_node)
    assert programs_with(str(tmp_path / "beat"))
    await bench.api.delete(bench.path("pods", "pod"), {"gracePeriodSeconds": 0})
    await bench.wait_gone()
    await wait_for(bench.api, "/version", lambda _: not pod_folders(bench, own_node))
    (tmp_path / "beat").unlink()
    assert not programs_with(str(tmp_path / "beat"))
    assert not (tmp_path / "beat").exists()


def pod_folders(bench, node: str) -> list[Path]:
    """The folders of a node's pods; it removes them after the pods' processes have ended."""
    nodes = bench.cluster.directory / "nodes"
    of_kubelet = nodes.glob(f"{node}-*/lib/kubelet/pods/*")
    return [*nodes.glob(f"{node}/pods/*"), *of_kubelet]


def programs_with(words: str) -> list[str]:
    """The processes of this machine, its nodes included, with these words in their command."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            if words in path.read_bytes().decode(errors="replace"):
                found.append(path.parent.name)
    return found


async def test_node_operations_report_errors(bench, own_node) -> None:
    cluster = bench.cluster
    with pytest.raises(NodeError, match="no node nobody is alive in this cluster; there are: "):
        cluster.kill_node("nobody")
    with pytest.raises(NodeError, match="already exists"):
        cluster.add_node(NodeSpec(own_node))
    with pytest.raises(NodeError, match="only a frozen node can thaw"):
        cluster.thaw_node(own_node)
    cluster.freeze_node(own_node)
    with pytest.raises(NodeError, match="is frozen and cannot be frozen"):
        cluster.freeze_node(own_node)
    with pytest.raises(NodeError, match="is frozen and cannot get a notice"):
        cluster.notice_node(own_node, 1)
    with pytest.raises(NodeError, match="no pod default/nobody runs"):
        cluster.kill_pod("default", "nobody")
    with pytest.raises(NodeError, match="was refused"):
        cluster.add_node(NodeSpec("fine", labels={"not a label": "x"}))
