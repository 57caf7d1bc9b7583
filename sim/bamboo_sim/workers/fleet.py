"""Workers without supervisors and operator: the caller plans and hands out directives.

:class:`.in_process_fleet.InProcessFleet` runs them in this process, one turn at a time.
:class:`.process_fleet.ProcessFleet` runs them as processes that talk over tcp.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection

import torch

from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import (
    AgentMessage,
    AgentReport,
    CommitRecord,
    Finished,
    OperatorMessage,
    Progress,
    Stop,
)
from bamboo_sim.workers.plans import Decided

CPU = torch.device("cpu")


class WorkerFleet(ABC):
    def __init__(self) -> None:
        self.messages: list[tuple[AgentId, AgentMessage]] = []  # all that the workers sent

    @abstractmethod
    def agents(self) -> Collection[AgentId]:
        """The live workers."""

    @abstractmethod
    def send(self, agent: AgentId, message: OperatorMessage) -> None:
        """Send a message as the supervisor would."""

    @abstractmethod
    def wait(self, condition: Callable[[], bool]) -> None:
        """Run the workers until the condition holds. AssertionError if it does not come true."""

    def stop(self, fence: Fence, *, want_manifests: bool = False) -> dict[AgentId, AgentReport]:
        """Stop all workers and collect their reports."""
        for agent in self.agents():
            self.send(agent, Stop(fence, want_manifests))
        self.wait(lambda: len(self._reports(fence)) == len(self.agents()))
        return self._reports(fence)

    def _reports(self, fence: Fence) -> dict[AgentId, AgentReport]:
        return {a: m for a, m in self.messages if isinstance(m, AgentReport) and m.fence == fence}

    def install(self, decided: Decided) -> None:
        """Hand out a plan."""
        for agent, directive in decided.directives.items():
            self.send(agent, directive)
        for agent, continuation in decided.continuations.items():
            self.send(agent, continuation)

    def run_to_end(self, fence: Fence) -> None:
        """Run until all workers have finished the plan."""
        end = Finished(fence)
        self.wait(lambda: {a for a, m in self.messages if m == end} >= set(self.agents()))

    def history(self) -> list[CommitRecord]:
        """Commit records by step. AssertionError if two workers report different ones."""
        records: dict[int, CommitRecord] = {}
        for _, message in self.messages:
            if isinstance(message, Progress):
                record = message.commit
                assert records.setdefault(record.step, record) == record
        return [records[step] for step in sorted(records)]
