"""Workers as real processes over tcp, the test in the place of their supervisors.

They are forked from a server that has torch loaded already (12 workers in 0.3 s, not 16).
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

from bamboo_agent.ipc.pipe import Pipe, PipeClosedError
from bamboo_agent.ipc.shared_progress import SharedProgress
from bamboo_core.api.spec import JobSpec, to_json
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import (
    AgentMessage,
    AgentReport,
    Finished,
    OperatorMessage,
    Peer,
    Progress,
    Ready,
    Stop,
    Welcome,
)
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_sim.workers.plans import Decided
from bamboo_wire import decode, encode

DEADLINE_S = 60.0


def context() -> Any:
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["torch", "bamboo_agent.worker.main"])
    return found


def _serve(agent: AgentId, control: socket.socket, listening: socket.socket) -> None:
    from bamboo_agent.worker.main import serve

    os._exit(
        serve(agent, control=control, listening=listening, shared_progress=SharedProgress.create())
    )


class ProcessFleet:
    """Workers by name, each ready once its Ready has come."""

    def __init__(self, job: JobSpec, agents: tuple[AgentId, ...]) -> None:
        self.said: list[tuple[AgentId, AgentMessage]] = []
        self.keys = {agent: secrets.token_bytes(16) for agent in agents}
        self.peers: tuple[Peer, ...] = ()
        self._pipes: dict[AgentId, Pipe] = {}
        self._selector = selectors.DefaultSelector()
        self.processes: dict[AgentId, Any] = {}
        for agent in agents:
            self._spawn(agent, job)

    def _spawn(self, agent: AgentId, job: JobSpec) -> None:
        ours, theirs = socket.socketpair()
        listening = socket.create_server(("127.0.0.1", 0))
        address = "{}:{}".format(*listening.getsockname())
        self.peers += (Peer(agent, address, "", self.keys[agent]),)
        process = context().Process(target=_serve, args=(agent, theirs, listening), daemon=True)
        process.start()
        theirs.close()
        listening.close()
        pipe = Pipe(ours)
        self.processes[agent], self._pipes[agent] = process, pipe
        self._selector.register(pipe, selectors.EVENT_READ, agent)
        self.tell(agent, Welcome(1, "ns/job", "uid", to_json(job)))

    def tell(self, agent: AgentId, message: OperatorMessage) -> None:
        self._pipes[agent].send(encode.operator_message(message).SerializeToString())

    def ready(self) -> Ready:
        """Wait until all are ready; what one of them said."""
        self.wait(lambda: self.who_said(Ready) >= set(self._pipes))
        return next(m for _, m in self.said if isinstance(m, Ready))

    def stop(self, fence: Fence) -> dict[AgentId, AgentReport]:
        """STOP everyone; their reports."""
        for agent in self._pipes:
            self.tell(agent, Stop(fence))
        found: dict[AgentId, AgentReport] = {}

        def all_have_reported() -> bool:
            found.update(
                {a: m for a, m in self.said if isinstance(m, AgentReport) and m.fence == fence}
            )
            return len(found) == len(self._pipes)

        self.wait(all_have_reported)
        return found

    def install(self, decided: Decided) -> None:
        """Hand out a plan."""
        for agent, directive in decided.directives.items():
            self.tell(agent, directive)
        for agent, continuation in decided.continuations.items():
            self.tell(agent, continuation)

    def who_said(self, kind: type) -> set[AgentId]:
        return {agent for agent, message in self.said if isinstance(message, kind)}

    def wait(self, condition: Callable[[], bool]) -> None:
        """Listen until the condition holds. AssertionError with what was said, at the deadline."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            left = deadline - time.monotonic()
            assert left > 0, self.said[-20:]
            for key, _ in self._selector.select(left):
                self._listen(key.data)

    def _listen(self, agent: AgentId) -> None:
        pipe = self._pipes[agent]
        try:
            for data in pipe.receive():
                message = decode.agent_message(decode.parse_bytes(pb.AgentMessage, data))
                self.said.append((agent, message))
        except PipeClosedError:
            self._selector.unregister(pipe)

    def run_to_end(self, fence: Fence) -> None:
        """Until all have finished the plan."""
        everyone = len(self._pipes)
        end = Finished(fence)
        self.wait(lambda: sum(message == end for _, message in self.said) == everyone)

    def history(self) -> list[Any]:
        records: dict[int, Any] = {}
        for _, message in self.said:
            if isinstance(message, Progress):
                assert records.setdefault(message.commit.step, message.commit) == message.commit
        return [records[step] for step in sorted(records)]

    def close(self) -> None:
        """Close the pipes, which ends the workers."""
        self._selector.close()
        for pipe in self._pipes.values():
            pipe.close()
        for process in self.processes.values():
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
