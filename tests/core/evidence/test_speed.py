"""Relative speeds: what counts as one, when it changes, and who is a straggler."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.planning.test_planner import proceed
from tests.core.planning.test_speeds import A0, request

from bamboo_core.evidence.speed import Lasting, Speeds
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.planning.requests import Expected
from bamboo_core.protocol.messages import CommitRecord, Progress

A, B, C, D, E = (AgentId(x) for x in "abcde")
FENCE, NEXT = Fence(0, 1, 1), Fence(0, 1, 2)
EVEN = {a: Expected(1.0) for a in (A, B, C, D, E)}
STEP_S = 2.0


class Run:
    """Members that end steps; a speed is what an agent has by nature."""

    def __init__(self, expected: Mapping[AgentId, Expected] = EVEN) -> None:
        self.speeds, self.expected, self.step = Speeds(), expected, 0
        self.begin(FENCE)

    def begin(self, fence: Fence) -> None:
        self.fence = fence
        self.speeds.begin(fence, self.step, self.expected)

    @property
    def now(self) -> float:
        return STEP_S * self.step

    def steps(self, number: int, natural: Mapping[AgentId, float] | None = None) -> None:
        """The plan's next steps."""
        for _ in range(number):
            self.step += 1
            for agent, expected in self.expected.items():
                busy_s = 0.3 * expected.at(self.step) / (natural or {}).get(agent, 1.0)
                self.tell(agent, busy_s)

    def tell(self, agent: AgentId, busy_s: float) -> None:
        progress = Progress(CommitRecord(self.step), self.fence, busy_s=busy_s)
        self.speeds.learn(agent, progress, self.now)


def test_equal_agents_are_typical_however_long_the_costs_say() -> None:
    run = Run()
    run.steps(30)
    assert run.speeds.relative() == {}
    assert run.speeds.stragglers(run.now) == ()


def test_a_slow_and_a_fast_agent_are_known_after_eight_steps() -> None:
    run = Run()
    run.steps(8, {A: 0.33, B: 1.5})
    assert run.speeds.relative() == {}
    run.steps(1, {A: 0.33, B: 1.5})
    assert run.speeds.relative() == {A: 0.3, B: 1.5}


def test_an_agent_that_is_nearly_typical_again_is_typical() -> None:
    run = Run()
    run.steps(20, {A: 0.5})
    assert run.speeds.relative() == {A: 0.5}
    run.steps(20, {A: 0.88})
    assert run.speeds.relative() == {}


def test_before_the_first_plan_nothing_is_known() -> None:
    speeds = Speeds()
    assert not speeds.is_worth_a_plan({A: 0.5})
    assert speeds.stragglers(1000.0) == ()
    speeds.learn(A, Progress(CommitRecord(3), busy_s=1.0), 0.0)
    assert speeds.relative() == {}


def test_work_by_the_plan_does_not_count_as_slowness() -> None:
    run = Run({A: Expected(3.0), B: Expected(1.0), C: Expected(2.0)})
    run.steps(10, {C: 0.5})
    assert run.speeds.relative() == {C: 0.5}


def test_steps_with_validation_are_expected_to_take_longer() -> None:
    run = Run({A: Expected(1.0, ((2, 0, 9.0),)), B: Expected(1.0), C: Expected(1.0)})
    assert [run.expected[A].at(step) for step in (2, 3)] == [10.0, 1.0]
    run.steps(20)
    assert run.speeds.relative() == {}


@given(st.lists(st.tuples(*[st.floats(0.92, 1.08)] * 5), min_size=9, max_size=30))
@settings(max_examples=30, deadline=None)
def test_noise_changes_nothing(noise: list[tuple[float, ...]]) -> None:
    run = Run()
    for factors in noise:
        run.steps(1, dict(zip(EVEN, factors, strict=True)))
    assert run.speeds.relative() == {}


def test_single_long_steps_change_nothing() -> None:
    run = Run()
    for _ in range(10):
        run.steps(2)
        run.steps(1, {A: 0.01})
    assert run.speeds.relative() == {}


def test_a_speed_near_a_bound_does_not_go_back_and_forth() -> None:
    run = Run()
    run.steps(9, {A: 0.76})
    assert run.speeds.relative() == {A: 0.8}
    run.steps(20, {A: 0.84})
    assert run.speeds.relative() == {A: 0.8}
    run.steps(20, {A: 0.95})
    assert run.speeds.relative() == {}


def test_speeds_are_bounded() -> None:
    run = Run()
    run.steps(9, {A: 1e-6, B: 1e6})
    assert run.speeds.relative() == {A: 0.1, B: 10.0}


