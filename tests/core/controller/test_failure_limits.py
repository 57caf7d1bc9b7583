"""How pods and jobs end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.progress import TrainingProgress, Unwritten
from bamboo_core.api.reasons import FailureCause, Reason
from bamboo_core.api.spec import CheckpointSpec, JobSpec, RunPolicy
from bamboo_core.api.totals import Times, TimeState
from bamboo_core.controller import failure_limits, lifecycle
from bamboo_core.controller.failures import Failures
from bamboo_core.controller.view import (
    ClusterView,
    LastWords,
    Losses,
    Memory,
    PodPhase,
    PodView,
    TrainingView,
)
from bamboo_core.model.ids import AgentId

from .builders import JOB, having_heard, nodes, pod, spec


def settle(
    *pods: PodView,
    training: TrainingView | None = None,
    memory: Memory | None = None,
    job_spec: JobSpec | None = None,
    now: float = 0.0,
) -> Memory:
    """Count the failures, then conclude."""
    wanted = job_spec if job_spec is not None else spec()
    training = training if training is not None else TrainingView(has_begun=True)
    training = having_heard(training, pods)
    memory = memory if memory is not None else Memory()
    view = ClusterView(nodes(a=1, b=1), pods)
    memory = failure_limits.settle(wanted, view, training, memory, now=now)
    return lifecycle.conclude(wanted, training, memory, job=JOB, now=now)


def words(number: int, cause: str = "WorkerExited", *, is_user_error: bool = False) -> LastWords:
    agent = AgentId(f"job-p0-s0-i{number}")
    text = f"{agent}: {cause}: the worker ended with code 0"
    return LastWords(agent, cause, text, is_user_error, "node-a", "machine-a")


def ended(number: int, code: int = 1, trouble: str = "", exit_reason: str = "") -> PodView:
    failed = pod(0, 0, number, phase=PodPhase.FAILED)
    return replace(failed, exit_code=code, trouble=trouble, exit_reason=exit_reason)


@pytest.mark.parametrize(
    ("code", "reason", "is_failure"),
    [
        (0, "Completed", False),
        (3, "Error", False),
        (143, "Error", False),
        (137, "Error", False),
        (None, "Evicted", False),
        (137, "OOMKilled", True),
        (1, "Error", True),
        (139, "Error", True),
        (2, "Error", True),
    ],
)
def test_which_ends_are_failures(code: int | None, reason: str, is_failure: bool) -> None:
    seen = pod(phase=PodPhase.FAILED, exit_code=code, exit_reason=reason)
    assert seen.has_failed is is_failure


def test_an_end_is_counted_once() -> None:
    once = settle(ended(0))
    twice = settle(ended(0), memory=once, now=1.0)
    assert (once.failures.total, twice.failures.total) == (1, 1)
    assert twice.not_before == once.not_before
    assert settle(memory=twice, now=2.0).settled == frozenset()


def test_a_failure_is_remembered_with_its_place_and_step() -> None:
    training = TrainingView(has_begun=True, progress=TrainingProgress(41))
    (found,) = settle(
        ended(0, trouble="TaskFailed: boom"), training=training, now=9.0
    ).failures.recent
    assert (found.cause, found.node, found.machine) == (
        FailureCause.TASK_FAILED,
        "node-a",
        "machine-a",
    )
    assert (found.step, found.at) == (42, 9.0)


@pytest.mark.parametrize(
    ("committed", "undone", "saved", "left"),
    [
        (-1, 0, -1, ""),
        (9, 0, -1, "; 10 committed steps since the start are lost"),
        (
            9,
            0,
            8,
            "; 2 committed steps since the checkpoint of step 8 are lost; spec.checkpoint.from"
            " begins a job with the checkpoint of step 8",
        ),
        (9, 0, 10, "; spec.checkpoint.from begins a job with the checkpoint of step 10"),
        (-1, 2, -1, "; 2 committed steps since the start are lost"),  # of the attempt before
    ],
)
def test_a_job_that_the_operator_ends_says_which_work_it_leaves(
    committed: int, undone: int, saved: int, left: str
) -> None:
    training = TrainingView(
        has_begun=True,
        failed=tuple(map(words, range(4))),
        progress=TrainingProgress(committed),
        undone=undone,
        checkpoint_step=saved,
    )
    memory = settle(training=training)
    assert memory.reason == Reason.BACKOFF_LIMIT_EXCEEDED
    assert memory.message.endswith(f"the worker ended with code 0{left}")


def test_words_count_though_the_pod_was_deleted_before_its_end_was_seen() -> None:
    """As of a model that calls os._exit(0): the arbiter dismisses the agent at once."""
    memory, told = Memory(), tuple[LastWords, ...]()
    for number in range(4):
        assert memory.terminal is None
        told = (*told, words(number))
        training = TrainingView(has_begun=True, failed=told)
        memory = settle(training=training, memory=memory, now=100.0 * number)
    assert (memory.terminal, memory.reason) == (Outcome.FAILED, Reason.BACKOFF_LIMIT_EXCEEDED)
    assert memory.message == (
        "agents have failed 4 times, more than spec.runPolicy.backoffLimit 3; the last:"
        " job-p0-s0-i3: WorkerExited: the worker ended with code 0"
    )


@pytest.mark.parametrize("is_told_first", [True, False])
def test_an_agent_is_counted_by_its_words_or_by_its_pod(is_told_first: bool) -> None:
    running, told = pod(), TrainingView(has_begun=True, failed=(words(0),))
    memory = settle(running, training=told) if is_told_first else settle(ended(0))
    assert memory.failures.total == 1
    both = settle(ended(0), training=told, memory=memory)
    assert both.failures.total == 1
    later = settle(ended(0), memory=both)  # a new leader has not heard the words
    assert later.failures.total == 1


def test_an_agents_words_and_its_pods_end_in_one_call_are_one_failure() -> None:
    told = TrainingView(has_begun=True, failed=(words(0),))
    assert settle(ended(0), training=told).failures.total == 1


def test_failures_that_are_not_listed_any_more_count_in_the_pause() -> None:
    known = Failures(older=5)
    training = TrainingView(has_begun=True)
    memory = settle(ended(0), training=training, memory=Memory(failures=known), now=100.0)
    assert memory.not_before == 132.0


def test_a_node_that_does_not_fit_delays_no_replacement() -> None:
    """However often its agents are refused, and however many others have failed."""
    policy = spec(run_policy=RunPolicy(backoff_limit=99, node_failure_limit=0))
    memory, told = Memory(failures=Failures(older=9)), tuple[LastWords, ...]()
    for number in range(20):
        told = (replace(words(number, "FingerprintMismatch"), is_refused=True),)
        training = TrainingView(has_begun=True, epoch=3, failed=told)
        now = 100.0 * number
        memory = settle(training=training, memory=memory, job_spec=policy, now=now)
        assert memory.not_before == now + 1.0


def test_a_refused_agent_does_not_shorten_the_pause_after_a_failure() -> None:
    policy, memory = (
        spec(run_policy=RunPolicy(backoff_limit=99)),
        Memory(failures=Failures(older=9)),
    )
    training = TrainingView(has_begun=True, epoch=3)
    memory = settle(ended(0), training=training, memory=memory, job_spec=policy)
    told = replace(training, failed=(replace(words(1, "FingerprintMismatch"), is_refused=True),))
    memory = settle(training=told, memory=memory, job_spec=policy, now=5.0)
    assert (memory.failures.total, memory.not_before) == (2, 60.0)


def test_the_newest_words_are_the_last_failure() -> None:
    told = TrainingView(has_begun=True, failed=(words(0), words(1)))
    (_, newest) = settle(training=told).failures.recent
    assert newest.agent == "job-p0-s0-i1"


def test_an_agent_that_fails_twice_in_its_words_is_one_failure() -> None:
    """As one that stalls, and whose worker reports an error while it is replaced."""
    told = TrainingView(has_begun=True, failed=(words(0, "Stalled"), words(0, "TaskFailed")))
    memory = settle(training=told)
    assert dict(memory.failures.counts) == {FailureCause.STALLED: 1}


def test_the_pause_grows_with_failures_that_are_not_forgiven() -> None:
    training = TrainingView(has_begun=True)
    memory, pauses = Memory(), []
    for number in range(3):
        memory = settle(ended(number), training=training, memory=memory, now=100.0)
        pauses.append(memory.not_before - 100.0)
    assert pauses == [1.0, 2.0, 4.0]
    later = replace(training, progress=TrainingProgress(200))
    memory = settle(ended(3), training=later, memory=memory, now=500.0)
    assert (memory.not_before, memory.failures.unforgiven) == (501.0, 1)


def test_too_many_failures_end_the_job_and_the_last_is_quoted() -> None:
    pods = (
        ended(9, trouble="TaskFailed: KeyError: 'text'"),
        ended(8, trouble="TaskFailed: older"),
        ended(10, 143, "drained"),
        pod(0, 1, 11),
    )
    over = settle(*pods, job_spec=spec(run_policy=RunPolicy(backoff_limit=1)))
    assert over.reason == Reason.BACKOFF_LIMIT_EXCEEDED
    assert over.message.endswith(
        "the last: agent job-p0-s0-i9 ended with exit code 1: TaskFailed: KeyError: 'text'"
    )


# ---------------------------------------------------------------- errors of the user's code


def test_an_error_of_the_users_code_in_two_agents_ends_a_job_that_has_not_begun() -> None:
    begins = TrainingView()
    once = settle(ended(0, 2, "UserCodeFailed: boom"), training=begins)
    assert (once.terminal, once.failures.unforgiven) == (None, 1)
    again = settle(ended(0, 2, "UserCodeFailed: boom"), training=begins, memory=once)
    assert again.terminal is None, "one agent was counted twice"
    over = settle(ended(1, 2, "DataTooSmall: 3 samples"), training=begins, memory=again)
    assert (over.terminal, over.reason) == (Outcome.FAILED, Reason.DATA_TOO_SMALL)
    assert over.message == "agent job-p0-s0-i1 ended with exit code 2: DataTooSmall: 3 samples"


def test_one_agents_words_and_anothers_pod_make_two() -> None:
    training = TrainingView(failed=(words(0, "UserCodeFailed", is_user_error=True),))
    over = settle(ended(1, 2, "UserCodeFailed: boom"), training=training)
    assert (over.terminal, over.reason) == (Outcome.FAILED, Reason.USER_CODE_FAILED)


def test_a_newcomers_error_does_not_end_a_running_job() -> None:
    training = TrainingView(has_begun=True, planned=True, has_state=True)
    memory = Memory()
    for number in range(3):
        memory = settle(ended(number, 2, "UserCodeFailed: EIO"), training=training, memory=memory)
        assert memory.terminal is None
    over = settle(ended(3, 2, "UserCodeFailed: EIO"), training=training, memory=memory)
    assert over.reason == Reason.BACKOFF_LIMIT_EXCEEDED
    assert over.message.endswith("UserCodeFailed: EIO")


@pytest.mark.parametrize(("epoch", "is_over"), [(0, True), (1, False)])
def test_newcomers_that_do_not_fit_cost_a_running_job_only_their_nodes(
    epoch: int, is_over: bool
) -> None:
    memory, told = Memory(), tuple[LastWords, ...]()
    for number in range(4):
        told = (*told, replace(words(number, "FingerprintMismatch"), is_refused=True))
        training = TrainingView(has_begun=True, epoch=epoch, failed=told)
        memory = settle(training=training, memory=memory, now=100.0)
    assert (memory.terminal is Outcome.FAILED) is is_over
    assert memory.failures.total == 4
    assert memory.failures.unforgiven == (4 if is_over else 0)
    assert memory.not_before == (108.0 if is_over else 101.0)
    assert list(memory.failures.avoided_until()) == ["machine-a"]


def test_without_retries_the_first_error_of_the_users_code_is_the_reason() -> None:
    policy = spec(run_policy=RunPolicy(backoff_limit=0))
    over = settle(ended(0, 2, "boom"), training=TrainingView(), job_spec=policy)
    assert over.reason == Reason.USER_CODE_FAILED
    assert over.message == "agent job-p0-s0-i0 ended with exit code 2: boom"


def test_one_flaky_agent_does_not_hide_the_error_of_the_code() -> None:
    """Errors of the user's code are the last of those that are seen together."""
    pods = (ended(0, 2, "UserCodeFailed: boom"), ended(1, 2, "UserCodeFailed: boom"), ended(2))
    over = settle(*pods, training=TrainingView())
    assert over.reason == Reason.USER_CODE_FAILED


