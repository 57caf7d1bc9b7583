"""Tells lines to the command that started a run, and notices when nobody reads them any more."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Self

from bamboo_core.api import local_run

_AGAIN_S = 1.0


class Reader:
    """Who reads what a run tells. When it has gone, this process gets SIGHUP, once."""

    def __init__(self, descriptor: int) -> None:
        """descriptor: the end of a pipe to which lines are written. It stays open."""
        self._descriptor, self._lock = descriptor, threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()

    def tell(self, told: local_run.Told) -> None:
        """Write a line, from any thread. No-op if the reader has gone."""
        line = (local_run.to_line(told) + "\n").encode()
        with self._lock, contextlib.suppress(BrokenPipeError):
            while line:
                line = line[os.write(self._descriptor, line) :]

    def _watch(self) -> None:
        """Wait for the end of the reader. Its pipe tells it also while nothing is written."""
        poll = select.poll()
        poll.register(self._descriptor, 0)
        if any(events & select.POLLERR for _, events in poll.poll()):
            os.kill(os.getpid(), signal.SIGHUP)


class Announcement:
    """Tells what goes on, at once and then every second, until its block ends or it is ended. An
    empty text is not told, and the time begins anew with the next one."""

    def __init__(
        self,
        tell: Callable[[local_run.Told], None],
        text: Callable[[], str],
        *,
        again_s: float = _AGAIN_S,
    ) -> None:
        """tell, text: called in a thread of their own. again_s: between two times, in seconds."""
        self._tell, self._text, self._again_s = tell, text, again_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="announcement", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """Tell nothing any more once this returns."""
        self._over.set()
        self._thread.join()

    def _repeat(self) -> None:
        began = time.monotonic()
        while True:
            if text := self._text():
                self._tell(local_run.Doing(text, time.monotonic() - began))
            else:
                began = time.monotonic()
            if self._over.wait(self._again_s):
                return
