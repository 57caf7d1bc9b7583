"""The judge of what operators claim: losses, stalls, restores, and the order of messages."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from bamboo_core.api.events import EventFact, EventReason, Severity, StallCause
from bamboo_core.arbiter import losses
from bamboo_core.arbiter_state.events import Record
from bamboo_core.model.ids import Fence
from bamboo_core.protocol.watch import Transfers
from bamboo_sim.protocol.checker import claims
from bamboo_sim.protocol.control import operators
from bamboo_sim.protocol.control.order import check_order
from bamboo_sim.protocol.control.plans import Plans
from bamboo_sim.protocol.exploration.time_budget import (
    ALTERED_PAIR,
    MOVING,
    SAVING,
    SINGLE,
    SMALL,
)
from bamboo_sim.protocol.histories.history import History, advance, apply, replay
from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.parts.network import OPERATOR
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.planted.rules_edges import silence_never_counts, slow_links_are_told
from bamboo_sim.protocol.running.simulation import Simulation


@pytest.fixture
def world():
    """2 x 2 in its first plan."""
    world = Simulation(SMALL, 1)
    while world.plan is None:
        assert world.step()
    return world


def record(reason, agent=""):
    facts = {EventFact.AGENTS: agent}
    return Record(Severity.WARNING, reason, "because", facts)


def test_a_healthy_agent_is_not_given_up(world):
    lost = record(EventReason.AGENT_LOST, "a01")
    leader = world.operators.running[world.operators.leader]
    with pytest.raises(Violation, match="a healthy agent is given up: because"):
        claims.check_loss(world, leader, lost)
    world.mislead()
    claims.check_loss(world, leader, lost)
    world.misled_until = -1.0
    world.kill("a01")
    claims.check_loss(world, leader, lost)


def test_an_agent_on_another_kind_of_processor_may_be_given_up(world):
    """It has listed the checkpoints while no other was there, and the job's own kind came back."""
    lost = record(EventReason.AGENT_LOST, "a01")
    leader = world.operators.running[world.operators.leader]
    world.nodes["a01"].worker.products = "others"
    world.kind = "usual"
    claims.check_loss(world, leader, lost)
    world.kind = "others"
    with pytest.raises(Violation, match="a healthy agent is given up: because"):
        claims.check_loss(world, leader, lost)


def test_an_agent_may_look_dead_until_it_has_opened_another_session(world):
    lost = record(EventReason.AGENT_LOST, "a01")
    leader = world.operators.running[world.operators.leader]
    del leader.sessions["a01"]
    with pytest.raises(Violation, match="a healthy agent is given up"):
        claims.check_loss(world, leader, lost)  # its links work
    world.network.broken["a00", "a01"] = world.plan.fence
    claims.check_loss(world, leader, lost)
    leader.sessions["a01"] = 2
    with pytest.raises(Violation, match="a healthy agent is given up"):
        claims.check_loss(world, leader, lost)


def test_a_stall_has_a_cause(world):
    with pytest.raises(Violation, match="a deadlock of our own: because"):
        claims.check_stall(world, record(EventReason.STALLED))
    world.is_silent = True
    claims.check_stall(world, record(EventReason.STALLED))


def test_an_agent_that_holds_up_two_plans_is_asked_again_for_its_layers():
    """Two messages are lost, and the sole holder of a layer waits for both: it is given up, and
    then asked again, so nothing is repeated."""
    base = History(MOVING, 14266502, "late")
    once = base.then(46, ("drop", 3566632))
    world = replay(once.then(13, ("drop", 3566633)))
    assert world.losses
    assert world.plan is not None
    assert world.plan.fence == Fence(0, 1, 4)
    assert not replay(once).losses


def test_only_a_worker_that_stands_still_is_killed(world):
    node = world.nodes["a01"]
    with pytest.raises(Violation, match="the supervisor of a01 kills a worker that lives"):
        claims.check_killed_worker(world, node)
    node.backlog = []
    claims.check_killed_worker(world, node)


