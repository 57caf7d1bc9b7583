"""The supervisor's state machine: sessions, orders, worker, departure, lease."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.protocol.supervised import (
    FIRST,
    HELLO,
    READY,
    SECOND,
    attend,
    connected,
    continuation,
    directive,
    fresh,
    kills,
    planned,
    reopened,
    report,
    sent,
    welcome,
)

from bamboo_core.model.ids import Fence
from bamboo_core.protocol import supervisor as m
from bamboo_core.protocol.exit_codes import ExitCode
from bamboo_core.protocol.messages import (
    Failure,
    Finished,
    Heartbeat,
    Hello,
    Left,
    Notice,
    Reconnect,
    Release,
    Stop,
    Welcome,
)


def test_a_session_begins_with_hello_and_the_welcome_starts_the_worker_once() -> None:
    supervisor = fresh()
    assert supervisor.handle(m.SessionOpened(), 0.0) == [m.SendOperator(HELLO)]
    assert supervisor.handle(m.FromOperator(welcome()), 0.0) == [m.SpawnWorker(welcome())]
    supervisor.handle(m.SessionClosed(), 1.0)
    supervisor.handle(m.SessionOpened(), 2.0)
    assert supervisor.handle(m.FromOperator(welcome()), 2.0) == []


def test_ready_is_sent_in_every_session() -> None:
    supervisor = connected()
    supervisor.handle(m.SessionClosed(), 1.0)
    supervisor.handle(m.SessionOpened(), 2.0)
    assert sent(supervisor.handle(m.FromOperator(welcome()), 2.0)) == [READY]


def test_hello_says_what_is_held() -> None:
    supervisor = planned()
    supervisor.handle(m.SessionClosed(), 1.0)
    (hello,) = sent(supervisor.handle(m.SessionOpened(), 1.0))
    assert isinstance(hello, Hello)
    assert (hello.fence, hello.has_state) == (Fence(0, 1, 1), True)


def test_the_session_with_an_older_leader_is_closed() -> None:
    supervisor = connected()
    supervisor.handle(m.FromOperator(Stop(Fence(0, 5, 1))), 0.0)
    supervisor.handle(m.SessionClosed(), 1.0)
    supervisor.handle(m.SessionOpened(), 1.0)
    (effect,) = supervisor.handle(m.FromOperator(welcome(term=4)), 1.0)
    assert isinstance(effect, m.CloseSession)
    assert supervisor.handle(m.FromOperator(Release(0, "stale")), 1.0) == []


def test_orders_of_lower_fences_are_refused() -> None:
    supervisor = planned(Fence(0, 1, 5))
    assert supervisor.handle(m.FromOperator(Stop(Fence(0, 1, 4))), 1.0) == []
    assert supervisor.handle(m.FromOperator(directive(Fence(0, 1, 4))), 1.0) == []
    assert supervisor.handle(m.FromOperator(directive(Fence(0, 1, 6))), 1.0) == []


def test_a_directive_is_installed_once_and_opens_liveness() -> None:
    supervisor = connected()
    fence = Fence(0, 1, 1)
    stop = Stop(fence)
    assert supervisor.handle(m.FromOperator(stop), 0.0) == [m.ToWorker(stop)]
    assert sent(supervisor.handle(m.FromWorker(report(fence)), 0.0)) == [report(fence)]
    order = directive(fence)
    effects = supervisor.handle(m.FromOperator(order), 0.0)
    assert effects == [m.ToWorker(order), m.ConnectLiveness(order.peers, b"mine")]
    assert supervisor.handle(m.FromOperator(order), 0.0) == []


def test_the_rest_of_a_plan_is_passed_on_once_and_brings_its_peers() -> None:
    supervisor = planned()
    rest = continuation(FIRST)
    assert supervisor.handle(m.FromOperator(rest), 1.0) == [
        m.ToWorker(rest),
        m.ConnectLiveness(rest.peers, b"mine"),
    ]
    assert supervisor.handle(m.FromOperator(rest), 1.0) == []


def test_the_rest_of_another_plan_goes_nowhere() -> None:
    supervisor = planned()
    assert supervisor.handle(m.FromOperator(continuation(SECOND)), 1.0) == []
    assert supervisor.handle(m.FromOperator(continuation(FIRST, "another")), 1.0) == []
    supervisor.handle(m.FromOperator(Stop(SECOND)), 1.0)
    assert supervisor.handle(m.FromOperator(continuation(FIRST)), 1.0) == []
    assert supervisor.handle(m.FromOperator(continuation(SECOND)), 1.0) == []
    supervisor.handle(m.FromOperator(directive(SECOND)), 1.0)
    assert supervisor.handle(m.FromOperator(continuation(SECOND)), 1.0)


def test_reports_of_an_older_fence_are_dropped() -> None:
    supervisor = connected()
    supervisor.handle(m.FromOperator(Stop(Fence(0, 1, 2))), 0.0)
    assert supervisor.handle(m.FromWorker(report(Fence(0, 1, 1))), 0.0) == []


def test_a_worker_that_does_not_report_is_killed() -> None:
    supervisor = connected()
    supervisor.handle(m.Progressed(3, 0, longest_s=1.0), 0.0)
    supervisor.handle(m.FromOperator(Stop(Fence(0, 1, 1))), 0.0)
    assert not kills(attend(supervisor, 0.0, 2.9))
    assert kills(attend(supervisor, 2.9, 3.1))


def test_a_worker_is_killed_the_moment_its_deadline_has_come() -> None:
    supervisor = connected()
    supervisor.handle(m.FromOperator(Stop(Fence(0, 1, 1))), 0.0)
    floor_s = supervisor.timing.report_floor_s
    times = [floor_s * i / 4 for i in range(1, 5)]
    found = [kills(supervisor.handle(m.Tick(), now)) for now in times]
    assert found == [False, False, False, True]


def test_a_report_in_time_saves_the_worker() -> None:
    supervisor = connected()
    supervisor.handle(m.FromOperator(Stop(Fence(0, 1, 1))), 0.0)
    supervisor.handle(m.FromWorker(report(Fence(0, 1, 1))), 1.0)
    assert not kills(attend(supervisor, 1.0, 10.0))


def test_a_supervisor_that_was_frozen_does_not_kill_its_worker() -> None:
    """The report may lie in the pipe: it is read before the deadline is over in attentive time."""
    supervisor = connected()
    supervisor.handle(m.FromOperator(Stop(Fence(0, 1, 1))), 0.0)
    assert not kills(supervisor.handle(m.Tick(), 60.0))
    supervisor.handle(m.FromWorker(report(Fence(0, 1, 1))), 60.0)
    assert not kills(attend(supervisor, 60.0, 70.0))


def test_a_factory_that_does_not_end_is_a_failure() -> None:
    supervisor = fresh()
    supervisor.handle(m.SessionOpened(), 0.0)
    supervisor.handle(m.FromOperator(replace(welcome(), start_s=10.0)), 0.0)
    assert not kills(attend(supervisor, 0.0, 9.9))
    effects = attend(supervisor, 9.9, 10.1)
    (failure,) = (x for x in sent(effects) if isinstance(x, Failure))
    assert (failure.reason, failure.user_error) == ("StartDeadlineExceeded", False)
    for name in ("spec.model.factory", "spec.data.factory", "spec.runPolicy.startDeadlineSeconds"):
        assert name in failure.message
    assert "within 10 s" in failure.message
    assert isinstance(effects[-1], m.Exit)
    assert effects[-1].code == 1
    assert kills(effects)


def test_the_start_deadline_counts_from_the_start_of_the_worker() -> None:
    supervisor = fresh()
    supervisor.handle(m.SessionOpened(), 100.0)
    supervisor.handle(m.FromOperator(replace(welcome(), start_s=10.0)), 100.0)
    assert not kills(attend(supervisor, 100.0, 109.9))
    assert kills(attend(supervisor, 109.9, 110.1))


def test_the_newest_start_deadline_counts_and_0_is_none() -> None:
    supervisor = fresh()
    supervisor.handle(m.SessionOpened(), 0.0)
    supervisor.handle(m.FromOperator(replace(welcome(), start_s=10.0)), 0.0)
    supervisor.handle(m.FromOperator(replace(welcome(), start_s=20.0)), 0.0)
    assert not kills(attend(supervisor, 0.0, 19.9))
    supervisor.handle(m.FromOperator(replace(welcome(), start_s=0.0)), 19.9)
    assert not kills(attend(supervisor, 19.9, 40.0))


def test_a_worker_that_is_ready_has_met_its_start_deadline() -> None:
    supervisor = fresh()
    supervisor.handle(m.SessionOpened(), 0.0)
    supervisor.handle(m.FromOperator(replace(welcome(), start_s=10.0)), 0.0)
    supervisor.handle(m.FromWorker(READY), 9.0)
    assert not kills(attend(supervisor, 9.0, 20.0))


@pytest.mark.parametrize(
    ("code", "user_error", "exit_code"), [(2, True, 2), (1, False, 1), (-9, False, 1)]
)
def test_the_worker_s_end_ends_the_pod(code: int, user_error: bool, exit_code: int) -> None:
    effects = connected().handle(m.WorkerExited(code, "boom"), 1.0)
    failure = Failure("WorkerExited", "boom", user_error, code)
    assert effects == [
        m.SendOperator(failure),
        m.Exit(exit_code, "WorkerExited: boom"),
    ]


FORWARD = "F[0:4] m3 @9, layer 2 (Block)"
READING = "F[0:4] m3 @9 reads sample 7 of spec.data"


@pytest.mark.parametrize(
    ("code", "at", "place"),
    [
        (3, FORWARD, FORWARD),
        (128 + 11, FORWARD, FORWARD),
        (0, FORWARD, FORWARD),
        (128 + 9, FORWARD, ""),  # somebody's, or too much memory
        (128 + 9, READING, READING),  # a sample that takes too much memory is everybody's
        (128 + 15, FORWARD, ""),
        (128 + 15, READING, ""),
        (70, FORWARD, ""),  # another thread
        (3, "", ""),  # it waited
    ],
)
def test_where_the_worker_has_ended_itself(code: int, at: str, place: str) -> None:
    supervisor = planned()
    (failure, _) = supervisor.handle(m.WorkerExited(code, "", at), 1.1)
    assert isinstance(failure, m.SendOperator)
    assert isinstance(failure.message, Failure)
    assert failure.message.place == place
    told = f"the worker ended with code {code}"
    if place:
        why = (
            "native code has crashed" if code > 128 else "code that it runs may not end the process"
        )
        if code == 128 + 9:
            why = "the sample may take more memory than there is"
        told += f", in {place}: {why}"
    assert failure.message.message.startswith(told)
    is_thread = code == 70
    assert (", in " in failure.message.message) == (bool(at) and not is_thread)


def test_a_worker_that_its_supervisor_has_killed_over_a_sample_has_not_ended_itself() -> None:
    """A read that hangs may be the fault of the storage, which must not end a job."""
    supervisor = planned()
    supervisor.handle(m.FromOperator(Stop(Fence(0, 1, 2))), 1.2)
    effects = [e for n in range(400) for e in supervisor.handle(m.Tick(), 2.0 + n)]
    assert any(isinstance(effect, m.KillWorker) for effect in effects)
    (failure, _) = supervisor.handle(m.WorkerExited(128 + 9, "", READING), 500.0)
    assert isinstance(failure, m.SendOperator)
    assert failure.message.place == ""


def test_code_that_ends_the_process_as_the_worker_does_itself_is_no_refusal() -> None:
    """sys.exit(2) of a tool. Another agent computes the same, as with any other code."""
    (failure, ended) = planned().handle(m.WorkerExited(ExitCode.USER, "", FORWARD), 1.1)
    assert isinstance(failure, m.SendOperator)
    assert (failure.message.user_error, failure.message.place) == (False, FORWARD)
    assert isinstance(ended, m.Exit)
    assert ended.code == ExitCode.FAILED


@pytest.mark.parametrize("code", [3, 128 + 11, 128 + 9])
def test_what_a_worker_that_ends_in_its_set_up_has_run(code: int) -> None:
    """It has been in no plan, so no other agent has it in common."""
    supervisor = fresh()
    supervisor.handle(m.SessionOpened(), 0.0)
    supervisor.handle(m.FromOperator(welcome()), 0.0)
    (said, _) = supervisor.handle(m.WorkerExited(code, "boom", "layer 2 (Block)"), 1.1)
    assert isinstance(said, m.SendOperator)
    assert isinstance(said.message, Failure)
    assert said.message.place == ""
    is_told = ", in the set-up of layer 2 (Block): " in said.message.message
    assert is_told == (code != 128 + 9)


def test_a_worker_that_has_ended_is_given_no_more_orders() -> None:
    supervisor = planned()
    supervisor.handle(m.FromWorker(Finished(FIRST)), 1.0)
    assert supervisor.handle(m.WorkerExited(0, ""), 1.0) == []
    assert supervisor.handle(m.FromOperator(Stop(SECOND)), 1.0) == []
    (hello,) = sent(supervisor.handle(m.SessionOpened(), 2.0))
    assert isinstance(hello, Hello)
    assert not hello.has_state


def test_a_failure_message_of_the_worker_is_passed_on() -> None:
    failure = Failure("ModelFactoryFailed", "ImportError: no module named gpt", True, 2)
    effects = connected().handle(m.FromWorker(failure), 1.0)
    assert sent(effects) == [failure]
    assert effects[-1] == m.Exit(2, "ModelFactoryFailed: ImportError: no module named gpt")


def test_release_ends_with_its_code() -> None:
    supervisor = planned()
    assert supervisor.handle(m.FromOperator(Release(3, "fenced")), 1.0) == [m.Exit(3, "fenced")]
    assert supervisor.handle(m.Tick(), 2.0) == []


def test_reconnect_closes_the_session() -> None:
    effects = planned().handle(m.FromOperator(Reconnect(2.0)), 1.0)
    assert effects == [m.CloseSession(2.0, "the operator asked for it")]


def test_heartbeats_come_at_the_asked_rate() -> None:
    assert sent(connected().handle(m.Tick(), 0.0)) == [Heartbeat(1, 0, 0)]
    supervisor = connected()
    supervisor.handle(m.Progressed(7, 2), 0.0)
    assert sent(supervisor.handle(m.Tick(), 0.0)) == [Heartbeat(1, 2, 7)]
    assert supervisor.handle(m.Tick(), 0.1) == []
    assert sent(supervisor.handle(m.Tick(), 0.2)) == [Heartbeat(2, 2, 7)]
    supervisor.handle(m.FromOperator(Stop(FIRST)), 0.2)
    assert sent(supervisor.handle(m.Tick(), 0.4)) == [Heartbeat(3, 2, 7, FIRST)]


def test_an_agent_of_the_plan_waits_to_hand_over() -> None:
    supervisor = planned()
    effects = supervisor.handle(m.Departing(15.0, "SIGTERM"), 1.0)
    assert effects == [m.SendOperator(Notice(15.0, "SIGTERM"))]
    assert supervisor.handle(m.FromWorker(Left(Fence(0, 1, 1))), 3.0) == [
        m.SendOperator(Left(Fence(0, 1, 1))),
        m.Exit(143, "drained"),
    ]


def test_the_grace_period_ends_the_wait() -> None:
    supervisor = planned()
    supervisor.handle(m.Departing(15.0, "SIGTERM"), 1.0)
    assert not any(isinstance(e, m.Exit) for e in supervisor.handle(m.Tick(), 14.9))
    assert supervisor.handle(m.Tick(), 15.0)[-1] == m.Exit(143, "the grace period has ended")


def test_the_grace_period_does_not_wait_for_a_supervisor_that_stood_still() -> None:
    """The kubelet keeps it, in real time."""
    supervisor = planned()
    supervisor.handle(m.Departing(15.0, "SIGTERM"), 1.0)
    assert supervisor.handle(m.Tick(), 300.0)[-1] == m.Exit(143, "the grace period has ended")


def test_an_agent_outside_the_plan_exits_at_once() -> None:
    effects = connected().handle(m.Departing(15.0, "SIGTERM"), 1.0)
    assert effects[-1] == m.Exit(143, "SIGTERM")


def test_a_cloud_notice_alone_does_not_end_the_pod() -> None:
    effects = connected().handle(m.Departing(30.0, "spot", is_signal=False), 1.0)
    assert effects == [m.SendOperator(Notice(30.0, "spot"))]


def test_the_notice_is_repeated_in_every_session() -> None:
    """The next one may be another process, and was never told."""
    supervisor = connected()
    supervisor.handle(m.SessionClosed(), 1.0)
    assert supervisor.handle(m.Departing(120.0, "spot", is_signal=False), 2.0) == []
    for now, left_s in ((3.0, 119.0), (60.0, 62.0)):
        supervisor.handle(m.SessionOpened(), now)
        told = sent(supervisor.handle(m.FromOperator(welcome()), now))
        assert told == [READY, Notice(left_s, "spot")]
        supervisor.handle(m.SessionClosed(), now)


def test_the_source_of_a_notice_is_repeated_with_it() -> None:
    supervisor = connected()
    event = m.Departing(30.0, "preempted", is_signal=False, source="Gce")
    assert sent(supervisor.handle(event, 1.0)) == [Notice(30.0, "preempted", "Gce")]
    supervisor.handle(m.SessionClosed(), 2.0)
    supervisor.handle(m.SessionOpened(), 3.0)
    told = sent(supervisor.handle(m.FromOperator(welcome()), 3.0))
    assert Notice(28.0, "preempted", "Gce") in told


def test_a_hint_is_passed_on_in_every_session_and_nobody_leaves() -> None:
    hint = Notice(0.0, "rebalance", "AwsRebalance", is_hint=True)
    event = m.Departing(0.0, "rebalance", is_signal=False, source="AwsRebalance", is_hint=True)
    for supervisor in (connected(), planned()):
        assert supervisor.handle(event, 1.0) == [m.SendOperator(hint)]
        assert not any(isinstance(e, m.Exit) for e in supervisor.handle(m.Tick(), 60.0))
        supervisor.handle(m.SessionClosed(), 61.0)
        supervisor.handle(m.SessionOpened(), 62.0)
        assert hint in sent(supervisor.handle(m.FromOperator(welcome()), 62.0))


def test_a_notice_makes_hints_pointless() -> None:
    supervisor = connected()
    supervisor.handle(m.Departing(0.0, "r", is_signal=False, is_hint=True), 1.0)
    supervisor.handle(m.Departing(30.0, "spot", is_signal=False, source="AwsSpot"), 2.0)
    supervisor.handle(m.SessionClosed(), 3.0)
    supervisor.handle(m.SessionOpened(), 4.0)
    told = sent(supervisor.handle(m.FromOperator(welcome()), 4.0))
    assert [x for x in told if isinstance(x, Notice)] == [Notice(28.0, "spot", "AwsSpot")]


def test_the_earliest_departure_counts() -> None:
    supervisor = planned()
    supervisor.handle(m.Departing(30.0, "spot", is_signal=False), 0.0)
    supervisor.handle(m.Departing(15.0, "SIGTERM"), 2.0)
    supervisor.handle(m.Departing(100.0, "maintenance", is_signal=False), 3.0)
    supervisor.handle(m.SessionClosed(), 4.0)
    supervisor.handle(m.SessionOpened(), 5.0)
    assert Notice(12.0, "SIGTERM") in sent(supervisor.handle(m.FromOperator(welcome()), 5.0))
    supervisor.handle(m.SessionClosed(), 6.0)
    supervisor.handle(m.SessionOpened(), 15.5)
    assert Notice(1.5, "SIGTERM") in sent(supervisor.handle(m.FromOperator(welcome()), 15.5))


def test_of_notices_for_the_same_time_the_first_reason_is_repeated() -> None:
    supervisor = planned()
    supervisor.handle(m.Departing(30.0, "spot", is_signal=False), 0.0)
    supervisor.handle(m.Departing(28.0, "maintenance", is_signal=False), 2.0)
    assert Notice(26.0, "spot") in reopened(supervisor, 4.0)


def test_the_lease_runs_only_without_operator_and_without_progress() -> None:
    supervisor = planned()
    assert not any(isinstance(e, m.Exit) for e in attend(supervisor, 0.0, 10.0))
    supervisor.handle(m.SessionClosed(), 10.0)
    attend(supervisor, 10.0, 15.0)
    supervisor.handle(m.Progressed(1, 1), 15.0)
    assert not any(isinstance(e, m.Exit) for e in attend(supervisor, 15.0, 20.9))
    assert attend(supervisor, 20.9, 21.1)[-1] == m.Exit(
        3, "no operator and no progress for the lease's length"
    )


def test_a_supervisor_that_never_finds_an_operator_ends() -> None:
    supervisor = fresh()
    lease_s = int(Welcome.lease_s)
    assert not any(supervisor.handle(m.Tick(), i / 2) for i in range(2 * lease_s + 1))
    (effect,) = supervisor.handle(m.Tick(), lease_s + 0.5)
    assert isinstance(effect, m.Exit)


def test_an_operator_that_says_nothing_for_long_is_not_away() -> None:
    """An agent without a plan makes no progress either."""
    supervisor = connected()
    attend(supervisor, 0.0, 20.0)
    supervisor.handle(m.SessionClosed(), 20.0)
    assert not any(isinstance(e, m.Exit) for e in attend(supervisor, 20.0, 25.9))
    assert any(isinstance(e, m.Exit) for e in attend(supervisor, 25.9, 26.2))
