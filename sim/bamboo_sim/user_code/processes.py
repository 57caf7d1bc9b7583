"""Workers of a case as processes, whose generators begin anywhere, and which can die in mid-step.

A pod's process begins with numbers from its system. Forked processes would all have those of the
process that forked them, and code that depends on them would seem to be equal everywhere.
"""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bamboo_agent.ipc.shared_progress import SharedProgress
from bamboo_core.api.spec import JobSpec
from bamboo_core.model.ids import AgentId
from bamboo_core.model.program import Instruction, Op
from bamboo_core.protocol.messages import CommitRecord, Disputed, Failure, Ready
from bamboo_sim.fleet.injection.effects import patched
from bamboo_sim.workers import system_seeds
from bamboo_sim.workers.process_fleet import ProcessFleet


class Death(NamedTuple):
    """SIGKILL in ``step``, before the ``number``-th instruction of this kind."""

    step: int
    op: Op
    number: int = 1

    def to_text(self) -> str:
        """For an environment variable."""
        return f"{self.step} {self.op} {self.number}"

    @classmethod
    def parse(cls, text: str) -> Death:
        """The inverse of :meth:`to_text`."""
        step, op, number = text.split(" ")
        return cls(int(step), Op(op), int(number))


Serve = Callable[[Death | None, AgentId, socket.socket, socket.socket], None]
"""Runs a worker: how it dies, its name, the supervisor's pipe, the socket that listens."""


class EndedError(Exception):
    """A worker cannot go on. text: why; failure: how it ended, if it said so."""

    def __init__(self, agent: AgentId, text: str, failure: Failure | None = None) -> None:
        super().__init__(f"{agent} has ended; {text or 'it said nothing'}")
        self.failure = failure


def prepare(death: Death | None) -> None:
    """Seed this process's generators with numbers from the system, and let its worker die."""
    system_seeds.draw()
    if death is not None:
        _die_at(death)


def _logged(
    serve: Serve,
    logs: Path,
    death: Death | None,
    agent: AgentId,
    control: socket.socket,
    data: socket.socket,
    _log_file: None,
) -> None:
    errors = os.open(logs / agent, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(errors, 2)
    serve(death, agent, control, data)


def serve_here(
    death: Death | None, agent: AgentId, control: socket.socket, data: socket.socket
) -> None:
    """Be a worker in this process, which was forked from one with torch loaded."""
    from bamboo_agent.worker.main import serve

    prepare(death)
    os._exit(serve(agent, control=control, listening=data, shared_progress=SharedProgress.create()))


def _die_at(death: Death) -> None:
    """Let the process's worker kill itself."""
    from bamboo_agent.worker import main
    from bamboo_agent.worker.shell import Worker

    seen = 0

    class Mortal(Worker):
        def _do(self, instruction: Instruction) -> CommitRecord | None:
            nonlocal seen
            if instruction.step == death.step and instruction.op is death.op:
                seen += 1
                if seen == death.number:
                    os.kill(os.getpid(), signal.SIGKILL)
            return super()._do(instruction)

    patched(main, "Worker", Mortal)


class CaseFleet(ProcessFleet):
    """Workers of a case. ``folder`` gets a log of each; deaths: of the agents that die."""

    deadline_s = 240.0  # of interpreters that start on a busy machine

    def __init__(
        self,
        job: JobSpec,
        agents: tuple[AgentId, ...],
        folder: Path,
        deaths: Mapping[AgentId, Death],
        serve: Serve,
    ) -> None:
        self._folder, self._deaths, self._serve = folder, deaths, serve
        self._dead: set[AgentId] = set()
        self.job = job
        super().__init__(job, agents)

    def main_of(self, agent: AgentId) -> Callable[..., None]:
        return partial(_logged, self._serve, self._folder, self._deaths.get(agent))

    def ready(self) -> Ready:
        """Wait until all are ready, whether they are alike or not; the message of one of them."""
        self.wait(lambda: {a for a, m in self.messages if isinstance(m, Ready)} >= set(self._pipes))
        return next(m for _, m in self.messages if isinstance(m, Ready))

    def add(self, agent: AgentId) -> None:
        """Start one more worker."""
        self.keys[agent] = secrets.token_bytes(16)
        self._spawn(agent, self.job)

    def await_death(self, agent: AgentId) -> None:
        """Wait until the agent has died. EndedError if another one ends first."""
        self.wait(lambda: agent in self._dead)
        self._selector.register(self._pipes[agent], selectors.EVENT_READ, agent)
        self.kill(agent)

    def _listen(self, agent: AgentId) -> None:
        """EndedError if the worker has ended although it should not, or says that copies differ."""
        before = len(self.messages)
        super()._listen(agent)
        for _, message in self.messages[before:]:
            if isinstance(message, Disputed):
                raise EndedError(agent, f"copies differ: {message.disputes}")
        if self._pipes[agent].fileno() in self._selector.get_map():
            return
        if agent not in self._deaths:
            said = [m for a, m in self.messages if a == agent and isinstance(m, Failure)]
            raise EndedError(agent, f"{said[-1].reason}: {said[-1].message}" if said else "", *said)
        self._dead.add(agent)
