"""Bytes sent by zone and lane: the table that transports keep, and what a worker reports of it."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bamboo_agent.device.host_blocks import Tally
from bamboo_agent.payloads.frames import Frame, Lane
from bamboo_agent.transport.memory import MemoryHub
from bamboo_agent.transport.traffic import LANES, Arrivals, Traffic
from bamboo_agent.worker.meter import Meter
from bamboo_core.api.progress import MOST_ZONES, OTHERS, Hosted, Sent
from bamboo_core.api.progress import Lane as Purpose
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item, Kind
from bamboo_core.protocol.messages import CommitRecord, Peer

A, B = AgentId("a"), AgentId("b")


@pytest.mark.parametrize("kind", Kind)
def test_boundary_tensors_are_what_does_not_wait_behind_bulk(kind: Kind) -> None:
    frame = Frame(Item(kind=kind, step=0), Fence())
    assert (LANES[kind] is Purpose.BOUNDARY) is (frame.lane is Lane.BOUNDARY)


def test_sums_by_zone_and_lane() -> None:
    traffic = Traffic()
    for zone, kind, count in (("b", Kind.OUT, 1), ("a", Kind.RED, 2), ("b", Kind.VER, 4)):
        traffic.add(zone, kind, count)
        traffic.add(zone, kind, count)
    traffic.add("c", Kind.VOTE, 0)  # it has no tensors
    assert traffic.sent() == (Sent("a", 0, 4, 0), Sent("b", 2, 0, 8))


def test_the_number_of_zones_is_bounded() -> None:
    traffic = Traffic()
    for n in (*range(20), 0):
        traffic.add(f"z{n:02}", Kind.OUT, 1)
    assert len(traffic.sent()) == MOST_ZONES + 1
    assert traffic.sent()[0] == Sent(OTHERS, 20 - MOST_ZONES)
    assert traffic.sent()[1] == Sent("z00", 2)


def test_agents_of_one_process_count_too() -> None:
    hub = MemoryHub()
    a, b = hub.join(A), hub.join(B)
    a.introduce(fence=Fence(), key=b"", peers={B: Peer(B, "", "", b"", "zone-b")})
    a.send(B, Frame(Item.ver(0, 1), Fence(), tensors=(torch.ones(4),)))
    assert a.sent == (Sent("zone-b", copy_bytes=16),)
    a.send(AgentId("gone"), Frame(Item.ver(0, 1), Fence(), tensors=(torch.ones(4),)))
    assert (len(a.sent), b.sent) == (1, ())
    a.close()
    b.close()


def test_a_worker_reports_sums_since_its_start_and_what_the_step_added() -> None:
    held: Any = SimpleNamespace(figures=Hosted())
    feeding: Any = SimpleNamespace(waited_s=2.0)
    meter, commit = Meter(Tally(), held, feeding), CommitRecord(0)
    first = meter.end_step(commit, Fence(), (Sent("a", 1, 2, 4),))
    feeding.waited_s = 5.0
    second = meter.end_step(commit, Fence(), (Sent("a", 1, 2, 4), Sent("b", 5)))
    assert (first.sent_bytes, second.sent_bytes) == (7, 5)
    assert (first.busy_s, second.busy_s) == (2.0, 3.0)
    assert second.sent == (Sent("a", 1, 2, 4), Sent("b", 5))


def test_links_have_places_while_there_are_some() -> None:
    table: dict[int, tuple[str, int, bool]] = {}

    def write(place: int, peer: str, received: int, is_coming: bool) -> None:
        table[place] = (peer, received, is_coming)

    @dataclass(eq=False)
    class Link:
        received: int

        @property
        def peer(self) -> AgentId:
            return AgentId(f"p{self.received}")

        @property
        def is_coming(self) -> bool:
            return self.received == 2

    one, two, three = map(Link, (1, 2, 3))
    arrivals = Arrivals(write, places=2)
    for link in (one, two, three, one):
        arrivals.note(link)
    assert table == {0: ("p1", 1, False), 1: ("p2", 2, True)}
    arrivals.forget(three)
    arrivals.forget(one)
    assert table[0] == ("", 0, False)
    arrivals.note(three)
    assert table == {0: ("p3", 3, False), 1: ("p2", 2, True)}
