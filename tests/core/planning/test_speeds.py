"""Plans for agents of unequal speed, and what a step should take each agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from tests.core.arbiter.fleet import spec
from tests.core.planning.test_planner import HALVES, decide, proceed, request_of

from bamboo_core.api.spec import RecoveryPolicy, TransportSpec
from bamboo_core.model.ids import AgentId
from bamboo_core.model.program import COMPUTE, Instruction, Op, Program
from bamboo_core.planning import planner, requests
from bamboo_core.planning.requests import Expected
from bamboo_core.scheduling.costs import Costs

A0, A1 = AgentId("a0"), AgentId("a1")
COSTS = (HALVES,) * 4
DURATIONS = Costs.measured(COSTS).durations()


def request(
    speeds: Mapping[AgentId, float], policy: RecoveryPolicy = RecoveryPolicy.DIFFUSE
) -> requests.PlanRequest:
    """A whole grid of 2x2 begins; every agent has 8 leaves of one micro-batch."""
    job = spec(pipelines=2, stages=2, steps=8, microbatches=16)
    training = replace(job.training, validate_every=2)
    made = request_of(replace(job, recovery=policy, training=training))
    return replace(made, costs=COSTS, speeds=speeds)


def resume(made: requests.PlanRequest) -> dict[AgentId, Program]:
    return {a: d.resume for a, d in decide(made).directives.items()}


def steady(made: requests.PlanRequest) -> dict[AgentId, Program]:
    return {a: c.steady for a, c in proceed(made).directives.items()}


def forwards(programs: Mapping[AgentId, Program]) -> Counter[AgentId]:
    return Counter(a for a, p in programs.items() for x in p if x.op is Op.F)


@pytest.mark.parametrize("part", [resume, steady])
def test_a_slow_agent_computes_less(
    part: Callable[[requests.PlanRequest], dict[AgentId, Program]],
) -> None:
    even, uneven = forwards(part(request({}))), forwards(part(request({A0: 0.3})))
    assert set(even.values()) == {8}
    assert 1 <= uneven[A0] <= 3
    assert uneven.total() == even.total()


@pytest.mark.parametrize("policy", [RecoveryPolicy.SHADOW, RecoveryPolicy.PEERS])
def test_other_policies_leave_a_slow_agent_its_own_work(policy: RecoveryPolicy) -> None:
    assert forwards(steady(request({A0: 0.3}, policy)))[A0] == 8


@pytest.mark.parametrize("speeds", [dict.fromkeys(("a0", "a1", "a2", "a3"), 0.5), {"gone": 0.1}])
def test_equal_speeds_change_no_plan(speeds: dict[str, float]) -> None:
    known = {AgentId(a): x for a, x in speeds.items()}
    assert list(planner.compute(request(known))) == list(planner.compute(request({})))


def test_over_a_slow_network_a_slow_agent_keeps_its_work() -> None:
    """The sum of each leaf that it gives away would have to come back to it."""
    large = tuple(replace(x, parameter_bytes=10**11) for x in COSTS)
    made = replace(request({A0: 0.3}), costs=large)
    assert forwards(steady(made))[A0] == 8
    fast = replace(made.spec, transport=TransportSpec(bandwidth_gbps=100_000.0))
    assert forwards(steady(replace(made, spec=fast)))[A0] < 8
    measured = replace(made, spec=fast, goodput=made.spec.transport.bytes_per_s)
    assert steady(measured) == steady(made)  # what is measured counts where it is less
    assert steady(replace(made, goodput=1e15)) == steady(made)  # and not where it is more


@pytest.mark.parametrize("after", [30, 60, 90])
def test_an_interrupted_step_of_agents_of_unequal_speed_goes_on(after: int) -> None:
    job = spec(pipelines=2, stages=2, steps=8, microbatches=16)
    made = request_of(job, kill="a1", after=after)
    for speeds in ({A0: 0.2}, {A0: 3.0, AgentId("a2"): 0.5}):
        assert decide(replace(made, speeds=speeds)).plan.holes == 1


def test_a_step_is_expected_to_take_what_its_instructions_cost() -> None:
    made = proceed(request({}))
    for agent, expected in made.expected.items():
        program = made.directives[agent].steady
        for step in (2, 3):
            runs = [x for x in program if x.every <= 1 or (x.step + step) % x.every == 0]
            seconds = sum(DURATIONS.of(x) for x in runs if x.op in COMPUTE)
            assert expected.at(step) == pytest.approx(seconds)
    assert made.expected[A1].step_s == 8 * 2 * 3  # F, I and W of 8 leaves and 2 layers
    assert any(x.at(2) > x.at(3) for x in made.expected.values())


def test_a_periodic_instruction_counts_in_its_steps_only() -> None:
    program = (
        Instruction(Op.F, 0, 0, 2),
        Instruction(Op.V, 0, 0, 1, every=3),
        Instruction(Op.V, 1, 0, 4, every=3),
        Instruction(Op.SEAL, every=3),
    )
    expected = Expected.of(program, DURATIONS)
    assert [expected.at(step) for step in (3, 4, 5)] == [3.0, 2.0, 6.0]


def test_by_default_every_step_takes_as_long_as_the_others() -> None:
    assert Expected(2.0).at(7) == 2.0


def test_without_measured_costs_nothing_is_expected() -> None:
    assert proceed(replace(request({}), costs=())).expected == {}
