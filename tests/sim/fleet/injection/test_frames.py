"""Faults inside the transport, between two real transports: half frames, and bytes that trickle."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from tests.agent.transport.test_tcp import FENCE, A, B, End, frame, introduce, wait_until

from bamboo_agent.transport import links, tcp
from bamboo_agent.transport.base import Broken
from bamboo_agent.transport.incoming import Incoming
from bamboo_agent.transport.stream import make_identity
from bamboo_core.model.items import Kind
from bamboo_sim.fleet.injection.effects import Effect
from bamboo_sim.fleet.injection.faults import Faults
from bamboo_sim.fleet.injection.inside import Inside, install_in_worker


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Faults, Inside]]:
    """Orders for "a", whose transport is in this process. Nobody serves them but the test."""
    for owner, name in (
        (tcp._Loop, "_deliver"),
        (tcp._Loop, "_dial"),
        (tcp._Loop, "_watch_for"),
        (links.Outgoing, "_send_segment"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # undone at the end
    faults = Faults(tmp_path / "faults")
    for agent in (A, B):
        faults.address_of(agent)
    made = Inside(A, "worker", faults.folder)
    made._orders.settimeout(10.0)
    install_in_worker(made)
    yield faults, made
    made._orders.close()
    faults.close()
    fsspec.register_implementation("file", LocalFileSystem, clobber=True)


@pytest.fixture(params=["plain", "encrypted"])
def ends(request: pytest.FixtureRequest, inside: object) -> Iterator[tuple[End, End]]:
    identities = [make_identity() if request.param == "encrypted" else None for _ in range(2)]
    a, b = (
        End(agent, key=agent.encode(), identity=identity)
        for agent, identity in zip((A, B), identities, strict=True)
    )
    introduce(a, b)
    yield a, b
    for end in (a, b):
        end.transport.close()


def test_a_link_that_ends_in_mid_frame_leaves_half_a_frame(
    ends: tuple[End, End], inside: tuple[Faults, Inside], monkeypatch: pytest.MonkeyPatch
) -> None:
    """N7: the fault once closed links between frames only, and no test saw it."""
    (a, b), (faults, agent) = ends, inside
    failed, fail = list[tuple[bool, int]](), tcp._Loop._fail

    def note(self: Any, link: Any, error: Exception) -> None:
        if isinstance(link, Incoming):
            failed.append((link.is_coming, link.received))
        fail(self, link, error)

    monkeypatch.setattr(tcp._Loop, "_fail", note)
    a.transport.send(B, frame(index=1))
    b.wait()
    (link,) = b.transport._loop._incoming
    before = link.received
    faults.truncate(A, B)
    agent.obey_next()
    a.transport.send(B, frame(index=2, size=2000))
    (event,) = b.wait()
    assert isinstance(event, Broken)
    ((is_coming, received),) = failed
    assert is_coming
    assert 3900 < received - before < 4500  # of more than 8000
    assert faults.effects(A)[Effect.CUT_FRAME] == 1
    assert isinstance(a.wait()[0], Broken)


def test_two_frames_of_one_size_are_not_cut_between_them(inside: tuple[Faults, Inside]) -> None:
    faults, agent = inside
    faults.truncate(A, B)
    agent.obey_next()
    sent = list[bytes]()

    def send(pieces: list[memoryview]) -> int:
        sent.append(b"".join(pieces))
        return len(sent[0])

    link: Any = SimpleNamespace(
        greeting=SimpleNamespace(listener=B),
        stream=SimpleNamespace(send=send),
        _segment=[memoryview(b"abcd"), memoryview(b"efgh")],
    )
    with pytest.raises(ConnectionResetError):
        links.Outgoing._send_segment(link)
    assert sent == [b"abcde"]
    assert faults.effects(A)[Effect.CUT_FRAME] == 1


def test_a_trickle_passes_a_frame_byte_by_byte_and_all_of_it_once_it_ends(
    ends: tuple[End, End], inside: tuple[Faults, Inside]
) -> None:
    (a, b), (faults, agent) = ends, inside
    a.transport.send(B, frame(index=1))
    b.wait()
    (link,) = b.transport._loop._incoming
    before = link.received
    faults.trickle(A, B, 40.0)
    agent.obey_next()
    began = time.monotonic()
    a.transport.send(B, frame(Kind.SUM, index=2, size=2000))
    wait_until(lambda: b.table[0][1] >= before + 40)
    passed, took_s = b.table[0][1] - before, time.monotonic() - began
    assert passed <= 40 * took_s + 25
    assert b.table[0][2]
    assert b.transport.poll() == []
    assert not a.transport.is_idle
    faults.heal()
    for _ in range(2):
        agent.obey_next()
    (event,) = b.wait()
    assert event.frame.item.index == 2
    assert event.frame.fence == FENCE
    wait_until(lambda: a.transport.is_idle)
    assert faults.effects(A)[Effect.TRICKLED] > 1
