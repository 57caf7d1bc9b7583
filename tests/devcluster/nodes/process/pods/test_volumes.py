"""Volumes: written atomically, and with tokens that are renewed in time."""

import asyncio
import datetime as dt
import os
from pathlib import Path
from typing import Any

import pytest

from bamboo_devcluster.kube import clock
from bamboo_devcluster.kube.client import ApiError
from bamboo_devcluster.nodes.process.pods import volumes
from bamboo_devcluster.nodes.process.pods.env import PodFacts
from bamboo_devcluster.nodes.process.pods.volumes import PodVolumes, VolumeError, write_atomically


def test_files_are_replaced_in_one_step(tmp_path: Path) -> None:
    assert write_atomically(tmp_path, {"a": (b"1", 0o644), "deep/b": (b"2", 0o600)})
    first = os.readlink(tmp_path / "..data")
    assert (tmp_path / "a").read_bytes() == b"1"
    assert (tmp_path / "deep" / "b").stat().st_mode & 0o777 == 0o600
    assert not write_atomically(tmp_path, {"a": (b"1", 0o644), "deep/b": (b"2", 0o600)})
    assert write_atomically(tmp_path, {"a": (b"3", 0o644)})
    assert os.readlink(tmp_path / "..data") != first
    assert sorted(p.name for p in tmp_path.iterdir() if p.name[0] != ".") == ["a"]
    assert len([p for p in tmp_path.iterdir() if p.is_dir() and not p.is_symlink()]) == 1


class FakeApi:
    """Hands out numbered tokens, and no config maps."""

    def __init__(self, life_s: float) -> None:
        self.life_s = life_s
        self.asked: list[dict[str, Any]] = []

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body["spec"])
        end = clock.now() + dt.timedelta(seconds=self.life_s)
        token = f"token-{len(self.asked)}"
        return {"status": {"token": token, "expirationTimestamp": clock.to_time(end)}}

    async def get(self, path: str, **params: str) -> dict[str, Any]:
        raise ApiError(404, "NotFound", f"{path} not found")


def pod_volumes(tmp_path: Path, api: FakeApi, *volumes: dict[str, Any]) -> PodVolumes:
    spec = {"volumes": list(volumes), "serviceAccountName": "sa", "containers": []}
    pod = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec}
    facts = PodFacts(pod, "127.0.0.9", "127.0.0.2", {})
    return PodVolumes(api, tmp_path, lambda: facts)  # type: ignore[arg-type]


async def test_tokens_are_renewed_at_80_percent_of_their_life(tmp_path, monkeypatch) -> None:
    api = FakeApi(life_s=1000)
    source = {"path": "t", "audience": "me", "expirationSeconds": 1000}
    projected = {"name": "v", "projected": {"sources": [{"serviceAccountToken": source}]}}
    made = pod_volumes(tmp_path, api, projected)
    start = clock.now()
    await made.set_up()
    file = tmp_path / "v" / "t"
    for passed_s, expected in ((790, "token-1"), (810, "token-2"), (1500, "token-2")):
        now = start + dt.timedelta(seconds=passed_s)
        monkeypatch.setattr(clock, "now", lambda now=now: now)
        await made.refresh()
        assert await asyncio.to_thread(file.read_text) == expected
    assert api.asked[0]["audiences"] == ["me"]
    assert api.asked[0]["boundObjectRef"]["uid"] == "u"


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"configMap": {"name": "c"}}, "c not found"),
        ({"secret": {"secretName": "s"}}, "s not found"),
        ({"nfs": {"server": "x"}}, "volume v: process nodes cannot mount nfs; use emptyDir"),
        ({"hostPath": {"path": "/no/such", "type": "Directory"}}, "/no/such is not Directory"),
        ({"hostPath": {"path": "/no/such", "type": "File"}}, "/no/such is not File"),
        ({"projected": {"sources": [{"podCertificate": {}}]}}, "cannot project"),
        ({"downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "spec.x"}}]}},
         "volume v: unsupported fieldPath: spec.x"),
    ],
)  # fmt: skip
async def test_volumes_that_cannot_be_created_are_named(tmp_path, volume, message) -> None:
    made = pod_volumes(tmp_path, FakeApi(1), {"name": "v", **volume})
    with pytest.raises(VolumeError, match=message):
        await made.set_up()


async def test_a_missing_key_is_named(tmp_path, monkeypatch) -> None:
    api = FakeApi(1)

    async def get(path: str, **params: str) -> dict[str, Any]:
        return {"data": {"there": "1"}}

    monkeypatch.setattr(api, "get", get)
    source = {"name": "c", "items": [{"key": "gone", "path": "x"}]}
    with pytest.raises(VolumeError, match="configmap c has no key gone"):
        await pod_volumes(tmp_path, api, {"name": "v", "configMap": source}).set_up()
    source["optional"] = True
    await pod_volumes(tmp_path, api, {"name": "v", "configMap": source}).set_up()


def test_host_paths_are_created_on_request(tmp_path: Path) -> None:
    folder = volumes._host_path({"path": str(tmp_path / "a/b"), "type": "DirectoryOrCreate"})
    assert folder.is_dir()
    file = volumes._host_path({"path": str(tmp_path / "f"), "type": "FileOrCreate"})
    assert file.is_file()


def claimed(tmp_path: Path, monkeypatch: Any, **objects: dict[str, Any]) -> PodVolumes:
    """A pod that mounts the claim `data`; the API knows these objects, by the ends of their
    paths."""
    api = FakeApi(1)

    async def get(path: str, **params: str) -> dict[str, Any]:
        name = path.rsplit("/", 1)[1]
        if name not in objects:
            raise ApiError(404, "NotFound", f'persistentvolumeclaims "{name}" not found')
        return objects[name]

    monkeypatch.setattr(api, "get", get)
    source = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
    return pod_volumes(tmp_path, api, source)


@pytest.mark.parametrize("kind", ["hostPath", "local"])
async def test_a_claim_is_the_folder_of_its_volume(tmp_path, monkeypatch, kind: str) -> None:
    bound = {"spec": {"volumeName": "disk"}}
    disk = {"spec": {kind: {"path": str(tmp_path / "disk")}}}
    made = claimed(tmp_path, monkeypatch, data=bound, disk=disk)
    await made.set_up()
    assert made.source("v") == str(tmp_path / "disk")


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ({}, 'persistentvolumeclaims "data" not found'),
        ({"data": {"spec": {}}}, "persistentvolumeclaim data is not bound"),
        (
            {"data": {"spec": {"volumeName": "disk"}}, "disk": {"spec": {"csi": {}}}},
            "persistentvolume disk: process nodes mount hostPath and local",
        ),
    ],
)
async def test_a_claim_without_a_folder_is_named(tmp_path, monkeypatch, objects, message) -> None:
    with pytest.raises(VolumeError, match=message):
        await claimed(tmp_path, monkeypatch, **objects).set_up()


async def test_an_empty_dir_above_its_limit_is_told_in_the_words_of_a_kubelet(tmp_path) -> None:
    limited = {"name": "v", "emptyDir": {"sizeLimit": "1Ki"}}
    free = {"name": "w", "emptyDir": {}}
    made = pod_volumes(tmp_path, FakeApi(1), limited, free)
    await made.set_up()
    (tmp_path / "w" / "large").write_bytes(b"x" * 2000)
    (tmp_path / "v" / "small").write_bytes(b"x" * 1024)
    assert made.excess() == ""
    (tmp_path / "v" / "more").write_bytes(b"x")
    assert made.excess() == 'Usage of EmptyDir volume "v" exceeds the limit "1Ki". '
