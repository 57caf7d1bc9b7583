"""Real processes of hooks: what is told comes back, and nothing of them stays."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.hooks.test_record import SPEC

from bamboo_agent.hooks.hooks import TURN_S, Hooks
from bamboo_agent.hooks.process import HookProcess
from bamboo_core.api.spec import FactorySpec, JobSpec, Json
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protocol.messages import CommitRecord, Directive, HookWarning, Progress

OWN = AgentId("a")
CODE = """
    import os, subprocess, sys

    class Writes:
        def __init__(self, file):
            self.file = open(file, "a", buffering=1)

        def step(self, record):
            print(record.job, record.attempt, record.step, record.agents, file=self.file)

        def close(self):
            print("closed", file=self.file)

    class Starts:
        def __init__(self, file):
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            with open(file, "w") as f:
                f.write(f"{child.pid} {os.environ['CUDA_VISIBLE_DEVICES']!r} {os.nice(0)}")

        def step(self, record):
            os._exit(3)
"""


@pytest.fixture(autouse=True)
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(textwrap.dedent(CODE))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def hooked(name: str, **args: Json) -> JobSpec:
    return replace(SPEC, hooks=(FactorySpec(name, args),))


def plan(coordinator: str, epoch: int = 1) -> Directive:
    voters = (OWN, AgentId("b"))
    batch, fence = BatchShape(8, 1, 8), Fence(1, 1, epoch)
    return Directive(fence, 0, 9, (), (), batch, AgentId(coordinator), voters=voters)


async def told(hooks: Hooks, steps: range, *, wait_s: float = 60.0) -> None:
    """The hooks are told these steps, and closed."""
    running = asyncio.create_task(hooks.run())
    hooks.install(plan(OWN))
    for step in steps:
        hooks.committed(Progress(CommitRecord(step), Fence(1, 1, 1)))
    running.cancel()
    await hooks.close(wait_s)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - another process does it
            await asyncio.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_what_is_told_comes_to_the_tracker_in_order_and_it_is_closed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    await told(Hooks(OWN, "ns/job", hooked("mine:Writes", file=str(file))), range(200))
    wanted = [f"ns/job 1 {step} 2" for step in range(200)]
    assert file.read_text().splitlines() == [*wanted, "closed"]


async def test_an_agent_that_does_not_coordinate_starts_nothing(tmp_path: Path) -> None:
    def start() -> HookProcess:
        raise AssertionError("it is started")

    hooks = Hooks(OWN, "ns/job", hooked("mine:Writes", file="x"), start=start)
    hooks.install(plan("b"))
    progress = Progress(CommitRecord(0), Fence(1, 1, 1))
    assert hooks.committed(progress) is progress
    await hooks.close(1.0)


async def test_who_hands_over_tells_what_it_has_and_closes_its_tracker(tmp_path: Path) -> None:
    file = tmp_path / "file"
    hooks = Hooks(OWN, "ns/job", hooked("mine:Writes", file=str(file)))
    running = asyncio.create_task(hooks.run())
    hooks.install(plan(OWN))
    hooks.committed(Progress(CommitRecord(0), Fence(1, 1, 1)))
    hooks.install(plan("b", 2))
    hooks.committed(Progress(CommitRecord(1), Fence(1, 1, 2)))
    await until(lambda: file.exists() and "closed" in file.read_text())
    assert file.read_text().splitlines() == ["ns/job 1 0 2", "closed"]
    running.cancel()
    await hooks.close(0.0)


class SlowStart:
    """A process whose factory returns after so many looks."""

    is_open = True

    def __init__(self, looks: int) -> None:
        self._looks, self._code = looks, None
        self.got: list[str] = []
        self._says: list[bytes] = []

    def send(self, message: bytes) -> None:
        self.got += json.loads(message)
        if self.got[-1] == "step":
            self._says.append(b'{"told": 0}')
        if self.got[-1] == "close":
            self._code = 0

    def receive(self) -> list[bytes]:
        self._looks -= 1
        said, self._says = self._says, []
        return [b'{"ready": true}'] if self._looks == 0 else said

    def printed(self) -> bytes:
        return b""

    def ended(self) -> int | None:
        return self._code

    def kill(self) -> None:
        self._code = -9

    def close(self) -> None:
        """Nothing is left."""


@pytest.mark.parametrize(
    ("wait_s", "got"), [(1.0, ["step", "close"]), (0.0, [])], ids=["at the end", "of a lost agent"]
)
async def test_a_job_that_ends_waits_longer_for_a_hook_that_has_not_begun(
    wait_s: float, got: list[str]
) -> None:
    """On a busy machine it takes longer to import a tracker than to train a short job."""
    process = SlowStart(looks=round(2.0 / TURN_S))
    hooks = Hooks(OWN, "ns/job", hooked("mine:Writes", file="x"), start=lambda: process)
    running = asyncio.create_task(hooks.run())
    hooks.install(plan(OWN))
    hooks.committed(Progress(CommitRecord(0), Fence(1, 1, 1)))
    await until(lambda: process.got)
    running.cancel()
    untold = await hooks.close(wait_s)
    assert process.got[2:] == got, "it first gets its factory and arguments"
    assert bool(untold) == (not got)


async def test_a_hook_that_ends_is_a_warning_and_what_it_has_started_ends(tmp_path: Path) -> None:
    file = tmp_path / "file"
    hooks = Hooks(OWN, "ns/job", hooked("mine:Starts", file=str(file)))
    await told(hooks, range(1))
    pid, devices, niceness = file.read_text().split()
    assert (devices, niceness) == ("''", str(min(19, os.nice(0) + 15)))
    await until(lambda: not is_alive(int(pid)))
    text = "hooks: mine:Starts ended its process with exit code 3; training goes on"
    progress = hooks.committed(Progress(CommitRecord(1), Fence(1, 1, 1)))
    assert progress.warnings == (HookWarning(0, text),)


def test_it_ends_with_the_process_that_has_started_it(tmp_path: Path) -> None:
    text = """
        import time
        from bamboo_agent.hooks.process import HookProcess
        process = HookProcess()
        print(process._process.pid, flush=True)
        time.sleep(600)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        os.kill(parent.pid, signal.SIGKILL)
    ends_at = time.monotonic() + 60
    while is_alive(pid):
        assert time.monotonic() < ends_at
        time.sleep(0.02)
