"""What is remembered of seats tells two holders of one apart, whatever else goes right."""

from dataclasses import replace

import pytest

from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.planning.requests import Decision, PlanRequest
from bamboo_sim.protocol.control.seats import Seats, check_seated
from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.running.simulation import Simulation


@pytest.fixture(scope="module")
def begun():
    """The durable facts of a first plan, and its decision."""
    world = Simulation(Job(1, 2, 2), 1)
    while world.plan is None:
        assert world.step()
    arbiter = world.arbiter
    return world.operators.durable, Decision(
        world.plan, arbiter.state.in_force.directives, -1, 0, 0, 0
    )


def follow(durable, *decisions):
    """Seats once the facts are written and these decisions have been made."""
    seats = Seats()
    seats.written(durable)
    for decision in decisions:
        seats.made(decision)
    return seats


def test_agents_may_take_their_seats_repeatedly(begun):
    durable, decision = begun
    seats = follow(durable, decision)
    for agent, directive in [*decision.directives.items()] * 2:
        seats.copy().installed(agent, directive)
        seats.installed(agent, directive)


def test_a_fence_names_one_plan(begun):
    durable, _ = begun
    seats = follow(durable)
    seats.written(replace(durable, committed=7))
    seats.written(replace(durable, members=(), voters=(), attempt=1))
    swapped = tuple(tuple(reversed(p)) for p in durable.pipelines)
    with pytest.raises(Violation, match="two plans of"):
        seats.written(replace(durable, pipelines=swapped))


def test_an_agent_has_one_seat(begun):
    durable, _ = begun
    twice = tuple(p[:1] * 2 for p in durable.pipelines)
    with pytest.raises(Violation, match="gives one agent two seats"):
        Seats().written(replace(durable, pipelines=twice))


def test_two_agents_do_not_take_one_seat(begun):
    durable, decision = begun
    swapped = tuple(tuple(reversed(p)) for p in durable.pipelines)
    seats = follow(durable, decision)
    seats.installed("a01", decision.directives["a01"])
    seats._facts.clear()  # as if facts did not say who sits where
    seats.written(replace(durable, pipelines=swapped))
    late = replace(decision.directives["a00"])
    plan = replace(decision.plan, pipelines=swapped)
    seats.made(replace(decision, plan=plan, directives={"a00": late}))
    with pytest.raises(Violation, match="a00 and a01 both have seat"):
        seats.installed("a00", late)


def test_a_directive_must_be_planned_and_durable(begun):
    durable, decision = begun
    directive = decision.directives["a00"]
    seats = follow(durable, decision)
    with pytest.raises(Violation, match="that was not planned"):
        seats.installed("a00", replace(directive))
    with pytest.raises(Violation, match="not the durable one"):
        follow(Durable(), decision).installed("a00", directive)


def test_who_stays_is_seated_if_a_pipeline_more_would_do_it(begun):
    plan = begun[1].plan
    request = PlanRequest.__new__(PlanRequest)
    facts = {"draining": frozenset(), "is_full": False, "pipelines": 2}

    def check(leaving, **other):
        request.__dict__.update(facts | other)
        check_seated(request, replace(plan, leaving=leaving))

    check(())
    with pytest.raises(Violation, match=r"\['a09'\] get no seat"):
        check(("a09",))
    check(("a09",), draining=frozenset({"a09"}))
    check(("a09",), is_full=True)
    check(("a09",), pipelines=1)
