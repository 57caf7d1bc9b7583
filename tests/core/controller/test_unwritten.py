"""All is done but the last checkpoint, which cannot be written: pods, conditions, phase."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.progress import TrainingProgress, Unwritten
from bamboo_core.api.reasons import ConditionType, JobPhase, Reason
from bamboo_core.api.spec import CheckpointSpec
from bamboo_core.controller.reconcile import CreatePod, DeletePod, Step, lacks_pods, step
from bamboo_core.controller.view import (
    ClusterView,
    Condition,
    Memory,
    PodPhase,
    PodView,
    TrainingView,
)

from .builders import JOB, having_heard, nodes, pod, spec

SPEC = spec(count=2, checkpoint=CheckpointSpec("file:///c"))
FULL = "agent job-p0-s0-i0: writing below /c/uid failed: No space left on device"
HOLDERS = (pod(0, 0), pod(0, 1, zone="b"))
RELEASED = tuple(
    pod(1, n, zone=zone, phase=PodPhase.SUCCEEDED, exit_code=0) for n, zone in enumerate("ab")
)
UNWRITTEN = TrainingView(
    epoch=6,
    planned=True,
    has_state=True,
    pipelines=1,
    connected=frozenset(p.agent for p in HOLDERS),
    members=frozenset(p.agent for p in HOLDERS),
    progress=TrainingProgress(9),
    copies=(1, 1),
    checkpoint_step=8,
    checkpoint_error=FULL,
    unwritten=Unwritten(10, FULL, 3540.0, layers=(0, 1, 3)),
)


def run(*pods: PodView, training: TrainingView = UNWRITTEN, suspend: bool = False) -> Step:
    view = ClusterView(nodes(a=4, b=4, c=4), pods)
    memory = Memory(incarnation=0, trained=True, started_at=1.0)
    training = having_heard(training, pods)
    return step(replace(SPEC, suspend=suspend), view, training, memory, job=JOB, now=50.0)


def condition(found: Step, kind: ConditionType) -> Condition:
    return next(c for c in found.status.conditions if c.type == kind)


def test_released_agents_are_not_replaced_and_are_no_failures() -> None:
    found = run(*HOLDERS, *RELEASED)
    assert found.actions == ()
    assert found.memory.failures.total == 0
    view = ClusterView(nodes(a=4, b=4), (*HOLDERS, *RELEASED))
    assert not lacks_pods(SPEC, view, UNWRITTEN, found.memory)
    without = replace(UNWRITTEN, unwritten=None)  # as after a restore
    assert lacks_pods(SPEC, view, without, found.memory)
    made = [x for x in run(*HOLDERS, *RELEASED, training=without).actions]
    assert len([x for x in made if isinstance(x, CreatePod)]) == 2


def test_pods_that_have_not_begun_go_and_agents_that_run_leave_by_themselves() -> None:
    waiting = pod(1, 0, 3, phase=PodPhase.PENDING, node="")
    running = pod(1, 1, 3, zone="b")
    (gone,) = run(*HOLDERS, waiting, running).actions
    assert isinstance(gone, DeletePod)
    assert (gone.name, gone.force) == (waiting.name, False)


def test_the_condition_says_what_is_missing_what_it_costs_and_for_how_long() -> None:
    found = condition(run(*HOLDERS, *RELEASED), ConditionType.STALLED)
    assert (found.status, found.reason) == (True, Reason.LAST_WRITE_WAITS)
    assert found.message == (
        f"all steps are committed, but the checkpoint of step 10 in file:///c is not written"
        f" (missing: layers 0-1, 3): {FULL}; 2 agents (job-p0-s0-i0, job-p0-s1-i0) keep the state"
        " and try again for 59 minutes, at a cost that is not known, since the chart's value prices"
        " is not set"
    )
    unwritten = Unwritten(10, FULL, 20.0, 7.5)
    one = replace(UNWRITTEN, unwritten=unwritten, members=frozenset({HOLDERS[0].agent}))
    found = condition(run(HOLDERS[0], training=one), ConditionType.STALLED)
    assert found.message == (
        "all steps are committed, but the checkpoint of step 10 in file:///c is not written:"
        f" {FULL}; 1 agent (job-p0-s0-i0) keeps the state and tries again for 1 minute, at $7.50 an"
        " hour"
    )
    some = replace(one, unwritten=unwritten._replace(unpriced=2))
    found = condition(run(HOLDERS[0], training=some), ConditionType.STALLED)
    assert found.message.endswith("at $7.50 an hour without 2 nodes that no price is known of")


def test_a_failing_job_says_why_it_ends() -> None:
    unwritten = Unwritten(4, FULL, 20.0, failing="job-p0-s0-i0: UserCodeFailed: sample 7: KeyError")
    found = condition(
        run(*HOLDERS, training=replace(UNWRITTEN, unwritten=unwritten)), ConditionType.STALLED
    )
    assert found.message.startswith(
        "the job fails by job-p0-s0-i0: UserCodeFailed: sample 7: KeyError, but the checkpoint of"
        " step 4 in file:///c is not written"
    )


def test_many_agents_are_not_all_named() -> None:
    members = frozenset(pod(0, n).agent for n in range(5))
    found = condition(run(training=replace(UNWRITTEN, members=members)), ConditionType.STALLED)
    assert "5 agents (job-p0-s0-i0, job-p0-s1-i0, job-p0-s2-i0, ...) keep" in found.message


def leaving(*gone: PodView) -> TrainingView:
    """These holders have notice, and others have to take the state over."""
    unwritten = UNWRITTEN.unwritten
    assert unwritten is not None
    departing = frozenset(p.agent for p in gone)
    return replace(UNWRITTEN, departing=departing, unwritten=unwritten._replace(successors=1))


def test_a_pod_is_made_for_the_agent_that_takes_the_state_over() -> None:
    training = leaving(*HOLDERS)
    found = run(*HOLDERS, *RELEASED, training=training)
    (made,) = found.actions
    assert isinstance(made, CreatePod)
    view = ClusterView(nodes(a=4, b=4), (*HOLDERS, *RELEASED))
    assert lacks_pods(SPEC, view, training, found.memory)
    successor = pod(0, 0, made.incarnation, phase=PodPhase.PENDING, node="")
    assert run(*HOLDERS, *RELEASED, successor, training=training).actions == ()
    here = replace(training, connected=training.connected | {successor.agent})
    running = pod(0, 0, made.incarnation, zone="c")
    assert run(*HOLDERS, *RELEASED, running, training=here).actions == ()
    stalled = condition(found, ConditionType.STALLED)
    assert stalled.message.endswith(
        "; they will all leave, so another agent is awaited that takes the state over"
    )


def test_no_pod_is_made_for_it_before_a_suspension_or_after_failures() -> None:
    training = leaving(*HOLDERS)
    assert run(*HOLDERS, *RELEASED, training=training, suspend=True).actions == ()
    view = ClusterView(nodes(a=4, b=4), (*HOLDERS, *RELEASED))
    memory = Memory(incarnation=0, trained=True, started_at=1.0, not_before=90.0)
    found = step(SPEC, view, training, memory, job=JOB, now=50.0)
    assert found.actions == ()


def test_a_suspension_that_waits_says_so() -> None:
    training = replace(UNWRITTEN, unwritten=Unwritten(6, FULL, 290.0))
    found = run(*HOLDERS, *RELEASED, training=training, suspend=True)
    assert found.actions == ()  # its agents hold the state
    assert found.status.phase is JobPhase.SUSPENDING
    stalled = condition(found, ConditionType.STALLED)
    assert (stalled.status, stalled.reason) == (True, Reason.LAST_WRITE_WAITS)
    assert stalled.message.startswith("to be suspended, but the checkpoint of step 6 in file:///c")


@pytest.mark.parametrize(
    ("kind", "status", "reason"),
    [
        (ConditionType.CAPACITY_AVAILABLE, True, Reason.ALL_PLACED),
        (ConditionType.RUNNING, True, Reason.TRAINING_STEP),
        (ConditionType.DEGRADED, True, Reason.LAYERS_UNPROTECTED),
        (ConditionType.RECOVERING, False, Reason.IDLE),
        (ConditionType.CHECKPOINTED, False, Reason.WRITE_FAILED),
        (ConditionType.COMPLETE, False, Reason.NOT_YET),
        (ConditionType.FAILED, False, Reason.NOT_YET),
    ],
)
def test_the_other_conditions(kind: ConditionType, status: bool, reason: Reason) -> None:
    found = run(*HOLDERS, *RELEASED)
    assert found.status.phase is JobPhase.RUNNING
    assert found.status.agents_wanted == 2
    one = condition(found, kind)
    assert (one.status, one.reason) == (status, reason)
