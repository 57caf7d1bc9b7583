"""The worker's end of the processes that read samples: what it wants, what is here, who has died.

What was read is kept until it is taken, or until it is no longer wanted. The order in which it was
asked for decides nothing but the time: each micro-batch is a function of (seed, step, index).

A process that dies or hangs over a sample is started anew, and reads it once more. The second time
is an error of that sample, which is raised when it is taken, as if reading it had raised.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bamboo_agent.data.batches import SampleError, which
from bamboo_agent.data.needs import Need, Part
from bamboo_agent.data.targets import TargetWatch
from bamboo_agent.factory_names import FactoryError
from bamboo_agent.loading.errors import LoadingError, error_of
from bamboo_agent.loading.handing import Handed, taken
from bamboo_agent.loading.progress import Doing, ReaderProgress, Word
from bamboo_agent.loading.reader import ANSWER, STARTED
from bamboo_agent.loading.server import ReaderServer
from bamboo_core.api.spec import JobSpec

log = logging.getLogger(__name__)

MOST, LEAST = 16, 2
"""Micro-batches that are wanted or here at a time, and how many in any case, however large."""
MOST_BYTES = 256 << 20
"""Of all that is wanted or here, as far as its size is known."""
LONG_S = 5.0
"""A sample that takes so long is told by name."""
_LONGEST_S = 3600.0  # that a poll takes: a limit may be infinite
_TRIES = 2
_NOBODY = -1
_MOST_ENDS = 3  # of processes that answer nothing, one after the other


@dataclass(frozen=True)
class Limits:
    """In seconds. start: to build the data sets; read: to read a sample, or to collate."""

    start_s: float
    read_s: float


@dataclass
class _Entry:
    """A micro-batch that is wanted, or here."""

    number: int
    need: Need
    reader: int = _NOBODY  # who reads it
    tries: int = 0
    handed: Handed | None = None
    error: Exception | None = None

    @property
    def is_here(self) -> bool:
        return self.handed is not None or self.error is not None

    def close(self) -> None:
        if self.handed is not None:
            os.close(self.handed.memory)


@dataclass
class _Reader:
    """A process that reads, or has just ended."""

    number: int
    control: socket.socket
    progress: ReaderProgress
    killed_after_s: float = 0.0  # it hung for so long, and is killed
    has_answered: bool = False
    asked: list[int] = field(default_factory=list)  # requests, in order


class Loader:
    """Reads micro-batches in processes of its own. One thread uses it.

    spec_json: of the job; make_server: forks readers; called again if that process has died.
    """

    def __init__(
        self,
        spec: JobSpec,
        spec_json: str,
        limits: Limits,
        make_server: Callable[[], ReaderServer],
        *,
        server: ReaderServer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """server: the first one."""
        self._factories = spec.data.factory, spec.data.validation
        self._limits, self._make_server, self._clock = limits, make_server, clock
        self._spec_json = os.memfd_create("bamboo-spec")
        os.write(self._spec_json, spec_json.encode())
        self._entries: dict[int, _Entry] = {}  # in the order in which they are wanted
        self._readers: dict[int, _Reader] = {}
        self._watches: list[TargetWatch] = []
        self._numbers = 0
        self._largest = 0  # bytes of a micro-batch
        self._ends = 0  # of readers, since one has answered
        self._poll = select.epoll()
        self._wanted_readers = max(1, spec.data.workers)
        self._server = server or make_server()
        self._poll.register(self._server, select.EPOLLIN)
        self._start_readers()

    # ------------------------------------------------------------ what is wanted

    def fileno(self) -> int:
        """Readable when :meth:`poll` has something to do."""
        return self._poll.fileno()

    @property
    def due_in_s(self) -> float | None:
        """Call :meth:`poll` after so many seconds at the latest; None: nothing can hang."""
        now, dues = self._clock(), []
        for reader in self._readers.values():
            due = self._due(reader)
            if due is None and reader.asked and not reader.killed_after_s:
                due = now + self._limits.read_s  # it begins with something any moment
            dues += [] if due is None else [due]
        return min(max(0.0, min(dues) - now), _LONGEST_S) if dues else None

    @property
    def has_room(self) -> bool:
        """Whether more may be wanted."""
        count = len(self._entries)
        fits = (count + 1) * self._largest <= MOST_BYTES
        return count < MOST and (count < LEAST or (fits and self._largest > 0))

    def is_wanted(self, need: Need) -> bool:
        """Whether it is wanted, or here."""
        return self._find(need) is not None

    def is_here(self, need: Need) -> bool:
        """Whether :meth:`take` does not wait."""
        found = self._find(need)
        return found is not None and found.is_here

    def slow_sample(self, need: Need) -> int | None:
        """The sample of it that has been read for long; None: there is none."""
        found = self._find(need)
        reader = None if found is None else self._readers.get(found.reader)
        if found is None or reader is None:
            return None
        word = reader.progress.read()
        is_read = word.doing is Doing.READING and word.request == found.number
        is_slow = self._clock() >= word.since_ns / 1e9 + LONG_S
        return word.sample if is_read and is_slow else None

    def want(self, need: Need, *, first: bool = False) -> None:
        """Have it read, behind all that is wanted; first: before it. No-op if it is wanted."""
        found = self._find(need)
        if found is None:
            self._numbers += 1
            found = self._entries[self._numbers] = _Entry(self._numbers, need)
        elif not first:
            return
        if first:
            self._entries = {found.number: found} | self._entries
        self._deal()

    def keep_only(self, needs: Iterable[Need]) -> None:
        """Nothing else is wanted any more."""
        kept = [self._find(need) for need in needs]
        numbers = {entry.number for entry in kept if entry is not None}
        for number in [n for n in self._entries if n not in numbers]:
            self._entries.pop(number).close()
        self._deal()

    def forget_before(self, step: int) -> None:
        """Nothing of earlier steps is wanted any more."""
        old = [e for e in self._entries.values() if e.need.step is not None and e.need.step < step]
        for entry in old:
            self._entries.pop(entry.number).close()
        if old:
            self._deal()

    def watch(self, watches: Sequence[TargetWatch]) -> None:
        """Compare targets with these from now on, as the data of the worker do."""
        self._watches = list(watches)
        for reader in self._readers.values():
            self._tell_watches(reader)

    def take(self, need: Need) -> Mapping[Part, Any]:
        """Its parts, or more, on the CPU; it waits for them. Raises what reading them has raised:
        SampleError, UnevenTargetsError; LoadingError if it cannot be read for another reason."""
        if not self.is_here(need):
            self.want(need, first=True)
        while (entry := self._find(need)) is not None and not entry.is_here:
            self._poll.poll(self.due_in_s)
            self.poll()
        assert entry is not None
        del self._entries[entry.number]
        if entry.error is not None:
            raise entry.error
        assert entry.handed is not None
        found: Mapping[Any, Any] = taken(entry.handed)
        if "error" in found:
            raise error_of(found)
        return found

    def _find(self, need: Need) -> _Entry | None:
        name = need.step, need.microbatch
        for entry in self._entries.values():
            mine = entry.need
            if (mine.step, mine.microbatch) == name and mine.parts & need.parts == need.parts:
                return entry
        return None

    def _deal(self) -> None:
        """Give what nobody reads to the readers, and tell each what is wanted of it now."""
        missing = [entry for entry in self._entries.values() if not entry.is_here]
        if missing:
            self._start_readers()
        lists: dict[int, list[_Entry]] = {number: [] for number in self._readers}
        for entry in missing:
            if entry.reader not in lists:
                entry.reader = min(lists, key=lambda number: len(lists[number]))
            lists[entry.reader].append(entry)
        for number, entries in lists.items():
            reader, asked = self._readers[number], [entry.number for entry in entries]
            if asked != reader.asked:
                reader.asked = asked
                wanted = [[e.number, e.need.step, e.need.microbatch, e.need.parts] for e in entries]
                if not self._tell(reader, {"want": wanted}):
                    reader.asked = [_NOBODY]  # so it is told again

    # ------------------------------------------------------------ what happens

    def poll(self) -> bool:
        """Hear of readers. Whether something has happened."""
        heard = False
        for reader in list(self._readers.values()):
            heard |= self._hear(reader)
            due = self._due(reader)
            if due is not None and self._clock() >= due and not reader.killed_after_s:
                is_start = reader.progress.read().doing is Doing.STARTING
                reader.killed_after_s = self._limits.start_s if is_start else self._limits.read_s
                self._kill(reader)
        try:
            while (ended := self._server.receive()) is not None:
                heard = True
                self._ended(*ended)
        except OSError:
            self._renew_server()
            heard = True
        return heard

    def _hear(self, reader: _Reader) -> bool:
        """Whether it has answered something."""
        heard = False
        while True:
            try:
                message, memories, _, _ = socket.recv_fds(reader.control, ANSWER.size, 1)
            except BlockingIOError:
                return heard
            except OSError:
                message = b""
            if len(message) != ANSWER.size or len(memories) != 1:
                if reader.number in self._readers and not message:
                    self._unlisten(reader)  # the code of its end comes from the server
                    self._kill(reader)
                return heard
            heard = True
            number, header, body = ANSWER.unpack(message)
            self._answered(reader, number, Handed(memories[0], header, body))

    def _answered(self, reader: _Reader, number: int, handed: Handed) -> None:
        if number == STARTED:
            record: Mapping[Any, Any] = taken(handed)
            if "error" in record:
                self._cannot_start(error_of(record))
            return
        self._ends, reader.has_answered = 0, True
        if number in reader.asked:
            reader.asked.remove(number)
        entry = self._entries.get(number)
        if entry is None or entry.is_here:
            os.close(handed.memory)
            return
        entry.handed = handed
        self._largest = max(self._largest, handed.body, 1)

    def _ended(self, number: int, code: int) -> None:
        """A reader has ended."""
        reader = self._readers.get(number)
        if reader is None:
            return
        self._hear(reader)  # what it has said before
        del self._readers[number]
        self._unlisten(reader)
        word = reader.progress.read()
        reader.control.close()
        reader.progress.close()
        how = _how(code, reader.killed_after_s)
        log.warning("the data loader %s %s", how, self._over(word))
        if word.doing in (Doing.READING, Doing.COLLATING):
            self._blame(word, how)
        elif not reader.has_answered:
            self._count_end(f"the data loader {how} {_ENDED[word.doing]}")
        self._deal()

    def _count_end(self, text: str) -> None:
        """A process has ended, and over no sample. text: which, and how."""
        self._ends += 1
        if self._ends >= _MOST_ENDS:
            self._ends = 0
            self._cannot_start(LoadingError(f"{text}, and so did {_MOST_ENDS - 1} before it"))

    def _blame(self, word: Word, how: str) -> None:
        """The reader has ended over a sample: it is read once more, or has an error now."""
        entry = self._entries.get(word.request)
        if entry is None or entry.is_here:
            return
        entry.tries += 1
        if entry.tries >= _TRIES:
            begin = which(entry.need.step, entry.need.microbatch)
            training, validation = self._factories
            factory = training
            if entry.need.step is None and validation is not None:
                factory = validation.factory
            over = f"sample {word.sample}" if word.doing is Doing.READING else "collating"
            ended = f"the data loader {how} {_ENDED[word.doing]}"
            entry.error = SampleError(
                f"{begin}: {factory}, {over}: {ended}, and did so again when it was started anew"
            )

    def _over(self, word: Word) -> str:
        entry = self._entries.get(word.request)
        of = "" if entry is None else f": {which(entry.need.step, entry.need.microbatch)}"
        index = f", sample {word.sample}" if word.doing is Doing.READING else ""
        return f"{_ENDED[word.doing]}{of}{index}; it is started anew"

    def _cannot_start(self, error: Exception) -> None:
        """No reader comes up: all that is wanted has this error, and the next that is wanted has
        another one started."""
        for entry in self._entries.values():
            if entry.is_here:
                continue
            entry.error = error
            if isinstance(error, FactoryError):
                begin = which(entry.need.step, entry.need.microbatch)
                entry.error = SampleError(f"{begin}: the data loader cannot start: {error}")
                entry.error.__cause__ = error.__cause__

    def _due(self, reader: _Reader) -> float | None:
        """When it hangs, by the clock."""
        word = reader.progress.read()
        if word.doing is Doing.WAITING or reader.killed_after_s:
            return None
        limits = self._limits
        limit_s = limits.start_s if word.doing is Doing.STARTING else limits.read_s
        return word.since_ns / 1e9 + limit_s

    # ------------------------------------------------------------ processes

    def _start_readers(self) -> None:
        """Those that are not there."""
        for _ in range(self._wanted_readers - len(self._readers)):
            self._start_reader()

    def _start_reader(self) -> None:
        self._numbers += 1
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        reader = _Reader(self._numbers, ours, ReaderProgress.create())
        self._readers[reader.number] = reader
        self._poll.register(ours, select.EPOLLIN)
        try:
            self._server.start(reader.number, theirs, reader.progress.fd, self._spec_json)
        except OSError:
            return  # poll() finds that the server has gone
        finally:
            theirs.close()
        if self._watches:
            self._tell_watches(reader)

    def _renew_server(self) -> None:
        """The server has died, and its readers with it: what they had begun is begun anew."""
        log.warning("the process that forks data loaders has ended; it is started anew")
        self._poll.unregister(self._server)
        self._server.close()
        for reader in list(self._readers.values()):
            self._hear(reader)
            self._unlisten(reader)
            reader.control.close()
            reader.progress.close()
        self._readers.clear()
        self._count_end("the process that forks data loaders has ended")
        self._server = self._make_server()
        self._poll.register(self._server, select.EPOLLIN)
        self._start_readers()
        self._deal()

    def _kill(self, reader: _Reader) -> None:
        try:
            self._server.kill(reader.number)
        except OSError:
            return  # poll() finds that the server has gone

    def _unlisten(self, reader: _Reader) -> None:
        try:
            self._poll.unregister(reader.control)
        except (FileNotFoundError, ValueError):
            return  # its end has been seen before

    def _tell_watches(self, reader: _Reader) -> None:
        found = [[w.ignored, w.training, w.validation] for w in self._watches]
        self._tell(reader, {"watch": found})

    def _tell(self, reader: _Reader, message: Mapping[str, Any]) -> bool:
        """False: it has ended, or hears nothing for now."""
        try:
            reader.control.send(json.dumps(message).encode())
        except OSError:
            return False
        return True

    def close(self) -> None:
        """End all processes."""
        self._poll.close()
        self._server.close()
        for reader in self._readers.values():
            reader.control.close()
            reader.progress.close()
        for entry in self._entries.values():
            entry.close()
        self._entries.clear()
        self._readers.clear()
        os.close(self._spec_json)


_ENDED = {
    Doing.STARTING: "while it started",
    Doing.WAITING: "while it waited",
    Doing.READING: "while it read this sample",
    Doing.COLLATING: "while it made the micro-batch",
}


def _how(code: int, killed_after_s: float) -> str:
    if killed_after_s:
        return f"was killed, since it had not gone on for {killed_after_s:g} s,"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
