"""A thread that performs jobs in order and hands their results to the thread that owns it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, TypeVar

from bamboo_agent.ipc.mailbox import Mailbox

_T = TypeVar("_T")


@dataclass(frozen=True)
class _Note(Generic[_T]):
    """A result of a job that has not ended."""

    result: _T


class Background(Generic[_T]):
    """One thread. Only the owner calls the methods, and none of them but :meth:`close` blocks."""

    def __init__(self, name: str) -> None:
        """name: of the thread."""
        self._jobs: SimpleQueue[Callable[[], _T | None] | None] = SimpleQueue()
        self._results: Mailbox[_T | Exception | _Note[_T] | None] = Mailbox()
        self._outstanding = 0
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], _T | None]) -> None:
        """Queue a job. None is no result. What the job raises, :meth:`poll` raises."""
        self._outstanding += 1
        self._jobs.put(job)

    def post(self, result: _T) -> None:
        """A result that needs no job, and waits for none."""
        self._outstanding += 1
        self._results.put(result)

    def note(self, result: _T) -> None:
        """A result of the job that runs, besides its last one. Only the job calls this."""
        self._results.put(_Note(result))

    def poll(self) -> list[_T]:
        """Results since the last call, in order."""
        results: list[_T] = []
        for result in self._results.take_all():
            if isinstance(result, _Note):
                results.append(result.result)
                continue
            self._outstanding -= 1
            if isinstance(result, Exception):
                raise result
            if result is not None:
                results.append(result)
        return results

    @property
    def is_busy(self) -> bool:
        """Whether :meth:`poll` has not yet returned the results of all jobs."""
        return self._outstanding > 0

    def fileno(self) -> int:
        """Readable while :meth:`poll` has results."""
        return self._results.fileno()

    def close(self) -> None:
        """Perform what is queued, then end the thread."""
        self._jobs.put(None)
        self._thread.join()
        self._results.close()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._results.put(job())
            except Exception as error:
                self._results.put(error)
