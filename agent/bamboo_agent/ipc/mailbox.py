"""A queue between threads with a descriptor for selectors."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Mailbox(Generic[_T]):
    """One reader, any number of writers. Readable for a selector while it is not empty."""

    def __init__(self) -> None:
        self._items: deque[_T] = deque()
        self._lock = threading.Lock()
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = False

    def fileno(self) -> int:
        return self._descriptor

    def put(self, item: _T) -> None:
        """Add an item and wake the reader. Dropped after :meth:`close`."""
        with self._lock:
            if self._closed:
                return
            self._items.append(item)
            if len(self._items) == 1:
                os.eventfd_write(self._descriptor, 1)

    def take_all(self) -> list[_T]:
        """All items, oldest first."""
        if not self._items:
            return []
        with self._lock:
            taken = list(self._items)
            self._items.clear()
            os.eventfd_read(self._descriptor)
        return taken

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._descriptor)
