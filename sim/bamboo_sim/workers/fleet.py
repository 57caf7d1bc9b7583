"""All agents of a grid in one process, over the memory transport, one turn after the other.

One thread: torch's CPU generator is shared by the threads of a process, so agents in threads would
disturb each other's dropout.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch

from bamboo_agent.storage.checkpoint import Checkpoints
from bamboo_agent.transport.memory import MemoryHub
from bamboo_agent.worker.main import build_setup
from bamboo_agent.worker.shell import Worker
from bamboo_core.api.spec import JobSpec
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import (
    AgentMessage,
    AgentReport,
    CommitRecord,
    Finished,
    Progress,
    Stop,
)
from bamboo_sim.workers.plans import Decided

CPU = torch.device("cpu")


class Fleet:
    """Workers by name; ``said``: everything they told the operator."""

    def __init__(self, job: JobSpec, agents: tuple[AgentId, ...]) -> None:
        self.job = job
        self.said: list[tuple[AgentId, AgentMessage]] = []
        self.hub = MemoryHub()
        self.workers: dict[AgentId, Worker] = {}
        self._shared, _ = build_setup(agents[0], job, CPU)
        self.layers = len(self._shared.sizes)
        self.validation_samples = self._shared.data.validation_samples
        for agent in agents:
            self.add(agent)

    def add(self, agent: AgentId) -> None:
        """One more worker."""
        checkpoints = None
        if self.job.checkpoint is not None:
            checkpoints = Checkpoints(self.job.checkpoint.uri, "uid")
        self.workers[agent] = Worker(
            setup=replace(self._shared, agent=agent),
            spec=self.job,
            transport=self.hub.join(agent),
            checkpoints=checkpoints,
            say=lambda message: self.said.append((agent, message)),
        )

    def stop(self, fence: Fence, *, want_manifests: bool = False) -> dict[AgentId, AgentReport]:
        """STOP everyone; their reports."""
        for worker in self.workers.values():
            worker.stop(Stop(fence, want_manifests))
        while True:
            found = {a: m for a, m in self.said if isinstance(m, AgentReport) and m.fence == fence}
            if len(found) == len(self.workers):
                return found
            self.turn()

    def install(self, decided: Decided) -> None:
        """Hand out a plan."""
        for agent, directive in decided.directives.items():
            self.workers[agent].install(directive)
        for agent, continuation in decided.continuations.items():
            self.workers[agent].proceed(continuation)

    def turn(self, but: Collection[AgentId] = ()) -> bool:
        """One turn of everyone; whether anything happened."""
        happened = [w.turn() for agent, w in self.workers.items() if agent not in but]
        savers = [w.saver for w in self.workers.values() if w.saver is not None]
        return any(happened) or any(saver.is_busy for saver in savers)

    def run_to_end(self, fence: Fence) -> None:
        """Until nobody has anything to do. AssertionError if not all have finished."""
        while self.turn():
            pass
        finished = {a for a, m in self.said if isinstance(m, Finished) and m.fence == fence}
        waiting = {
            agent: str(worker.executor.current)
            for agent, worker in self.workers.items()
            if agent not in finished
        }
        assert not waiting, waiting

    def kill(self, agent: AgentId) -> None:
        """The agent and all it holds are gone."""
        self.workers.pop(agent).close()

    def history(self) -> list[CommitRecord]:
        """Commit records in order of steps; all agents must agree on them."""
        records: dict[int, CommitRecord] = {}
        for _, message in self.said:
            if isinstance(message, Progress):
                record = message.commit
                assert records.setdefault(record.step, record) == record
        return [records[step] for step in sorted(records)]

    def weights(self) -> dict[str, torch.Tensor]:
        """Every layer's state by name; holders of the same layer must have the same bits."""
        found: dict[str, torch.Tensor] = {}
        for worker in self.workers.values():
            for index, layer in sorted(worker.backend.layers.items()):
                for name, tensor in layer.record().tensors.items():
                    other = found.setdefault(f"{index}/{name}", tensor)
                    assert torch.equal(other, tensor), (index, name)
        return found

    def close(self) -> None:
        """Close all workers."""
        for worker in self.workers.values():
            worker.close()
