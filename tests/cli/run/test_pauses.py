"""Why training stood still."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cli.conftest import make_node, make_pod
from tests.cli.events import event

from bamboo_cli.run.figures import facts
from bamboo_cli.run.from_cluster import from_cluster
from bamboo_cli.run.model import Pause, Run
from bamboo_core.api.events import EventReason as Reason

A, B, C = "gpt-p0-s0-i0", "gpt-p0-s1-i0", "gpt-p0-s1-i1"
BEGUN = [
    event(1.0, Reason.STOPPED, epoch=1, agents=""),
    event(2.0, Reason.PLANNED, epoch=1, agents=f"{A},{B}"),
    event(3.0, Reason.RESUMED, epoch=1, step=0, pause_s=2.0, cause=""),
]

USERS = event(19.9, Reason.WORKER_FAILED, agents=A, cause="UserCodeFailed")


def run_of(training: dict[str, Any], *events: dict[str, Any]) -> Run:
    training["status"]["startTime"] = "1970-01-01T00:00:00Z"
    pods = [make_pod(A, "n0"), make_pod(B, "n1"), make_pod(C, "n1")]
    nodes = [make_node("n0", "a"), make_node("n1", "b")]
    return from_cluster(training, [*BEGUN, *events], pods, nodes, [], 100.0)


def stopped(agents: str = "", at: float = 20.0) -> dict[str, Any]:
    return event(at, Reason.STOPPED, epoch=2, agents=agents)


def resumed(cause: str, at: float = 21.0) -> dict[str, Any]:
    return event(at, Reason.RESUMED, epoch=2, step=9, pause_s=1.0, cause=cause)


@pytest.mark.parametrize(
    ("events", "cause", "why"),
    [
        ([event(20.0, Reason.AGENT_LOST, agents=B), stopped(B)], "Loss",
         f"loss of {B} in zone b"),
        ([stopped(B), event(20.5, Reason.AGENT_LOST, agents="gpt-p9-s0-i0")], "Loss",
         f"loss of {B} in zone b, gpt-p9-s0-i0"),
        ([event(9.0, Reason.AGENT_LEAVING, agents=B), stopped(B)], "Notice",
         f"notice to {B} in zone b"),
        ([stopped(B)], "Notice", f"drain of {B} in zone b"),
        ([event(19.9, Reason.WORKER_FAILED, agents=A), stopped(A)], "Failure",
         f"failure of {A} in zone a"),
        ([USERS, stopped(A)], "UserCode", f"error of your code on {A} in zone a"),
        ([USERS, event(20.0, Reason.AGENT_LOST, agents=A), stopped(A)], "UserCode",
         f"error of your code on {A} in zone a"),
        ([stopped(B), event(20.5, Reason.STALLED, cause="DataSlow", agents="")], "UserCode",
         "a sample of your data does not come"),
        ([stopped(A)], "UserCode", f"error of your code on {A} in zone a"),
        ([stopped()], "UserCode", "error of your code"),
        ([event(20.0, Reason.STALLED, cause="WaitCycle", agents=A), stopped(A)], "Stall",
         f"standstill (WaitCycle) because of {A} in zone a"),
        ([event(20.0, Reason.CORRUPTION, agents=f"{A},{B}"), stopped()], "Corruption",
         f"wrong bits: {A} in zone a, {B} in zone b"),
        ([stopped(), event(20.2, Reason.RESTORING, step=4, cause="LayerLost")], "Restore",
         "restore from step 4 (LayerLost)"),
        ([stopped(), event(20.5, Reason.PLANNED, epoch=2, agents=f"{A},{B},{C}")], "Change",
         f"join of {C} in zone b"),
        ([stopped(), event(20.5, Reason.PLANNED, epoch=2, agents=A)], "Change",
         f"plan without {B} in zone b"),
        ([stopped(), event(20.5, Reason.PLANNED, epoch=2, agents=f"{A},{B}")], "Change",
         "change of the plan with the same agents"),
        ([stopped()], "Change", "change of the plan"),
        ([stopped()], "NewLeader", "another operator took over"),
        ([stopped()], "Restore", "restore"),
        ([stopped()], "Stall", "standstill"),
        ([stopped(B)], "", f"because of {B} in zone b"),  # of an earlier version
        ([stopped()], "", "not known"),
        ([event(20.0, Reason.AGENT_LOST, agents=B), stopped()], "", f"loss of {B} in zone b"),
        ([stopped(B), event(20.2, Reason.RESTORING, step=4)], "", "restore from step 4"),
    ],
)  # fmt: skip
def test_each_pause_names_its_cause_and_agents(
    training: dict[str, Any], events: list[dict[str, Any]], cause: str, why: str
) -> None:
    (pause,) = run_of(training, *events, resumed(cause)).pauses
    assert pause == Pause(20.0, 21.0, cause, why)


def test_what_led_to_another_pause_is_not_the_cause(training: dict[str, Any]) -> None:
    lost = event(21.5, Reason.AGENT_LOST, agents=A)
    first, second = run_of(
        training, stopped(B), resumed("Loss"), lost, stopped(A, 21.5), resumed("Loss", 22.5)
    ).pauses
    assert first.why == f"loss of {B} in zone b"
    assert second.why == f"loss of {A} in zone a"


def test_many_agents_are_not_all_named(training: dict[str, Any]) -> None:
    many = ",".join(f"gpt-p{n}-s0-i9" for n in range(9))
    (pause,) = run_of(training, stopped(many), resumed("Loss")).pauses
    assert pause.why.endswith("gpt-p3-s0-i9 and 5 more")


def test_a_pause_that_is_not_over_is_listed(training: dict[str, Any]) -> None:
    training["status"]["phase"] = "Recovering"
    training["status"]["totals"]["pauses"] = [{"cause": "Loss", "count": 1, "seconds": {}}]
    run = run_of(training, stopped(B))
    assert list(run.pauses) == [
        Pause(20.0, 100.0, "", f"because of {B} in zone b", is_over=False)
    ]  # fmt: skip
    assert (run.halts.total, run.halts.unlisted, run.paused_s) == (1, 0, 80.0)
    training["status"]["phase"] = "Running"  # the event of its end is on its way
    assert list(run_of(training, stopped(B)).pauses) == []


@pytest.mark.parametrize("phase", ["Recovering", "Failed"])
@pytest.mark.parametrize(
    ("events", "cause", "why"),
    [
        ([USERS, event(20.0, Reason.AGENT_LOST, agents=A)], "UserCode",
         f"error of your code on {A} in zone a"),
        ([USERS], "UserCode", f"error of your code on {A} in zone a"),
        ([event(20.0, Reason.AGENT_LOST, agents=B),
          event(50.0, Reason.STALLED, cause="DataSlow", agents="")], "UserCode",
         "a sample of your data does not come"),
        ([event(19.9, Reason.WORKER_FAILED, agents=A, cause="TaskFailed"),
          event(20.0, Reason.AGENT_LOST, agents=A)], "Failure", f"failure of {A} in zone a"),
        ([event(20.0, Reason.STALLED, cause="WaitCycle", agents=A)], "Stall",
         f"standstill (WaitCycle) because of {A} in zone a"),
        ([event(20.0, Reason.CORRUPTION, agents=A)], "Corruption", f"wrong bits: {A} in zone a"),
    ],
)  # fmt: skip
def test_a_pause_that_is_not_over_is_called_as_the_operator_counts_it(
    training: dict[str, Any], events: list[dict[str, Any]], cause: str, why: str, phase: str
) -> None:
    """An agent that the operator leaves out because of the user's code was called lost."""
    training["status"]["phase"] = phase
    training["status"]["totals"]["pauses"] = [{"cause": cause, "count": 1, "seconds": {}}]
    run = run_of(training, *events, stopped(A))
    assert [(pause.cause, pause.why) for pause in run.pauses] == [(cause, why)]
    assert dict(facts(run))["pauses since the start"].endswith(f"in all (1 {cause})")


def test_a_pause_that_is_not_over_counts_as_what_its_events_say(training: dict[str, Any]) -> None:
    """It was of unknown cause in the sum, and a restore in the list."""
    training["status"]["phase"] = "Recovering"
    training["status"]["totals"]["pauses"] = [
        {"cause": cause, "count": 1, "seconds": {}} for cause in ("Loss", "Restore")
    ]
    begun = event(21.0, Reason.RESTORING, attempt=1, step=400, repeated_steps=9, cause="NoVoter")
    run = run_of(training, stopped(B), begun)
    (pause,) = run.pauses
    assert (pause.cause, pause.why) == ("Restore", "restore from step 400 (NoVoter)")
    pauses = dict(facts(run))["pauses since the start"]
    assert pauses.endswith("in all (1 Loss, 1 Restore)")
    lost = run_of(training, stopped(B), event(21.0, Reason.AGENT_LOST, agents=B)).pauses
    assert [(pause.cause, pause.why) for pause in lost] == [("Loss", f"loss of {B} in zone b")]
