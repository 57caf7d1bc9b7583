"""How pods and jobs end."""

from __future__ import annotations

import pytest

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import Reason
from bamboo_core.api.spec import RunPolicy
from bamboo_core.controller import endings
from bamboo_core.controller.view import Losses, Memory, PodPhase, TrainingView

from .builders import JOB, pod, spec


@pytest.mark.parametrize(
    ("code", "reason", "failure", "user_error"),
    [
        (0, "Completed", False, False),
        (3, "Error", False, False),
        (143, "Error", False, False),
        (137, "Error", False, False),
        (None, "Evicted", False, False),
        (137, "OOMKilled", True, False),
        (1, "Error", True, False),
        (139, "Error", True, False),
        (2, "Error", True, True),
    ],
)
def test_which_ends_are_failures(
    code: int | None, reason: str, failure: bool, user_error: bool
) -> None:
    ended = pod(phase=PodPhase.FAILED, exit_code=code, exit_reason=reason)
    assert endings.judge(ended) == endings.Ended(failure, user_error)


def test_an_end_is_counted_once() -> None:
    ended = [pod(phase=PodPhase.FAILED, exit_code=1)]
    once = endings.settle(ended, TrainingView(), Memory(), now=0.0)
    twice = endings.settle(ended, TrainingView(), once, now=1.0)
    assert (once.failures, twice.failures) == (1, 1)
    assert twice.not_before == once.not_before
    gone = endings.settle([], TrainingView(), twice, now=2.0)
    assert gone.settled == frozenset()


def test_too_many_failures_end_the_job() -> None:
    policy = spec(run_policy=RunPolicy(backoff_limit=1))
    memory = Memory(failures=2)
    ended = endings.conclude(policy, TrainingView(), memory, job=JOB, now=5.0)
    assert (ended.terminal, ended.reason) == (Outcome.FAILED, Reason.BACKOFF_LIMIT_EXCEEDED)
    assert "spec.runPolicy.backoffLimit 1; see the logs of the ended pods" in ended.message


def test_the_last_failure_is_quoted_when_there_are_too_many() -> None:
    ended = [
        pod(0, 0, 9, phase=PodPhase.FAILED, exit_code=1, trouble="TaskFailed: KeyError: 'text'"),
        pod(0, 1, 8, phase=PodPhase.FAILED, exit_code=1, trouble="TaskFailed: older"),
        pod(0, 1, 10, phase=PodPhase.FAILED, exit_code=143, trouble="drained"),
        pod(0, 1, 11),
    ]
    limit = spec(run_policy=RunPolicy(backoff_limit=1))
    over = endings.conclude(limit, TrainingView(), Memory(failures=2), job=JOB, now=5.0, pods=ended)
    assert over.reason == Reason.BACKOFF_LIMIT_EXCEEDED
    assert over.message.endswith(
        "the last: agent job-p0-s0-i9 ended with exit code 1: TaskFailed: KeyError: 'text'"
    )


def test_losses_come_from_the_arbiter() -> None:
    seen = endings.settle([], TrainingView(losses=Losses(3, 1)), Memory(), now=0.0)
    assert seen.losses == Losses(3, 1)


def test_the_arbiters_reason_of_a_failure_takes_precedence() -> None:
    """The pod's end may be seen before the agent's last words have come."""
    ended = [pod(phase=PodPhase.FAILED, exit_code=2, trouble="boom")]
    memory = endings.settle(ended, TrainingView(), Memory(), now=1.0)
    assert memory.message == "agent job-p0-s0-i0 ended with exit code 2: boom"
    training = TrainingView(
        outcome=Outcome.FAILED, reason=Reason.USER_CODE_FAILED,
        message="ValueError: layers must be positive",
    )  # fmt: skip
    better = endings.conclude(spec(), training, memory, job=JOB, now=9.0)
    assert better.message == "ValueError: layers must be positive"
    assert better.finished_at == 1.0


def test_running_out_of_memory_is_named() -> None:
    ended = [pod(phase=PodPhase.FAILED, exit_code=137, exit_reason="OOMKilled")]
    over = endings.conclude(
        spec(run_policy=RunPolicy(backoff_limit=0)), TrainingView(), Memory(failures=1),
        job=JOB, now=5.0, pods=ended,
    )  # fmt: skip
    assert over.message.endswith("job-p0-s0-i0 ended with exit code 137: OOMKilled: see its log")


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ("DataTooSmall: 3 samples", Reason.DATA_TOO_SMALL),
        ("UserCodeFailed: boom", Reason.USER_CODE_FAILED),
        ("StepsReached: boom", Reason.USER_CODE_FAILED),
        ("", Reason.USER_CODE_FAILED),
    ],
)
def test_the_pods_last_message_gives_the_reason(trouble: str, reason: Reason) -> None:
    """Else it would change when the agent's own message comes."""
    ended = [pod(phase=PodPhase.FAILED, exit_code=2, trouble=trouble)]
    assert endings.settle(ended, TrainingView(), Memory(), now=1.0).reason == reason


def test_deadlines_count_from_the_start_and_not_while_suspended() -> None:
    policy = RunPolicy(active_deadline_s=10)
    running = endings.conclude(
        spec(run_policy=policy), TrainingView(), Memory(), job=JOB, now=100.0
    )
    assert running.started_at == 100.0
    (at,) = endings.deadlines(spec(run_policy=policy), TrainingView(), running, job=JOB)
    assert at == 110.0
    resting = endings.conclude(
        spec(run_policy=policy, suspend=True), TrainingView(), running, job=JOB, now=200.0
    )
    assert resting.started_at is None
    again = endings.conclude(spec(run_policy=policy), TrainingView(), resting, job=JOB, now=300.0)
    assert again.started_at == 300.0
    ended = endings.conclude(spec(run_policy=policy), TrainingView(), again, job=JOB, now=310.0)
    assert ended.reason == Reason.ACTIVE_DEADLINE_EXCEEDED


def test_a_job_that_never_begins_fails_and_names_what_it_waited_for() -> None:
    policy = spec(run_policy=RunPolicy(pending_deadline_s=10))
    waiting = Memory(started_at=0.0)
    training = TrainingView(detail="3 agents are ready; 4 are needed")
    ended = endings.conclude(policy, training, waiting, job=JOB, now=10.0)
    assert ended.reason == Reason.PENDING_DEADLINE_EXCEEDED
    assert "3 agents are ready" in ended.message
    begun = endings.conclude(policy, TrainingView(planned=True), waiting, job=JOB, now=9.0)
    later = endings.conclude(policy, TrainingView(), begun, job=JOB, now=99.0)
    assert later.terminal is None


def test_a_complete_job_names_its_steps() -> None:
    done = endings.conclude(
        spec(), TrainingView(outcome=Outcome.COMPLETE), Memory(), job=JOB, now=7.0
    )
    assert (done.reason, done.message) == (Reason.STEPS_REACHED, "all 10 steps are committed")
    assert endings.conclude(spec(), TrainingView(), done, job=JOB, now=8.0) == done
