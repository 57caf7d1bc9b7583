"""Displays of a running job: a live screen on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.live import Live

from bamboo_cli.job.snapshot import Snapshot
from bamboo_cli.views.terminal.job_screen import job_screen, plain_line


class Display(Protocol):
    """Shows snapshots; use it in a with statement."""

    def __enter__(self) -> Display: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def show(self, snapshot: Snapshot) -> None: ...


class LiveDisplay:
    """A screen that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> LiveDisplay:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, snapshot: Snapshot) -> None:
        self._live.update(job_screen(snapshot))


class PlainDisplay:
    """Prints a line for each new event and phase, and every ``every_s`` seconds of progress."""

    def __init__(
        self,
        console: Console,
        *,
        every_s: float = 5.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._every_s, self._now = console, every_s, now
        self._printed: tuple[str, int] | None = None
        self._printed_at = 0.0
        self._news: set[str] = set()

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def show(self, snapshot: Snapshot) -> None:
        for line in snapshot.news:
            if line not in self._news:
                self._news.add(line)
                self._print(f"  {line}")
        phase, step = snapshot.job.phase, snapshot.job.step
        is_due = self._now() - self._printed_at >= self._every_s
        changed_phase = self._printed is None or self._printed[0] != phase
        if changed_phase or (is_due and self._printed != (phase, step)):
            self._printed, self._printed_at = (phase, step), self._now()
            self._print(plain_line(snapshot))

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def make_display(console: Console) -> Display:
    """The display for this kind of console."""
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)