def test_an_agent_with_a_seat_is_not_sent_away(world):
    operator = world.operators.running[world.operators.leader]
    while world.arbiter.status().phase != "Running":
        assert world.step()
    with pytest.raises(Violation, match="a01 is sent away"):
        claims.check_dismissed(world, operator, "a01")
    claims.check_dismissed(world, operator, "b00")
    world.kill("a01")
    claims.check_dismissed(world, operator, "a01")


def test_files_are_listed_before_a_layer_is_given_up():
    world = Simulation(SAVING, 1, "fifo")
    while not world.operators.durable.manifests:
        assert world.step()
    leader = world.operators.leader
    state = world.operators.running[leader].arbiter.state
    state.listing.is_here = False
    with pytest.raises(Violation, match="restored before the checkpoints were listed"):
        claims.check_listed(world, leader)
    named = max(world.sealed)
    world.sealed[named] = None  # it is found wrong, so the list is an answer
    with pytest.raises(Violation, match="restored before the checkpoints were listed"):
        claims.check_listed(world, leader)
    del world.sealed[named]  # a list lacks what the facts name
    world.sealed[0, named[1] + 1] = None
    claims.check_listed(world, leader)
    world.sealed[0, named[1] + 1] = (1, 2)
    with pytest.raises(Violation, match="restored before the checkpoints were listed"):
        claims.check_listed(world, leader)
    apply(world, ("stand still", "storage", OPERATOR, 5.0))
    claims.check_listed(world, leader)


def test_files_that_were_away_excuse_until_they_have_been_back_for_a_while():
    world = Simulation(SAVING, 1, "fifo")
    while not world.operators.durable.manifests:
        assert world.step()
    leader = world.operators.leader
    world.operators.running[leader].arbiter.state.listing.is_here = False
    storage = Record(
        Severity.WARNING, EventReason.STALLED, "slow", {EventFact.CAUSE: StallCause.STORAGE}
    )

    def check():
        claims.check_listed(world, leader)
        claims.check_stall(world, storage)

    apply(world, ("folder away", False))
    with pytest.raises(Violation, match="a deadlock of our own"):
        check()  # nobody has met that
    world.sealed.trouble()
    for _ in range(200):
        check()
        world.now += 0.5
        world.look_what_is_wrong()
    apply(world, ("files back",))
    world.now += 60.0
    check()
    world.now += 0.5
    with pytest.raises(Violation, match="before the checkpoints were listed"):
        claims.check_listed(world, leader)
    with pytest.raises(Violation, match="a deadlock of our own"):
        claims.check_stall(world, storage)


def test_a_job_may_wait_for_a_checkpoint_that_was_deleted():
    """The two newer ones are found wrong."""
    history = History(ALTERED_PAIR, 5406561, "slow-control").then(353, ("kill", "a00", 2))
    history = history.then(0, ("kill", "a02", 2)).then(0, ("corrupt",))
    for name in ("c00", "c01", "c02"):
        history = history.then(0, ("start", name))
    ended = replay(history.then(0, ("corrupt",)))
    assert ended.outcome == "waits for files"
    (node, *_) = (n for n in ended.nodes.values() if n.worker.is_blocked)
    storage = Record(
        Severity.WARNING, EventReason.STALLED, "slow", {EventFact.CAUSE: StallCause.STORAGE}
    )
    claims.check_stall(ended, storage)
    ended.sealed[node.worker.blocked.attempt, node.worker.blocked.step] = (1, 2)
    with pytest.raises(Violation, match="a deadlock of our own"):
        claims.check_stall(ended, storage)


def test_a_job_whose_last_agent_dies_waits_for_others_though_the_disk_is_full():
    full = History(SINGLE, 5406561, "fifo").then(13, ("full disk", 1e9))
    ended = replay(full.then(22, ("defect",)).then(0, ("kill", "a00", 1)))
    assert ended.operators.durable.last_write is not None
    assert ended.outcome == "waiting"


