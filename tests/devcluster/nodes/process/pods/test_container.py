"""A container and its restarts, with a fake pod."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from bamboo_devcluster.children.launch import Isolation, Order
from bamboo_devcluster.nodes.process.pods.container import (
    Backoff,
    Container,
    ContainerPorts,
    Start,
    StopRequest,
)
from bamboo_devcluster.nodes.process.pods.env import ConfigError, PodFacts
from bamboo_devcluster.nodes.process.pods.preparation import NodePorts, PodStarts
from bamboo_devcluster.nodes.process.pods.status import ContainerRecord, Terminated
from bamboo_devcluster.spec import ImageMap


class Stage:
    """A container with scripted starts; records every state."""

    def __init__(self, tmp_path: Path, policy: str, *starts: Any, base_s: float = 0.01) -> None:
        self.starts = list(starts)
        self.seen: list[str] = []
        self.stop = StopRequest()
        record = ContainerRecord("c", "image")

        async def prepare(spec: dict[str, Any]) -> Start:
            step = self.starts.pop(0)
            if isinstance(step, Exception):
                raise step
            env = {"PATH": os.environ["PATH"]}
            order = Order(argv=["sh", "-c", step], env=env, cwd=str(tmp_path))
            return Start(order, tmp_path / "termination-log")

        def changed() -> None:
            state = record.state
            self.seen.append(state.reason if not hasattr(state, "started_at") or hasattr(
                state, "exit_code") else "Running")  # fmt: skip
            if not self.starts and isinstance(state, Terminated):
                self.stop.make(0)

        async def awake() -> None:
            return None

        ports = ContainerPorts(
            prepare, changed, lambda *_: None, awake, asyncio.Semaphore(1),
        )  # fmt: skip
        self.container = Container(
            {"name": "c"}, record, tmp_path / "logs", self.stop, policy, ports,
            Backoff(base_s=base_s, cap_s=1),
        )  # fmt: skip


async def test_a_full_disk_is_reported_and_retried(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("bamboo_devcluster.nodes.process.pods.container._CONFIG_RETRY_S", 0.01)
    stage = Stage(tmp_path, "Never", OSError(28, "No space left on device"), "exit 0")
    messages: list[str] = []
    stage.container.ports.event = lambda *words: messages.append(words[2])
    await stage.container.run()
    assert stage.seen == ["CreateContainerError", "Running", "Completed"]
    assert messages[0].startswith("Error: The disk that holds")


async def test_the_first_restart_is_immediate_and_later_ones_wait(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "Always", "exit 1", "exit 2", "exit 0")
    await stage.container.run()
    assert stage.seen == [
        "Running", "Error", "Running", "Error", "CrashLoopBackOff", "Running", "Completed",
    ]  # fmt: skip
    assert stage.container.record.restart_count == 2


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (b"why", "why"),
        ("层".encode() * 1400, "层" * 1365 + "\ufffd"),
        (b"caf\xe9", "caf\ufffd"),
    ],
    ids=["plain", "too long", "not UTF-8"],
)
async def test_a_termination_message_has_4096_bytes_at_most(
    tmp_path: Path, written: bytes, expected: str
) -> None:
    (tmp_path / "termination-log").write_bytes(written)
    stage = Stage(tmp_path, "Never", "exit 2")
    await stage.container.run()
    state = stage.container.record.state
    assert isinstance(state, Terminated)
    assert state.message == expected


async def test_on_failure_ends_with_success(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "OnFailure", "exit 1", "exit 0", "exit 0")
    await stage.container.run()
    assert stage.seen[-1] == "Completed"
    assert stage.container.record.restart_count == 1


async def test_a_stop_ends_the_back_off(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "Always", "exit 1", "exit 2", "exit 3", base_s=1000)
    task = asyncio.create_task(stage.container.run())
    async with asyncio.timeout(10):
        while "CrashLoopBackOff" not in stage.seen:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        stage.stop.make(5)
        await task
    assert isinstance(stage.container.record.state, Terminated)
    assert stage.container.record.state.exit_code == 2


@pytest.mark.parametrize(
    ("target", "ok"), [("/data", False), ("/var/run/secrets/kubernetes.io/serviceaccount", True)]
)
async def test_without_namespaces_all_mounts_but_the_token_are_refused(
    tmp_path: Path, target: str, ok: bool
) -> None:
    class Volumes:
        def source(self, name: str) -> str:
            return str(tmp_path)

    async def awake() -> None:
        return None

    node = NodePorts(
        None, None, ImageMap(), Isolation.NONE, tmp_path, "127.0.0.2", {}, {}, "/bin", awake,  # type: ignore[arg-type]
        asyncio.Semaphore(1),
    )  # fmt: skip
    pod = {"metadata": {"name": "p", "namespace": "n"}, "spec": {}}
    facts = PodFacts(pod, "127.0.0.9", "127.0.0.2", {})
    starts = PodStarts(node, Volumes(), tmp_path, lambda: facts)  # type: ignore[arg-type]
    spec = {"name": "c", "command": ["x"], "volumeMounts": [{"name": "v", "mountPath": target}]}
    if ok:
        assert (await starts.prepare(spec)).order.mounts == []
        return
    with pytest.raises(
        ConfigError, match="/data cannot be mounted: this machine allows no namespaces"
    ):
        await starts.prepare(spec)
