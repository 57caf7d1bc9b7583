"""What nobody need die of: broken sessions, racing time, and parts that stand still or fail."""

from dataclasses import replace
from time import time
from unittest.mock import patch

import pytest
from tests.rotation import in_turn

from bamboo_core.arbiter_state.events import ArbiterPhase
from bamboo_core.model.program import Op
from bamboo_sim.protocol.exploration.tally import Tally
from bamboo_sim.protocol.exploration.time_budget import (
    EDGES,
    FILES,
    LEARNING,
    MIXED,
    OLDER,
    SAVING,
    SLEEPING,
    SMALL,
    SPARE,
)
from bamboo_sim.protocol.families.by_name import FAMILIES
from bamboo_sim.protocol.histories.branching import Part, inject
from bamboo_sim.protocol.histories.history import (
    EarlyViolation,
    History,
    advance,
    apply,
    explain,
    replay,
)
from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.parts.network import OPERATOR, PLANNER, STORE
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.running import injectors
from bamboo_sim.protocol.running.clock import TICK_S, tick
from bamboo_sim.protocol.running.simulation import Simulation

SECONDS = 0.3
SLICES = [
    *((family, SMALL) for family in EDGES),
    ("storage", SAVING),
    ("storage", SLEEPING),
    ("resets", SPARE),
    ("races", SPARE),
    *(("singles", job) for job in MIXED),
]
ALL = SMALL.at_start


@pytest.mark.rotating(3)
@pytest.mark.parametrize(("family", "job"), SLICES, ids=str)
def test_no_history_at_the_edges_breaks_the_promise(family, job):
    tally, base = Tally(), History(job, 1)
    tally.run(FAMILIES[family](base, Part(5, 1)), base, until=time() + SECONDS)
    assert not tally.violations, explain(tally.violations[0][0])
    assert tally.cases


@pytest.mark.parametrize("after", [62, *in_turn(3, [x for x in range(30, 150, 8) if x != 62])])
def test_all_connections_reset_at_once_cost_no_step(after):
    for kept in (0, 2):
        world = replay(History(SMALL, 1).then(after, ("reset", kept, *ALL)))
        assert world.outcome == "complete"
        assert set(world.plan.live) == set(ALL)


@pytest.mark.parametrize(
    ("machine", "seconds"),
    [
        (OPERATOR, 2.0),
        (STORE, 40.0),
        *in_turn(4, [(OPERATOR, 40.0), (STORE, 2.0), (PLANNER, 2.0), (PLANNER, 40.0)]),
    ],
)
def test_no_agent_is_given_up_for_what_stands_still_elsewhere(machine, seconds):
    for after in range(4, 140, 9):
        history = History(SMALL, 2).then(after, ("stand still", "machine", machine, seconds))
        world = replay(history.then(3, ("restart operator", False)) if after % 2 else history)
        assert world.outcome == "complete"
        assert set(world.plan.live) == set(ALL)


@pytest.mark.parametrize(
    "trouble", [("fail planner", 2), ("stand still", "machine", PLANNER, 130.0)]
)
def test_a_planner_in_trouble_costs_a_job_that_is_suspended_no_step(trouble):
    """The job can go on: it saves what is committed before it rests."""
    for after in (120, 150):
        history = History(SLEEPING, 3).then(after, trouble).then(2, ("suspend",))
        world = replay(history)
        assert world.outcome == "suspended"
        assert world.operators.durable.manifests[-1].step == world.newest[1] + 1


def test_a_leader_that_pauses_hears_later_that_the_job_is_resumed():
    history = History(LEARNING, 855814769, "fifo").then(0, ("suspend",)).then(12, ("defect",))
    history = history.then(150, ("resume", 2, 2))
    for number in range(4):
        history = history.then(0, ("start", f"d{number:02d}"))
    assert replay(history).outcome == "complete"


def test_an_agent_that_fails_before_the_outcome_is_durable_is_gone():
    """The next leader does not know that the job is complete, and waits for its agents."""
    history = History(SAVING, 367602482, "fifo").then(334, ("fail", "a03", False))
    world = replay(history.then(0, ("restart operator", False)))
    assert world.outcome == "complete"
    assert "a03" in world.dead


def test_orders_that_an_operator_sent_late_may_be_on_their_way():
    job = next(job for job in MIXED if job.stages == 1 and job.pipelines == 2)
    history = History(job, 11510260, "fifo").then(20, ("stand still", "machine", OPERATOR, 4.0))
    assert replay(history.then(20, ("kill", "a01", 0))).outcome == "complete"


