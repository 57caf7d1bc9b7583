"""Agents as processes of this machine, in the environment that their pods would have."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bamboo_agent.local.operator import LocalOperator
from bamboo_core.model.ids import AgentId

LOGS = "logs"
"""In the run's folder: a file for each agent."""

GRACE_S = 10.0
"""Between SIGTERM and SIGKILL of an agent, in seconds."""
TOKEN_FILE, AUTHORITY_FILE = "token", "ca.pem"


def environment(
    operator: LocalOperator, folder: Path, agent: AgentId, zone: str, address: str
) -> dict[str, str]:
    """Variables that the operator sets in an agent's pod. folder: has :data:`TOKEN_FILE` and
    :data:`AUTHORITY_FILE`; address: the agent's own, without a port."""
    return {
        "BAMBOO_OPERATOR_ADDRESS": operator.address,
        "BAMBOO_JOB": operator.job.name,
        "BAMBOO_AGENT": agent,
        "BAMBOO_POD_UID": f"uid-{agent}",
        "BAMBOO_POD_IP": address,
        "BAMBOO_NODE": f"node-{agent}",
        "BAMBOO_ZONE": zone,
        "BAMBOO_TOKEN_FILE": str(folder / TOKEN_FILE),
        "BAMBOO_CA_FILE": str(folder / AUTHORITY_FILE),
        "BAMBOO_GRACE_S": f"{GRACE_S:g}",
        "BAMBOO_HEALTH_PORT": "0",
    }


@dataclass
class AgentProcess:
    """One agent. Its worker dies with it."""

    agent: AgentId
    zone: str
    process: asyncio.subprocess.Process
    log: Path

    def kill(self) -> None:
        """SIGKILL, as when a node vanishes. No-op once it has ended."""
        if self.process.returncode is None:
            self.process.kill()

    def terminate(self) -> None:
        """End it as Kubernetes ends a pod: SIGTERM, and SIGKILL after the grace period."""
        if self.process.returncode is None:
            self.process.terminate()
            asyncio.get_running_loop().call_later(GRACE_S, self.kill)


class Agents:
    """The agents that have been started, by name. None of them outlives this process."""

    def __init__(
        self,
        folder: Path,
        *,
        variables: Mapping[str, str],
        gpus: int,
        on_end: Callable[[AgentId, int], None],
    ) -> None:
        """folder: as in :func:`environment`; logs go to ``folder/logs``. variables: of the job.
        gpus: of this machine; agents share them if there are more. on_end: called with the exit
        code, -9 after SIGKILL."""
        self.started: dict[AgentId, AgentProcess] = {}
        self._folder, self._variables, self._gpus, self._on_end = folder, variables, gpus, on_end
        self._watchers: set[asyncio.Task[None]] = set()
        (folder / LOGS).mkdir(exist_ok=True)

    async def start(self, operator: LocalOperator, agent: AgentId, zone: str) -> None:
        """Start an agent in a process group of its own, so that Ctrl-C does not reach it."""
        log = self._folder / LOGS / f"{agent}.log"
        own = environment(operator, self._folder, agent, zone, "127.0.0.1")
        if self._gpus:
            own["CUDA_VISIBLE_DEVICES"] = str(len(self.started) % self._gpus)
        own["BAMBOO_TERMINATION_FILE"] = os.devnull
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "bamboo_agent.supervisor.launch", str(os.getpid()), "bamboo_agent"),
                env={**os.environ, **self._variables, **own},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )
        self.started[agent] = AgentProcess(agent, zone, process, log)
        watcher = asyncio.create_task(self._watch(agent, process))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)

    async def _watch(self, agent: AgentId, process: asyncio.subprocess.Process) -> None:
        self._on_end(agent, await process.wait())

    async def ended(self) -> None:
        """Wait until all have ended."""
        await asyncio.gather(*self._watchers)

    async def end(self) -> None:
        """SIGKILL those that are left."""
        for started in self.started.values():
            started.kill()
        await self.ended()