def test_a_slow_storage_excuses_until_it_has_been_well_for_a_while(world):
    apply(world, ("stand still", "storage", OPERATOR, 5.0))
    world.now += 5.0
    world.look_what_is_wrong()
    apply(world, ("go on", "storage", OPERATOR))
    world.now += 60.0
    assert world.is_storage_slow
    world.now += 0.5
    assert not world.is_storage_slow


def test_a_job_that_waits_says_for_what(world):
    view = SimpleNamespace(detail="", stall="", unreachable="")
    leadership = SimpleNamespace(view=lambda: view)
    operator = SimpleNamespace(leadership=leadership)
    world.operators.running[world.operators.leader] = operator
    with pytest.raises(Violation, match="stands still without a word"):
        claims.check_said(world)
    for word in vars(view):
        setattr(view, word, "for more agents")
        claims.check_said(world)
        setattr(view, word, "")


def test_messages_are_received_in_the_order_sent():
    found = []

    class Kept(Plans):
        def _compute(self, request):
            found.append(super()._compute(request))
            return found[-1]

    before, operators.PLANS = operators.PLANS, Kept()
    try:
        replay(History(SMALL, 1))
    finally:
        operators.PLANS = before
    decision, rest = found[0]
    check_order(found[0])
    agent, continuation = next((a, c) for a, c in rest.directives.items() if c.steady)
    swapped = replace(continuation, steady=tuple(reversed(continuation.steady)))
    with pytest.raises(Violation, match="out of order"):
        check_order((decision, replace(rest, directives={**rest.directives, agent: swapped})))


def trickling():
    """2 x 2 in its first steps, when a link begins to trickle in both directions."""
    world = Simulation(SMALL, 1, "fifo")
    advance(world, 40)
    apply(world, ("trickle", ("a00", "a01"), ("a01", "a00")))
    return world


def test_a_link_that_trickles_is_left_out_in_time():
    assert trickling().finish() == "complete"


def trickling_twice():
    """The same on both links between the stages of 2 x 2: they have no common end."""
    world = Simulation(SMALL, 1, "fifo")
    advance(world, 40)
    first, second = world.plan.pipelines
    pairs = (first, first[::-1], second, second[::-1])
    apply(world, ("trickle", *pairs))
    return world


def test_two_links_without_a_common_end_are_left_out_in_time():
    assert trickling_twice().finish() == "complete"


def test_a_job_that_waits_for_two_links_for_two_minutes_is_a_violation(monkeypatch):
    monkeypatch.setattr(losses, "_are_many", lambda state, going: len(going) > 1)
    with pytest.raises(Violation, match="but could do without"):
        trickling_twice().finish()


def test_a_trickle_without_a_word_is_a_violation(monkeypatch):
    monkeypatch.setattr(Transfers, "slow", lambda self: None)
    with pytest.raises(Violation, match="trickle, and nobody says so"):
        trickling().finish()


def bursting(seconds):
    """A byte comes so often over both links of an agent that waits, and steps are long."""
    world = Simulation(SMALL, 1, "fifo")
    advance(world, 40)
    apply(world, ("burst", seconds, ("a00", "a01"), ("a01", "a00")))
    return world


@pytest.mark.parametrize("seconds", [9.0, 15.0, 20.0, 31.0])
def test_a_link_that_passes_bursts_is_left_out_in_time(seconds):
    assert bursting(seconds).finish() == "complete"


def test_bursts_without_a_word_are_a_violation(monkeypatch):
    monkeypatch.setattr(Transfers, "_end_silence", silence_never_counts)
    with pytest.raises(Violation, match="trickle, and nobody says so"):
        bursting(20.0).finish()


def test_a_trickle_that_is_only_told_is_a_violation(monkeypatch):
    monkeypatch.setattr(losses, "_mend_slow_links", slow_links_are_told)
    with pytest.raises(Violation, match="but could do without"):
        trickling().finish()


def test_a_job_may_wait_for_a_link_that_it_cannot_do_without():
    world = Simulation(Job(1, 2, 2, replica=False), 1, "fifo")
    apply(world, ("trickle", ("a00", "a01")))
    assert world.finish() == "waiting"
    assert "no plan can do without it" in world.arbiter.status().stall
