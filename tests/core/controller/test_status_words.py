"""Texts of conditions: few reasons in one, and no word of training without agents."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import ConditionType, JobPhase, Reason
from bamboo_core.api.spec import RedundancyMode
from bamboo_core.api.totals import Pauses, Totals
from bamboo_core.controller.lifecycle import status_of
from bamboo_core.controller.reconcile import Step, step
from bamboo_core.controller.shortage import few, insufficient
from bamboo_core.controller.turn import Turn, Word
from bamboo_core.controller.view import (
    ClusterView,
    JobView,
    Memory,
    PodPhase,
    PodView,
    TrainingView,
)

from .builders import JOB, nodes, pod, spec
from .failing_starts import condition

OTHER = JobView("ns", "other", "uid-2", 1, 0.0)


def test_of_many_reasons_those_that_stand_elsewhere_give_way() -> None:
    told = [("zone a", ""), ("zone b", ""), ("add nodes", ""), ("", "")]
    grid, line, avoided = ("grid", "Grid"), ("line", ""), ("avoided", "status.avoided")
    assert few([*told, grid, line]) == "; zone a; zone b; add nodes; line; see also Grid"
    assert few([*told, grid, avoided]) == (
        "; zone a; zone b; add nodes; grid; see also status.avoided"
    )
    assert few([*told, grid, line, avoided]).endswith("; line; see also Grid and status.avoided")
    assert few([*told, line, line, line]) == "; zone a; zone b; add nodes; line; line; line"
    assert few([*told, ("", "Grid")]) == "; zone a; zone b; add nodes"
    assert few([]) == ""


def test_a_job_that_lacks_much_tells_all_zones_the_remedy_and_its_place_in_the_line() -> None:
    waiting = [
        pod(d, s, zone=zone, node="", phase=PodPhase.PENDING)
        for d in range(2)
        for s, zone in enumerate("ab")
    ]
    full = tuple(replace(n, lacks=insufficient("gpu")) for n in nodes(a=0, b=0))
    bad = replace(full[0], name="bad", avoided_until=2000.0)
    view = ClusterView((*full, bad), tuple(waiting))
    turn = Turn(Word.ASKS, 1, 2, OTHER)
    found = step(spec(count=2), view, TrainingView(), Memory(), job=JOB, now=1000.0, turn=turn)
    said = condition(found, ConditionType.CAPACITY_AVAILABLE)
    assert said.reason == Reason.WAITING_FOR_NODES
    assert "in zone a: insufficient gpu (2 nodes)" in said.message
    assert "; add nodes to the pool" in said.message
    assert "job ns/other is first in line" in said.message
    assert "in zone b: insufficient gpu (1 node)" in said.message
    assert said.message.endswith("; see also ZoneSpreadSatisfied and status.failures.avoided")
    spread = condition(found, ConditionType.ZONE_SPREAD_SATISFIED)
    assert "2 x 2 needs 4 agents" in spread.message  # what is left out stands there


def trains(
    *pods: PodView,
    is_durable: bool = True,
    recovering: bool = False,
    memory: Memory = Memory(trained=True),  # noqa: B008 - frozen
) -> Step:
    members = frozenset({pod().agent, pod(0, 1, zone="b").agent})
    training = TrainingView(
        epoch=3,
        planned=True,
        has_state=is_durable,
        recovering=recovering,
        members=members,
        connected=members,
        copies=(2,),
        pipelines=1,
    )
    view = ClusterView(nodes(a=8, b=8), pods)
    return step(spec(), view, training, memory, job=JOB, now=1000.0)


def test_a_job_runs_once_its_first_plan_is_durable() -> None:
    both = pod(), pod(0, 1, zone="b")
    assert condition(trains(*both), ConditionType.RUNNING).status
    found = condition(trains(*both, is_durable=False), ConditionType.RUNNING)
    assert (found.status, found.reason) == (False, Reason.INITIALIZING)


def test_a_plan_that_is_not_durable_is_no_beginning() -> None:
    """Its deadline still counts, and a change of it is no recovery."""
    both = pod(), pod(0, 1, zone="b")
    for is_durable in (False, True):
        found = trains(*both, memory=Memory(), recovering=True, is_durable=is_durable)
        assert found.memory.trained is is_durable
        assert condition(found, ConditionType.RECOVERING).status is is_durable
        assert (found.status.phase is JobPhase.RECOVERING) is is_durable
    after_a_restore = trains(*both, is_durable=False)  # whose facts name no members
    assert condition(after_a_restore, ConditionType.RECOVERING).reason == Reason.REPLANNING
    assert after_a_restore.status.phase is JobPhase.RECOVERING


def test_a_job_without_any_agent_of_its_plan_does_not_run() -> None:
    first, second = pod(), pod(0, 1, zone="b")
    leaving = replace(first, deleting_at=1030.0)
    assert condition(trains(leaving), ConditionType.RUNNING).status is True
    ended = replace(first, phase=PodPhase.FAILED, exit_code=137)
    newcomer = pod(0, 0, incarnation=1)
    for pods in ((), (ended, newcomer), (ended, replace(second, exit_code=1))):
        said = condition(trains(*pods), ConditionType.RUNNING)
        assert (said.status, said.reason) == (False, Reason.WAITING_FOR_AGENTS)
        assert said.message == "no agent of plan 3 is left"


def test_conditions_of_a_job_that_has_ended_say_so() -> None:
    memory = Memory(terminal=Outcome.FAILED)
    ended = status_of(spec(), ClusterView(), TrainingView(), memory, job=JOB, now=0.0)
    found = {c.type: (c.status, c.message) for c in ended.conditions}
    why = "no agents are wanted: the job has ended"
    assert found[ConditionType.CAPACITY_AVAILABLE] == (True, why)
    assert found[ConditionType.COMPLETE] == (False, "the job has not ended in this way")


def test_an_ended_job_counts_the_pause_in_which_it_ended() -> None:
    counted, final = Totals(steps=6), Totals(steps=6, pauses={"Failure": Pauses(1)})
    training = TrainingView(planned=True, totals=counted, final_totals=final)
    view = ClusterView(nodes(a=1, b=1), ())

    def totals(memory: Memory) -> Totals:
        return status_of(spec(), view, training, memory, job=JOB, now=1000.0).totals

    assert totals(Memory()) == counted
    assert totals(Memory(terminal=Outcome.FAILED)) == final


@pytest.mark.parametrize(
    ("copies", "recovering", "text"),
    [
        ((1, 2), False, "a loss would cost a restore: only one live copy of layers 0"),
        ((1, 2), True, "layers 0 had only one live copy when training stopped"),
        ((0, 1), True, "no agent that is heard holds layers 0"),
    ],
)
def test_a_layer_without_a_copy_has_not_one(
    copies: tuple[int, ...], recovering: bool, text: str
) -> None:
    """It was told to have one beside a message that it has none."""
    training = TrainingView(
        planned=True, has_state=True, recovering=recovering, copies=copies, pipelines=1
    )
    replicas = spec(redundancy=RedundancyMode.REPLICA)
    view = ClusterView(nodes(a=1, b=1), ())
    found = step(replicas, view, training, Memory(trained=True), job=JOB, now=1000.0)
    degraded = condition(found, ConditionType.DEGRADED)
    assert (degraded.reason, degraded.message) == (Reason.LAYERS_UNPROTECTED, text)
