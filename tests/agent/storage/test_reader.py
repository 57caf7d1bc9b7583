"""The reader's listings, with a folder of which something cannot be reached."""

from __future__ import annotations

import select
from pathlib import Path
from typing import cast

import pytest
from tests.agent.storage.test_checkpoint import write

from bamboo_agent.storage import reader
from bamboo_agent.storage.checkpoint import Checkpoints, Scan
from bamboo_core.model.ids import Fence
from bamboo_core.protocol.messages import Listed, Manifest, Mark
from bamboo_sim.workers.in_process_fleet import InProcessFleet
from bamboo_sim.workers.jobs import tiny_gpt
from bamboo_sim.workers.plans import names

DEADLINE_S = 60.0
WHY = "0/2 is not there"
GOOD = Manifest(0, 4, "0/4", "d")
FIRST, SECOND = Fence(0, 1, 1), Fence(0, 1, 2)


class Partial:
    """Its scans miss something."""

    def __init__(self) -> None:
        self.scans = 0

    def scan(self, told: set[str]) -> Scan:
        self.scans += 1
        return Scan([GOOD], [], WHY)


def answer(busy: reader.Reader) -> reader.Listing:
    while True:
        assert select.select([busy], [], [], DEADLINE_S)[0]
        for found in busy.poll():
            assert isinstance(found, reader.Listing)
            return found


def test_a_partial_list_is_given_out_at_once_and_again_at_every_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The operator then knows what it names, however often newcomers make it ask."""
    monkeypatch.setattr(reader, "FIRST_PAUSE_S", 3600.0)
    busy = reader.Reader(cast(Checkpoints, Partial()))
    for fence in (FIRST, SECOND):
        busy.begin_listing(fence)
        found = answer(busy)
        assert (found.good, found.fence, found.unreachable) == ((GOOD,), fence, WHY)
        assert busy.is_busy, "it tries again, after a pause"
    busy.close()


def test_only_a_few_tries_are_made_for_what_stays_out_of_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "FIRST_PAUSE_S", 1e-3)
    folder = Partial()
    busy = reader.Reader(cast(Checkpoints, folder))
    busy.begin_listing(FIRST)
    for _ in range(reader.PARTIAL_TRIES):
        assert answer(busy).unreachable
    assert not busy.is_busy
    busy.close()
    assert folder.scans == reader.PARTIAL_TRIES


def test_a_load_says_what_is_not_there_and_what_is_instead_until_it_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Somebody may have deleted the checkpoint and written a newer one."""
    monkeypatch.setattr(reader, "FIRST_PAUSE_S", 1e-3)
    folder = Checkpoints(str(tmp_path), "uid")
    old, new = (write(folder, step=step)[0] for step in (2, 4))
    file = Path(old.path).parent / "layer-0000.safetensors"
    away = file.rename(tmp_path / "away")
    busy = reader.Reader(folder)
    busy.read(old, (0, 1), 0)
    assert result(busy) == reader.Unreachable(
        reading(busy), f"reading {file} failed: No such file or directory", (new,)
    )
    away.rename(file)
    assert result(busy) == reader.Unreachable(reading(busy), "")
    found = result(busy)
    assert isinstance(found, reader.Read)
    assert found.error is None
    assert len(found.records) == 1
    busy.close()


def test_a_suspect_is_read_whole_and_left_out_of_the_list(tmp_path: Path) -> None:
    folder = Checkpoints(str(tmp_path), "uid")
    good, suspect = (write(folder, step=step)[0] for step in (2, 4))
    file = Path(suspect.path).parent / "layer-0001.safetensors"
    data = file.read_bytes()
    busy = reader.Reader(folder)
    for content, bad in ((data, []), (data[:-1] + bytes([data[-1] ^ 1]), [(0, 4)])):
        file.write_bytes(content)
        busy.begin_listing(FIRST, suspect)
        found = answer(busy)
        assert [(e.attempt, e.step) for e in found.bad] == bad
        assert found.good == ((good,) if bad else (good, suspect))
        assert found.right == (None if bad else Mark(0, 4))
    file.unlink()
    busy.begin_listing(FIRST, suspect)
    found = answer(busy)
    assert (found.good, found.bad, found.right) == ((good,), (), None)
    assert found.unreachable == f"{file} is not there"
    busy.close()


def reading(busy: reader.Reader) -> reader.Reading:
    assert busy._wanted is not None
    return busy._wanted


def result(busy: reader.Reader) -> object:
    """The next one; more may come with it."""
    waiting = busy.__dict__.setdefault("_of_test", [])
    while not waiting:
        assert select.select([busy], [], [], DEADLINE_S)[0]
        waiting += busy.poll()
    return waiting.pop(0)


def test_a_job_without_checkpoints_lists_none() -> None:
    fleet = InProcessFleet(tiny_gpt(), names(1))
    fleet.stop(FIRST, want_manifests=True)
    assert [m for _, m in fleet.messages if isinstance(m, Listed)] == [Listed((), FIRST)]
    fleet.close()
