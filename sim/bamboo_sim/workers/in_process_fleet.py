"""All workers of a grid in one process, over the memory transport, one turn after the other.

One thread: torch's CPU generator is shared by the threads of a process, so workers in threads would
disturb each other's dropout. Model and data are built once, for all of them, with seeds that the
system draws; only processes can show that agents build different ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import torch

from bamboo_agent.device.completions import HostStream, Stream
from bamboo_agent.setup.factories import build_setup
from bamboo_agent.storage.checkpoint import Checkpoints
from bamboo_agent.transport.memory import MemoryHub
from bamboo_agent.worker.shell import Worker
from bamboo_core.api.spec import JobSpec
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.execution.lane import AnySlice
from bamboo_core.protocol.messages import Continuation, Directive, OperatorMessage, Stop
from bamboo_sim.workers import system_seeds
from bamboo_sim.workers.fleet import CPU, WorkerFleet


class InProcessFleet(WorkerFleet):
    """stream: of an agent's device; by default that of the CPU."""

    def __init__(
        self,
        job: JobSpec,
        agents: tuple[AgentId, ...],
        stream: Callable[[AgentId], Stream] = lambda _: HostStream(),
    ) -> None:
        super().__init__()
        self.job, self._stream = job, stream
        self.hub = MemoryHub()
        self.workers: dict[AgentId, Worker] = {}
        system_seeds.draw()
        self._shared, _ = build_setup(agents[0], job, CPU)
        self.layers = len(self._shared.sizes)
        self.validation_samples = self._shared.data.validation_samples
        for agent in agents:
            self._add(agent)

    def _add(self, agent: AgentId) -> None:
        checkpoints = None
        if self.job.checkpoint is not None:
            checkpoints = Checkpoints(self.job.checkpoint.uri, "uid")
        worker = self.workers[agent] = Worker(
            setup=replace(self._shared, agent=agent),
            spec=self.job,
            transport=self.hub.join(agent),
            checkpoints=checkpoints,
            send=lambda message: self.messages.append((agent, message)),
            stream=self._stream(agent),
        )
        worker.executor.patience = AnySlice()  # here a wait is a number of turns, and no time

    def agents(self) -> Collection[AgentId]:
        return self.workers.keys()

    def send(self, agent: AgentId, message: OperatorMessage) -> None:
        worker = self.workers[agent]
        match message:
            case Stop():
                worker.stop(message)
            case Directive():
                worker.install(message)
            case Continuation():
                worker.proceed(message)
            case _:
                raise NotImplementedError(message)

    def turn(self, but: Collection[AgentId] = ()) -> bool:
        """One turn of each worker; False if nothing happened."""
        happened = [w.turn() for agent, w in self.workers.items() if agent not in but]
        return any(happened) or any(w.is_storage_busy for w in self.workers.values())

    def wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            happened = self.turn()
            assert happened or condition(), self._waiting()

    def _waiting(self) -> dict[AgentId, str]:
        return {agent: str(w.executor.current) for agent, w in self.workers.items()}

    def run_to_end(self, fence: Fence) -> None:
        """Run until nothing is left to do, files included; then all must have finished."""
        while self.turn():
            pass
        super().run_to_end(fence)

    def kill(self, agent: AgentId) -> None:
        """Remove the worker with all that it holds."""
        self.workers.pop(agent).close()

    def weights(self) -> dict[str, torch.Tensor]:
        """The state of every layer by name. AssertionError if two copies of a layer differ."""
        found: dict[str, torch.Tensor] = {}
        for worker in self.workers.values():
            for index, layer in sorted(worker.backend.layers.items()):
                for name, tensor in layer.record().tensors.items():
                    other = found.setdefault(f"{index}/{name}", tensor)
                    assert torch.equal(other, tensor), (index, name)
        return found

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()
