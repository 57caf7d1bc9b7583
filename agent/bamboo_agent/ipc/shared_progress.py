"""The worker's progress in memory that it shares with the supervisor.

The worker writes it without a system call. The supervisor reads it several times per heartbeat, so
it can tell a busy worker from a stuck one, whatever the worker's threads do.
"""

from __future__ import annotations

import mmap
import os
import struct

_PROGRESS, _STEP, _LONGEST, _TRAFFIC, _DOING = range(5)
_RUNNING = struct.Struct("=7q")
DOING = struct.Struct("=17q")
"""What the worker does now: kind, limit, instruction (5 words), item (9), peer. The last 10 count
only while it waits. :mod:`bamboo_agent.ipc.activity` reads and writes them."""
_REFUSED = _DOING + DOING.size // 8
_PAIRS = _REFUSED + 1
_PAIR = struct.Struct("=3q")  # a number for the peer, bytes that have come, whether more is coming
MOST_PAIRS = 128
"""So many links have a place. What comes over others is not known."""
_ISSUED = _PAIRS * 8 + MOST_PAIRS * _PAIR.size  # in bytes, as the next one
_INSTRUCTION = struct.Struct("=5q")
_COMPUTED = _ISSUED + _INSTRUCTION.size
COMPUTED_BYTES = 128
"""Of a text that says which layer is computed."""


class SharedProgress:
    """64-bit words. Only the worker writes, so no lock is needed.

    A reader may see a mixture of an old and a new value of :attr:`doing`. The next reading repairs
    it, and nothing that has not been read many times over is told to anyone.
    """

    def __init__(self, fd: int) -> None:
        """Map the memory of ``fd`` and take ownership of it."""
        self.fd = fd
        self._map = mmap.mmap(fd, mmap.PAGESIZE)
        self._words = memoryview(self._map).cast("q")
        self.computed = memoryview(self._map)[_COMPUTED : _COMPUTED + COMPUTED_BYTES]
        """Text in UTF-8 that ends with a 0: the part of the instruction that is computed. See
        :mod:`bamboo_agent.ipc.computed`."""

    @classmethod
    def create(cls) -> SharedProgress:
        """New memory, all zero, with a descriptor that a child may inherit."""
        fd = os.memfd_create("bamboo-progress")
        os.ftruncate(fd, mmap.PAGESIZE)
        return cls(fd)

    @property
    def progress(self) -> int:
        """Instructions finished."""
        return self._words[_PROGRESS]

    @progress.setter
    def progress(self, value: int) -> None:
        self._words[_PROGRESS] = value

    @property
    def step(self) -> int:
        """The current step."""
        return self._words[_STEP]

    @step.setter
    def step(self, value: int) -> None:
        self._words[_STEP] = value

    @property
    def longest_s(self) -> float:
        """The longest instruction so far, in seconds."""
        return self._words[_LONGEST] / 1e9

    @longest_s.setter
    def longest_s(self, value: float) -> None:
        self._words[_LONGEST] = round(value * 1e9)

    @property
    def traffic(self) -> int:
        """Grows while frames come in or go out, and while files are read or written.

        Their threads count. If two do so at once, one count may be lost, which changes nothing.
        """
        return self._words[_TRAFFIC]

    def count_traffic(self) -> None:
        """Something has come in or gone out."""
        self._words[_TRAFFIC] += 1

    @property
    def refused(self) -> int:
        """Connections to the data port that ended without having proved themselves."""
        return self._words[_REFUSED]

    def count_refused(self) -> None:
        """One more. Only the transport's thread calls it."""
        self._words[_REFUSED] += 1

    def write_pair(self, place: int, number: int, received: int, *, is_coming: bool) -> None:
        """Write down how much has come over the link at this place. Only the transport's thread
        calls it.

        number: of the peer, 0: the place is free; is_coming: a part of a frame is here.
        """
        _PAIR.pack_into(self._map, _PAIRS * 8 + place * _PAIR.size, number, received, is_coming)

    def pair(self, number: int) -> tuple[int, bool] | None:
        """Bytes that have come over the links of this peer, and whether a part of a frame is
        here. None: not known, since others have all places."""
        at, end = _PAIRS * 8, _PAIRS * 8 + MOST_PAIRS * _PAIR.size
        places = list(_PAIR.iter_unpack(self._map[at:end]))
        found = [x for x in places if x[0] == number]
        if not found and all(other for other, *_ in places):
            return None
        return sum(count for _, count, _ in found), any(coming for *_, coming in found)

    @property
    def doing(self) -> tuple[int, ...]:
        """The words of :data:`DOING`."""
        return DOING.unpack_from(self._map, _DOING * 8)

    def write_running(
        self, kind: int, limit_ns: int, op: int, step: int, lo: int, hi: int, index: int
    ) -> None:
        """Replace the first words of :data:`DOING` in one go, for an instruction that runs."""
        _RUNNING.pack_into(self._map, _DOING * 8, kind, limit_ns, op, step, lo, hi, index)

    def write_doing(self, *words: int) -> None:
        """Replace all words of :data:`DOING` in one go."""
        DOING.pack_into(self._map, _DOING * 8, *words)

    @property
    def issued(self) -> tuple[int, ...]:
        """The words of the instruction that Python runs; the first one is 0: none. A GPU may still
        compute an older one, of which :attr:`doing` speaks."""
        return _INSTRUCTION.unpack_from(self._map, _ISSUED)

    def write_issued(self, op: int, step: int, lo: int, hi: int, index: int) -> None:
        """Replace all of :attr:`issued`."""
        _INSTRUCTION.pack_into(self._map, _ISSUED, op, step, lo, hi, index)

    def close(self) -> None:
        self.computed.release()
        self._words.release()
        self._map.close()
        os.close(self.fd)
