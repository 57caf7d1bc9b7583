"""The supervisor's state machine: one table of histories per rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Instruction, Op
from bamboo_core.protocol import supervisor as m
from bamboo_core.protocol.messages import (
    AgentReport,
    Cause,
    CommitRecord,
    Continuation,
    Directive,
    Failure,
    Fingerprint,
    Finished,
    Heartbeat,
    Hello,
    Left,
    Manifest,
    Notice,
    Peer,
    Progress,
    Ready,
    Reconnect,
    Release,
    Sealed,
    Stop,
    Suspicion,
    Welcome,
)

FIRST = Fence(0, 1, 1)
SECOND = Fence(0, 1, 2)
A, B, C = AgentId("a"), AgentId("b"), AgentId("c")
HELLO = Hello(A, "uid", "node", "zone", "machine", "1.2.3.4:1", "1.2.3.4:2")
READY = Ready(Fingerprint(), 4, 100, 10)


def welcome(term: int = 1) -> Welcome:
    return Welcome(term, "ns/job", "job-uid", "{}", heartbeat_s=0.2, lease_s=600.0)


def directive(fence: Fence) -> Directive:
    peers = (Peer(B, "5.6.7.8:1", "5.6.7.8:2", b"k"),)
    return Directive(
        fence,
        0,
        4,
        (),
        ((0, 4),),
        BatchShape(2, 1, 1),
        A,
        peers=peers,
        key=b"mine",
        plan_hash=f"plan of {fence}",
        has_continuation=True,
    )


def continuation(fence: Fence, plan_hash: str = "") -> Continuation:
    peers = tuple(Peer(x, f"{x}:1", f"{x}:2", b"k") for x in (B, C))
    return Continuation(fence, plan_hash or f"plan of {fence}", (), (), peers)


def report(fence: Fence) -> AgentReport:
    return AgentReport(fence, Fence(), {}, frozenset())


def fresh() -> m.Supervisor:
    return m.Supervisor(HELLO)


def connected(term: int = 1) -> m.Supervisor:
    supervisor = fresh()
    supervisor.handle(m.SessionOpened(), 0.0)
    supervisor.handle(m.FromOperator(welcome(term)), 0.0)
    supervisor.handle(m.FromWorker(READY), 0.0)
    return supervisor


def planned(fence: Fence = FIRST) -> m.Supervisor:
    supervisor = connected()
    supervisor.handle(m.FromOperator(Stop(fence)), 0.0)
    supervisor.handle(m.FromWorker(report(fence)), 0.0)
    supervisor.handle(m.FromOperator(directive(fence)), 0.0)
    return supervisor


def sent(effects: list[m.Effect]) -> list[object]:
    return [e.message for e in effects if isinstance(e, m.SendOperator)]


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


def test_the_rest_of_a_plan_forgets_no_suspicion_and_gives_new_peers_time() -> None:
    supervisor = planned()
    assert supervisor.handle(m.PeerClosed(B), 0.5)
    supervisor.handle(m.FromOperator(continuation(FIRST)), 1.0)
    assert supervisor.handle(m.PeerClosed(B), 1.1) == []
    suspected = [
        e.message.agent
        for at in (2.9, 3.1)
        for e in supervisor.handle(m.Tick(), at)
        if isinstance(e, m.SendOperator) and isinstance(e.message, Suspicion)
    ]
    assert suspected == [C]


def test_reports_of_an_older_fence_are_dropped() -> None:
    supervisor = connected()
    supervisor.handle(m.FromOperator(Stop(Fence(0, 1, 2))), 0.0)
    assert supervisor.handle(m.FromWorker(report(Fence(0, 1, 1))), 0.0) == []


def test_a_worker_that_does_not_report_is_killed() -> None:
    supervisor = connected()
    supervisor.handle(m.Progressed(3, 0, longest_s=1.0), 0.0)
    supervisor.handle(m.FromOperator(Stop(Fence(0, 1, 1))), 10.0)
    assert not any(isinstance(e, m.KillWorker) for e in supervisor.handle(m.Tick(), 12.9))
    assert any(isinstance(e, m.KillWorker) for e in supervisor.handle(m.Tick(), 13.0))


def test_a_report_in_time_saves_the_worker() -> None:
    supervisor = connected()
    supervisor.handle(m.FromOperator(Stop(Fence(0, 1, 1))), 10.0)
    supervisor.handle(m.FromWorker(report(Fence(0, 1, 1))), 11.0)
    assert not any(isinstance(e, m.KillWorker) for e in supervisor.handle(m.Tick(), 20.0))


def test_a_worker_that_loads_layers_is_given_longer() -> None:
    supervisor = planned(Fence(0, 1, 1))
    load = replace(directive(Fence(0, 1, 2)), resume=(Instruction(Op.LOAD, 0, 0, 4),))
    supervisor.handle(m.FromOperator(Stop(Fence(0, 1, 2))), 10.0)
    supervisor.handle(m.FromWorker(report(Fence(0, 1, 2))), 10.0)
    supervisor.handle(m.FromOperator(load), 10.0)
    supervisor.handle(m.FromOperator(Stop(Fence(0, 1, 3))), 11.0)
    assert not any(isinstance(e, m.KillWorker) for e in supervisor.handle(m.Tick(), 40.0))
    assert any(isinstance(e, m.KillWorker) for e in supervisor.handle(m.Tick(), 41.0))


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


def test_a_failure_message_of_the_worker_is_passed_on() -> None:
    failure = Failure("ModelFactoryFailed", "ImportError: no module named gpt", True, 2)
    effects = connected().handle(m.FromWorker(failure), 1.0)
    assert sent(effects) == [failure]
    assert effects[-1] == m.Exit(2, "ModelFactoryFailed: ImportError: no module named gpt")


def test_what_must_not_be_lost_waits_for_the_next_session() -> None:
    supervisor = planned()
    supervisor.handle(m.SessionClosed(), 1.0)
    sealed = Sealed(Manifest(0, 4, "p", "d"))
    progress = Progress(CommitRecord(0))
    finished = Finished(Fence(0, 1, 1))
    for message in (sealed, progress, finished):
        assert supervisor.handle(m.FromWorker(message), 1.0) == []
    supervisor.handle(m.SessionOpened(), 2.0)
    assert sent(supervisor.handle(m.FromOperator(welcome()), 2.0)) == [
        READY,
        sealed,
        progress,
        finished,
    ]


def test_release_ends_with_its_code() -> None:
    supervisor = planned()
    assert supervisor.handle(m.FromOperator(Release(3, "fenced")), 1.0) == [m.Exit(3, "fenced")]
    assert supervisor.handle(m.Tick(), 2.0) == []


def test_reconnect_closes_the_session() -> None:
    effects = planned().handle(m.FromOperator(Reconnect(2.0)), 1.0)
    assert effects == [m.CloseSession(2.0, "the operator asked for it")]


def test_closed_and_silent_peers_are_suspected_once_per_plan() -> None:
    supervisor = planned()
    told = Suspicion(B, Cause.LIVENESS_CLOSED, Fence(0, 1, 1))
    assert sent(supervisor.handle(m.PeerClosed(B), 1.0)) == [told]
    assert supervisor.handle(m.PeerClosed(B), 1.1) == []
    assert not any(isinstance(x, Suspicion) for x in sent(supervisor.handle(m.Tick(), 9.0)))


def test_silence_counts_from_the_last_sign() -> None:
    supervisor = planned()
    supervisor.handle(m.PeerHeard(B), 3.0)
    assert not any(isinstance(x, Suspicion) for x in sent(supervisor.handle(m.Tick(), 3.9)))
    told = Suspicion(B, Cause.LIVENESS_SILENT, Fence(0, 1, 1))
    assert told in sent(supervisor.handle(m.Tick(), 4.1))


def test_suspicions_of_an_older_plan_stay_here() -> None:
    supervisor = planned(Fence(0, 1, 2))
    stale = Suspicion(B, Cause.CHANNEL_BROKEN, Fence(0, 1, 1))
    assert supervisor.handle(m.FromWorker(stale), 1.0) == []


def test_heartbeats_come_at_the_asked_rate() -> None:
    supervisor = connected()
    supervisor.handle(m.Progressed(7, 2), 0.0)
    assert sent(supervisor.handle(m.Tick(), 0.0)) == [Heartbeat(1, 2, 7)]
    assert supervisor.handle(m.Tick(), 0.1) == []
    assert sent(supervisor.handle(m.Tick(), 0.2)) == [Heartbeat(2, 2, 7)]


def test_an_agent_of_the_plan_waits_to_hand_over() -> None:
    supervisor = planned()
    effects = supervisor.handle(m.Departing(15.0, "SIGTERM"), 1.0)
    assert effects == [m.SendOperator(Notice(15.0, "SIGTERM"))]
    assert supervisor.handle(m.FromWorker(Left()), 3.0) == [
        m.SendOperator(Left()),
        m.Exit(143, "drained"),
    ]


def test_the_grace_period_ends_the_wait() -> None:
    supervisor = planned()
    supervisor.handle(m.Departing(15.0, "SIGTERM"), 1.0)
    assert supervisor.handle(m.Tick(), 15.0)[-1] == m.Exit(143, "the grace period has ended")


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


def test_the_lease_runs_only_without_operator_and_without_progress() -> None:
    supervisor = planned()
    assert not any(isinstance(e, m.Exit) for e in supervisor.handle(m.Tick(), 5000.0))
    supervisor.handle(m.PeerHeard(B), 5000.0)
    supervisor.handle(m.SessionClosed(), 5000.0)
    supervisor.handle(m.Progressed(1, 1), 5500.0)
    assert not any(isinstance(e, m.Exit) for e in supervisor.handle(m.Tick(), 6000.0))
    assert supervisor.handle(m.Tick(), 6101.0)[-1].code == 3  # type: ignore[union-attr]
