"""Which peers a supervisor suspects, and until when; what it says of its worker."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.protocol.supervised import (
    FIRST,
    SECOND,
    B,
    C,
    attend,
    connected,
    continuation,
    directive,
    fresh,
    planned,
    reopened,
    report,
    sent,
    suspicions,
    welcome,
)

from bamboo_core.model.ids import Fence
from bamboo_core.protocol import supervisor as m
from bamboo_core.protocol.messages import (
    Activity,
    ActivityKind,
    Cause,
    Heartbeat,
    Stop,
    Suspicion,
)
from bamboo_core.protocol.watch import Watch


def test_the_rest_of_a_plan_forgets_no_suspicion_and_gives_new_peers_time() -> None:
    supervisor = planned()
    assert supervisor.handle(m.PeerClosed(B), 0.0)
    supervisor.handle(m.FromOperator(continuation(FIRST)), 0.0)
    closed = Suspicion(B, Cause.LIVENESS_CLOSED, FIRST)
    assert suspicions(attend(supervisor, 0.0, 1.9)) == [closed]
    silent = Suspicion(C, Cause.LIVENESS_SILENT, FIRST)
    assert suspicions(attend(supervisor, 1.9, 2.2)) == [closed, silent]


def test_a_suspicion_is_told_at_once_and_in_every_heartbeat() -> None:
    supervisor = planned()
    told = Suspicion(B, Cause.LIVENESS_CLOSED, FIRST)
    assert suspicions(supervisor.handle(m.PeerClosed(B), 0.0)) == [told]
    assert supervisor.handle(m.PeerClosed(B), 0.1) == []
    beats = [x for x in sent(attend(supervisor, 0.1, 3.1)) if isinstance(x, Heartbeat)]
    assert len(beats) > 10
    assert all(beat.suspicions == (told,) for beat in beats)


def test_a_suspicion_outlives_its_session() -> None:
    """A reset of all connections at once: it is told in the next session, too."""
    supervisor = planned()
    supervisor.handle(m.SessionClosed(), 0.0)
    assert supervisor.handle(m.PeerClosed(B), 0.0) == []
    broken = Suspicion(B, Cause.CHANNEL_BROKEN, FIRST)
    assert supervisor.handle(m.FromWorker(broken), 0.0) == []
    reopened(supervisor, 0.1)
    assert suspicions(attend(supervisor, 0.1, 0.3)) == [broken]


@pytest.mark.parametrize("cause", [Cause.LIVENESS_CLOSED, Cause.LIVENESS_SILENT])
def test_a_peer_that_is_heard_again_is_no_longer_suspected(cause: Cause) -> None:
    supervisor = planned()
    if cause is Cause.LIVENESS_CLOSED:
        supervisor.handle(m.PeerClosed(B), 0.0)
    told = Suspicion(B, cause, FIRST)
    assert suspicions(attend(supervisor, 0.0, 2.1)) == [told]
    supervisor.handle(m.PeerHeard(B), 2.1)
    beats = [x for x in sent(attend(supervisor, 2.1, 2.9)) if isinstance(x, Heartbeat)]
    assert beats
    assert not any(beat.suspicions for beat in beats)
    assert suspicions(supervisor.handle(m.PeerClosed(B), 2.9)) == [
        Suspicion(B, Cause.LIVENESS_CLOSED, FIRST)
    ]


def test_a_broken_channel_counts_until_the_next_fence() -> None:
    supervisor = planned()
    broken = Suspicion(B, Cause.CHANNEL_BROKEN, FIRST)
    assert suspicions(supervisor.handle(m.FromWorker(broken), 0.0)) == [broken]
    supervisor.handle(m.PeerHeard(B), 0.1)
    assert supervisor.handle(m.PeerClosed(B), 0.1) == []
    assert suspicions(attend(supervisor, 0.1, 0.5)) == [broken]
    supervisor.handle(m.FromOperator(Stop(SECOND)), 0.5)
    assert suspicions(attend(supervisor, 0.5, 0.9)) == []


def test_a_stop_that_is_repeated_mends_no_channel() -> None:
    supervisor = planned()
    broken = Suspicion(B, Cause.CHANNEL_BROKEN, FIRST)
    supervisor.handle(m.FromWorker(broken), 0.0)
    supervisor.handle(m.FromOperator(Stop(FIRST)), 0.0)
    assert suspicions(attend(supervisor, 0.0, 0.5)) == [broken]


def test_a_channel_that_breaks_before_the_plan_comes_is_not_forgotten() -> None:
    """The transport is silent about it until the next fence."""
    supervisor = planned()
    supervisor.handle(m.FromOperator(Stop(SECOND)), 0.0)
    supervisor.handle(m.FromWorker(report(SECOND)), 0.0)
    for peer in (B, C):
        supervisor.handle(m.FromWorker(Suspicion(peer, Cause.CHANNEL_BROKEN, SECOND)), 0.0)
    supervisor.handle(m.FromOperator(directive(SECOND)), 0.0)
    supervisor.handle(m.FromOperator(continuation(SECOND)), 0.0)
    assert [x.agent for x in suspicions(attend(supervisor, 0.0, 0.3))] == [B, C]


def test_a_dead_socket_of_the_old_plan_says_nothing_about_the_new_one() -> None:
    supervisor = planned()
    supervisor.handle(m.PeerClosed(B), 0.0)
    supervisor.handle(m.FromOperator(Stop(SECOND)), 0.0)
    held = Suspicion(B, Cause.LIVENESS_CLOSED, SECOND)
    assert suspicions(attend(supervisor, 0.0, 0.3)) == [held]
    supervisor.handle(m.FromWorker(report(SECOND)), 0.3)
    supervisor.handle(m.FromOperator(directive(SECOND)), 0.3)
    assert suspicions(attend(supervisor, 0.3, 1.0)) == []


def test_silence_counts_from_the_last_sign() -> None:
    supervisor = planned()
    attend(supervisor, 0.0, 1.0)
    supervisor.handle(m.PeerHeard(B), 1.0)
    assert suspicions(attend(supervisor, 1.0, 1.95)) == []
    told = Suspicion(B, Cause.LIVENESS_SILENT, FIRST)
    assert suspicions(attend(supervisor, 1.95, 2.2)) == [told]


def test_nobody_is_silent_while_the_supervisor_itself_stands_still() -> None:
    supervisor = planned()
    attend(supervisor, 0.0, 1.9)
    supervisor.handle(m.PeerHeard(B), 1.9)
    assert suspicions(supervisor.handle(m.Tick(), 60.0)) == []
    supervisor.handle(m.PeerHeard(B), 60.0)
    assert suspicions(attend(supervisor, 60.0, 60.9)) == []


def test_strangers_are_not_suspected() -> None:
    assert planned().handle(m.PeerClosed(C), 0.0) == []


def test_suspicions_of_an_older_plan_stay_here() -> None:
    supervisor = planned(Fence(0, 1, 2))
    stale = Suspicion(B, Cause.CHANNEL_BROKEN, Fence(0, 1, 1))
    assert supervisor.handle(m.FromWorker(stale), 1.0) == []


def activities(effects: list[m.Effect]) -> list[Activity | None]:
    return [x.activity for x in sent(effects) if isinstance(x, Heartbeat)]


def doing(kind: ActivityKind, word: int = 7, traffic: int = 0) -> m.Progressed:
    return m.Progressed(word, 2, 0.5, kind, 30.0, "F[0:2] m1 @2", B, traffic)


def test_what_the_worker_does_is_told_once_it_has_lasted_for_a_second() -> None:
    supervisor = connected()
    supervisor.handle(doing(ActivityKind.RUNNING), 0.0)
    assert set(activities(attend(supervisor, 0.0, 1.0))) == {None}
    found = activities(attend(supervisor, 1.0, 5.0))[-1]
    assert found is not None
    assert found == Activity(ActivityKind.RUNNING, found.age_s, 30.0, "F[0:2] m1 @2", B)
    assert 4.7 <= found.age_s <= 5.0
    supervisor.handle(doing(ActivityKind.RUNNING, word=8), 5.0)
    assert set(activities(attend(supervisor, 5.0, 6.0))) == {None}


def test_what_has_lasted_for_exactly_a_second_is_not_told() -> None:
    supervisor = connected()
    supervisor.handle(doing(ActivityKind.RUNNING), 0.0)
    beats = [activities(supervisor.handle(m.Tick(), i / 2)) for i in (1, 2, 3)]
    assert [found[0] is None for found in beats] == [True, True, False]


def test_a_worker_that_waits_for_nobody_names_no_peer() -> None:
    supervisor = connected()
    supervisor.handle(m.Progressed(7, 2), 0.0)
    found = activities(attend(supervisor, 0.0, 3.0))[-1]
    assert found is not None
    assert (found.kind, found.limit_s, found.peer) == (ActivityKind.IDLE, 0.0, None)


def test_a_pause_of_the_supervisor_makes_no_instruction_old() -> None:
    supervisor = connected()
    supervisor.handle(doing(ActivityKind.RUNNING), 0.0)
    assert activities(supervisor.handle(m.Tick(), 60.0)) == [None]


def test_a_slow_transfer_ends_no_instruction_but_a_wait() -> None:
    supervisor = connected()
    for kind in (ActivityKind.RUNNING, ActivityKind.WAITING, ActivityKind.LOADING):
        limit_s = 30.0 if kind is ActivityKind.RUNNING else 0.0
        before = replace(doing(kind), limit_s=limit_s)
        supervisor.handle(before, 0.0)
        attend(supervisor, 0.0, 3.0)
        supervisor.handle(replace(before, traffic=1, received=1), 3.0)
        (found,) = set(activities(attend(supervisor, 3.0, 3.2)))
        assert (found is None) is (kind is not ActivityKind.RUNNING)


def test_what_moves_elsewhere_ends_no_wait_for_a_peer() -> None:
    supervisor = connected()
    supervisor.handle(doing(ActivityKind.WAITING), 0.0)
    attend(supervisor, 0.0, 3.0)
    supervisor.handle(doing(ActivityKind.WAITING, traffic=1), 3.0)
    assert None not in activities(attend(supervisor, 3.0, 3.2))
    supervisor.handle(replace(doing(ActivityKind.WAITING), peer=None), 4.0)
    attend(supervisor, 4.0, 7.0)
    supervisor.handle(replace(doing(ActivityKind.WAITING, traffic=2), peer=None), 7.0)
    assert set(activities(attend(supervisor, 7.0, 7.2))) == {None}


def test_whatever_moves_ends_a_wait_for_a_peer_of_which_nothing_is_known() -> None:
    """Its link has no place in the table. It would look silent for ever."""
    supervisor = connected()
    wait = replace(doing(ActivityKind.WAITING), received=None)
    supervisor.handle(wait, 0.0)
    attend(supervisor, 0.0, 3.0)
    for traffic in range(1, 60):
        supervisor.handle(replace(wait, traffic=traffic), 2.0 + traffic)
        assert None in activities(attend(supervisor, 2.0 + traffic, 3.0 + traffic))
    (silent,) = activities(attend(supervisor, 62.0, 63.2))[-1:]
    assert silent is not None
    assert silent.still_s == 0.0


def trickle(supervisor: m.Supervisor, start: float, until: float, byte_s: float = 1.0) -> None:
    """A byte of a frame of B every so many seconds; the supervisor's heartbeats are lost."""
    for n in range(round((until - start) / byte_s)):
        wait = replace(doing(ActivityKind.WAITING), received=n, is_coming=True)
        supervisor.handle(wait, start + n * byte_s)
        attend(supervisor, start + n * byte_s, start + (n + 1) * byte_s)


