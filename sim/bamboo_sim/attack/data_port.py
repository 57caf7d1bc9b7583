"""The attack on an agent's data port, with TLS and without.

The port is that of a real transport in a process of its own. Strangers send it anything; insiders
prove the key first. In between an honest peer sends frames, which must arrive.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import random
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import torch

from bamboo_agent.payloads.frames import Frame
from bamboo_agent.transport import handshake, stream
from bamboo_agent.transport.base import Arrived, Broken
from bamboo_agent.transport.handshake import Greeting
from bamboo_agent.transport.process_group.maker import Maker
from bamboo_agent.transport.tcp import TcpTransport, TransportError
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item
from bamboo_core.protocol.messages import Peer
from bamboo_sim.attack import inputs
from bamboo_sim.attack.tally import Defects, Tally

JOB, KEY = "0c9a8f3e-the-job", b"sixteen bytes!!!"
VICTIM, HONEST, INSIDER = AgentId("victim"), AgentId("honest"), AgentId("insider")
FENCE = Fence(0, 1, 1)
PATIENCE_S = 60.0
"""For the honest peer's frame: much more than a loaded machine needs."""
LARGE = 1 << 16
"""Numbers in a frame that a process group may carry."""
_EVERY = 100
_INSIDERS = 0.4
_HEADER = {"i": "out[1]", "f": [0, 1, 1], "t": [["float32", [4]]], "m": {}}


def serve(pipe: Connection, encrypts: bool, groups: Maker | None = None) -> None:
    """The victim's process: tells its port, then all that happens to it, and its state when
    asked. To a peer that it is told, it sends a frame."""
    defects = Defects.of_process()
    listening = socket.create_server(("127.0.0.1", 0))
    pipe.send(listening.getsockname()[1])
    identity = stream.make_identity() if encrypts else None
    transport = TcpTransport(
        job=JOB, agent=VICTIM, listening=listening, identity=identity, groups=groups
    )
    transport.adopt(FENCE)
    transport.introduce(fence=FENCE, key=KEY, peers={})
    with selectors.DefaultSelector() as selector:
        selector.register(transport, selectors.EVENT_READ)
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            for ready, _ in selector.select():
                if ready.fileobj is pipe:
                    try:
                        peer: Peer | None = pipe.recv()
                    except EOFError:
                        return
                    if peer is None:
                        pipe.send(defects.state())
                    else:
                        transport.introduce(fence=FENCE, key=KEY, peers={peer.agent: peer})
                        transport.send(peer.agent, frame(0, LARGE))
            try:
                for event in transport.poll():
                    pipe.send((str(event.peer), isinstance(event, Arrived), _number(event)))
            except TransportError as error:
                pipe.send(("", False, repr(error)))
                return


def frame(number: int, size: int) -> Frame:
    """One with so many numbers, all the same."""
    tensors = (torch.full((size,), float(number)),)
    return Frame(Item.out(number, 1, number), FENCE, tensors=tensors)


def _number(event: Arrived | Broken) -> int:
    """Which frame of :func:`frame` it is; -1: none, or other numbers have come."""
    if isinstance(event, Broken):
        return -1
    number = event.frame.item.index
    is_whole = all(t is not None and bool((t == number).all()) for t in event.frame.tensors)
    return number if is_whole else -1


