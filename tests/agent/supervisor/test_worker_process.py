"""The worker's process: its environment, its last words, and what Kubernetes shows of them."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from pathlib import Path

import pytest

from bamboo_agent.supervisor.shell import write_termination
from bamboo_agent.supervisor.worker_process import HASH_SEED_VARIABLE, WorkerProcess
from bamboo_core.model.ids import AgentId

MODULE = """
import sys
WORDS = [f"word-{n}" for n in range(50)]
print("order:", *set(WORDS), file=sys.stderr)
raise SystemExit(3)
"""


async def last_line(module: str) -> tuple[int, str]:
    """How a worker ends: its exit code, and the last line on its standard error."""
    ended: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
    worker = WorkerProcess(
        on_message=lambda message: None,
        on_exit=lambda code, line: ended.set_result((code, line)),
    )
    listening = socket.create_server(("127.0.0.1", 0))
    await worker.start(module=module, agent=AgentId("job-0-0"), data_socket=listening)
    try:
        async with asyncio.timeout(30):
            return await ended
    finally:
        await worker.close()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A worker that says in which order its process has a set of texts."""
    (tmp_path / "set_order.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    return "set_order"


@pytest.mark.parametrize("seed", [None, "", "random"])
async def test_a_set_of_texts_has_one_order_in_all_workers(
    seed: str | None,
    module: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if seed is None:
        monkeypatch.delenv(HASH_SEED_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(HASH_SEED_VARIABLE, seed)
    with caplog.at_level(logging.WARNING, "bamboo_agent.supervisor.worker_process"):
        first, second = await last_line(module), await last_line(module)
    assert first == second
    assert first[0] == 3
    assert first[1].startswith("order: word-")
    told = [record.getMessage() for record in caplog.records]
    warning = f"PYTHONHASHSEED={seed!r} would order sets differently on each agent"
    assert [warning in line for line in told] == ([] if seed is None else [True, True])


async def test_a_hash_seed_of_the_user_s_stays(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = []
    for seed in ("0", "1", "1"):
        monkeypatch.setenv(HASH_SEED_VARIABLE, seed)
        orders.append(await last_line(module))
    assert orders[0] != orders[1] == orders[2]


async def test_a_long_last_line_is_cut_by_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor keeps only the last bytes of it."""
    code = 'import sys\nsys.stderr.buffer.write(("层" * {}).encode())\nraise SystemExit(2)\n'
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    for name, count in (("long_words", 700), ("longer_words", 2800)):
        (tmp_path / f"{name}.py").write_text(code.format(count))
        assert await last_line(name) == (2, "层" * 332 + "...")


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("the model is broken", "the model is broken"),
        (os.fsdecode(b"no file caf\xe9.jpg"), "no file caf\\udce9.jpg"),
        ("层" * 1400, "层" * 1364 + "..."),
    ],
    ids=["plain", "not UTF-8", "too long"],
)
def test_a_termination_message_is_one_that_the_kubelet_takes(
    reason: str, expected: str, tmp_path: Path
) -> None:
    file = tmp_path / "termination"
    file.touch()
    write_termination(file, reason)
    assert file.read_bytes().decode() == expected
    assert len(file.read_bytes()) <= 4096


def test_no_termination_message_is_written_where_nobody_reads_it(tmp_path: Path) -> None:
    write_termination(tmp_path / "termination", "why")
    assert not list(tmp_path.iterdir())


def test_a_termination_message_that_cannot_be_written_is_left_out(tmp_path: Path) -> None:
    write_termination(tmp_path, "a folder is no file")
    assert not list(tmp_path.iterdir())
