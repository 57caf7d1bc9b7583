"""Agents report sums since their start: what they sent by zone, and what is in host memory."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest

from bamboo_core.api.progress import MOST_ZONES, OTHERS, Ahead, Hosted, Lane, Sent, Way, increase
from bamboo_core.api.totals import Totals
from bamboo_core.job.counting import Counting
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import CommitRecord, Hello, Progress

A, B = AgentId("a"), AgentId("b")
OTHER = Sent("zone-b", 1, 20, 300)
BOUNDARY, SUMS, COPIES = (Way(lane, "zone-a", "zone-b") for lane in Lane)


def hello(agent: AgentId, fence: Fence = Fence()) -> Hello:
    return Hello(agent, "uid", "node", "zone-a", "machine", "x:1", "x:2", fence=fence)


def led(totals: Totals = Totals(), committed: int = -1) -> Counting:  # noqa: B008 - frozen
    """Two agents that have not begun yet."""
    counting = Counting(totals, committed)
    counting.growth.place({A: "zone-a", B: "zone-b"})
    for agent in (A, B):
        counting.growth.connected(hello(agent))
    return counting


def said(step: int, *sent: Sent, ahead: Ahead = Ahead(), hosted: Hosted = Hosted()) -> Progress:  # noqa: B008 - frozen
    return Progress(CommitRecord(step), Fence(), ahead=ahead, hosted=hosted, sent=sent)


def test_bytes_by_lane_and_zones() -> None:
    counting = led()
    counting.report(A, said(0, OTHER))
    counting.report(A, said(1, Sent("zone-a", 5), replace(OTHER, sum_bytes=25)))
    counting.report(B, said(1, Sent("zone-b", 7)))
    inside = {Way("Boundary", "zone-a", "zone-a"): 5, Way("Boundary", "zone-b", "zone-b"): 7}
    assert counting.totals.sent == {BOUNDARY: 1, SUMS: 25, COPIES: 300, **inside}


def test_what_groups_have_carried() -> None:
    counting = led()
    first, later = replace(OTHER, group_bytes=300), Sent("zone-a", 5, group_bytes=4)
    counting.report(A, said(0, first))
    counting.report(A, said(1, first, later))
    counting.report(B, said(1, Sent("zone-b", 7)))
    assert counting.totals.group_bytes == 304
    assert counting.totals.group_share == 304 / 333
    assert Totals().group_share == 0


def test_a_report_that_is_repeated_late_or_missed_changes_no_sum() -> None:
    counting = led()
    first, second = said(0, OTHER), said(4, replace(OTHER, boundary_bytes=9))
    for report in (first, first, second, first, second):
        counting.report(A, report)
    assert counting.totals.sent == {BOUNDARY: 9, SUMS: 20, COPIES: 300}


def test_the_end_of_an_agent_takes_nothing_away() -> None:
    counting = led()
    counting.report(A, said(0, OTHER))
    counting.growth.place({B: "zone-b"})
    counting.report(A, said(1, replace(OTHER, boundary_bytes=2)))  # its last word
    counting.growth.connected(hello(A))  # the same name in a new container
    counting.report(A, said(2, Sent("zone-b", 4)))
    assert counting.totals.sent == {BOUNDARY: 6, SUMS: 20, COPIES: 300}


def test_another_operator_goes_on_from_the_status() -> None:
    """The first sums that it hears of an agent that worked before are in the status already."""
    before = Totals(sent={BOUNDARY: 100}, ahead=Ahead(7, 1, 50, 60, 0.5))
    counting = Counting(before, committed=9)
    counting.growth.place({A: "zone-a", B: "zone-b"})
    counting.growth.connected(hello(A, Fence(0, 1, 1)))
    counting.report(A, said(9, OTHER, ahead=Ahead(5, 1, 80, 40, 0.25, 2)))
    assert counting.totals == replace(before, ahead=Ahead(7, 1, 80, 60, 0.5, 0))
    counting.report(
        A, said(10, replace(OTHER, boundary_bytes=3), ahead=Ahead(6, 1, 80, 50, 0.5, 4))
    )
    assert counting.totals.sent == {BOUNDARY: 102}
    assert counting.totals.ahead == Ahead(8, 1, 80, 70, 0.75, 2)
    counting.growth.connected(hello(B))  # a newcomer: all that it says is new
    counting.report(B, said(10, Sent("zone-a", 8)))
    assert counting.totals.sent == {BOUNDARY: 102, Way("Boundary", "zone-b", "zone-a"): 8}


def test_what_is_in_host_memory_is_sums_and_peaks() -> None:
    counting = led()
    counting.report(A, said(0, ahead=Ahead(3, 1, 100, 200, 0.5, 20)))
    counting.report(B, said(0, ahead=Ahead(2), hosted=Hosted(80, 10, 10, 0.25)))
    more = Ahead(7, 1, 90, 250, 0.75, 35)
    counting.report(A, said(4, ahead=more, hosted=Hosted(100, 5, 300, 0.5)))
    assert counting.totals.ahead == Ahead(9, 1, 100, 250, 0.75, 35)
    assert counting.totals.hosted == Hosted(100, 10, 310, 0.75)


def test_an_agents_word_makes_no_zone() -> None:
    counting = led()
    counting.report(A, said(0, Sent("elsewhere", 4), Sent("", 2), Sent(OTHERS, 1)))
    ways = {Way("Boundary", "zone-a", "unknown"): 6, Way("Boundary", "zone-a", OTHERS): 1}
    assert counting.totals.sent == ways
    counting.growth.connected(hello(AgentId("c")))  # of no zone that the cluster knows
    counting.report(AgentId("c"), said(0, Sent("zone-a", 3)))
    assert counting.totals.sent == {**ways, Way("Boundary", "unknown", "zone-a"): 3}


def test_the_number_of_zones_is_bounded() -> None:
    counting = led()
    counting.growth.place({AgentId(f"x{n}"): f"z{n}" for n in range(20)})
    for step in range(20):
        counting.report(A, said(step, *(Sent(f"z{n}", step + 1) for n in range(9 * (step > 0)))))
    named = {zone for way in counting.totals.sent for zone in way[1:]}
    assert named == {"zone-a", *(f"z{n}" for n in range(MOST_ZONES - 1)), OTHERS}
    assert sum(counting.totals.sent.values()) == 9 * 20


@pytest.mark.parametrize("after", [nan, inf, -1.0, 2.0])
def test_no_word_of_an_agent_takes_away(after: float) -> None:
    assert increase(2.0, after) == 0.0
