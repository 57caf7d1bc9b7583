"""How many agents an eviction may take."""

from __future__ import annotations

from typing import Any

from tests.core.controller.builders import pod

from bamboo_core.controller.view import ClusterView, PodPhase, TrainingView
from bamboo_core.job.disruptions import least_available

PODS = tuple(pod(0, stage) for stage in range(4))
NAMES = [p.agent for p in PODS]


def training(**changes: Any) -> TrainingView:
    return TrainingView(**({"planned": True, "members": frozenset(NAMES)} | changes))


def test_one_of_four_may_leave() -> None:
    assert least_available(ClusterView((), PODS), training()) == 3


def test_the_next_one_may_leave_when_the_plan_does_without_the_first() -> None:
    leaving = (pod(0, 0, deleting_at=9.0), *PODS[1:])
    assert least_available(ClusterView((), leaving), training()) == 3
    gone = PODS[1:]
    assert least_available(ClusterView((), gone), training()) == 3
    assert least_available(ClusterView((), gone), training(recovering=True)) == 3
    planned_out = training(members=frozenset(NAMES[1:]))
    assert least_available(ClusterView((), gone), planned_out) == 2


def test_pods_that_do_not_run_yet_cannot_stand_in() -> None:
    waiting = pod(0, 0, 1, phase=PodPhase.PENDING)
    assert least_available(ClusterView((), (*PODS, waiting)), training()) == 3
    newcomer = pod(0, 0, 1)
    assert least_available(ClusterView((), (*PODS, newcomer)), training()) == 4


def test_the_last_member_stays_until_there_is_another_one() -> None:
    """After the first of two agents was drained, the second could go at once, and its layers."""
    last = training(members=frozenset(NAMES[:1]))
    newcomer = pod(0, 1, 1)
    waiting = pod(0, 1, 1, phase=PodPhase.PENDING)
    assert least_available(ClusterView((), (PODS[0],)), last) == 1
    assert least_available(ClusterView((), (PODS[0], waiting)), last) == 1
    assert least_available(ClusterView((), (PODS[0], newcomer)), last) == 2
    joined = training(members=frozenset([NAMES[0], newcomer.agent]))
    assert least_available(ClusterView((), (PODS[0], newcomer)), joined) == 1


def test_without_a_plan_there_is_nothing_to_keep() -> None:
    assert least_available(ClusterView((), PODS), training(planned=False)) is None
    assert least_available(ClusterView(), training(members=frozenset())) == 0
