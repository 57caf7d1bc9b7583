"""When the operator has read everything that agents and the API server have sent.

The event loop asks its selector to wait only when nothing is left to do. What is ready then without
waiting had come before; if nothing is, everything has been read.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from bamboo_core.protocol.clock import Hearing

T = TypeVar("T")


class AttentiveSelector(selectors.DefaultSelector):
    """Notes in ``hearing`` when the loop has nothing to do. Times are of the monotonic clock."""

    def __init__(self, hearing: Hearing) -> None:
        super().__init__()
        self._hearing = hearing

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, Any]]:
        """See :class:`selectors.BaseSelector`."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        if found := super().select(0):
            return found
        self._hearing.caught_up(time.monotonic())
        found = super().select(timeout)
        self._hearing.caught_up(time.monotonic())
        return found


def run(work: Coroutine[Any, Any, T], hearing: Hearing) -> T:
    """Run a coroutine to its end in a new loop that keeps ``hearing``."""

    def make() -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(AttentiveSelector(hearing))

    with asyncio.Runner(loop_factory=make) as runner:
        return runner.run(work)
