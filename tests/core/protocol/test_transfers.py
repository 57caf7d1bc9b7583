"""A wait with bytes under way stands still below max(64 kB/s, a hundredth of the usual rate)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.watch import LEAST_RATE, STILL_S, WINDOW_S, Transfers

A, B = AgentId("a"), AgentId("b")
LOOK_S = 0.05
"""Between two looks of a supervisor."""


class Link:
    """What one peer sends to a worker that waits for it, second by second."""

    def __init__(self, peer: AgentId = A) -> None:
        self.peer, self.time, self.received = peer, 0.0, 0.0
        self.transfers = Transfers()

    def carry(self, seconds: float, rate: float, *, step_s: float = LOOK_S) -> None:
        """So many bytes per second, in the middle of a frame."""
        end = self.time + seconds
        while self.time < end - 1e-6:
            self.time += step_s
            self.received += rate * step_s
            self.look(is_coming=True)

    def idle(self, seconds: float) -> None:
        """No frame of the peer is half-way; the worker waits all the same."""
        for _ in range(round(seconds / LOOK_S)):
            self.time += LOOK_S
            self.look(is_coming=False)

    def look(self, *, is_coming: bool) -> None:
        self.transfers.look(self.time, self.peer, int(self.received), is_coming=is_coming)

    @property
    def is_slow(self) -> bool:
        return self.transfers.slow() is not None


@given(st.floats(0.11, 0.999))
def test_what_trickles_stands_still_after_half_a_minute(share: float) -> None:
    """Down to a byte in ten seconds. What is rarer is silence, which others judge."""
    for rate in (share, share * LEAST_RATE):
        link = Link()
        link.carry(STILL_S - 0.1, rate)
        assert not link.is_slow
        link.carry(0.3, rate)
        slow = link.transfers.slow()
        assert slow is not None
        assert slow.seconds == pytest.approx(STILL_S, abs=0.4)
        assert slow.rate == pytest.approx(rate, rel=0.1, abs=0.1)


@given(st.lists(st.floats(LEAST_RATE * 1.02, 4 * LEAST_RATE), min_size=1, max_size=90))
def test_a_slow_but_honest_link_never_stands_still(rates: list[float]) -> None:
    link = Link()
    for rate in rates:
        link.carry(1.0, rate, step_s=0.25)
        assert not link.is_slow


@given(
    st.lists(
        st.tuples(st.floats(0.05, 0.3), st.floats(0, 1000), st.floats(0.2, 5.0)),
        min_size=1,
        max_size=60,
    )
)
def test_small_messages_over_an_idle_link_are_no_trickle(
    messages: list[tuple[float, float, float]],
) -> None:
    """Each is half-way for a moment, and the sender computes before the next one."""
    link = Link()
    for seconds, rate, pause_s in messages:
        link.carry(seconds, rate)
        assert not link.is_slow
        link.idle(pause_s)
        assert not link.is_slow


def test_a_wait_with_nothing_under_way_is_no_trickle() -> None:
    link = Link()
    link.idle(300.0)
    assert not link.is_slow


def test_silence_is_no_trickle() -> None:
    """The sender may hold its own lock for minutes, in the middle of a frame."""
    link = Link()
    link.carry(300.0, 0.0)
    assert not link.is_slow
    link.carry(0.3, 1000.0)
    assert not link.is_slow


def test_items_that_all_take_seconds_are_a_trickle() -> None:
    """No wait is long, but the link passes hardly anything."""
    link = Link()
    for _ in range(4):
        link.carry(9.0, 1000.0)
        link.idle(0.5)
    link.carry(1.5, 1000.0)
    assert link.is_slow


def test_a_link_that_has_recovered_is_well_at_once() -> None:
    link = Link()
    link.carry(35.0, 1.0)
    assert link.is_slow
    for _ in range(100):
        link.idle(0.2)
        link.carry(0.2, 1000.0)  # small frames that come quickly
        assert not link.is_slow


def test_a_large_frame_that_flows_again_is_well_within_a_moment() -> None:
    link = Link()
    link.carry(35.0, 1.0)
    link.carry(0.1, 100 * STILL_S * LEAST_RATE)
    assert not link.is_slow


def test_a_link_that_was_fast_until_now_stands_still_as_soon() -> None:
    """The fast seconds that are still in the window are older than the slow half a minute."""
    link = Link()
    link.carry(WINDOW_S + 12.0, 1e8)
    link.carry(STILL_S - 0.5, 1.0)
    assert not link.is_slow
    link.carry(2.0, 1.0)
    assert link.is_slow


@pytest.mark.parametrize("slow_s", [STILL_S - 1.0, STILL_S + 5.0])
def test_a_link_that_flows_at_an_honest_rate_again_is_well_after_two_seconds(
    slow_s: float,
) -> None:
    """Although the mean of half a minute is still too low."""
    link = Link()
    link.carry(slow_s, 1.0)
    link.carry(1.9, 2 * LEAST_RATE)
    for _ in range(100):
        link.carry(0.1, 2 * LEAST_RATE)
        assert not link.is_slow


def test_bytes_that_come_in_bursts_are_a_trickle() -> None:
    link = Link()
    was_slow = 0
    for _ in range(10):
        link.carry(0.1, 10 * LEAST_RATE)
        for _ in range(80):
            link.carry(0.1, 0.0)
            was_slow += link.is_slow
    assert was_slow > 300


@settings(max_examples=20)
@given(st.floats(1e7, 1e9))
def test_a_hundredth_of_what_is_usual_stands_still(usual: float) -> None:
    link = Link()
    link.carry(WINDOW_S + 12.0, usual)
    assert link.transfers.least(A) == pytest.approx(max(LEAST_RATE, usual / 100), rel=0.01)
    slower = link.transfers.copy()
    link.carry(WINDOW_S + 1.0, usual / 95)
    assert not link.is_slow
    link.transfers = slower
    link.time -= WINDOW_S + 1.0
    link.carry(WINDOW_S + 1.0, usual / 105)
    assert link.is_slow


def test_what_is_usual_is_not_known_from_a_few_seconds() -> None:
    link = Link()
    link.carry(5.0, 1e9)
    link.carry(WINDOW_S, 5e6)
    assert link.transfers.least(A) == LEAST_RATE
    assert not link.is_slow


def test_a_throttled_link_is_usual_after_some_minutes() -> None:
    """If every plan needs it, the job goes on with it."""
    link = Link()
    link.carry(WINDOW_S + 12.0, 1e9)
    link.carry(WINDOW_S + 60.0, 5e6)
    assert not link.is_slow


def test_another_peer_is_another_link() -> None:
    link = Link()
    link.carry(29.0, 1.0)
    link.peer, link.received = B, 0.0
    link.carry(29.0, 1.0)
    assert not link.is_slow
    link.carry(1.5, 1.0)
    assert link.is_slow


def test_a_counter_that_begins_anew_is_no_byte() -> None:
    """The link was made again, and its counter with it."""
    link = Link()
    link.carry(20.0, 1000.0)
    link.received = 0.0
    link.carry(12.0, 1000.0)
    slow = link.transfers.slow()
    assert slow is not None
    assert slow.rate == pytest.approx(1000.0, rel=0.1)


def test_a_new_fence_forgets_nothing() -> None:
    """The connection is the same. Else other losses, one every 29 s, would hide a slow link."""
    link = Link()
    link.carry(WINDOW_S + 12.0, 1e8)
    link.carry(STILL_S - 2.0, 1.0)
    link.transfers.begin()
    link.carry(0.9, 1.0)
    assert not link.is_slow
    link.carry(3.0, 1.0)
    assert link.is_slow
    assert link.transfers.least(A) == pytest.approx(1e6, rel=0.01)
    link.transfers.expect([B])
    assert link.transfers.least(A) == LEAST_RATE


def test_what_was_slow_long_before_a_fence_does_not_count() -> None:
    link = Link()
    link.carry(STILL_S + 5.0, 1.0)
    assert link.is_slow
    link.transfers.begin()
    link.idle(WINDOW_S)
    link.carry(5.0, 1.0)
    assert not link.is_slow


def test_a_copy_is_independent() -> None:
    link = Link()
    link.carry(WINDOW_S + 12.0, 1.0)
    copied = link.transfers.copy()
    link.transfers.begin()
    link.transfers.expect([])
    assert copied.slow() is not None
    assert len(copied._rates[A]) > 8
