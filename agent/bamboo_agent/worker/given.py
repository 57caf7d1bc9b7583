"""Instructions that the worker has given to its device, and how long each of them takes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bamboo_agent.data.time_limit import time_limit
from bamboo_agent.device.completions import Completion, Stream
from bamboo_agent.ipc.activity import ActivityWriter
from bamboo_agent.worker.meter import Meter
from bamboo_core.model.program import Instruction, Op


@dataclass
class _Task:
    instruction: Instruction
    began: float  # when the worker began to issue it
    reading_s: float = 0.0  # of it, in which samples were read
    completion: Completion | None = None


def _nothing(sample: int | None = None) -> None:
    """Nobody watches."""


class Given:
    """What the device has. activity: where the supervisor sees the oldest of it. has_loader:
    another process reads samples."""

    def __init__(
        self,
        stream: Stream,
        meter: Meter,
        activity: ActivityWriter | None,
        *,
        has_loader: bool = False,
    ) -> None:
        self._stream, self._meter, self._activity = stream, meter, activity
        self._has_loader = has_loader
        self._tasks = deque[_Task]()
        self._new = _Task(Instruction(Op.COMMIT), 0.0)  # that is being issued, or was issued last
        self._ended = 0.0  # when one ended last
        self.longest_s = 0.0  # of an instruction, without the time in which it read data

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def begin(self, instruction: Instruction) -> None:
        """The worker begins to issue an instruction, or to perform it."""
        self._new = _Task(instruction, time.perf_counter())
        if self._activity is not None:
            self._activity.issue(instruction)
            if not self._tasks:
                self._activity.run(instruction)

    def leave(self) -> None:
        """The worker has issued or performed it, or has failed."""
        if self._activity is not None:
            self._activity.issued()

    @contextmanager
    def reading_data(self) -> Iterator[Callable[[int | None], None]]:
        """Leave out the time in which samples are read: it is the user's storage that takes it.
        Gives what is called with each sample before it is read, and with None behind the last. What
        takes too long raises there, unless a loader reads, which has a limit of its own."""
        started, activity = time.perf_counter(), self._activity
        if activity is None:
            yield _nothing
        elif self._has_loader:
            activity.read_data()
            yield _nothing
            activity.go_on()
        else:
            with time_limit(activity.reading_limit_s) as begin:

                def note(sample: int | None) -> None:
                    begin()
                    activity.read_data(sample)

                note(None)
                yield note
            activity.go_on()
        self._new.reading_s += time.perf_counter() - started

    def issue(self, work: Callable[[], object]) -> None:
        """Give the device what the instruction that has begun computes."""
        task = self._new
        task.completion = self._stream.give(work)
        if task.completion is not None:
            self._tasks.append(task)

    def drain(self) -> None:
        """Wait until the device has done everything. RuntimeError if it has failed."""
        self._stream.drain()

    def has(self, instruction: Instruction) -> bool:
        """Whether the instruction that has begun is still to be done by the device."""
        return bool(self._tasks) and self._tasks[-1].instruction is instruction

    def end(self) -> None:
        """Count the instruction that has begun: it is done."""
        self._count(self._new)

    def end_first(self, *, wait: bool) -> bool:
        """Count the oldest instruction if the device has done it. wait: until it has. RuntimeError
        if the device has failed."""
        if not self._tasks:
            return False
        completion = self._tasks[0].completion
        assert completion is not None
        if wait:
            completion.wait()
        elif not completion.is_done():
            return False
        self._count(self._tasks.popleft())
        if self._tasks and self._activity is not None:
            self._activity.run(self._tasks[0].instruction)
        return True

    def first(self) -> Instruction:
        """The oldest instruction."""
        return self._tasks[0].instruction

    def _count(self, task: _Task) -> None:
        now = time.perf_counter()
        elapsed_s = now - max(task.began, self._ended)
        self._ended = now
        own_s = max(0.0, elapsed_s - task.reading_s)
        self.longest_s = max(self.longest_s, own_s)
        self._meter.add(task.instruction, elapsed_s)
        if self._activity is not None:
            self._activity.ran(own_s)
