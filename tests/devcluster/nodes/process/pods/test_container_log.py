"""Container logs in the runtimes' format: written, read and followed."""

import datetime as dt
import os
from pathlib import Path
from typing import Any

from bamboo_devcluster.kube import clock
from bamboo_devcluster.nodes.process.pods.container_log import (
    LogPump,
    LogQuery,
    read_log,
    tail_text,
)


async def pumped(tmp_path: Path, data: bytes) -> Path:
    reader, writer = os.pipe()
    pump = LogPump(tmp_path / "logs" / "0.log", reader)
    os.write(writer, data)
    os.close(writer)
    pump.close()
    return tmp_path / "logs" / "0.log"


async def read(path: Path, **query: Any) -> bytes:
    parts = [part async for part in read_log(path, LogQuery(**query), has_ended=lambda: True)]
    return b"".join(parts)


async def test_logs_are_stamped_and_read_back(tmp_path: Path) -> None:
    path = await pumped(tmp_path, b"one\ntwo\nthree, not ended")
    assert await read(path) == b"one\ntwo\nthree, not ended"
    assert await read(path, tail_lines=2) == b"two\nthree, not ended"
    assert await read(path, tail_lines=0) == b""
    assert await read(path, tail_lines=99) == await read(path)
    assert await read(path, limit_bytes=5) == b"one\nt"
    hour = dt.timedelta(hours=1)
    assert await read(path, since=clock.now() + hour) == b""
    assert await read(path, since=clock.now() - hour) == await read(path)
    assert (await read(path, timestamps=True)).startswith(f"{clock.now():%Y-%m-}".encode())
    assert tail_text(path, lines=2, limit_bytes=9) == "not ended"
    assert tail_text(tmp_path / "none", lines=1, limit_bytes=1) == ""


async def test_long_lines_are_split(tmp_path: Path) -> None:
    path = await pumped(tmp_path, b"x" * 40000 + b"\nend\n")
    assert await read(path) == b"x" * 40000 + b"\nend\n"


async def test_following_ends_with_the_container(tmp_path: Path) -> None:
    path = await pumped(tmp_path, b"early\n")
    seen: list[bytes] = []
    lines = read_log(path, LogQuery(follow=True), has_ended=lambda: b"late\n" in seen)
    async for part in lines:
        seen.append(part)
        if part == b"early\n":
            with path.open("ab") as file:
                file.write(b"2026-01-01T00:00:00.000000000Z stdout F late\n")
    assert seen == [b"early\n", b"late\n"]


async def test_a_full_disk_loses_log_lines_only(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    pump = LogPump(tmp_path / "0.log", reader)
    pump._file.close()
    pump._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115, ASYNC230
    os.write(writer, b"line\n")
    os.close(writer)
    pump.close()
