"""Whether a copy of every layer lived, and whether work was lost all the same."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.placement.plan import Plan, ranges_of
from bamboo_sim.soak.losses import Holders, Loss, Recovery, holders, judge

A, B, C, D = (AgentId(name) for name in "abcd")


def plan(
    wants: Mapping[AgentId, tuple[int, ...]], *, target: int, epoch: int = 1, attempt: int = 0
) -> Plan:
    """A plan of two layers. wants: agent -> its layers."""
    live = tuple(sorted(wants))
    return Plan(
        fence=Fence(attempt, 1, epoch),
        pipelines=(live,),
        cut=((0, 1), (1, 2)),
        step_cut=((0, 1), (1, 2)),
        target=target,
        last=100,
        live=live,
        leaving=(),
        short_notice=(),
        wants={agent: ranges_of(layers) for agent, layers in wants.items()},
        coordinator=live[0],
        batch=BatchShape(2, 1, 1),
    )


def held(*layers: str) -> Holders:
    """Layer -> its holders, a letter each."""
    return tuple(frozenset(AgentId(name) for name in names) for names in layers)


RING = plan({A: (0, 1), B: (0, 1)}, target=5)


# ---------------------------------------------------------------- holders


def test_agents_hold_what_a_plan_gives_them_once_its_first_step_is_committed() -> None:
    assert holders([RING], {0: 5}) == held("ab", "ab")
    assert holders([RING], {0: 9}) == held("ab", "ab")


def test_nothing_is_certain_before_the_first_step_of_the_first_plan() -> None:
    assert holders([RING], {0: 4}) == ()
    assert holders([RING], {}) == ()
    assert holders([], {}) == ()


def test_a_copy_that_is_still_to_be_made_is_none() -> None:
    """c has the seat of b by the second plan, and may not have its layer yet."""
    later = plan({A: (0, 1), C: (0, 1)}, target=8, epoch=2)
    assert holders([RING, later], {0: 7}) == held("a", "a")
    assert holders([RING, later], {0: 8}) == held("ac", "ac")


def test_a_copy_that_the_next_plan_drops_is_not_certain() -> None:
    """The first step of the second plan may be committed although nobody has told it."""
    first = plan({A: (0, 1), B: (1,)}, target=5)
    later = plan({A: (0,), B: (1,), C: (1,)}, target=8, epoch=2)
    assert holders([first, later], {0: 7}) == held("a", "b")


def test_all_plans_that_may_be_in_force_must_keep_a_copy() -> None:
    second = plan({A: (0,), B: (0, 1)}, target=8, epoch=2)
    third = plan({A: (0, 1), B: (1,)}, target=8, epoch=3)
    assert holders([RING, second, third], {0: 7}) == held("a", "b")


def test_commits_of_an_earlier_attempt_prove_nothing() -> None:
    restored = plan({A: (0, 1), B: (0, 1)}, target=3, attempt=1)
    assert holders([RING, restored], {0: 9}) == ()
    assert holders([RING, restored], {0: 9, 1: 3}) == held("ab", "ab")


def test_a_layer_that_nobody_wants_has_no_holder() -> None:
    assert holders([plan({A: (0,)}, target=5)], {0: 5}) == held("a", "")


# ---------------------------------------------------------------- judge


def test_a_loss_that_costs_nothing_is_a_success() -> None:
    losses = [Loss(A, held("ab", "ac"))]
    assert judge(losses, {A}, restored=False, repeated=0) == Recovery(1, 1)


@pytest.mark.parametrize(
    ("restored", "repeated"), [(True, 0), (False, 1), (True, 3)], ids=["restored", "again", "both"]
)
def test_a_restore_although_a_copy_lived_is_no_success(restored: bool, repeated: int) -> None:
    losses = [Loss(A, held("ab", "ac"))]
    assert judge(losses, {A}, restored=restored, repeated=repeated) == Recovery(1, 0)


def test_a_job_that_does_not_go_on_is_no_success() -> None:
    losses = [Loss(A, held("ab", "ac"))]
    found = judge(losses, {A}, restored=False, repeated=0, goes_on=False)
    assert found == Recovery(1, 0)


def test_a_restore_after_the_last_copy_is_not_judged() -> None:
    losses = [Loss(A, held("ab", "ac")), Loss(B, held("b", "c"))]
    assert judge(losses, {A, B}, restored=True, repeated=7) == Recovery(0, 0)
    assert judge(losses[:1], {A, C}, restored=True, repeated=7) == Recovery(0, 0)


def test_the_lost_agents_are_no_copies_even_if_nobody_else_says_that_they_are_gone() -> None:
    assert judge([Loss(A, held("a", "b"))], (), restored=True, repeated=1) == Recovery(0, 0)


def test_a_restore_is_not_excused_by_another_loss_that_left_copies() -> None:
    losses = [Loss(A, held("abc", "abc")), Loss(B, held("bcd", "cd"))]
    assert judge(losses, {A, B}, restored=True, repeated=1) == Recovery(2, 0)
    assert judge(losses, {A, B}, restored=False, repeated=0) == Recovery(2, 2)


def test_nothing_is_judged_without_losses_or_while_nothing_is_certain() -> None:
    assert judge([], {A}, restored=True, repeated=1) == Recovery(0, 0)
    assert judge([Loss(A, ())], {A}, restored=True, repeated=1) == Recovery(0, 0)
