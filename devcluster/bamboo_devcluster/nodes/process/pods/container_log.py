"""Writes and reads container logs in the line format of container runtimes.

A line is `2026-01-02T03:04:05.123456789Z stdout F text`; `P` instead of `F` marks a partial line
that continues in the next one.
"""

import asyncio
import datetime as dt
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from bamboo_devcluster.kube.clock import from_time

_READ_BYTES = 65536
_MAX_LINE_BYTES = 16384
_FOLLOW_POLL_S = 0.1


class LogPump:
    """Copies a pipe into a log file, with a timestamp on each line, until the pipe closes."""

    def __init__(self, path: Path, descriptor: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._descriptor = descriptor
        self._partial = b""
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._on_readable)

    def close(self) -> None:
        """Drain the pipe and stop."""
        if self._descriptor < 0:
            return
        while self._descriptor >= 0 and self._on_readable():
            continue
        self._finish()

    def _on_readable(self) -> bool:
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._finish()
            return False
        self._take(data)
        return True

    def _take(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        stamp = _stamp()
        out = [stamp + b" stdout F " + line + b"\n" for line in lines]
        if len(self._partial) >= _MAX_LINE_BYTES:
            out.append(stamp + b" stdout P " + self._partial + b"\n")
            self._partial = b""
        self._write(b"".join(out))

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError:
            return  # on a full disk, log lines are lost; the container keeps running

    def _finish(self) -> None:
        if self._descriptor < 0:
            return
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
        if self._partial:
            self._write(_stamp() + b" stdout P " + self._partial + b"\n")
        self._file.close()


@dataclass(frozen=True)
class LogQuery:
    """The query parameters of the kubelet's containerLogs endpoint."""

    follow: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    limit_bytes: int | None = None
    since: dt.datetime | None = None


async def read_log(
    path: Path, query: LogQuery, *, has_ended: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Yield the log as `kubectl logs` shows it; with `follow`, until the container ends."""
    budget = query.limit_bytes
    async for raw in _raw_lines(path, query, has_ended):
        text = _render(raw, query)
        if text is None:
            continue
        if budget is not None:
            text = text[:budget]
            budget -= len(text)
        yield text
        if budget == 0:
            return


async def _raw_lines(
    path: Path, query: LogQuery, has_ended: Callable[[], bool]
) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        if query.tail_lines is not None:
            _seek_tail(file.fileno(), query.tail_lines)
        rest = b""
        while True:
            ended = has_ended()  # before reading, so that no line is missed
            data = file.read(_READ_BYTES)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield line
            if not data:
                if ended or not query.follow:
                    return
                await asyncio.sleep(_FOLLOW_POLL_S)


def _seek_tail(descriptor: int, count: int) -> None:
    """Position the file before its last `count` lines."""
    position = os.lseek(descriptor, 0, os.SEEK_END)
    newlines = -1  # the newline at the very end belongs to the last line
    while position > 0:
        size = min(_READ_BYTES, position)
        block = os.pread(descriptor, size, position - size)
        for index in range(len(block) - 1, -1, -1):
            if block[index] == 0x0A:
                newlines += 1
                if newlines == count:
                    os.lseek(descriptor, position - size + index + 1, os.SEEK_SET)
                    return
        position -= size
    os.lseek(descriptor, 0, os.SEEK_SET)


def _render(raw: bytes, query: LogQuery) -> bytes | None:
    stamp, _, rest = raw.partition(b" ")
    _, _, rest = rest.partition(b" ")
    flag, _, text = rest.partition(b" ")
    if query.since and from_time(stamp[:26].decode() + "Z") < query.since:
        return None
    line = text + (b"\n" if flag == b"F" else b"")
    return stamp + b" " + line if query.timestamps else line


def tail_text(path: Path, *, lines: int, limit_bytes: int) -> str:
    """Return the last lines of a log."""
    try:
        with path.open("rb") as file:
            _seek_tail(file.fileno(), lines)
            data = file.read()
    except OSError:
        return ""
    text = b"".join(_render(raw, LogQuery()) or b"" for raw in data.split(b"\n") if raw)
    return text[-limit_bytes:].decode(errors="replace")


def _stamp() -> bytes:
    seconds, nanos = divmod(time.time_ns(), 10**9)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)).encode() + b".%09dZ" % nanos