def test_only_steady_steps_of_the_plan_in_force_count() -> None:
    run = Run()
    for step, fence in ((0, FENCE), (5, NEXT), (5, Fence())):
        for _ in range(20):
            for agent in EVEN:
                slow = Progress(CommitRecord(step), fence, busy_s=9.0 if agent == A else 1.0)
                run.speeds.learn(agent, slow, 0.0)
    run.steps(9)
    assert run.speeds.relative() == {}


def test_the_next_plan_keeps_speeds_until_it_has_measured_them_itself() -> None:
    run = Run()
    run.steps(9, {A: 0.5})
    run.begin(NEXT)
    run.steps(8)
    assert run.speeds.relative() == {A: 0.5}
    run.steps(1)
    assert run.speeds.relative() == {}


def test_who_left_is_forgotten_and_so_are_all_without_costs() -> None:
    run = Run()
    run.steps(40, {A: 0.2, B: 0.3})
    assert run.speeds.stragglers(run.now) == (A, B)
    run.expected = {a: EVEN[a] for a in (B, C, D, E)}
    run.begin(NEXT)
    assert run.speeds.relative() == {B: 0.3}
    assert run.speeds.stragglers(run.now) == (B,)
    run.expected = EVEN
    run.begin(Fence(0, 1, 3))
    assert run.speeds.relative() == {B: 0.3}
    run.expected = {}
    run.begin(Fence(0, 1, 4))
    assert run.speeds.relative() == {}
    for agent in EVEN:
        run.tell(agent, 1.0)
    assert run.speeds.stragglers(inf) == ()


def test_an_agent_that_computes_nothing_is_not_waited_for() -> None:
    run = Run({**EVEN, D: Expected(0.0)})
    run.steps(9, {A: 0.5})
    assert run.speeds.relative() == {A: 0.5}


def test_nothing_is_concluded_while_a_member_is_not_measured() -> None:
    run = Run()
    for _ in range(20):
        run.step += 1
        for agent in (A, B, C, D):
            run.tell(agent, 9.0 if agent == A else 1.0)
    assert run.speeds.relative() == {}


@pytest.mark.parametrize("busy_s", [0.0, -1.0, nan, inf])
def test_impossible_times_are_ignored(busy_s: float) -> None:
    run = Run()
    for _ in range(3):
        run.steps(9)
        run.tell(A, busy_s)
    assert run.speeds.relative() == {}


def test_a_straggler_has_been_slow_for_steps_and_seconds() -> None:
    run = Run()
    run.steps(8, {A: 0.4})
    run.steps(19, {A: 0.4})
    assert run.speeds.stragglers(inf) == ()
    run.steps(1, {A: 0.4})
    began = STEP_S * 9
    assert run.speeds.stragglers(began + Lasting().seconds - 0.1) == ()
    assert run.speeds.stragglers(began + Lasting().seconds) == (A,)
    run.begin(NEXT)
    assert run.speeds.stragglers(inf) == (A,)
    run.steps(9)
    assert run.speeds.stragglers(inf) == ()


def test_slowness_adds_up_over_plans_but_not_over_pauses() -> None:
    run = Run()
    run.steps(8 + 12, {A: 0.4})
    run.begin(NEXT)
    run.steps(8 + 8, {A: 0.4})
    assert run.speeds.stragglers(inf) == (A,)
    other = Run()
    other.steps(8 + 19, {A: 0.4})
    other.steps(8)
    other.steps(8 + 12, {A: 0.4})
    assert other.speeds.stragglers(inf) == ()


def test_half_as_fast_is_no_straggler() -> None:
    run = Run()
    run.steps(60, {A: 0.51})
    assert run.speeds.relative() == {A: 0.5}
    assert run.speeds.stragglers(inf) == ()


def test_a_plan_is_worth_it_when_an_agent_is_slow_or_no_longer_so() -> None:
    run = Run()
    run.steps(9, {A: 0.5, B: 3.0})
    assert run.speeds.is_worth_a_plan({})
    assert not run.speeds.is_worth_a_plan(run.speeds.relative())
    assert not run.speeds.is_worth_a_plan({A: 0.6})
    assert run.speeds.is_worth_a_plan({A: 0.5, C: 0.5})
    run.steps(9, {B: 3.0})
    assert run.speeds.relative() == {B: 3.0}
    assert not run.speeds.is_worth_a_plan({})
    assert run.speeds.is_worth_a_plan({A: 0.5})


def test_a_plan_for_the_measured_speeds_gives_an_agent_what_it_can_do() -> None:
    run = Run(proceed(request({})).expected)
    run.steps(9, {A0: 0.3})
    speeds = run.speeds.relative()
    assert speeds == {A0: 0.3}
    even_s = run.expected[A0].step_s
    run.expected = proceed(request(speeds)).expected
    assert max(x.step_s / speeds.get(a, 1) for a, x in run.expected.items()) < even_s / 0.3 / 2
    run.begin(NEXT)
    run.steps(9, {A0: 0.3})
    assert not run.speeds.is_worth_a_plan(speeds)
