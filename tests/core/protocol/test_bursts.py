"""Bytes that come in bursts with long silence in between are a trickle, too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.protocol.supervised import A, B, attend, connected, sent
from tests.core.protocol.test_transfers import LOOK_S, Link

from bamboo_core.evidence.stalls import find, slow_links
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol import supervisor as m
from bamboo_core.protocol.messages import Activity, ActivityKind, Heartbeat
from bamboo_core.protocol.watch import LEAST_RATE, STILL_S, WINDOW_S

DECISION_S = 40.0
MOST_S = 600.0  # nothing said until then: never
SETTLED_S = 2.0  # after silence, bytes may flow
WAIT = m.Progressed(7, 2, 0.5, ActivityKind.WAITING, instruction="RECV", peer=B, is_coming=True)
SIZE = 1000  # bytes of a burst
PERIODS = (2, 5, 9, 11, 15, 20, 29, 31, 37, 45, 59, 61, 90, 120)
STEPS_S = (0.1, 5.0, 10.0, 30.0, 3600.0)


class Worker:
    """A worker of A that waits for B, which waits for A: nobody computes."""

    def __init__(self, period_s: int, first_s: int) -> None:
        self.supervisor = connected()
        self.period_s, self.first_s, self.bursts = period_s, first_s, 0
        self.supervisor.handle(WAIT, 0.0)

    def burst(self, at: float) -> None:
        """More of the frame comes at once."""
        self.bursts += 1
        self.supervisor.handle(replace(WAIT, received=SIZE * self.bursts), at)

    def beats(self) -> Iterator[tuple[float, Activity | None]]:
        """When a heartbeat says what about the wait."""
        for second in range(int(MOST_S)):
            if second >= self.first_s and (second - self.first_s) % self.period_s == 0:
                self.burst(second)
            for word in sent(attend(self.supervisor, second, second + 1)):
                if isinstance(word, Heartbeat):
                    yield second + 1, word.activity


class NextItem(Worker):
    """Each burst brings the rest of an item, and the first part of the next one."""

    def burst(self, at: float) -> None:
        self.supervisor.handle(m.Progressed(7 + self.bursts, 2, 0.5, ActivityKind.RUNNING), at)
        attend(self.supervisor, at, at + 0.3)
        self.bursts += 1
        name = f"RECV {self.bursts}"
        wait = replace(WAIT, received=SIZE * self.bursts, instruction=name)
        self.supervisor.handle(wait, at + 0.3)


def found_at(worker: Worker, step_s: float) -> float:
    """When the operator learns of it, by the rate or by the graph of waits."""
    wait_s = max(3.0, min(2 * step_s, 60.0))
    members: list[AgentId] = [A, B]
    for at, activity in worker.beats():
        if activity is None:
            continue
        known = {A: activity, B: Activity(ActivityKind.WAITING, at, peer=A)}
        if slow_links(known, members) or find(known, members, wait_s=wait_s):
            return at
    return MOST_S


@pytest.mark.parametrize("step_s", STEPS_S)
@pytest.mark.parametrize(
    ("kind", "period_s"),
    # a wait of less than a second says nothing, so an item in each second is no trickle
    [(Worker, x) for x in (1, *PERIODS)] + [(NextItem, x) for x in PERIODS],
)
def test_bursts_of_any_period_are_told_whatever_a_step_takes(
    kind: type[Worker], period_s: int, step_s: float
) -> None:
    """Within 40 s if a silence of 2 s to 37 s has ended by then. Longer ones are known to be those
    of the link 2 s after their end, unless the graph of waits tells before."""
    for first_s in sorted({1, 2, 5, 9, 12, 19, 21, 28, period_s}):
        if first_s > period_s:
            continue
        at = found_at(kind(period_s, first_s), step_s)
        known_s = first_s if first_s >= SETTLED_S else first_s + period_s
        assert at <= max(STILL_S, known_s) + SETTLED_S + 1.0
        assert at <= DECISION_S or known_s > DECISION_S - SETTLED_S - 1.0
        assert at <= max(STILL_S + SETTLED_S + 1.0, 2 * step_s + first_s + 4.0)
        assert at <= 64.0 + first_s


@settings(max_examples=60, deadline=None)
@given(
    st.floats(1.0, 120.0), st.floats(0.0, 1.0), st.floats(0.001, 0.5), st.sampled_from([0.05, 0.5])
)
def test_bursts_of_any_size_are_a_trickle(
    period_s: float, phase: float, share: float, look_s: float
) -> None:
    """If their bytes are too few for the time, though each burst is as fast as memory. One shortly
    before the decision looks like a link that flows, for two seconds."""
    link = Link()
    link.carry(look_s, 0.0, step_s=look_s)
    begun, slow_at, next_s = link.time, MOST_S, phase * period_s
    while slow_at == MOST_S and link.time < MOST_S:
        end, next_s = link.time + next_s, period_s
        while link.time < end - look_s:
            link.carry(look_s, 0.0, step_s=look_s)
            slow_at = min(slow_at, link.time if link.is_slow else MOST_S)
        link.received += share * LEAST_RATE * period_s
        link.carry(look_s, 0.0, step_s=look_s)
    known_s = max(STILL_S, (1 + phase) * period_s)
    assert slow_at - begun <= known_s + 2 * SETTLED_S + 1.0


def test_what_is_slow_stays_slow_when_a_long_silence_ends() -> None:
    """Else the operator would begin to wait for others that are slow, too, at each burst."""
    link = Link()
    link.carry(STILL_S + 5.0, 1.0)
    for _ in range(6):
        link.carry(20.0, 0.0)
        assert link.is_slow
        link.received += 1000
        link.carry(0.05, 0.0)
        assert link.is_slow


def test_silence_counts_at_once_after_bursts() -> None:
    """A long one after a short one would else be known only at its end."""
    link = Link()
    link.carry(5.0, 0.0)
    link.received += 1000
    link.carry(STILL_S - 5.2, 0.0)
    assert not link.is_slow
    link.carry(0.5, 0.0)
    assert link.is_slow


def hold(link: Link, seconds: float = 50.0) -> None:
    """The sender holds its lock in the middle of a frame, and so for a part of it nothing comes."""
    link.carry(0.5, 100 * LEAST_RATE)
    link.carry(seconds, 0.0)


@pytest.mark.parametrize("rate", [1.05 * LEAST_RATE, 100 * LEAST_RATE])
def test_a_link_that_flows_after_a_long_silence_is_well(rate: float) -> None:
    link = Link()
    hold(link)
    for _ in range(1200):
        assert not link.is_slow
        link.carry(0.05, rate)


def test_a_link_that_does_not_flow_after_a_long_silence_is_slow_within_moments() -> None:
    link = Link()
    hold(link)
    link.carry(1.9, 1000.0)
    assert not link.is_slow
    link.carry(0.3, 1000.0)
    assert link.is_slow


def test_a_sender_that_holds_its_lock_again_and_again_is_no_slow_link() -> None:
    link = Link()
    for _ in range(5):
        for _ in range(100):
            link.carry(0.5, 0.0)
            assert not link.is_slow
        link.carry(1.0, 100 * LEAST_RATE)
        assert not link.is_slow


def test_a_sender_that_computes_for_long_between_frames_is_no_slow_link() -> None:
    """Nothing is half-way meanwhile, and each frame comes at once."""
    link = Link()
    for _ in range(8):
        link.idle(50.0)
        link.carry(0.2, 1000.0)
        assert not link.is_slow


def test_many_small_frames_after_a_long_silence_are_no_trickle() -> None:
    link = Link()
    hold(link)
    for _ in range(200):
        link.carry(0.1, 1000.0)
        assert not link.is_slow
        link.idle(0.1)


def test_a_frame_that_is_whole_ends_the_silence_before_it() -> None:
    link = Link()
    hold(link)
    link.idle(0.1)
    link.carry(5.0, 1000.0)
    assert not link.is_slow


def test_a_new_fence_makes_no_silence_count() -> None:
    """Nothing has come, so the sender may still be unable to send."""
    link = Link()
    hold(link)
    link.transfers.begin()
    link.carry(10.0, 0.0)
    assert not link.is_slow


def test_a_new_connection_makes_no_silence_count() -> None:
    link = Link()
    hold(link)
    link.received = 0.0
    link.carry(5.0, 1000.0)
    assert not link.is_slow


@pytest.mark.parametrize("has_waited", [False, True])
def test_silence_of_long_ago_does_not_count(has_waited: bool) -> None:
    """The worker has computed since, or has waited for another agent."""
    link = Link()
    hold(link)
    received = link.received
    if has_waited:
        link.peer = B
        link.carry(WINDOW_S, 2 * LEAST_RATE)
    else:
        link.transfers.look(link.time, None, 0, is_coming=False)
        link.time += WINDOW_S
    link.peer, link.received = A, received + 1000.0
    link.carry(5.0, 1000.0)
    assert not link.is_slow


@pytest.mark.parametrize("is_whole", [False, True])
def test_silence_after_few_bytes_that_were_no_burst_does_not_count(is_whole: bool) -> None:
    """The sender was interrupted soon, for the first time in this frame."""
    link = Link()
    if is_whole:
        link.carry(5.0, 0.0)
        link.carry(0.05, 1000.0)
        link.idle(0.1)
    link.carry(0.5, 2 * LEAST_RATE)
    for _ in range(200):
        link.carry(0.5, 0.0)
        assert not link.is_slow


def test_a_silence_that_has_not_ended_is_part_of_a_copy() -> None:
    link = Link()
    hold(link)
    link.transfers = link.transfers.copy()
    link.carry(3.0, 1000.0)
    assert link.is_slow


@pytest.mark.parametrize("looks", range(20))
def test_several_looks_at_the_same_time_do_no_harm(looks: int) -> None:
    """The worker has computed for so long that nothing else is known of the link."""
    link = Link()
    link.carry(5.0, 0.0)
    link.carry(0.05, 1000.0)
    link.carry(20.0 + looks * LOOK_S, 0.0)
    link.transfers.look(link.time, None, 0, is_coming=False)
    link.time += 2 * WINDOW_S
    for _ in range(4):
        link.look(is_coming=True)
    assert not link.is_slow
