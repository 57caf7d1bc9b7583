"""A page of memory that supervisor and worker share, for what must be seen without a system call.

The worker writes how far it is, the supervisor reads it several times per heartbeat; it tells a
worker that computes from one that hangs.
"""

from __future__ import annotations

import mmap
import os


class SharedProgress:
    """64-bit words, written by the worker only, so that no lock is needed."""

    def __init__(self, fd: int) -> None:
        """Map the page behind ``fd``, which stays open and is closed by :meth:`close`."""
        self.fd = fd
        self._map = mmap.mmap(fd, mmap.PAGESIZE)
        self._words = memoryview(self._map).cast("q")

    @classmethod
    def create(cls) -> SharedProgress:
        """A new page, all zero, whose descriptor a child may inherit."""
        fd = os.memfd_create("bamboo-progress")
        os.ftruncate(fd, mmap.PAGESIZE)
        return cls(fd)

    @property
    def progress(self) -> int:
        """Instructions that the worker has finished."""
        return self._words[0]

    @progress.setter
    def progress(self, value: int) -> None:
        self._words[0] = value

    @property
    def step(self) -> int:
        """The step in which the worker is."""
        return self._words[1]

    @step.setter
    def step(self, value: int) -> None:
        self._words[1] = value

    @property
    def longest_s(self) -> float:
        """Seconds of the longest instruction so far."""
        return self._words[2] / 1e9

    @longest_s.setter
    def longest_s(self, value: float) -> None:
        self._words[2] = round(value * 1e9)

    def close(self) -> None:
        """Unmap the page and close its descriptor."""
        self._words.release()
        self._map.close()
        os.close(self.fd)
