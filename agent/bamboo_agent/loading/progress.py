"""What a process that reads samples does now, in memory that it shares with its worker: when it
dies or hangs, the worker can say over which sample."""

from __future__ import annotations

import mmap
import os
import struct
import time
from enum import IntEnum
from typing import NamedTuple

_WORDS = struct.Struct("=4q")


class Doing(IntEnum):
    """The states of such a process."""

    STARTING = 0
    WAITING = 1
    READING = 2
    COLLATING = 3


class Word(NamedTuple):
    """request: a number; sample: the index of the one that is read; since_ns: by the monotonic
    clock."""

    doing: Doing
    request: int
    sample: int
    since_ns: int


class ReaderProgress:
    """Only the process that reads writes, and a reading that is torn is repaired by the next."""

    def __init__(self, memory: int) -> None:
        """Map the memory and take ownership of its descriptor."""
        self.fd = memory
        self._map = mmap.mmap(memory, mmap.PAGESIZE)

    @classmethod
    def create(cls) -> ReaderProgress:
        """The process starts now."""
        memory = os.memfd_create("bamboo-reader")
        os.ftruncate(memory, mmap.PAGESIZE)
        made = cls(memory)
        made.write(Doing.STARTING)
        return made

    def write(self, doing: Doing, request: int = 0, index: int = 0) -> None:
        """The process begins with this."""
        _WORDS.pack_into(self._map, 0, doing, request, index, time.monotonic_ns())

    def read(self) -> Word:
        """Return what the process has begun last."""
        doing, request, index, since_ns = _WORDS.unpack_from(self._map)
        return Word(Doing(doing), request, index, since_ns)

    def close(self) -> None:
        """Free it."""
        self._map.close()
        os.close(self.fd)
