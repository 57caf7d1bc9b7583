"""Devices that have done an instruction only some time after its issue, on real tensors.

Two extremes of a GPU, on which what an instruction computes comes at some time in between:

- It computes at issue, so what it changes in place is changed before it counts as done.
- It computes when it is done, so nothing of it is here before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from random import Random

Work = Callable[[], object]


class LateStream:
    """``ahead``: instructions that it has at a time; ``most``: how often at most somebody asks in
    vain whether the oldest is done; ``computes_late``: only then, see above."""

    def __init__(self, seed: str, *, ahead: int, most: int, computes_late: bool) -> None:
        self.ahead = ahead
        self.waited = 0  # how often somebody had to wait
        self.late = 0  # instructions that were not done at the first question
        self._random, self._most, self._computes_late = Random(seed), most, computes_late
        self._tasks = deque[_Task]()

    def give(self, work: Work) -> _Task:
        """Compute it now or later."""
        assert len(self._tasks) < self.ahead, "more is issued than the device takes"
        if not self._computes_late:
            work()
            work = _nothing
        task = _Task(self, work, self._random.randint(0, self._most))
        self._tasks.append(task)
        return task

    def drain(self) -> None:
        """Do everything."""
        while self._tasks:
            self._tasks.popleft().do()

    def copies(self) -> AbstractContextManager[object]:
        """Nothing to wait for."""
        return nullcontext()

    def ask(self, task: _Task) -> bool:
        """Whether it is done."""
        if not task.is_over and self._tasks[0] is task:
            if task.left == 0:
                self._tasks.popleft().do()
            else:
                self.late += not task.was_asked
                task.left, task.was_asked = task.left - 1, True
        return task.is_over

    def wait_for(self, task: _Task) -> None:
        """Do it, and what was given before it."""
        self.waited += not task.is_over
        while not task.is_over:
            self._tasks.popleft().do()


def _nothing() -> None:
    pass


class _Task:
    def __init__(self, stream: LateStream, work: Work, left: int) -> None:
        self._stream, self._work = stream, work
        self.left, self.was_asked, self.is_over = left, False, False

    def do(self) -> None:
        self.is_over = True
        self._work()

    def is_done(self) -> bool:
        return self._stream.ask(self)

    def wait(self) -> None:
        self._stream.wait_for(self)


class BrokenStream(LateStream):
    """A device that fails at the completion of an instruction. ``after``: so many are done."""

    def __init__(self, seed: str, *, ahead: int, after: int) -> None:
        super().__init__(seed, ahead=ahead, most=1, computes_late=True)
        self._left = after

    def give(self, work: Work) -> _Task:
        self._left -= 1
        return super().give(work if self._left >= 0 else _fail)


def _fail() -> None:
    raise RuntimeError("device error: an illegal memory access was encountered")
