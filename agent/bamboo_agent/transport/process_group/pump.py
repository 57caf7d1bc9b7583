"""A thread that makes one group and performs its operations, one after the other.

It may hang in the library. Then it is abandoned: nobody waits for it, and what it says later counts
only for what it held.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
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
    """One thread. ``make`` may block; so may all operations.

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
        start = group.send if self._is_sender else group.receive
        posted: deque[Callable[[], None]] = deque()
        while not self._is_abandoned.is_set():
            while len(posted) < AHEAD and (not posted or not self._memory.empty()):
                memory = self._memory.get()
                if memory is None:
                    return
                posted.append(start(memory))
            posted.popleft()()
            if not self._is_sender:
                self._post(lambda: self._listener.done(self))