def test_losses_come_from_the_arbiter() -> None:
    seen = settle(training=TrainingView(losses=Losses(3, 1)))
    assert seen.losses == Losses(3, 1)


def test_the_arbiters_reason_of_a_failure_takes_precedence() -> None:
    """The pods' ends may be seen before the agents' last words have come."""
    policy = spec(run_policy=RunPolicy(backoff_limit=0))
    memory = settle(ended(0, 2, "boom"), training=TrainingView(), job_spec=policy, now=1.0)
    training = TrainingView(
        outcome=Outcome.FAILED, reason=Reason.USER_CODE_FAILED,
        message="ValueError: layers must be positive",
    )  # fmt: skip
    better = lifecycle.conclude(spec(), training, memory, job=JOB, now=9.0)
    assert better.message == "ValueError: layers must be positive"
    assert better.finished_at == 1.0


def test_running_out_of_memory_is_named() -> None:
    over = settle(
        ended(0, 137, exit_reason="OOMKilled"),
        job_spec=spec(run_policy=RunPolicy(backoff_limit=0)),
    )
    assert over.message.endswith("job-p0-s0-i0 ended with exit code 137: OOMKilled: see its log")
    assert over.failures.recent[0].cause is FailureCause.OOM_KILLED


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
    policy = spec(run_policy=RunPolicy(backoff_limit=0))
    assert settle(ended(0, 2, trouble), training=TrainingView(), job_spec=policy).reason == reason


