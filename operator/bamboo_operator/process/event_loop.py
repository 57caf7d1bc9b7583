"""When the operator has read everything that agents and the API server have sent.

The event loop asks its selector to wait only when nothing is left to do. What is ready then without
waiting had come before; if nothing is, everything has been read that had reached the loop.

That is not all that had come: gRPC reads and decrypts in threads of its own. While they get no
processor, messages wait in sockets, and the loop has a millisecond without work now and then. So
its waits count only if there are enough of them.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from bamboo_core.protocol.clock import Hearing

T = TypeVar("T")

WINDOW_S = 1.0
SPARE = 0.1
"""Share of a window. A loop that has no work for so long leaves a processor to gRPC's threads, too.
With 512 agents on two slow cores it was below 0.02 while messages were read seconds late."""
LONG_S = 0.1
"""A single wait of this length shows the same."""


class LoopHearing(Hearing):
    """Finds out from a loop's waits whether all has been read. Times are those of the monotonic
    clock, in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.idle_s = 0.0  # without work, since the beginning
        self._window_at: float | None = None
        self._idle_before_s = 0.0
        self._has_spare = True

    def waited(self, began: float, ended: float) -> None:
        """The loop had nothing to do in between."""
        self.idle_s += ended - began
        if self._window_at is None:
            self._window_at = began
        elif (wall_s := ended - self._window_at) >= WINDOW_S:
            self._has_spare = self.idle_s - self._idle_before_s >= SPARE * wall_s
            self._window_at, self._idle_before_s = ended, self.idle_s
        if self._has_spare or ended - began >= LONG_S:
            self.caught_up(ended)


class HearingSelector(selectors.DefaultSelector):
    """Notes when the loop has nothing to do."""

    def __init__(self, hearing: LoopHearing) -> None:
        super().__init__()
        self._hearing = hearing

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, Any]]:
        """See :class:`selectors.BaseSelector`."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        if found := super().select(0):
            return found
        began = time.monotonic()
        found = super().select(timeout)
        ended = time.monotonic()
        if not found and timeout is not None:
            ended = min(ended, began + timeout)  # then it was ready, and waited for a processor
        self._hearing.waited(began, ended)
        return found


def run(work: Coroutine[Any, Any, T], hearing: LoopHearing) -> T:
    """Run a coroutine to its end in a new loop that keeps ``hearing``."""

    def make() -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(HearingSelector(hearing))

    with asyncio.Runner(loop_factory=make) as runner:
        return runner.run(work)
