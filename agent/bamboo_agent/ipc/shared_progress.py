"""The worker's progress in memory that it shares with the supervisor.

The worker writes it without a system call. The supervisor reads it several times per heartbeat, so
it can tell a busy worker from a stuck one.
"""

from __future__ import annotations

import mmap
import os


class SharedProgress:
    """64-bit words. Only the worker writes, so no lock is needed."""

    def __init__(self, fd: int) -> None:
        """Map the memory of ``fd`` and take ownership of it."""
        self.fd = fd
        self._map = mmap.mmap(fd, mmap.PAGESIZE)
        self._words = memoryview(self._map).cast("q")

    @classmethod
    def create(cls) -> SharedProgress:
        """New memory, all zero, with a descriptor that a child may inherit."""
        fd = os.memfd_create("bamboo-progress")
        os.ftruncate(fd, mmap.PAGESIZE)
        return cls(fd)

    @property
    def progress(self) -> int:
        """Instructions finished."""
        return self._words[0]

    @progress.setter
    def progress(self, value: int) -> None:
        self._words[0] = value

    @property
    def step(self) -> int:
        """The current step."""
        return self._words[1]

    @step.setter
    def step(self, value: int) -> None:
        self._words[1] = value

    @property
    def longest_s(self) -> float:
        """The longest instruction so far, in seconds."""
        return self._words[2] / 1e9

    @longest_s.setter
    def longest_s(self, value: float) -> None:
        self._words[2] = round(value * 1e9)

    def close(self) -> None:
        self._words.release()
        self._map.close()
        os.close(self.fd)