def test_a_wait_for_what_trickles_is_told_though_it_never_gets_old() -> None:
    """N3: any byte ended a wait, so nobody heard of a link that passes one in a second."""
    supervisor = connected()
    trickle(supervisor, 0.0, 29.0)
    early = activities(attend(supervisor, 29.0, 29.9))
    assert all(x is None or not x.still_s for x in early)
    found = activities(attend(supervisor, 30.0, 30.5))[-1]
    assert found is not None
    assert found == Activity(
        ActivityKind.WAITING, found.age_s, 30.0, "F[0:2] m1 @2", B, found.still_s, found.rate
    )
    assert 30.0 <= found.still_s <= 31.0
    assert 0.9 < found.rate < 1.1


def test_what_trickled_before_a_new_fence_counts() -> None:
    """The connection is the same: else a stop every 29 s would hide the link."""
    supervisor = planned()
    trickle(supervisor, 0.0, 25.0)
    supervisor.handle(m.FromOperator(Stop(SECOND)), 25.0)
    trickle(supervisor, 25.0, 28.0)
    assert all(x is None or not x.still_s for x in activities(attend(supervisor, 28.0, 28.4)))
    trickle(supervisor, 28.5, 33.0)
    assert activities(attend(supervisor, 33.0, 33.4))[-1].still_s >= 30.0


