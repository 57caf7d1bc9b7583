"""How much of an interrupted step is computed again, against what agents really compute twice."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from bamboo_core.api.events import EventFact, EventReason
from bamboo_core.arbiter_state import events as a
from bamboo_core.model.ids import AgentId
from bamboo_core.model.program import Op
from bamboo_core.protocol.messages import Notice

from .fleet import Agent, Fleet, committed, spec

A1 = AgentId("a1")
PARTS = {Op.F: "F", Op.B: "IW", Op.I: "I", Op.W: "W"}


class Watched(Fleet):
    """Remembers what its agents compute, also those that are lost afterwards."""

    def __init__(self, *, stages: int, pipelines: int = 2, microbatches: int = 4) -> None:
        job = spec(pipelines=pipelines, stages=stages, microbatches=microbatches, steps=5)
        super().__init__(job, layers=stages)
        self.tasks = defaultdict[int, Counter[tuple[str, int, int]]](Counter)  # by step
        self.add_grid(pipelines, stages)
        self.tell(a.DesiredState(pipelines))
        self.until(lambda: committed(self, 1))

    def complete(self, agent: Agent) -> None:
        instruction = agent.executor.running
        assert instruction is not None
        for part in PARTS.get(instruction.op, ""):
            task = (part, instruction.lo, instruction.index)
            self.tasks[instruction.step][task] += 1
        super().complete(agent)

    def steps(self, events: int) -> None:
        """So many events pass."""
        for _ in range(events):
            assert self.step()

    def settle(self) -> None:
        """A plan is in force."""
        self.until(lambda: self.arbiter.status().phase is a.ArbiterPhase.RUNNING)

    @property
    def counted(self) -> int:
        """By the records of plans."""
        records = (r for r in self.records if r.reason is EventReason.PLANNED)
        return sum(int(r.facts[EventFact.REDONE_TASKS]) for r in records)

    @property
    def real(self) -> int:
        """Parts that ran more than once."""
        return sum(n - 1 for tasks in self.tasks.values() for n in tasks.values())


@pytest.mark.parametrize(("stages", "share"), [(1, 0.2), (2, 0.6), (3, 0.6)])
def test_a_loss_costs_never_more_than_agents_compute_twice(stages: int, share: float) -> None:
    """And not much less, unless the agents of a stage alone are a pipeline: they send little."""
    counted = real = 0
    for victim in range(2 * stages):
        for later in range(0, 60 * stages, 13 if stages < 3 else 31):
            fleet = Watched(stages=stages)
            fleet.steps(later)
            fleet.kill(f"a{victim}")
            fleet.run()
            assert fleet.counted <= fleet.real
            counted, real = counted + fleet.counted, real + fleet.real
    assert counted > share * real


@pytest.mark.parametrize("later", range(20, 100, 16))
def test_losses_one_after_the_other_in_a_step(later: int) -> None:
    """Work from before the first loss counts when the second one destroys it."""
    fleet = Watched(stages=3, microbatches=8)
    fleet.steps(60)
    fleet.kill("a1")
    fleet.settle()
    first = fleet.counted
    fleet.steps(later)
    fleet.kill("a3")
    fleet.run()
    assert 0 < first < fleet.counted <= fleet.real


def test_a_new_leader_does_not_know_the_old_programs() -> None:
    """The items that agents hold are proof enough."""
    fleet = Watched(stages=3, microbatches=8)
    fleet.steps(60)
    fleet.restart()
    fleet.tell(a.DesiredState(2))
    fleet.reconnect()
    fleet.kill("a1")
    fleet.run()
    assert 0 < fleet.counted <= fleet.real


def test_a_notice_costs_nothing() -> None:
    fleet = Watched(stages=2)
    fleet.add("b1", "z1")
    fleet.receive(A1, Notice(30.0, "SIGTERM"))
    fleet.now += 2.0
    fleet.tell(a.Tick())
    fleet.run()
    assert A1 not in fleet.arbiter.durable.voters
    assert fleet.counted == fleet.real == 0
