"""A device that completes instructions after their issue, and facts that wait for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Op, parse
from bamboo_core.protocol.effects import Drop, Effect, ProtocolError, Run, SendOperator, Transmit
from bamboo_core.protocol.execution.issued import ON_DEVICE
from bamboo_core.protocol.executor import Executor
from bamboo_core.protocol.messages import (
    AgentReport,
    CommitRecord,
    Continuation,
    Directive,
    Stop,
)

ME, FIRST, SECOND = AgentId("a03"), Fence(0, 1, 1), Fence(0, 1, 2)
STEP = """
RECV (out[1]) <a00
F[1:2] m0
B[1:2] m0
SEND (ingrad[1]) >a00
RECV (out[1] m1) <a00
F[1:2] m1
B[1:2] m1
SEND (ingrad[1] m1) >a00
FOLD[1:2] m1 0:2
SLICE[1:2] 0:2 0:2
SEND (piece[1:2] 0:2 1/2) >a01
RECV (piece[1:2] 2:4 0/2) <a01
REDUCE[1:2] m0 0:2 0:2 2:4
SEND (red[1:2] 0/2) >a01
RECV (red[1:2] 1/2) <a01
VOTE 1:2 1:2 0:2
SEND (vote a03) >a00
RECV (commit) <a00
UPDATE[1:2] 1:2 0:2
END
"""
PROGRAM = parse(STEP)
STEPS = 3


def awaited() -> list[Item]:
    """All that peers send, in order of the steps."""
    received = [x.item for x in PROGRAM if x.op is Op.RECV and x.item is not None]
    return [item._replace(step=step) for step in range(STEPS) for item in received]


@dataclass
class Agent:
    """An executor with a device."""

    ahead: int = 1
    effects: list[Effect] = field(default_factory=list)  # but Run
    pending: list[Op] = field(default_factory=list)  # that the shell has to issue, at most one
    issued: int = 0  # that the device has

    def __post_init__(self) -> None:
        self.executor = Executor(ME, 2, ahead=self.ahead)
        batch, plan = BatchShape(4, 1, 2), "plan"
        self.take(self.executor.stop(Stop(FIRST)))
        resume = parse("INIT[1:2]" + STEP)
        directive = Directive(
            FIRST, 0, STEPS, resume, ((1, 2),), batch, ME, plan_hash=plan, has_continuation=True
        )
        self.take(self.executor.install(directive))
        self.take(self.executor.proceed(Continuation(FIRST, plan, PROGRAM, ())))

    def take(self, effects: list[Effect]) -> None:
        self.pending += [x.instruction.op for x in effects if isinstance(x, Run)]
        self.effects += [x for x in effects if not isinstance(x, Run)]

    def arrive(self, item: Item) -> None:
        record = CommitRecord(item.step, 1.0, 1.0) if item.kind is Kind.COMMIT else None
        self.take(self.executor.arrive(item, FIRST, record))

    def issue(self) -> None:
        op = self.pending.pop()
        if op in ON_DEVICE:
            self.issued += 1
            self.take(self.executor.issued())
        else:
            assert not self.issued
            self.take(self.executor.done())

    def complete(self) -> None:
        self.issued -= 1
        self.take(self.executor.done())

    def facts(self) -> tuple[dict[int, int], int, set[Item]]:
        """Versions, the last step that has ended, and what was made here."""
        executor = self.executor
        own = {item for item, is_received in executor.held.items() if not is_received}
        return dict(executor.versions), executor.ended, own


def in_order(events: int) -> Agent:
    """An agent whose instructions complete at once, after so many of its events."""
    agent, coming = Agent(), awaited()
    for _ in range(events):
        if agent.pending:
            agent.pending.pop()
            agent.take(agent.executor.done())
        elif coming:
            agent.arrive(coming.pop(0))
    return agent


@cache
def usual_effects() -> list[Effect]:
    agent = in_order(300)
    assert agent.executor.is_over
    return agent.effects


@cache
def stopped_facts() -> list[tuple[dict[int, int], int, set[Item]]]:
    """The facts after a STOP at each moment."""
    found = []
    for events in range(120):
        agent = in_order(events)
        agent.take(agent.executor.stop(Stop(SECOND)))
        if agent.pending:
            agent.take(agent.executor.done())
        found.append(agent.facts())
    return found


def _in_any_order(effect: Effect) -> object:
    """Items that are freed together have the order in which they were made or came."""
    return frozenset(effect.items) if isinstance(effect, Drop) else effect


@given(st.integers(1, 4), st.randoms(use_true_random=False))
def test_effects_have_the_order_of_the_program_however_late_the_device_is(ahead, rng):
    agent, coming = Agent(ahead), awaited()
    while coming or agent.pending or agent.issued:
        choices = [agent.issue] * bool(agent.pending) + [agent.complete] * bool(agent.issued)
        choices += [lambda: agent.arrive(coming.pop(0))] * bool(coming)
        rng.choice(choices)()
        assert agent.issued <= ahead
    assert agent.executor.is_over
    assert list(map(_in_any_order, agent.effects)) == list(map(_in_any_order, usual_effects()))


def _said(agent: Agent) -> list[AgentReport]:
    sent = [x.message for x in agent.effects if isinstance(x, SendOperator)]
    return [x for x in sent if isinstance(x, AgentReport) and x.fence == SECOND]


@given(st.integers(2, 4), st.integers(0, 80), st.randoms(use_true_random=False))
def test_a_stop_drains_the_device_and_reports_what_an_agent_without_one_could(ahead, turns, rng):
    agent, coming = Agent(ahead), awaited()
    for _ in range(turns):
        choices = [agent.issue] * bool(agent.pending) + [agent.complete] * bool(agent.issued)
        choices += [lambda: agent.arrive(coming.pop(0))] * bool(coming)
        if choices:
            rng.choice(choices)()
    agent.take(agent.executor.stop(Stop(SECOND)))
    if agent.pending:
        assert not _said(agent)
        agent.issue()
    while agent.issued:
        assert not _said(agent)
        agent.complete()
    assert not agent.pending
    assert len(_said(agent)) == 1
    assert agent.facts() in stopped_facts()


def test_what_does_not_run_on_the_device_waits_for_it_and_holds_up_what_follows():
    agent = Agent(4)
    for item in awaited():
        agent.arrive(item)
    while agent.pending != [Op.VOTE]:
        agent.issue() if agent.pending else agent.complete()
    assert not agent.issued
    with pytest.raises(ProtocolError, match="VOTE"):
        agent.executor.issued()


def test_nothing_completes_that_was_not_issued():
    agent = Agent(2)
    assert agent.pending == [Op.INIT]
    agent.issue()
    with pytest.raises(ProtocolError, match="without a running instruction"):
        agent.executor.done()


def test_a_transfer_waits_for_what_makes_its_item():
    agent = Agent(3)
    for item in awaited():
        agent.arrive(item)
    agent.issue()  # INIT
    for _ in range(3):
        agent.issue()
    assert agent.issued == 3  # F, B, and the forward behind the transfer of B's gradient
    agent.complete()
    assert not [x for x in agent.effects if isinstance(x, Transmit)]
    agent.complete()
    (sent,) = [x for x in agent.effects if isinstance(x, Transmit)]
    assert sent.item == Item.ingrad(0, 1, 0)
