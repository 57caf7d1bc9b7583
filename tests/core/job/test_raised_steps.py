"""Which number of steps holds, whoever has written last, and whatever users ask for."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
from tests.core.controller.builders import pod, spec

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import CheckpointSpec, FactorySpec, JobSpec
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.controller.view import Memory, PodView
from bamboo_core.job.raised_steps import Raised, decide, held, renewed
from bamboo_core.model.numerics import BatchShape

JOB = spec(checkpoint=CheckpointSpec("file:///c"))
BEGUN = Durable(steps=10, batch=BatchShape(32, 1, 32))
DONE = replace(BEGUN, outcome=Outcome.COMPLETE)
COMPLETE = Memory(terminal=Outcome.COMPLETE)
ENDED = replace(pod(), exit_code=0)


def asked(steps: int, **changes: object) -> JobSpec:
    return held(replace(JOB, **changes), steps)  # type: ignore[arg-type]


def test_a_new_job_has_what_the_user_asks_for() -> None:
    assert decide(asked(7), Durable(), Memory(), (), shown=0) == Raised(7)


@pytest.mark.parametrize(
    ("facts", "memory", "pods", "wanted"),
    [
        (BEGUN, Memory(), [pod()], Raised(10, next=12)),
        (BEGUN, Memory(), [], Raised(10, next=12)),  # they may come back
        (DONE, Memory(), [pod()], Raised(10, next=12)),  # nobody has said so yet
        (DONE, COMPLETE, [ENDED], Raised(10, next=12)),
        (DONE, COMPLETE, [], Raised(12, begins=True)),
        (replace(BEGUN, outcome=Outcome.SUSPENDED), Memory(), [pod()], Raised(10, next=12)),
        (replace(BEGUN, outcome=Outcome.SUSPENDED), Memory(), [ENDED], Raised(12)),
        (replace(BEGUN, batch=None), Memory(), [pod()], Raised(10, next=12)),
        (replace(BEGUN, batch=None), Memory(), [], Raised(12)),
    ],
)
def test_when_a_greater_number_holds(
    facts: Durable, memory: Memory, pods: list[PodView], wanted: Raised
) -> None:
    assert decide(asked(12), facts, memory, pods, shown=10) == wanted


@pytest.mark.parametrize(
    ("args", "is_refused"),
    [
        ({"total_steps": 10}, True),
        ({"total_steps": 3, "final": 0}, True),
        ({"total_steps": 11}, False),
        ({"total_steps": 10, "final": 0.01}, False),
        ({"total_steps": "x"}, False),  # agents have refused it
        ({}, False),
    ],
)
@pytest.mark.parametrize("name", ["linear", "cosine", "constant"])
def test_a_schedule_of_ours_that_has_ended_is_named(
    name: str, args: dict[str, object], is_refused: bool
) -> None:
    schedule = FactorySpec(f"bamboo_agent.schedules:{name}", args)
    optimizer = replace(JOB.training.optimizer, schedule=schedule)
    job = asked(12, training=replace(JOB.training, optimizer=optimizer))
    found = decide(job, DONE, COMPLETE, (), shown=10)
    assert bool(found.refused) is (is_refused and name != "constant")
    assert found.steps == (10 if found.refused else 12)


@dataclass
class Cluster:
    """Two writers of one status, and an operator that may end between any two writes."""

    rng: random.Random
    spec: JobSpec = JOB
    shown: int = 0
    facts: Durable = field(default_factory=Durable)
    memory: Memory = field(default_factory=Memory)  # as the status has it
    runs: int = 0  # steps of the agents that are there; 0: there are none

    def reconcile(self) -> None:
        pods = [pod()] if self.runs else []
        found = decide(self.spec, self.facts, self.memory, pods, shown=self.shown)
        assert not self.runs or found.steps == self.runs, "agents of two numbers"
        assert found.steps >= max(self.shown, self.facts.steps), "the number is lower"
        memory = renewed(self.memory) if found.begins else self.memory
        is_done = self.facts.outcome is Outcome.COMPLETE and self.facts.steps == found.steps
        if memory.terminal is None and is_done:
            memory = replace(memory, terminal=Outcome.COMPLETE)
        writes = [self._arbiter, self._status]
        self.rng.shuffle(writes)
        for write in writes:
            if self.rng.random() < 0.2:
                return  # the operator ends
            write(found, memory)
        if memory.terminal is None:
            self.runs = found.steps

    def _arbiter(self, found: Raised, memory: Memory) -> None:
        is_raised = self.facts.steps < found.steps
        if memory.terminal is None and (is_raised or self.facts.outcome is Outcome.SUSPENDED):
            batch = BatchShape(32, 1, 32)
            self.facts = replace(self.facts, steps=found.steps, outcome=None, batch=batch)

    def _status(self, found: Raised, memory: Memory) -> None:
        self.shown, self.memory = found.steps, memory

    def end(self) -> None:
        """The agents have committed all steps, or are suspended, and leave."""
        if self.runs:
            assert self.facts.steps == self.runs
            outcomes = (Outcome.COMPLETE, Outcome.COMPLETE, Outcome.SUSPENDED)
            self.facts = replace(self.facts, outcome=self.rng.choice(outcomes))
            self.runs = 0

    def edit(self) -> None:
        more = self.rng.choice((-3, 1, 1, 4))
        self.spec = held(self.spec, max(1, self.spec.training.steps + more))


@pytest.mark.parametrize("seed", range(100))
def test_agents_of_one_run_have_one_number_and_the_last_one_is_the_newest(seed: int) -> None:
    rng = random.Random(seed)
    cluster, greatest = Cluster(rng), 0
    for _ in range(40):
        rng.choice((cluster.reconcile, cluster.reconcile, cluster.end, cluster.edit))()
        greatest = max(greatest, cluster.shown, cluster.facts.steps)
    cluster.spec = held(cluster.spec, greatest + 2)
    for _ in range(60):
        cluster.reconcile()
        cluster.end()
    for _ in range(20):
        cluster.reconcile()
    assert cluster.shown == cluster.facts.steps == greatest + 2
