"""Strangers at a port that answers few words: they send made-up bytes, and some then stay silent.

For liveness and health. The port is in a process of its own, which tells how it is when asked.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from bamboo_sim.attack.tally import Defects, Tally

PATIENCE_S = 60.0
"""For an honest client: much more than a loaded machine needs."""
MOST_GROWTH_MB = 200
SILENT = 100
"""Connections that strangers hold open."""
_EVERY = 100


@dataclass
class Inside:
    """In the victim's process. told: with the state. kept: until the process ends."""

    told: dict[str, Any] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)


Start = Callable[[Inside], Awaitable[dict[str, int]]]
"""Opens ports and returns them by name."""


def serve(start: Start, pipe: Connection) -> None:
    """The victim's process: tells its ports, then its state when asked."""
    asyncio.run(_serve(start, pipe))


async def _serve(start: Start, pipe: Connection) -> None:
    defects = Defects.of_process()
    inside = Inside()
    pipe.send(await start(inside))
    asked: asyncio.Queue[None] = asyncio.Queue()
    asyncio.get_running_loop().add_reader(pipe.fileno(), lambda: asked.put_nowait(pipe.recv()))
    while True:
        await asked.get()
        pipe.send(inside.told | defects.state())


class Victim:
    """The process with the ports."""

    def __init__(self, start: Start) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(start, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.ports: dict[str, int] = self._pipe.recv()

    def state(self) -> dict[str, Any]:
        """Return what it tells. TimeoutError, EOFError, OSError: it hangs or has ended."""
        self._pipe.send(None)
        if not self._pipe.poll(PATIENCE_S):
            raise TimeoutError("the process does not tell its state")
        found: dict[str, Any] = self._pipe.recv()
        return found

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.kill()
        self._process.join()


class Attack:
    """One run. say: made-up bytes. look: raises an exception if an honest client does not get
    through; given the state. ``tally``: what came of it."""

    def __init__(
        self,
        victim: Victim,
        seed: int,
        *,
        say: Callable[[random.Random], bytes],
        look: Callable[[dict[str, Any]], None],
    ) -> None:
        self.tally = Tally(most_growth_mb=MOST_GROWTH_MB)
        self._victim, self._say, self._look_at = victim, say, look
        self._rng = random.Random(seed)
        self._silent: deque[socket.socket] = deque()

    def run(self, cases: int) -> Tally:
        """So many cases, then the end of the process."""
        try:
            if self._look("the beginning"):
                for number in range(cases):
                    name = self._rng.choice([*self._victim.ports])
                    data = self._say(self._rng)
                    self.tally.cases[name] += 1
                    self._converse(self._victim.ports[name], data)
                    if number % _EVERY == _EVERY - 1 and not self._look(repr(data[:300])):
                        break
                self._look("the end")
        finally:
            for sock in self._silent:
                sock.close()
            self._victim.close()
        return self.tally

    def _converse(self, port: int, data: bytes) -> None:
        try:
            sock = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        except OSError as error:
            self.tally.breach("closed", f"nobody listens: {error!r}")
            return
        sock.settimeout(0.02)
        try:
            sock.sendall(data)
            if self._rng.random() < 0.2:
                self._silent.append(sock)
                if len(self._silent) > SILENT:
                    self._silent.popleft().close()
                return
            if self._rng.random() < 0.5:
                sock.shutdown(socket.SHUT_WR)
                sock.recv(4096)
        except OSError:
            pass  # closed by the other end, or no answer, as it may
        sock.close()

    def _look(self, after: str) -> bool:
        """Whether honest clients get through, and nothing has died or grown."""
        try:
            state = self._victim.state()
            self._look_at(state)
        except (EOFError, BrokenPipeError) as error:
            self.tally.breach("crash", f"{error!r} after {after}")
            return False
        except (OSError, ValueError) as error:
            self.tally.breach("hang", f"{error!r} after {after}")
            return False
        return self.tally.judge(state, after)
