"""The faults that tests inject are what they claim to be: seen from sockets and file systems."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from bamboo_agent.storage.checkpoint import CheckpointError, Checkpoints
from bamboo_sim.fleet.injection import disk, sockets, state
from bamboo_sim.fleet.injection.effects import Effect
from bamboo_sim.fleet.injection.faults import Faults
from bamboo_sim.fleet.injection.inside import Inside, Later
from bamboo_sim.fleet.injection.state import Disk
from bamboo_sim.fleet.injection.trickle import TricklingSocket

ONE, OTHER = "127.77.9.1", "127.77.9.2"


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection from ONE to OTHER; both ends."""
    with socket.create_server((OTHER, 0)) as listening, socket.socket() as dialed:
        dialed.bind((ONE, 0))
        dialed.connect(listening.getsockname())
        accepted, _ = listening.accept()
        with accepted:
            dialed.settimeout(10.0)
            accepted.settimeout(10.0)
            yield dialed, accepted


def test_a_cut_loses_one_direction_until_it_heals(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    one, other = pair
    sockets.drop_from(other, {ONE})
    one.send(b"late")
    other.settimeout(0.3)
    with pytest.raises(TimeoutError):
        other.recv(9)
    assert sockets.lost_segments(other) > 0
    other.settimeout(10.0)
    sockets.drop_from(other, {"127.77.9.3"})
    assert other.recv(9) == b"late"
    sockets.drop_from(other, ())
    other.send(b"back")
    assert one.recv(9) == b"back"


def test_a_listening_socket_refuses_nobody_else() -> None:
    with socket.create_server((OTHER, 0)) as listening:
        sockets.drop_from(listening, {ONE})
        with socket.socket() as cut, socket.socket() as free:
            cut.bind((ONE, 0))
            cut.settimeout(0.3)
            with pytest.raises(TimeoutError):
                cut.connect(listening.getsockname())
            free.settimeout(10.0)
            free.connect(listening.getsockname())


def test_a_reset_is_seen_at_both_ends(pair: tuple[socket.socket, socket.socket]) -> None:
    one, _ = pair
    assert sockets.peer_of(one) == OTHER
    assert sockets.reset(one)
    for end in pair:
        with pytest.raises(ConnectionResetError):
            end.recv(9)


def test_an_agent_obeys_orders_and_dials_from_its_own_address(tmp_path: Path) -> None:
    faults = Faults(tmp_path / "faults")
    mine, peer = faults.address_of("a"), faults.address_of("b")
    inside = Inside("a", "worker", faults.folder)
    connect = (socket.socket.connect, socket.socket.connect_ex)
    try:
        inside.start()
        with socket.create_server((peer, 0)) as listening, socket.socket() as dialed:
            dialed.connect(listening.getsockname())
            accepted, (address, _) = listening.accept()
            assert address == mine
            with accepted:
                accepted.send(b"x")
                dialed.settimeout(10.0)
                assert dialed.recv(1) == b"x"
                faults.cut("b", "a", one_way=True)
                wait_for(lambda: inside.state.cuts == (("b", "a"),))
                faults.reset_link("a", "b")
                with pytest.raises(ConnectionResetError):
                    dialed.recv(1)
        faults.heal()
        wait_for(lambda: not inside.state.cuts)
    finally:
        for name, method in zip(("connect", "connect_ex"), connect, strict=True):
            setattr(socket.socket, name, method)
        faults.close()


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[tuple[Faults, Inside]]:
    """The worker of an agent "a" in a fleet of its own; nothing serves its orders."""
    faults = Faults(tmp_path / "faults")
    for agent in "abc":
        faults.address_of(agent)
    made = Inside("a", "worker", faults.folder)
    made._orders.settimeout(10.0)
    yield faults, made
    made._orders.close()
    faults.close()


def connection(sender: str, receiver: str) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection between two addresses, the sender's first."""
    with socket.create_server((receiver, 0)) as listening:
        dialed = socket.socket()
        dialed.bind((sender, 0))
        dialed.connect(listening.getsockname())
        accepted, _ = listening.accept()
    return dialed, accepted


def test_only_segments_that_a_cut_has_lost_count_for_it(inside: tuple[Faults, Inside]) -> None:
    faults, agent = inside
    own, cut, free = (faults.address_of(name) for name in "abc")
    from_cut, at_cut = connection(cut, own)
    from_free, at_free = connection(free, own)
    with from_cut, at_cut, from_free, at_free:
        faults.cut("b", "a", one_way=True)
        agent._load()
        sockets.drop_from(at_free, {free})  # the kernel loses them, but not by the cut
        from_free.send(b"lost")
        wait_for(lambda: sockets.lost_segments(at_free) > 0)
        agent._count_lost()
        assert faults.effects("a")[Effect.LOST_SEGMENT] == 0
        from_cut.send(b"lost")
        wait_for(lambda: sockets.lost_segments(at_cut) > 0)
        agent._count_lost()
        counted = faults.effects("a")[Effect.LOST_SEGMENT]
        assert 0 < counted <= sockets.lost_segments(at_cut)


def test_a_cut_touches_who_dials_and_who_listens(inside: tuple[Faults, Inside]) -> None:
    """Neither has a peer yet, so its lost segments count."""
    faults, agent = inside
    own, cut = faults.address_of("a"), faults.address_of("b")
    with (
        socket.create_server((own, 0)) as listening,
        socket.create_server((cut, 0)) as other,
        socket.socket() as dialing,
        socket.socket() as dialed,
    ):
        faults.cut("b", "a", one_way=True)
        agent._load()
        dialed.bind((cut, 0))
        dialed.setblocking(False)
        dialed.connect_ex(listening.getsockname())
        wait_for(lambda: sockets.lost_segments(listening) > 0)
        agent._count_lost()
        at_listener = faults.effects("a")[Effect.LOST_SEGMENT]
        assert at_listener > 0
        dialing.bind((own, 0))
        sockets.drop_from(dialing, {cut})  # as the agent's own connect does
        dialing.setblocking(False)
        dialing.connect_ex(other.getsockname())
        wait_for(lambda: sockets.lost_segments(dialing) > 0)
        dialed.close()
        listening.close()
        agent._count_lost()
        assert faults.effects("a")[Effect.LOST_SEGMENT] > at_listener


def test_segments_that_were_lost_before_a_cut_count_for_none(
    inside: tuple[Faults, Inside],
) -> None:
    faults, agent = inside
    sender, receiver = connection(faults.address_of("b"), faults.address_of("a"))
    with sender, receiver:
        sockets.drop_from(receiver, {faults.address_of("b")})
        sender.send(b"lost")
        wait_for(lambda: sockets.lost_segments(receiver) > 0)
        sockets.drop_from(receiver, ())
        receiver.settimeout(10.0)
        assert receiver.recv(9) == b"lost"
        faults.cut("b", "a", one_way=True)
        agent._load()
        agent._count_lost()
        assert faults.effects("a")[Effect.LOST_SEGMENT] == 0


def test_a_truncation_that_no_frame_has_met_ends_with_the_other_faults(
    inside: tuple[Faults, Inside],
) -> None:
    faults, agent = inside
    faults.truncate("a", "b")
    agent.obey_next()
    assert agent.truncated == {"b"}
    faults.heal()
    agent.obey_next()
    agent.obey_next()
    assert agent.truncated == set()


def wait_for(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_the_state_survives_the_file(tmp_path: Path) -> None:
    written = state.State(
        {"a": ONE}, (("a", "b"),), (("a", "b", 1.5),), {"b": 0.5},
        Disk(0.25, fails=True, is_full=True, away="/x"),
    )  # fmt: skip
    state.write(tmp_path, written)
    assert state.read(tmp_path) == written
    assert written.lost_senders("b") == {ONE}
    assert written.lost_senders("a") == frozenset()
    assert (written.rate("a", "b"), written.rate("b", "a")) == (1.5, 0.0)


def test_a_trickle_passes_few_bytes_until_it_ends(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    one, other = pair
    rate, effects = 0.0, list[Effect]()
    sock = TricklingSocket(one, lambda: rate, effects.append)
    assert sock.sendmsg([b"ab", b"c"]) == 3
    rate = 4.0
    assert sock.wait_s == 0.0
    assert sock.send(b"defg") == 2
    assert 0.0 < sock.wait_s <= 0.5
    with pytest.raises(BlockingIOError):
        sock.sendmsg([b"fg", b"h"])
    assert effects == [Effect.TRICKLED]
    wait_for(lambda: not sock.wait_s)
    assert sock.sendmsg([b"f", b"g"]) == 1
    assert effects == [Effect.TRICKLED]
    rate = 0.0
    assert sock.wait_s == 0.0
    assert sock.sendmsg([b"g", b"h"]) == 2
    assert sock.getpeername() == other.getsockname()
    assert other.recv(99) == b"abcdefgh"


def test_late_calls_keep_their_order() -> None:
    later, done, called = Later(), threading.Event(), list[int]()
    start = time.monotonic()
    later.call(0.2, lambda: called.append(1))
    assert later.is_busy
    later.call(0.0, lambda: called.append(2))
    later.call(0.0, done.set)
    assert done.wait(10.0)
    assert called == [1, 2]
    assert time.monotonic() - start >= 0.2


def test_a_disk_is_slow_and_fails_on_order(tmp_path: Path) -> None:
    now, effects = Disk(), list[Effect]()
    disk.install(lambda: now, effects.append)
    try:
        files, _ = fsspec.core.url_to_fs(f"file://{tmp_path}")
        with files.open(f"{tmp_path}/x", "wb") as file:
            file.write(b"x")
        now = Disk(delay_s=0.1)
        start = time.monotonic()
        assert files.glob(f"{tmp_path}/*") == [f"{tmp_path}/x"]
        assert time.monotonic() - start >= 0.1
        assert set(effects) == {Effect.SLOW_DISK}
        effects.clear()
        now = Disk(fails=True)
        for attempt in (
            lambda: files.open(f"{tmp_path}/x", "rb"),
            lambda: files.ls(str(tmp_path)),
            lambda: files.mv(f"{tmp_path}/x", f"{tmp_path}/y"),
            lambda: files.rm(f"{tmp_path}/x"),
        ):
            with pytest.raises(OSError, match="Input/output error"):
                attempt()
        assert effects == [Effect.FAILED_DISK] * 4
    finally:
        fsspec.register_implementation("file", LocalFileSystem, clobber=True)


def test_a_full_disk_lets_no_file_be_made(tmp_path: Path) -> None:
    effects = list[Effect]()
    (tmp_path / "x").write_bytes(b"x")
    disk.install(lambda: Disk(is_full=True), effects.append)
    try:
        files, _ = fsspec.core.url_to_fs(f"file://{tmp_path}")
        assert files.open(f"{tmp_path}/x", "rb").read() == b"x"
        assert effects == []
        with pytest.raises(OSError, match="No space left on device"):
            files.open(f"{tmp_path}/y", "wb")
        assert effects == [Effect.FULL_DISK]
        files.rm(f"{tmp_path}/x")
    finally:
        fsspec.register_implementation("file", LocalFileSystem, clobber=True)


def test_on_a_full_disk_with_some_room_a_write_really_stops_half_way(tmp_path: Path) -> None:
    effects = list[Effect]()
    disk.install(lambda: Disk(is_full=True, room=5), effects.append)
    try:
        files, _ = fsspec.core.url_to_fs(f"file://{tmp_path}")
        with files.open(f"{tmp_path}/small", "wb") as file:
            file.write(b"five5")
        assert effects == []
        with files.open(f"{tmp_path}/large", "wb") as file:
            file.write(b"abc")
            with pytest.raises(OSError, match="No space left on device"):
                file.write(b"defg")
            assert (tmp_path / "large").read_bytes() == b"abcde"
        assert effects == [Effect.FULL_DISK]
        checkpoints = Checkpoints(f"file://{tmp_path}", "uid")
        with pytest.raises(CheckpointError, match="No space left on device"):
            checkpoints.probe()
        assert not [p for p in (tmp_path / "uid").iterdir() if p.is_file()]
    finally:
        fsspec.register_implementation("file", LocalFileSystem, clobber=True)


def test_a_folder_that_is_away_cannot_be_read_or_made_again_behind_a_link(tmp_path: Path) -> None:
    faults, effects = Faults(tmp_path / "faults"), list[Effect]()
    volume, mount = tmp_path / "volume", tmp_path / "mount"
    volume.mkdir()
    mount.symlink_to(volume)
    disk.install(lambda: faults.state.disk, effects.append)
    try:
        files, _ = fsspec.core.url_to_fs(f"file://{mount}")
        with files.open(f"{mount}/x", "wb") as file:
            file.write(b"x")
        with pytest.raises(FileNotFoundError):
            files.open(f"{mount}/y", "rb")
        faults.slow_disk(0.001)
        faults.take_away(volume)
        assert faults.state.disk == Disk(delay_s=0.001, away=str(volume))
        assert Effect.ABSENT_FOLDER not in effects
        for attempt in (
            lambda: files.open(f"{mount}/x", "rb"),
            lambda: files.makedirs(f"{mount}/uid/attempt", exist_ok=True),
            lambda: files.open(f"{mount}/z", "wb"),
        ):
            effects.clear()
            with pytest.raises(FileNotFoundError):
                attempt()
            assert Effect.ABSENT_FOLDER in effects
        faults.heal()
        assert faults.state.disk == Disk()
        assert files.ls(str(mount), detail=False) == [f"{mount}/x"]
    finally:
        faults.close()
        fsspec.register_implementation("file", LocalFileSystem, clobber=True)


def test_a_folder_does_not_come_back_to_a_place_that_is_taken(tmp_path: Path) -> None:
    faults, folder = Faults(tmp_path / "faults"), tmp_path / "kept"
    (folder / "old").mkdir(parents=True)
    faults.take_away(folder)
    (folder / "new").mkdir(parents=True)
    with pytest.raises(OSError, match="not empty"):
        faults.heal()
    faults.close()
