"""All agents of a grid in one process, over the memory transport, one turn after the other.

One thread: torch's CPU generator is shared by the threads of a process, so agents in threads would
disturb each other's dropout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from bamboo_agent.checkpoint import Checkpoints
from bamboo_agent.shell import Worker
from bamboo_agent.transport.memory import MemoryHub
from bamboo_agent.worker import build_setting
from bamboo_core.ids import AgentId
from bamboo_core.messages import AgentMessage, CommitRecord, Directive, Finished, Progress, Stop
from bamboo_core.spec import (
    CheckpointSpec,
    DataSpec,
    FactorySpec,
    JobSpec,
    PipelinesSpec,
    TrainingSpec,
    WorkerSpec,
)

CPU = torch.device("cpu")


def spec(*, steps: int = 3, microbatches: int = 24, uri: str = "", dropout: float = 0.1) -> JobSpec:
    """A tiny GPT (6 layers) on text."""
    text = "bamboo_agent.datasets.text:build"
    limits = {"context": 16, "limit_bytes": 20_000}
    return JobSpec(
        model=FactorySpec(
            "bamboo_agent.models.gpt:build",
            {"layers": 4, "width": 32, "heads": 2, "context": 16, "dropout": dropout},
        ),
        data=DataSpec(text, limits, FactorySpec(text, {**limits, "split": "validation"})),
        training=TrainingSpec(
            steps=steps,
            global_batch_size=2 * microbatches,
            micro_batch_size=2,
            optimizer=FactorySpec("torch.optim:AdamW", {"lr": 3e-3, "weight_decay": 0.1}),
            clip_norm=0.5,
        ),
        pipelines=PipelinesSpec(1, 1),
        worker=WorkerSpec("none"),
        checkpoint=CheckpointSpec(uri) if uri else None,
        seed=7,
    )


class Fleet:
    """Workers by name; ``said``: everything they told the operator."""

    def __init__(self, job: JobSpec, agents: tuple[AgentId, ...]) -> None:
        self.said: list[tuple[AgentId, AgentMessage]] = []
        hub = MemoryHub()
        self.workers: dict[AgentId, Worker] = {}
        shared, _ = build_setting(agents[0], job, CPU)
        for agent in agents:
            checkpoints = None
            if job.checkpoint is not None:
                checkpoints = Checkpoints(job.checkpoint.uri, "uid")
            self.workers[agent] = Worker(
                setting=replace(shared, agent=agent),
                spec=job,
                transport=hub.join(agent),
                checkpoints=checkpoints,
                say=lambda message, agent=agent: self.said.append((agent, message)),
            )

    def start(self, directives: Mapping[AgentId, Directive]) -> None:
        """STOP all of them, then hand out the plan."""
        for agent, directive in directives.items():
            self.workers[agent].stop(Stop(directive.fence))
        for agent, directive in directives.items():
            self.workers[agent].install(directive)

    def run(self) -> None:
        """Turn by turn until nobody has anything to do. AssertionError if not all have finished."""
        savers = [w.saver for w in self.workers.values() if w.saver is not None]
        while any([worker.turn() for worker in self.workers.values()]) or any(
            saver.is_busy for saver in savers
        ):
            pass
        finished = {agent for agent, message in self.said if isinstance(message, Finished)}
        waiting = {
            agent: str(worker.executor.current)
            for agent, worker in self.workers.items()
            if agent not in finished
        }
        assert not waiting, waiting

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
