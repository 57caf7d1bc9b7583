"""A thread that makes one group and posts its operations, and one that waits for their ends.

They may hang in the library. Then they are abandoned: nobody waits for them, and what they say
later counts only for what they held.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Protocol

import torch

from bamboo_agent.transport.process_group.groups import Group

THREAD_NAME = "group"
AHEAD = 8
"""Operations posted at the same time, so that the two ranks need not wait for each other."""


class Listener(Protocol):
    """Whose group it is. The pump calls it through ``post``, never in its own thread."""

    def made(self, pump: Pump) -> None:
        """The group exists."""

    def done(self, pump: Pump) -> None:
        """The oldest receive has ended well. A send is over only when the peer says so."""

    def failed(self, pump: Pump, why: str) -> None:
        """The group is of no more use."""

    def ended(self, pump: Pump) -> None:
        """The thread no longer reads or writes any memory. The last call."""


class Pump:
    """Never blocks its caller. ``make`` may block; so may all operations.

    post: runs a function in the transport's thread, in order. is_abandoned: set by
    :meth:`abandon`, for what can poll it.
    """

    def __init__(
        self,
        make: Callable[[], Group],
        *,
        is_sender: bool,
        listener: Listener,
        post: Callable[[Callable[[], None]], None],
        is_abandoned: threading.Event,
    ) -> None:
        self._make, self._is_sender = make, is_sender
        self._listener, self._post, self._is_abandoned = listener, post, is_abandoned
        self._memory: queue.SimpleQueue[torch.Tensor | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._thread.start()

    def put(self, memory: torch.Tensor) -> None:
        """The next bytes to send, or to receive into. The thread keeps them alive."""
        self._memory.put(memory)

    def abandon(self) -> None:
        """Post nothing more and end as soon as the library allows. Does not wait."""
        self._is_abandoned.set()
        self._memory.put(None)

    def _run(self) -> None:
        listener = self._listener
        try:
            self._perform()
        except Exception as error:  # whatever torch raises: the group has failed
            why = f"{type(error).__name__}: {error}"
            self._post(lambda: listener.failed(self, why))
        self._post(lambda: listener.ended(self))

    def _perform(self) -> None:
        """The group lives in this frame only, so that its end, too, blocks no other thread."""
        group = self._make()
        try:
            self._post(lambda: self._listener.made(self))
            self._carry(group)
        finally:
            group.discard()

    def _carry(self, group: Group) -> None:
        """Post each operation at once, although earlier ones still run.

        gloo sends a message only when its receive is posted. If the thread that waits for one
        operation also posted the next one, the line would be idle between any two.
        """
        start = group.send if self._is_sender else group.receive
        ends = _Ends(self._say_end, wake=lambda: self._memory.put(None))
        try:
            while (memory := self._memory.get()) is not None and ends.has_room():
                if self._is_abandoned.is_set():
                    return
                ends.add(start(memory))
        finally:
            ends.close()

    def _say_end(self) -> None:
        if not self._is_sender:
            self._post(lambda: self._listener.done(self))


class _Ends:
    """A thread that waits until operations end, in the order in which they were posted.

    say: called there after each. wake: called there if one fails; the rest are not waited for.
    """

    def __init__(self, say: Callable[[], None], wake: Callable[[], None]) -> None:
        self._say, self._wake = say, wake
        self._posted: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(AHEAD)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._thread.start()

    def has_room(self) -> bool:
        """Wait until fewer than AHEAD operations run. False: one has failed."""
        self._room.acquire()
        return self._error is None

    def add(self, wait: Callable[[], None]) -> None:
        """The next operation. wait: blocks until it has ended."""
        self._posted.put(wait)

    def close(self) -> None:
        """Wait for what was posted, and raise the error of the one that failed."""
        self._posted.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (wait := self._posted.get()) is not None:
            try:
                wait()
            except Exception as error:  # whatever torch raises: the group has failed
                self._error = error
                self._room.release()
                self._wake()
                return
            self._say()
            self._room.release()
