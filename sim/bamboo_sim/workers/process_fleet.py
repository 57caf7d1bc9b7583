"""Workers as processes over tcp, without supervisors.

They are forked from a server that has torch loaded already: 12 workers start in 0.3 s, not in 16 s.
Each draws its seeds from the system right after the fork, and imports the modules of its job then,
as an agent on a node of its own does. It inherits the server's hash seed, and so the order of sets;
a fleet of interpreters of their own does not.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from bamboo_agent.ipc.pipe import Pipe, PipeClosedError
from bamboo_agent.ipc.shared_progress import SharedProgress
from bamboo_core.api.spec import JobSpec, to_json
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import OperatorMessage, Peer, Ready, Welcome
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_sim.workers import system_seeds
from bamboo_sim.workers.fleet import WorkerFleet
from bamboo_wire import decode, encode

DEADLINE_S = 60.0
_HASH_SEED_VARIABLE = "PYTHONHASHSEED"

log = logging.getLogger(__name__)
PRELOADED = ["bamboo_agent.worker.main", "torch.fx.experimental.symbolic_shapes"]
"""The second one with sympy, which the first backward of a process imports."""


def context() -> Any:
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(PRELOADED)
    return found


def _serve(
    agent: AgentId, control: socket.socket, listening: socket.socket, log_file: Path | None
) -> None:
    system_seeds.draw()
    from bamboo_agent.setup.channel import GROUP_FLOOR_VARIABLE
    from bamboo_agent.worker.main import serve

    os.environ[GROUP_FLOOR_VARIABLE] = "1"
    if log_file is not None:
        logging.basicConfig(filename=log_file, level=logging.INFO)
    log.info("this process has %s", system_seeds.told())
    os._exit(
        serve(agent, control=control, listening=listening, shared_progress=SharedProgress.create())
    )


@contextlib.contextmanager
def _hashing_with(seed: int) -> Iterator[None]:
    """Interpreters that start meanwhile hash with this seed."""
    before = os.environ.get(_HASH_SEED_VARIABLE)
    os.environ[_HASH_SEED_VARIABLE] = str(seed)
    try:
        yield
    finally:
        del os.environ[_HASH_SEED_VARIABLE]
        if before is not None:
            os.environ[_HASH_SEED_VARIABLE] = before


class ProcessFleet(WorkerFleet):
    """If the job uses process groups, tensors of any size go by them.

    logs: folder for one log of each worker; None: none is written. hash_seeds: one for each agent,
    which is then an interpreter of its own, and starts in seconds; empty: workers are forked.
    """

    deadline_s = DEADLINE_S

    def __init__(
        self,
        job: JobSpec,
        agents: tuple[AgentId, ...],
        logs: Path | None = None,
        hash_seeds: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self._logs = logs
        self._hash_seeds = dict(zip(agents, hash_seeds, strict=bool(hash_seeds)))
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
        log_file = None if self._logs is None else self._logs / agent
        arguments = (agent, theirs, listening, log_file)
        if self._hash_seeds:
            process = multiprocessing.get_context("spawn").Process(
                target=self.main_of(agent), args=arguments, daemon=True
            )
            with _hashing_with(self._hash_seeds[agent]):
                process.start()
        else:
            process = context().Process(target=self.main_of(agent), args=arguments, daemon=True)
            process.start()
        theirs.close()
        listening.close()
        pipe = Pipe(ours)
        self.processes[agent], self._pipes[agent] = process, pipe
        self._selector.register(pipe, selectors.EVENT_READ, agent)
        self.send(agent, Welcome(1, "ns/job", "uid", to_json(job)))

    def main_of(self, _agent: AgentId) -> Callable[..., None]:
        """The function that a worker's process runs."""
        return _serve

    def agents(self) -> Collection[AgentId]:
        return self._pipes.keys()

    def send(self, agent: AgentId, message: OperatorMessage) -> None:
        self._pipes[agent].send(encode.operator_message(message).SerializeToString())

    def ready(self) -> Ready:
        """Wait until all workers are ready; the message of one of them. AssertionError if they have
        different fingerprints: the operator would let no two of them into one job."""
        self.wait(lambda: {a for a, m in self.messages if isinstance(m, Ready)} >= set(self._pipes))
        found = [m for _, m in self.messages if isinstance(m, Ready)]
        assert len({m.fingerprint for m in found}) == 1, [m.fingerprint for m in found]
        return found[0]

    def wait(self, condition: Callable[[], bool]) -> None:
        """AssertionError with the last messages after ``deadline_s``."""
        deadline = time.monotonic() + self.deadline_s
        while not condition():
            left = deadline - time.monotonic()
            assert left > 0, self.messages[-20:]
            for key, _ in self._selector.select(left):
                self._listen(key.data)

    def _listen(self, agent: AgentId) -> None:
        pipe = self._pipes[agent]
        try:
            for data in pipe.receive():
                message = decode.agent_message(decode.parse_bytes(pb.AgentMessage, data))
                self.messages.append((agent, message))
        except PipeClosedError:
            self._selector.unregister(pipe)

    def kill(self, agent: AgentId) -> None:
        """SIGKILL. Its peers know it no more in the next plan."""
        process = self.processes.pop(agent)
        process.kill()
        process.join()
        pipe = self._pipes.pop(agent)
        self._selector.unregister(pipe)
        pipe.close()
        self.peers = tuple(peer for peer in self.peers if peer.agent != agent)

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