def test_a_peer_may_speak_before_an_agent_that_was_reset_has_returned():
    history = History(SPARE, 14805433, "late").then(65, ("reset", 1, "a01", "a02"))
    assert replay(history.then(18, ("kill", "a00", 1))).outcome == "complete"


def test_an_agent_that_leaves_keeps_few_activations():
    history = History(FILES, 1001, "fifo").then(44, ("start", "a06"))
    assert replay(history.then(19, ("notice", "a03", 3.0))).outcome == "complete"


def test_what_a_leaving_agent_hands_over_is_its_inputs_and_no_activation():
    """Its successor keeps its own forwards in flight, and holds more of both than its cap."""
    history = History(replace(FILES, tied=True), 599766545, "fifo")
    history = history.then(8, ("flip", "a03", Op.R, True)).then(24, ("kill", "a05", 1))
    history = history.then(49, ("measure", "slow", 3)).then(33, ("notice", "a00", 1.0))
    assert replay(history).outcome == "complete"


def test_what_is_computed_ahead_never_displaces_what_the_program_needs():
    history = History(Job(1, 3, 2, eager=True, layers=6), 7416310, "late")
    assert replay(history.then(47, ("kill", "a00", 1))).outcome == "complete"


def test_time_passes_while_messages_are_under_way():
    world = Simulation(SMALL, 1)
    while not (under_way := [m for m in world.network.messages if type(m[2]) is tuple]):
        assert world.step()
    apply(world, ("pass", 3))
    assert world.now == 3 * TICK_S
    assert set(map(id, under_way)) <= set(map(id, world.network.messages))
    apply(world, ("pass", 200))
    assert world.is_misled  # nothing of what was said has come for longer than suspects are excused


def test_a_violation_while_time_passes_names_the_history():
    base = History(SMALL, 1), Simulation(SMALL, 1)
    with (
        patch.object(injectors, "tick", side_effect=Violation("late")),
        pytest.raises(EarlyViolation) as found,
    ):
        inject(base, 7, ("pass", 3))
    assert found.value.history.script == ((7, ("pass", 3)),)


def test_a_heartbeat_does_not_overtake_what_was_said_before():
    world = Simulation(SMALL, 1, "late")
    while not any(m[:2] == ("a01", OPERATOR) for m in world.network.messages) or not world.plan:
        assert world.step()
    tick(world)
    said = [m[2] for m in world.network.messages if m[:2] == ("a01", OPERATOR)]
    assert len(said) >= 2
    assert type(said[-1].message).__name__ == "Heartbeat"


def test_a_hang_is_seen_and_its_agent_replaced():
    world = Simulation(SPARE, 1)
    while not (world.nodes["a01"].executor.commits and world.nodes["a01"].executor.running):
        assert world.step()
    apply(world, ("start", "a04"))
    apply(world, ("stand still", "worker", "a01", 1e9))
    assert world.finish() == "complete"
    assert "a01" in world.dead
    assert world.now < 60


def test_a_lost_payload_costs_a_plan_and_no_agent():
    found = set()
    for after in range(40, 120, 7):
        history = History(SMALL, 1).then(after, ("drop", after))
        world = replay(history)
        assert world.outcome == "complete"
        assert set(world.plan.live) == set(ALL)
        found.add(world.plan.fence.epoch)
    assert found == {1, 2}


def test_a_frozen_supervisor_hears_everything_later():
    world = Simulation(SMALL, 1)
    advance(world, 60)
    apply(world, ("stand still", "supervisor", "a01", 0.5))
    node = world.nodes["a01"]
    while world.now < TICK_S and node.unheard is not None:
        assert world.step()
    assert node.unheard is None
    assert world.finish() == "complete"
    assert "a01" in world.plan.live


def test_an_operator_that_may_not_lead_does_nothing_until_it_does():
    world = Simulation(SMALL, 1)
    apply(world, ("stand still", "lease", OPERATOR, 5.0))
    while world.now < 4.5:
        assert world.step()
    assert world.arbiter.status().phase is ArbiterPhase.WAITING
    assert world.finish() == "complete"


def test_one_agents_failure_does_not_end_the_job():
    for is_users in (False, True):
        history = History(SMALL, 1).then(60, ("fail", "a01", is_users))
        assert replay(history).outcome == "complete"


def test_a_validation_loss_is_compared():
    world = Simulation(OLDER, 1)
    assert world.finish() == "complete"
    (score,) = {
        n.executor.directive and world.arbiter.state.ledger.progress.validation_loss
        for n in world.nodes.values()
    }
    right = OLDER.expected(world.operators.batch, (0,) * OLDER.steps)[1]
    assert score == right[OLDER.steps].validation_loss
    assert len({record.validation_loss for record in right}) == OLDER.steps + 1
