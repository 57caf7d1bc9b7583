"""Tells lines to the command that started a run, and notices when nobody reads them any more."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading

from bamboo_core.api import local_run


class Reader:
    """Who reads what a run tells. When it has gone, this process gets SIGHUP, once."""

    def __init__(self, descriptor: int) -> None:
        """descriptor: the end of a pipe to which lines are written. It stays open."""
        self._descriptor = descriptor
        threading.Thread(target=self._watch, daemon=True).start()

    def tell(self, told: local_run.Told) -> None:
        """Write a line. No-op if the reader has gone."""
        line = (local_run.to_line(told) + "\n").encode()
        with contextlib.suppress(BrokenPipeError):
            while line:
                line = line[os.write(self._descriptor, line) :]

    def _watch(self) -> None:
        """Wait for the end of the reader. Its pipe tells it also while nothing is written."""
        poll = select.poll()
        poll.register(self._descriptor, 0)
        if any(events & select.POLLERR for _, events in poll.poll()):
            os.kill(os.getpid(), signal.SIGHUP)