def limited(**options: object) -> JobSpec:
    policy = RunPolicy(active_deadline_s=10, last_write_deadline_s=100)
    return spec(run_policy=policy, **{"checkpoint": CheckpointSpec("file:///c"), **options})


ALL_COMMITTED = TrainingView(planned=True, has_state=True, progress=TrainingProgress(committed=9))


def reason_at(now: float, job_spec: JobSpec, training: TrainingView) -> tuple[str, list[float]]:
    """Why a job that began at 0 has failed by now, and its deadlines."""
    begun = Memory(trained=True, times=Times(TimeState.TRAINING, 0.0))
    over = lifecycle.conclude(job_spec, training, begun, job=JOB, now=now)
    return over.reason, list(lifecycle.deadlines(job_spec, training, begun, job=JOB))


def test_the_active_deadline_does_not_end_the_wait_for_the_last_write() -> None:
    """All steps are committed, and the whole state is alive: the arbiter knows when to give up."""
    waiting = replace(ALL_COMMITTED, unwritten=Unwritten(10, "the disk is full", 5.0))
    assert reason_at(1e6, limited(), waiting) == ("", [])
    to_go_on = replace(waiting, unwritten=Unwritten(4, "it was to be suspended", 5.0))
    assert reason_at(10.0, limited(), replace(to_go_on, progress=TrainingProgress()))[0] == (
        Reason.ACTIVE_DEADLINE_EXCEEDED
    )
    failing = Unwritten(4, "the disk is full", 5.0, failing="a-0: UserCodeFailed: sample 7")
    begun = replace(ALL_COMMITTED, progress=TrainingProgress(committed=3), unwritten=failing)
    assert reason_at(1e6, limited(), begun) == ("", [])


