"""The judge of how suspects are asked before anything is given up."""

from __future__ import annotations

from math import inf
from unittest.mock import patch

import pytest

from bamboo_core.api.outcome import Outcome
from bamboo_core.arbiter import rounds
from bamboo_core.protocol.clock import Backlog
from bamboo_core.protocol.messages import Fork, Manifest
from bamboo_sim.protocol.checker.asking import check_asked, check_rest
from bamboo_sim.protocol.exploration.time_budget import MOVING
from bamboo_sim.protocol.histories.history import History, apply, replay, violation
from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.parts.network import OPERATOR
from bamboo_sim.protocol.running.clock import tick
from bamboo_sim.protocol.running.injectors import island
from bamboo_sim.protocol.running.simulation import Simulation

LINK = island(["a00"], ["a01"])
PAIR = Job(2, 2, 4, steps=2)


@pytest.fixture
def world():
    """1 x 2 in its first plan, after 100 s."""
    world = Simulation(MOVING, 1)
    while world.plan is None:
        assert world.step()
    world.now = 100.0
    return world


def leader(world):
    operator = world.operators.running[world.operators.leader]
    operator.askable, operator.unanswered = {"a00"}, set()
    operator.due_since = world.now - 60.0
    return operator


@pytest.fixture
def trained(world):
    """The same, once each agent holds what it wants."""
    while world.newest < (0, 0):
        assert world.step()
    return world


def test_a_suspect_that_is_well_must_have_been_asked(world):
    operator = leader(world)
    world.ill_at = {"a00": 80.0}
    world.asked["a00"] = 79.0
    with pytest.raises(Exception, match="a00 has been well since 80 s and was not asked"):
        check_asked(world, operator, world.operators.durable, "")
    world.asked["a00"] = 85.0
    with pytest.raises(Exception, match="a00 was asked 15 s ago"):
        check_asked(world, operator, world.operators.durable, "")
    world.asked["a00"] = 95.0
    check_asked(world, operator, world.operators.durable, "")
    world.asked.clear()
    world.ill_at = {"a00": 95.0}
    check_asked(world, operator, world.operators.durable, "")


def test_a_suspect_must_have_been_waited_for(world):
    operator = leader(world)
    world.asked["a00"] = 95.0
    operator.due_since = inf
    with pytest.raises(Exception, match="were waited for 0 s"):
        check_asked(world, operator, world.operators.durable, "")
    operator.askable = {"gone"}
    check_asked(world, operator, world.operators.durable, "")


def test_a_live_holder_must_have_been_waited_for_though_it_has_no_session(trained):
    operator = leader(trained)
    operator.askable = set()
    operator.agents, operator.suspects, operator.due_since = {"a00"}, {"a01"}, inf
    before = trained.operators.durable
    with pytest.raises(Exception, match=r"\['a01'\] were waited for 0 s"):
        check_asked(trained, operator, before, "")
    operator.due_since = trained.now - 60.0
    check_asked(trained, operator, before, "")
    operator.due_since, operator.agents = inf, set()
    check_asked(trained, operator, before, "")  # what a00 held is lost
    operator.agents = {"a00"}
    trained.kill("a01")
    check_asked(trained, operator, before, "")


def test_no_round_is_cut_off(world):
    operator = leader(world)
    operator.askable, operator.unanswered = set(), {"a01", "gone"}
    with pytest.raises(Exception, match=r"restored while \['a01'\] may answer"):
        check_asked(world, operator, world.operators.durable, "")
    operator.unanswered, operator.awaits_plan = set(), True
    with pytest.raises(Exception, match="restored while the planner may answer"):
        check_asked(world, operator, world.operators.durable, "")


def resting(world):
    """A leader that lets the job rest, the facts before, and its state."""
    operator = leader(world)
    before, state = world.operators.durable, operator.arbiter.state
    state.out.save(outcome=Outcome.SUSPENDED, message="1 agent is too few to go on")
    return operator, before, state


def test_a_job_rests_after_its_suspects_were_waited_for(world):
    operator, before, state = resting(world)
    operator.suspects = {"a00"}
    check_rest(world, operator, before, state.durable)
    operator.due_since = inf
    with pytest.raises(Exception, match="suspended, but"):
        check_rest(world, operator, before, state.durable)
    operator.suspects = {"gone"}
    check_rest(world, operator, before, state.durable)


