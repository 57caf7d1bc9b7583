"""Volumes as a pod's processes see them."""

import json
import os
from pathlib import Path

from bamboo_devcluster.testing import wait_for


def left_on_machine(*paths: str) -> list[str]:
    return [path for path in paths if Path(path).exists()]


async def test_volumes_appear_at_their_paths(bench, tmp_path) -> None:
    await bench.create("configmaps", "conf", data={"a.txt": "A", "b.txt": "B"})
    await bench.create("secrets", "key", stringData={"word": "hush"})
    (tmp_path / "host.txt").write_text("from the host")
    field = {"path": "team", "fieldRef": {"fieldPath": "metadata.labels['team']"}}
    volumes = [
        {"name": "conf", "configMap": {"name": "conf", "items": [{"key": "a.txt", "path": "x/a"}]}},
        {"name": "key", "secret": {"secretName": "key", "defaultMode": 0o400}},
        {"name": "down", "downwardAPI": {"items": [field]}},
        {"name": "host", "hostPath": {"path": str(tmp_path), "type": "Directory"}},
        {"name": "both", "projected": {"sources": [
            {"configMap": {"name": "conf"}}, {"secret": {"name": "key"}}]}},
        {"name": "maybe", "configMap": {"name": "nobody", "optional": True}},
        {"name": "empty", "emptyDir": {}},
    ]  # fmt: skip
    mounts = [
        {"name": "conf", "mountPath": "/etc/conf"},
        {"name": "key", "mountPath": "/run/very/deep/key", "readOnly": True},
        {"name": "down", "mountPath": "/down"},
        {"name": "host", "mountPath": "/host"},
        {"name": "both", "mountPath": "/both"},
        {"name": "both", "mountPath": "/one.txt", "subPath": "b.txt"},
        {"name": "maybe", "mountPath": "/maybe"},
        {"name": "empty", "mountPath": "/host/inner"},
    ]
    script = """
import json, os
def text(path):
    with open(path) as file: return file.read()
seen = [text('/etc/conf/x/a'), text('/run/very/deep/key/word'), text('/down/team'),
        text('/host/host.txt'), sorted(n for n in os.listdir('/both') if n[0] != '.'),
        text('/one.txt'), [n for n in os.listdir('/maybe') if n[0] != '.'],
        os.path.exists('/etc/passwd')]
open('/host/back.txt', 'w').write('from the pod')
open('/host/inner/x', 'w').close()
try: open('/run/very/deep/key/new', 'w')
except OSError as error: seen.append(error.errno)
print(json.dumps(seen))
"""
    text = await bench.output(
        script, volumes=volumes, container={"volumeMounts": mounts}, labels={"team": "blue"}
    )
    assert json.loads(text) == [
        "A", "hush", "blue", "from the host", ["a.txt", "b.txt", "word"], "B", [], True, 30,
    ]  # fmt: skip
    assert (tmp_path / "back.txt").read_text() == "from the pod"
    assert not left_on_machine("/etc/conf", "/run/very", "/down", "/host", "/one.txt", "/maybe")


async def test_a_changed_config_map_reaches_the_pod(bench) -> None:
    await bench.create("configmaps", "conf", data={"k": "old"})
    script = "import time\nwhile True: print(open('/conf/k').read()); time.sleep(0.2)"
    mount = {"name": "c", "mountPath": "/conf"}
    await bench.run_pod(
        script, volumes=[{"name": "c", "configMap": {"name": "conf"}}],
        container={"volumeMounts": [mount]},
    )  # fmt: skip
    await bench.wait_log("old")
    await bench.api.patch(bench.path("configmaps", "conf"), {"data": {"k": "new"}})
    await bench.wait_log("new")


async def test_a_volume_that_cannot_be_created_is_reported_and_retried(bench) -> None:
    volumes = [{"name": "c", "configMap": {"name": "late"}}]
    await bench.run_pod(
        "print(open('/c/k').read())", volumes=volumes,
        container={"volumeMounts": [{"name": "c", "mountPath": "/c"}]},
    )  # fmt: skip

    def reported(events):
        return any(e["reason"] == "FailedMount" and "late" in e["message"] for e in events["items"])

    await wait_for(bench.api, bench.path("events"), reported)
    await bench.create("configmaps", "late", data={"k": "v"})
    await bench.wait_phase("Succeeded")


async def test_a_claim_that_is_not_bound_is_reported(bench) -> None:
    volumes = [{"name": "disk", "persistentVolumeClaim": {"claimName": "x"}}]
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await bench.create("persistentvolumeclaims", "x", spec=claim)
    mount = {"name": "disk", "mountPath": "/disk"}  # a kubelet ignores a volume without one
    await bench.run_pod(
        "print(1)", volumes=volumes, nodeName="node-1", container={"volumeMounts": [mount]}
    )

    def reported(events):
        return any(
            e["reason"] == "FailedMount" and "is not bound" in e["message"] for e in events["items"]
        )

    await wait_for(bench.api, bench.path("events"), reported)


async def test_a_container_is_isolated(bench) -> None:
    """Own PIDs, own session, no host environment, no inherited stdin."""
    os.environ["DEVCLUSTER_TEST_LEAK"] = "1"
    try:
        text = await bench.output(
            "import os; print(os.getpid(), 'DEVCLUSTER_TEST_LEAK' in os.environ, os.read(0, 1))"
        )
    finally:
        del os.environ["DEVCLUSTER_TEST_LEAK"]
    assert text == "1 False b''\n"