def test_after_the_last_step_the_checkpoint_has_its_time() -> None:
    """A write that has not failed, and never ends, still ends the job."""
    assert reason_at(109.0, limited(), ALL_COMMITTED) == ("", [110.0])
    assert reason_at(110.0, limited(), ALL_COMMITTED)[0] == Reason.ACTIVE_DEADLINE_EXCEEDED
    training = replace(ALL_COMMITTED, progress=TrainingProgress(committed=8))
    assert reason_at(10.0, limited(), training)[0] == Reason.ACTIVE_DEADLINE_EXCEEDED
    assert reason_at(10.0, limited(checkpoint=None), ALL_COMMITTED)[1] == [10.0]


def test_a_job_that_never_begins_fails_and_names_what_it_waited_for() -> None:
    policy = spec(run_policy=RunPolicy(pending_deadline_s=10))
    waiting = Memory(times=Times(TimeState.WAITING, 0.0))
    training = TrainingView(detail="3 agents ready; 4 are needed")
    ended = lifecycle.conclude(policy, training, waiting, job=JOB, now=10.0)
    assert ended.reason == Reason.PENDING_DEADLINE_EXCEEDED
    assert "3 agents ready" in ended.message
    begun = lifecycle.conclude(
        policy, TrainingView(planned=True, has_state=True), waiting, job=JOB, now=9.0
    )
    later = lifecycle.conclude(policy, TrainingView(), begun, job=JOB, now=99.0)
    assert later.terminal is None


