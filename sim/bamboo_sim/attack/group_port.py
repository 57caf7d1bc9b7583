"""The attack on the process groups of an agent, of which its peers tell it over their links.

Insiders prove the key and say anything of a group, as the end that sends or as the one that
receives. Strangers connect to the port of gloo. An honest peer's frames, which a group carries once
it is made, must arrive. Strangers do not keep their connections while a group is made: gloo is
known to end the process then (docs/security.md).
"""

from __future__ import annotations

import base64
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import torch

from bamboo_agent.transport import handshake
from bamboo_agent.transport.process_group import groups
from bamboo_agent.transport.process_group.control import Control, Do, decode, encode
from bamboo_agent.transport.process_group.maker import Maker
from bamboo_agent.transport.wire import CONTROL, SEGMENT
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Peer
from bamboo_sim.attack import data_port, inputs
from bamboo_sim.attack.data_port import FENCE, JOB, KEY, LARGE, PATIENCE_S
from bamboo_sim.attack.tally import Tally

_OPERATION_S = 2.0
"""Groups of an insider hang for so long, instead of 30 s; of 16 that hang no more are made."""
_SHORT_S = 0.02
_KEYS = ("0/0", "0/0", "0/1", "other", "")
_HEADER = {"i": "out[1]", "f": [0, 1, 1], "t": [["float32", [LARGE]]], "m": {}}
_PORT_OF_GLOO = slice(2, 4)  # of an address, as the system keeps it


def serve(pipe: Connection, encrypts: bool) -> None:
    """The victim's process."""
    groups.OPERATION_S = _OPERATION_S
    data_port.serve(pipe, encrypts, Maker("gloo", device=torch.device("cpu")))
    os._exit(0)  # as workers do: threads of gloo may still wait


class Attack(data_port.Attack):
    """One run."""

    def __init__(self, seed: int, victim: Callable[[Connection, bool], None] = serve) -> None:
        self.maker = Maker("gloo", device=torch.device("cpu"))
        super().__init__(seed, victim, encrypts=False, groups=self.maker, frame_size=LARGE)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(PATIENCE_S)
        self._good = b""  # what the victim's gloo says of itself
        self._number = 0

    def run(self, cases: int) -> Tally:
        """See the attack on the data port."""
        with self._listening:
            return super().run(cases)

    def _strike(self) -> tuple[str, bytes]:
        chance = self._rng.random()
        if self._good and chance < 0.2:
            return "port of gloo", self._converse_with_gloo()
        if chance < 0.7:
            return "as a sender", self._say(self._enter, Control(Do.OFFER, FENCE, backend="gloo"))
        return "as a receiver", self._say(self._accepted, None)

    def _converse_with_gloo(self) -> bytes:
        size = int.from_bytes(self._good[:8], "little")
        port = int.from_bytes(self._good[16 + size :][_PORT_OF_GLOO], "big")
        data = self._rng.choice(
            (
                b"",
                self._rng.randrange(40).to_bytes(8, "little") + self._rng.randbytes(100),
                inputs.noise(self._rng),
            )
        )
        try:
            with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as sock:
                sock.sendall(data)
        except OSError as error:
            if isinstance(error, ConnectionRefusedError):
                self.tally.breach("closed", f"nobody listens at the port of gloo: {error!r}")
        return data

    def _say(self, enter: Any, offer: Control | None) -> bytes:
        """Let the group begin, mostly; then say some things of it."""
        said = b""
        try:
            with enter() as sock:
                if offer is not None and self._rng.random() < 0.9:
                    sock.sendall(_segment(encode(offer)))
                    sock.settimeout(PATIENCE_S)
                    answer = sock.recv(1 << 16)
                    self._learn(answer)
                for _ in range(self._rng.randrange(1, 6)):
                    data = inputs.control(self._rng, self._values(), _HEADER)
                    said += data
                    sock.sendall(data)
                sock.settimeout(_SHORT_S)
                while sock.recv(1 << 16):
                    pass
        except OSError:
            return said  # closed by the victim, as it may be
        except (ValueError, KeyError) as error:
            self.tally.breach("insider", f"{error!r} {said!r}")
        return said

    def _values(self) -> dict[str, Any]:
        """Draw the values of a message that may be right."""
        value = inputs.gloo_value(self._rng, self._good)
        fence = self._rng.choice(([0, 1, 1], [0, 1, 1], [0, 1, 1], [0, 0, 0], [9, 9, 9]))
        return {
            "do": self._rng.choice((Do.SET, Do.SET, *Do)),
            "fence": fence,
            "backend": "gloo",
            "key": self._rng.choice(_KEYS),
            "value": base64.b64encode(value).decode(),
            "pieces": self._rng.choice((0, 0, 1, -1, 1 << 40)),
            "why": "",
        }

    def _learn(self, answer: bytes) -> None:
        """Keep what gloo says: it is in the victim's first answer, unless that is a refusal."""
        kind, size = SEGMENT.unpack_from(answer)
        message = decode(answer[SEGMENT.size :][:size])
        if kind == CONTROL and message.do is Do.SET:
            self._good = message.value

    @contextmanager
    def _accepted(self) -> Iterator[socket.socket]:
        """A connection that the victim has made, to send a frame. OSError, ValueError, KeyError."""
        self._number += 1
        host, port = self._listening.getsockname()
        self._pipe.send(Peer(AgentId(f"insider-{self._number}"), f"{host}:{port}", "", KEY))
        sock, _ = self._listening.accept()
        with sock:
            sock.settimeout(PATIENCE_S)
            greeting = handshake.read_greeting(sock.recv(4096))
            nonce = handshake.new_nonce()
            mine = handshake.proof(KEY, "listen", JOB, greeting, nonce, b"")
            sock.sendall(handshake.encode_line({"nonce": nonce, "proof": mine}))
            theirs = handshake.proof(KEY, "dial", JOB, greeting, nonce, b"")
            handshake.check(handshake.decode_line(sock.recv(4096)).get("proof"), theirs)
            sock.sendall(handshake.encode_line({"welcome": True}))
            yield sock

    def _look(self, after: str) -> bool:
        """At the beginning, also wait until a group carries the honest peer's frames."""
        is_well, deadline = super()._look(after), time.monotonic() + PATIENCE_S
        while is_well and not self.maker.sent_pieces:
            if time.monotonic() > deadline:
                self.tally.breach("hang", "the honest peer gets no group")
                return False
            is_well = super()._look(after)
        return is_well


def _segment(data: bytes) -> bytes:
    return SEGMENT.pack(CONTROL, len(data)) + data


def run(cases: int, seed: int) -> dict[str, Any]:
    """The figures of one attack."""
    attack = Attack(seed)
    return attack.run(cases).figures() | {"pieces": attack.maker.sent_pieces}
