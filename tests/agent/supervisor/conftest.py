"""Fixtures: an authority, an operator, and supervisors as processes of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.agent.supervisor.fake_operator import FakeOperator

from bamboo_agent.local.certificates import Authority

ROOT = Path(__file__).resolve().parents[3]
DUMMY = "tests.agent.supervisor.dummy_worker"


@dataclass
class Agent:
    """A supervisor's process; its standard error is collected."""

    process: asyncio.subprocess.Process
    errors: bytearray = field(default_factory=bytearray)
    reader: asyncio.Task[None] | None = None

    @property
    def log(self) -> str:
        return self.errors.decode("utf-8", "replace")

    async def exit_code(self, deadline_s: float = 20.0) -> int:
        """Wait for the end."""
        async with asyncio.timeout(deadline_s):
            code = await self.process.wait()
            if self.reader is not None:
                await self.reader
        return code

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


Start = Callable[..., Awaitable[Agent]]


@pytest.fixture(scope="session")
def authority() -> Authority:
    return Authority()


@pytest.fixture
async def operator(authority: Authority) -> AsyncIterator[FakeOperator]:
    server = FakeOperator(authority)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def environment(tmp_path: Path, authority: Authority, operator: FakeOperator) -> dict[str, str]:
    (tmp_path / "token").write_text("token\n")
    (tmp_path / "ca.pem").write_bytes(authority.bundle)
    return {
        "BAMBOO_OPERATOR_ADDRESS": operator.address,
        "BAMBOO_JOB": "ns/job",
        "BAMBOO_AGENT": "job-0-0",
        "BAMBOO_POD_UID": "pod-uid",
        "BAMBOO_POD_IP": "127.0.0.1",
        "BAMBOO_NODE": "node-a",
        "BAMBOO_ZONE": "zone-a",
        "BAMBOO_TOKEN_FILE": str(tmp_path / "token"),
        "BAMBOO_CA_FILE": str(tmp_path / "ca.pem"),
        "BAMBOO_GRACE_S": "3",
        "BAMBOO_HEALTH_PORT": "0",
        "BAMBOO_EVENT_LOG": str(tmp_path / "events"),
        "BAMBOO_TERMINATION_FILE": str(tmp_path / "termination"),
    }


@pytest.fixture
async def start(environment: dict[str, str]) -> AsyncIterator[Start]:
    """Start a supervisor with the dummy worker; keyword arguments override variables."""
    agents: list[Agent] = []

    async def begin(module: str = DUMMY, **changed: str) -> Agent:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "bamboo_sim.fleet.processes.run_supervisor", module),
            cwd=ROOT,
            env={**os.environ, **environment, **changed},
            stderr=asyncio.subprocess.PIPE,
        )
        agent = Agent(process)
        agent.reader = asyncio.create_task(_collect(process, agent.errors))
        agents.append(agent)
        return agent

    yield begin
    for agent in agents:
        if agent.process.returncode is None:
            agent.process.kill()
        await agent.exit_code()


async def _collect(process: asyncio.subprocess.Process, into: bytearray) -> None:
    assert process.stderr is not None
    while data := await process.stderr.read(1 << 16):
        into += data