class Attack:
    """One run. ``tally``: what came of it. victim: what runs in the victim's process.
    encrypts: the port speaks TLS, as it does by default."""

    def __init__(
        self,
        seed: int,
        victim: Callable[[Connection, bool], None] = serve,
        *,
        encrypts: bool = True,
        groups: Maker | None = None,
        frame_size: int = 4,
    ) -> None:
        """groups: of the honest peer. frame_size: numbers in one of its frames."""
        self.tally = Tally()
        self._frame_size = frame_size
        self._rng = random.Random(seed)
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=victim, args=(theirs, encrypts), daemon=True)
        self._process.start()
        theirs.close()
        self._port: int = self._pipe.recv()
        own = socket.create_server(("127.0.0.1", 0))
        identity = stream.make_identity() if encrypts else None
        self._tls = identity.dialing if identity else None
        self._honest = TcpTransport(
            job=JOB, agent=HONEST, listening=own, identity=identity, groups=groups
        )
        peer = Peer(VICTIM, f"127.0.0.1:{self._port}", "", KEY)
        self._honest.adopt(FENCE)
        self._honest.introduce(fence=FENCE, key=b"mine", peers={VICTIM: peer})
        self._sent = 0

    def run(self, cases: int) -> Tally:
        """So many cases, then the end of the process."""
        try:
            if not self._look("the beginning"):
                return self.tally
            for number in range(cases):
                kind, data = self._strike()
                self.tally.cases[f"{kind}, TLS" if self._tls else kind] += 1
                if number % _EVERY == _EVERY - 1 and not self._look(repr(data)):
                    break
            self._look("the end")
        finally:
            self._honest.close()
            self._pipe.close()
            self._process.join(10)
            self._process.kill()
        return self.tally

    def _strike(self) -> tuple[str, bytes]:
        """One case: of which kind, and what was sent."""
        if self._rng.random() < _INSIDERS:
            return "insider", self._insider()
        return "stranger", self._stranger()

    def _stranger(self) -> bytes:
        greeting = {
            "bamboo": handshake.VERSION,
            "from": HONEST,
            "to": VICTIM,
            "fence": self._rng.choice(([0, 1, 1], [0, 0, 0], [9, 9, 9])),
            "nonce": "0" * 32,
        }
        data = inputs.first_bytes(self._rng, greeting)
        said = self._converse(data)
        if JOB.encode() in said:
            self.tally.breach("told", repr(data))
        return data

    def _insider(self) -> bytes:
        data = inputs.segment(self._rng, _HEADER)
        try:
            with self._enter() as sock:
                sock.sendall(data)
        except (OSError, ValueError, KeyError) as error:
            self.tally.breach("insider", f"{error!r} {data!r}")
        return data

    @contextmanager
    def _enter(self) -> Iterator[socket.socket]:
        """A connection that has proved the key. OSError, ValueError, KeyError."""
        greeting = Greeting(INSIDER, VICTIM, FENCE, handshake.new_nonce())
        with self._dial(encrypts=True) as sock:
            binding = b""
            if isinstance(sock, ssl.SSLSocket):
                certificate = sock.getpeercert(binary_form=True) or b""
                binding = hashlib.sha256(certificate).digest()
            sock.sendall(greeting.line())
            nonce = json.loads(sock.recv(4096))["nonce"]
            mine = handshake.proof(KEY, "dial", JOB, greeting, nonce, binding)
            sock.sendall(handshake.encode_line({"proof": mine}))
            sock.recv(4096)
            yield sock

    def _converse(self, data: bytes) -> bytes:
        """Return what the port says, if it says something at once."""
        said = b""
        try:
            with self._dial(encrypts=self._rng.random() < 0.5) as sock:
                sock.sendall(data)
                if not isinstance(sock, ssl.SSLSocket):  # it would stop to decrypt
                    sock.shutdown(socket.SHUT_WR)
                sock.settimeout(0.02)
                said = sock.recv(4096)
        except OSError:
            return said  # closed by the other end before all was sent
        return said

    def _dial(self, *, encrypts: bool) -> socket.socket:
        """encrypts: with TLS, if the port speaks it."""
        sock = socket.create_connection(("127.0.0.1", self._port), PATIENCE_S)
        sock.settimeout(PATIENCE_S)
        return self._tls.wrap_socket(sock) if encrypts and self._tls else sock

    def _look(self, after: str) -> bool:
        """Whether the honest peer still gets through, and was never suspected."""
        self._sent += 1
        self._honest.send(VICTIM, frame(self._sent, self._frame_size))
        is_arrived = False
        deadline = time.monotonic() + PATIENCE_S
        while (left := deadline - time.monotonic()) > 0 and self._pipe.poll(left):
            try:
                told = self._pipe.recv()
                if isinstance(told, dict):
                    return self.tally.judge(told, after)
                peer, is_frame, what = told
                if peer == HONEST and what == self._sent:
                    is_arrived = True
                    self._pipe.send(None)
            except (EOFError, OSError):
                self.tally.breach("crash", f"the process has ended after {after}")
                return False
            if not peer:
                self.tally.breach("crash", f"{what} after {after}")
                return False
            if peer == HONEST and not is_frame:
                self.tally.breach("touched", f"the honest peer is suspected after {after}")
                return False
        missing = "state" if is_arrived else "frame of the honest peer"
        self.tally.breach("hang", f"no {missing} arrives after {after}")
        return False


def run(cases: int, seed: int) -> dict[str, Any]:
    """The figures of one attack."""
    tally = Attack(seed, encrypts=True).run(cases - cases // 2)
    tally.add(Attack(seed, encrypts=False).run(cases // 2))
    return tally.figures()