def test_a_complete_job_names_its_steps() -> None:
    done = lifecycle.conclude(
        spec(), TrainingView(outcome=Outcome.COMPLETE), Memory(), job=JOB, now=7.0
    )
    assert (done.reason, done.message) == (Reason.STEPS_REACHED, "all 10 steps are committed")
    assert lifecycle.conclude(spec(), TrainingView(), done, job=JOB, now=8.0) == done


@pytest.mark.parametrize("epoch", [0, 3])
def test_agents_on_another_kind_of_processor_never_count_as_failures(epoch: int) -> None:
    """Neither before the start nor after it, however many there are."""
    policy = spec(run_policy=RunPolicy(backoff_limit=0))
    memory, told, now = Memory(), tuple[LastWords, ...](), 100.0
    for number in range(9):
        told = (*told, replace(words(number, "DeviceDiffers"), is_refused=True))
        training = TrainingView(epoch=epoch, failed=told)
        memory = settle(training=training, memory=memory, job_spec=policy, now=now)
        assert memory.not_before == now + min(60.0, 2.0**number)
        now = memory.not_before
    assert (memory.terminal, memory.failures.total, memory.failures.unforgiven) == (None, 0, 0)
    assert list(memory.failures.avoided_until()) == ["machine-a"]
    again = settle(training=training, memory=memory, job_spec=policy, now=now)
    assert again.failures.misfits == memory.failures.misfits, "an agent was counted twice"


def test_only_a_refused_agent_is_taken_for_one_on_another_processor() -> None:
    """An agent that says so itself has failed."""
    memory = settle(training=TrainingView(has_begun=True, failed=(words(0, "DeviceDiffers"),)))
    assert (memory.failures.total, memory.failures.misfits.rounds) == (1, 0)


def test_the_instance_type_is_that_of_the_machine_where_the_agent_ran() -> None:
    """A node of the same name may be another machine by now."""
    refused = replace(words(0, "DeviceDiffers"), is_refused=True)
    training = TrainingView(failed=(refused,))
    for machine, kind in (("machine-a", "c5.large"), ("another", "")):
        there = (replace(nodes(a=1)[0], machine=machine, instance_type="c5.large"),)
        view = ClusterView(there, ())
        (place,) = failure_limits.settle(spec(), view, training, Memory(), now=0.0).failures.avoided
        assert (place.machine, place.kind) == ("machine-a", kind)
