"""One agent tells the hooks; a new one repeats the newest steps; no step comes twice otherwise."""

from __future__ import annotations

from bamboo_agent.hooks.telling import REMEMBERED, Telling
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protocol.messages import CommitRecord, Directive, Progress

OWN, OTHER = AgentId("a"), AgentId("b")


def plan(coordinator: AgentId, epoch: int = 1) -> Directive:
    return Directive(Fence(1, 1, epoch), 0, 9, (), (), BatchShape(4, 1, 4), coordinator)


def step(number: int, *, attempt: int = 1) -> Progress:
    return Progress(CommitRecord(number), Fence(attempt, 1, 1))


def steps(told: list[Progress]) -> list[tuple[int, int]]:
    return [(x.fence.attempt, x.commit.step) for x in told]


def test_the_coordinator_tells_and_no_other_agent() -> None:
    telling = Telling(OWN)
    assert telling.committed(step(0)) == []
    assert telling.install(plan(OTHER)) == []
    assert telling.committed(step(1)) == []
    telling = Telling(OWN)
    assert telling.install(plan(OWN)) == []
    assert steps(telling.committed(step(0))) == [(1, 0)]


def test_a_new_coordinator_first_repeats_what_it_remembers() -> None:
    telling = Telling(OWN)
    telling.install(plan(OTHER))
    for number in range(REMEMBERED + 5):
        assert telling.committed(step(number)) == []
    told = telling.install(plan(OWN, 2))
    assert steps(told) == [(1, number) for number in range(5, REMEMBERED + 5)]
    assert telling.install(plan(OWN, 3)) == []  # it still is
    assert steps(telling.committed(step(REMEMBERED + 5))) == [(1, REMEMBERED + 5)]


def test_who_becomes_the_coordinator_again_repeats_what_the_other_may_not_have_told() -> None:
    telling = Telling(OWN)
    telling.install(plan(OWN))
    telling.committed(step(0))
    telling.install(plan(OTHER, 2))
    assert telling.committed(step(1)) == []
    assert steps(telling.install(plan(OWN, 3))) == [(1, 0), (1, 1)]


def test_a_step_that_is_reported_again_is_told_once() -> None:
    telling = Telling(OWN)
    telling.install(plan(OWN))
    assert steps(telling.committed(step(3))) == [(1, 3)]
    assert telling.committed(step(3)) == []
    assert telling.committed(step(2)) == []
    assert steps(telling.committed(step(2, attempt=2))) == [(2, 2)]  # after a restore
    assert telling.committed(step(9)) == []  # of the attempt that has ended
