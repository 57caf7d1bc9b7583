"""The simulated control plane: writes race with new leaders, and sessions are numbered."""

import pytest

from bamboo_core.arbiter_state.events import Received
from bamboo_core.job.durable_writer import OvertakenError
from bamboo_sim.protocol.exploration.time_budget import SLEEPING, SMALL
from bamboo_sim.protocol.histories.history import History, apply, replay
from bamboo_sim.protocol.parts.messages import Ended, LookAtFacts, Opened, Put
from bamboo_sim.protocol.parts.network import OPERATOR, STORE
from bamboo_sim.protocol.running import operator_shell
from bamboo_sim.protocol.running.simulation import Simulation


def writes(world, kind):
    return [m for m in world.network.messages if m[0] == STORE and type(m[2]) is kind]


def begin(kind, seed=1):
    """A world in which a plan is being written, at that half of the write."""
    world = Simulation(SMALL, seed, "fifo")
    while not any(order(m).durable.members for m in writes(world, kind)):
        assert world.step()
    return world


def order(message):
    content = message[2]
    return content if isinstance(content, LookAtFacts) else content.order


def take(world, message):
    world.network.messages.remove(message)
    world._deliver(*message)


def test_a_late_write_of_a_dead_leader_overtakes_the_new_one():
    world = begin(Put)
    (late,) = writes(world, Put)
    for seed in range(20):
        copy = world.copy()
        copy.rng.seed(seed)
        apply(copy, ("restart operator", False))
        if late in copy.network.messages:
            break
    new = copy.operators.leader
    take(copy, late)
    assert copy.operators.durable == order(late).durable
    first = copy.operators.running[new]
    assert copy.finish() == "complete"
    assert first.is_overtaken
    assert copy.operators.running[new] is not first
    assert copy.operators.durable.term > order(late).durable.term


def test_a_deposed_leader_writes_nothing_more():
    world = begin(LookAtFacts)
    (late,) = writes(world, LookAtFacts)
    old = world.operators.leader
    apply(world, ("second operator",))
    (first,) = (m for m in writes(world, LookAtFacts) if m[1] != old)
    take(world, first)
    (put,) = writes(world, Put)
    take(world, put)
    with pytest.raises(OvertakenError):
        order(late).leader_facts.check(world.operators.store.facts, order(late).durable)
    take(world, late)
    assert world.operators.running[old].is_overtaken
    assert world.operators.durable == order(put).durable
    assert world.finish() == "complete"


def test_a_failed_write_is_repeated_and_one_whose_answer_was_lost_counts():
    for is_applied in (False, True):
        world = begin(Put)
        (put,) = writes(world, Put)
        world.write_faults, world.are_answers_lost = 1, is_applied
        take(world, put)
        assert (world.operators.durable == order(put).durable) is is_applied
        assert world.finish() == "complete"
        assert world.now >= 1.0


def words(world, name):
    return [m for m in world.network.messages if m[0].startswith(name) and m[1] == OPERATOR]


def test_the_last_words_of_a_replaced_stream_come_in_any_order():
    firsts = set()
    for seed in range(30):
        world = Simulation(SMALL, seed)
        while not (words(world, "a01") and world.plan):
            assert world.step()
        apply(world, ("reconnect", "a01", len(words(world, "a01"))))
        ordered = words(world, "a01")
        assert {Received, Ended, Opened} <= {type(m[2]) for m in ordered}
        while len(left := words(world, "a01")) == len(ordered):
            assert world.step()
        gone = next(m for m in ordered if m not in left)
        firsts.add(type(gone[2]))
        assert world.finish() == "complete"
    assert firsts == {Received, Opened}


def test_agents_that_are_sent_away_from_a_suspended_job_end():
    """They are suspects that have not answered, so nobody releases them."""
    world = Simulation(SMALL, 1, "fifo")
    apply(world, ("suspend",))
    while world.operators.durable.outcome is None or world.arbiter.durable.outcome is None:
        assert world.step()
    world.start("b00")
    operator_shell._dismiss(world, world.operators.running[OPERATOR], "b00")
    assert "b00" not in world.nodes
    history = History(SLEEPING, 10959408, "random").then(310, ("folder away", False))
    for name in ("a00", "a02", "a03"):
        history = history.then(0, ("kill", name, 2))
    history = history.then(0, ("start", "b01")).then(0, ("start", "b02"))
    history = history.then(18, ("pass", 140)).then(0, ("suspend",)).then(49, ("resume", 2, 2))
    assert replay(history).outcome == "waiting"
