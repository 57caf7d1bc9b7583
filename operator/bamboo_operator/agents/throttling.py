"""What agents' messages cost the operator, and how fast each pod and each job may go on.

One process serves all jobs. So its time for the messages of one pod, and for those of one job, is
bounded. Accounts outlive streams: a new stream pays for the old one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from bamboo_core.protocol.messages import AgentMessage
from bamboo_wire import decode
from bamboo_wire.errors import WireError

AT_ONCE_BYTES = 64 << 10
"""A longer message is parsed in a thread: the longest take most of a second."""
STREAM_S = 0.005
"""What a new stream costs its pod: a handshake and a token review."""
MESSAGE_S = 0.0002
BYTE_S = 1 / (20 << 20)
"""What gRPC needs for a message, and for a byte of it."""

_THREADS = 4
_FEW = 64  # accounts that are worth no look


class Terms(NamedTuple):
    """Seconds of the processor: at once, and in each second after that."""

    burst: float
    rate: float


OF_POD = Terms(2.0, 0.1)
"""A report of 4 MiB takes 0.7 s, and a heartbeat a third of a millisecond."""
OF_JOB, OF_STREAM = Terms(2.0, 0.2), Terms(0.01, 0.002)
"""A job has the first, and the second for each of its streams."""


@dataclass
class Account:
    """How much has been used up and is not forgiven yet."""

    base: Terms
    of_stream: Terms
    clock: Callable[[], float]
    streams: int = 0
    _owed: float = 0.0
    _at: float = 0.0
    parsing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def take(self, seconds: float) -> None:
        """So much has been used."""
        now = self.clock()
        self._owed = self._owed_at(now) + seconds
        self._at = now

    def owed(self) -> float:
        """Seconds of the processor that count."""
        return self._owed_at(self.clock())

    def _owed_at(self, now: float) -> float:
        rate = self.base.rate + self.streams * self.of_stream.rate
        return max(0.0, self._owed - (now - self._at) * rate)

    def pause_s(self) -> float:
        """How long to wait before the next message."""
        owed = self.owed()
        if owed <= self.base.burst:  # the usual case: this is asked for each message
            return 0.0
        terms = self._terms()
        return max(0.0, owed - terms.burst) / terms.rate

    def _terms(self) -> Terms:
        base, more = self.base, self.of_stream
        return Terms(base.burst + self.streams * more.burst, base.rate + self.streams * more.rate)


@dataclass(frozen=True)
class Payer:
    """A stream's pod and job pay for it."""

    pod: Account
    job: Account
    _threads: ThreadPoolExecutor

    def take(self, seconds: float) -> None:
        """Both pay."""
        self.pod.take(seconds)
        self.job.take(seconds)

    def pause_s(self) -> float:
        """How long to wait before the next message."""
        return max(self.pod.pause_s(), self.job.pause_s())

    @contextmanager
    def paying(self) -> Iterator[None]:
        """For what the block does, which must not wait."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.take(time.thread_time() - began)

    async def parsed(self, data: bytes) -> AgentMessage:
        """A message as it comes from the wire. WireError.

        Long ones take turns in a job, so that no job has all threads.
        """
        if len(data) <= AT_ONCE_BYTES:
            found, seconds = _parse(data)
        else:
            async with self.job.parsing:
                loop = asyncio.get_running_loop()
                found, seconds = await loop.run_in_executor(self._threads, _parse, data)
        self.take(seconds + MESSAGE_S + len(data) * BYTE_S)
        if isinstance(found, WireError):
            raise found
        return found


def _parse(data: bytes) -> tuple[AgentMessage | WireError, float]:
    """The message, or what is wrong, and the seconds of this thread."""
    began, found = time.thread_time(), None
    try:
        found = decode.agent_bytes(data)
    except WireError as error:
        return error, time.thread_time() - began
    return found, time.thread_time() - began


class Throttling:
    """The accounts, by the UIDs of pods and jobs. Those that owe nothing are forgotten."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._of: dict[str, Account] = {}
        self._look_at = _FEW
        self._threads = ThreadPoolExecutor(_THREADS, "parse")

    def __len__(self) -> int:
        return len(self._of)

    @contextmanager
    def stream(self, pod_uid: str, job_uid: str) -> Iterator[Payer]:
        """While the stream lasts."""
        self._forget()
        nothing = Terms(0.0, 0.0)
        payer = Payer(
            self._account(pod_uid, OF_POD, nothing),
            self._account(job_uid, OF_JOB, OF_STREAM),
            self._threads,
        )
        payer.pod.streams += 1
        payer.job.streams += 1
        payer.pod.take(STREAM_S)
        try:
            yield payer
        finally:
            payer.pod.streams -= 1
            payer.job.streams -= 1

    def _account(self, uid: str, base: Terms, of_stream: Terms) -> Account:
        return self._of.setdefault(uid, Account(base, of_stream, self._clock))

    def _forget(self) -> None:
        if len(self._of) >= self._look_at:
            self._of = {u: a for u, a in self._of.items() if a.streams or a.owed()}
            self._look_at = _FEW + 2 * len(self._of)