def test_a_job_asks_those_that_are_back_before_it_rests(world):
    operator, before, state = resting(world)
    operator.unasked = {"a01"}
    with pytest.raises(Exception, match=r"\['a01'\] were not asked"):
        check_rest(world, operator, before, state.durable)
    operator.unasked = {"gone"}
    check_rest(world, operator, before, state.durable)


def test_a_job_that_gives_layers_up_to_rest_has_waited_for_their_holders(trained):
    operator = leader(trained)
    before, state = trained.operators.durable, operator.arbiter.state
    state.out.save(outcome=Outcome.SUSPENDED, message="nothing was running", attempt=1)
    operator.agents, operator.suspects, operator.due_since = {"a00"}, {"a01"}, inf
    with pytest.raises(Exception, match=r"\['a01'\] were waited for 0 s"):
        check_rest(trained, operator, before, state.durable)
    operator.due_since = trained.now - 60.0
    check_rest(trained, operator, before, state.durable)


def test_a_job_that_rests_says_what_it_will_repeat(world):
    operator = leader(world)
    before, state = world.operators.durable, operator.arbiter.state
    operator.done = 2
    for message in ("nothing was running", "0 committed steps since the start will be repeated"):
        state.out.save(outcome=Outcome.SUSPENDED, message=message)
        with pytest.raises(Exception, match="2 steps will be repeated, but"):
            check_rest(world, operator, before, state.durable)
    state.out.save(message="2 committed steps since the start will be repeated")
    check_rest(world, operator, before, state.durable)


def test_an_attempt_that_has_committed_nothing_leaves_no_checkpoint_behind(world):
    """Its fork is gone, so a newer checkpoint that the leader finds counts."""
    operator = leader(world)
    before, state = world.operators.durable, operator.arbiter.state
    operator.done, world.newest = 3, (0, 2)
    found = {"attempt": 1, "forks": (Fork(1, 0),), "manifests": (Manifest(0, 3, "0/3", ""),)}
    message = "0 committed steps since the checkpoint of step 3 will be repeated"
    state.out.save(outcome=Outcome.SUSPENDED, message=message, **found)
    operator.suspects = {"gone"}
    check_rest(world, operator, before, state.durable)
    world.newest = (1, 0)
    with pytest.raises(Exception, match="3 steps will be repeated, but"):
        check_rest(world, operator, before, state.durable)


def test_sessions_that_come_back_one_by_one_cost_no_restore():
    history = History(MOVING, 1).then(62, ("away for", 20.0, "a00"))
    history = history.then(0, ("away for", 22.0, "a01"))
    assert replay(history).outcome == "complete"
    with patch.object(rounds, "may_bring", lambda *_: False):
        found = violation(history)
    assert found is not None
    assert "were waited for" in found


def test_a_fault_excuses_until_all_has_been_well_for_a_while(world):
    apply(world, ("cut for", 20.0, *LINK))
    while world.network.cut:
        assert world.is_misled
        tick(world)
    healed_at = world.now
    while world.now < healed_at + 60.0:
        assert world.is_misled
        tick(world)
    tick(world)
    assert not world.is_misled
    assert world.was_misled


def deaf(seconds, seed=0):
    reset = ("reset", 1, "a00", "a01", "a02", "a03")
    base = History(PAIR, 209454210 + seed, "late").then(43, reset)
    return base.then(4, ("stand still", "inbox", OPERATOR, seconds))


def test_an_operator_that_has_read_nothing_gives_nobody_up():
    assert "inbox" in replay(deaf(40.0)).effects
    with patch.object(Backlog, "is_behind", lambda *_, **__: False):
        found = violation(deaf(40.0))
    assert found is not None
    assert "a healthy agent is given up" in found


def test_a_link_that_heals_after_98_seconds_costs_no_restore():
    history = History(MOVING, 1).then(60, ("cut for", 98.0, *LINK))
    assert replay(history).outcome == "complete"
    with patch.object(rounds, "ASKS", 0.1):
        found = violation(history)
    assert found is not None
    assert "was not asked" in found