def test_a_transfer_does_not_show_that_data_are_read() -> None:
    """Frames of other agents come in while the data set's storage stands still."""
    supervisor = connected()
    supervisor.handle(doing(ActivityKind.LOADING), 0.0)
    attend(supervisor, 0.0, 3.0)
    supervisor.handle(doing(ActivityKind.LOADING, traffic=1), 3.0)
    assert None not in activities(attend(supervisor, 3.0, 3.2))


def test_a_new_plan_and_any_word_of_the_worker_are_signs_of_life() -> None:
    """The same wait in the next plan is another one."""
    supervisor = planned()
    supervisor.handle(doing(ActivityKind.WAITING), 0.0)
    assert activities(attend(supervisor, 0.0, 3.0))[-1] is not None
    supervisor.handle(m.FromOperator(continuation(FIRST)), 3.0)
    assert activities(attend(supervisor, 3.0, 3.5))[-1] is None
    attend(supervisor, 3.5, 6.0)
    supervisor.handle(m.FromOperator(Stop(SECOND)), 6.0)
    assert activities(attend(supervisor, 6.0, 6.5))[-1] is not None
    supervisor.handle(m.FromWorker(report(SECOND)), 6.5)
    assert activities(attend(supervisor, 6.5, 7.0))[-1] is None


def test_a_worker_that_builds_the_model_says_so() -> None:
    supervisor = fresh()
    supervisor.handle(m.SessionOpened(), 0.0)
    supervisor.handle(m.FromOperator(replace(welcome(), start_s=100.0)), 0.0)
    found = activities(attend(supervisor, 0.0, 3.0))[-1]
    assert found is not None
    assert found == Activity(ActivityKind.STARTING, found.age_s, 100.0)


def test_a_copy_watches_the_same_peers_and_goes_its_own_way() -> None:
    watch = Watch()
    watch.expect([B, C], 0.0)
    watch.suspect(B, Cause.CHANNEL_BROKEN)
    copy = watch.copy()
    watch.reconnect()
    watch.begin()
    broken = Suspicion(B, Cause.CHANNEL_BROKEN, FIRST)
    assert copy.suspicions(FIRST) == (broken,)
    assert copy.look(2.0, 1.0)
    assert copy.suspicions(FIRST) == (broken, Suspicion(C, Cause.LIVENESS_SILENT, FIRST))
    assert watch.suspicions(FIRST) == ()
