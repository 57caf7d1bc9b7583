"""Ends a call of the user's data set that does not return."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class NotReturnedError(Exception):
    """The user's code has been at work for too long. The text says what to do."""


@contextmanager
def time_limit(seconds: float) -> Iterator[Callable[[], None]]:
    """Let what runs inside the block raise NotReturnedError after so long.

    Gives a function that begins the time anew. It works in the main thread, and where Python gets a
    signal: a sleep, a lock, a socket. Elsewhere, as in a hard mount, nothing is raised.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    is_inside = True

    def end(number: int, frame: FrameType | None) -> None:
        if is_inside:
            raise NotReturnedError(
                f"it has not returned for {seconds:g} s; give what it waits for a time-out that"
                " raises"
            )

    def begin() -> None:
        signal.signal(signal.SIGALRM, end)  # the user's code may have set its own
        signal.setitimer(signal.ITIMER_REAL, seconds)

    handler, (left_s, _) = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    begin()
    try:
        yield begin
    finally:
        is_inside = False
        signal.setitimer(signal.ITIMER_REAL, left_s)
        signal.signal(signal.SIGALRM, handler)
