"""Runs work in forked children, several at once, and collects what they say."""

from __future__ import annotations

import json
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from bamboo_sim.mutation.killers import Say

SILENCE_S = 180.0  # wall time without a word after which a child is taken to hang
Key = TypeVar("Key")


@dataclass
class Ended(Generic[Key]):
    """What became of a child's work."""

    key: Key
    words: list[dict[str, Any]] = field(default_factory=list)
    status: int = 0  # exit status; below 0: the signal that ended it
    is_silent: bool = False  # ended because it said nothing for SILENCE_S
    seconds: float = 0.0  # wall time

    @property
    def killed_by(self) -> str:
        """The killer's name, "time-out: ..." or "crash: ..."; "" for a survivor."""
        for word in self.words:
            if "killed_by" in word:
                return str(word["killed_by"])
        at = next((word["at"] for word in reversed(self.words) if "at" in word), "start")
        if self.is_silent or self.status == -signal.SIGXCPU:
            return f"time-out: {at}"
        return f"crash: {at}" if self.status else ""


@dataclass
class _Child(Generic[Key]):
    ended: Ended[Key]
    pid: int
    pipe: int
    began: float
    heard: float
    text: bytes = b""


class Children(Generic[Key]):
    """Up to ``most`` children at once. The process that forks must have only one thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._selector = selectors.DefaultSelector()
        self._running: list[_Child[Key]] = []

    @property
    def is_full(self) -> bool:
        return len(self._running) >= self._most

    @property
    def is_running(self) -> bool:
        return bool(self._running)

    def start(self, key: Key, work: Callable[[Say], None]) -> None:
        """Fork a child that does the work. Its output is thrown away."""
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(ours)
            _live(theirs, work)
        os.close(theirs)
        now = time.monotonic()
        child = _Child(Ended(key), pid, ours, now, now)
        self._running.append(child)
        self._selector.register(ours, selectors.EVENT_READ, child)

    def ended(self) -> Iterator[Ended[Key]]:
        """Wait until at least one child has ended, if any is running."""
        while self._running:
            for key, _ in self._selector.select(timeout=1.0):
                child: _Child[Key] = key.data
                if data := os.read(child.pipe, 1 << 16):
                    child.heard, child.text = time.monotonic(), child.text + data
                else:
                    yield self._end(child)
                    return
            for child in self._running:
                if time.monotonic() - child.heard > SILENCE_S:
                    child.ended.is_silent = True
                    os.kill(child.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End all children."""
        for child in list(self._running):
            os.kill(child.pid, signal.SIGKILL)
            self._end(child)

    def _end(self, child: _Child[Key]) -> Ended[Key]:
        self._selector.unregister(child.pipe)
        os.close(child.pipe)
        self._running.remove(child)
        _, status = os.waitpid(child.pid, 0)
        ended = child.ended
        ended.status = os.waitstatus_to_exitcode(status)
        ended.seconds = time.monotonic() - child.began
        lines = child.text.split(b"\n")[:-1]  # a line cut by the child's end does not count
        ended.words = [json.loads(line) for line in lines]
        return ended


def _live(pipe: int, work: Callable[[Say], None]) -> None:
    """A child's life. It never returns."""
    status = 1
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        work(lambda word: _write(pipe, word))
        status = 0
    finally:
        os._exit(status)


def _write(pipe: int, word: dict[str, Any]) -> None:
    data = json.dumps(word).encode() + b"\n"
    while data:
        data = data[os.write(pipe, data) :]
