"""Volumes written atomically, tokens renewed in time, logs in the runtimes' format."""

import asyncio
import datetime as dt
import os
from pathlib import Path
from typing import Any

import pytest

from bamboo_devcluster import clock, volumes
from bamboo_devcluster.container_log import LogPump, LogQuery, read_log, tail_text
from bamboo_devcluster.kubeapi import ApiError
from bamboo_devcluster.pod_env import PodFacts
from bamboo_devcluster.volumes import PodVolumes, VolumeError, write_atomically


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


async def pumped(tmp_path: Path, data: bytes) -> Path:
    reader, writer = os.pipe()
    pump = LogPump(tmp_path / "logs" / "0.log", reader)
    os.write(writer, data)
    os.close(writer)
    pump.close()
    return tmp_path / "logs" / "0.log"


async def read(path: Path, **query: Any) -> bytes:
    parts = [part async for part in read_log(path, LogQuery(**query), has_ended=lambda: True)]
    return b"".join(parts)


async def test_logs_are_stamped_and_read_back(tmp_path: Path) -> None:
    path = await pumped(tmp_path, b"one\ntwo\nthree, not ended")
    assert await read(path) == b"one\ntwo\nthree, not ended"
    assert await read(path, tail_lines=2) == b"two\nthree, not ended"
    assert await read(path, tail_lines=0) == b""
    assert await read(path, tail_lines=99) == await read(path)
    assert await read(path, limit_bytes=5) == b"one\nt"
    hour = dt.timedelta(hours=1)
    assert await read(path, since=clock.now() + hour) == b""
    assert await read(path, since=clock.now() - hour) == await read(path)
    assert (await read(path, timestamps=True)).startswith(f"{clock.now():%Y-%m-}".encode())
    assert tail_text(path, lines=2, limit_bytes=9) == "not ended"
    assert tail_text(tmp_path / "none", lines=1, limit_bytes=1) == ""


async def test_long_lines_are_split(tmp_path: Path) -> None:
    path = await pumped(tmp_path, b"x" * 40000 + b"\nend\n")
    assert await read(path) == b"x" * 40000 + b"\nend\n"


async def test_following_ends_with_the_container(tmp_path: Path) -> None:
    path = await pumped(tmp_path, b"early\n")
    seen: list[bytes] = []
    lines = read_log(path, LogQuery(follow=True), has_ended=lambda: b"late\n" in seen)
    async for part in lines:
        seen.append(part)
        if part == b"early\n":
            with path.open("ab") as file:
                file.write(b"2026-01-01T00:00:00.000000000Z stdout F late\n")
    assert seen == [b"early\n", b"late\n"]


async def test_a_full_disk_loses_log_lines_only(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    pump = LogPump(tmp_path / "0.log", reader)
    pump._file.close()
    pump._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115, ASYNC230
    os.write(writer, b"line\n")
    os.close(writer)
    pump.close()
