"""Trace validation: what real processes did in a run with a loss is what the core prescribes."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bamboo_core.api.outcome import Outcome
from bamboo_sim.fleet.local_fleet import ForkServerProcess, LocalFleet
from bamboo_sim.fleet.logs.event_logs import divergences, whole_lines
from bamboo_sim.fleet.runs.jobs import tiny_gpt

Line = dict[str, Any]
Tamper = Callable[[list[Line]], None]
VICTIM, SURVIVOR = "agent-1", "agent-2"


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory, forkserver: ForkServerProcess) -> Path:
    """The logs of four agents, one of them killed, and of one that came instead."""
    folder = tmp_path_factory.mktemp("run")
    asyncio.run(_run(folder, forkserver))
    return folder / "fleet" / "events"


async def _run(folder: Path, forkserver: ForkServerProcess) -> None:
    job = tiny_gpt(folder, pipelines=2, stages=2)
    async with LocalFleet(job, folder / "fleet", forkserver=forkserver) as fleet:
        await fleet.add({f"agent-{n}": f"zone-{'abc'[n % 3]}" for n in range(4)})
        await fleet.committed(1)
        fleet.kill(VICTIM)
        await fleet.add({"new-0": "zone-b"})
        over = await fleet.over(deadline_s=100.0)
        assert over.outcome is Outcome.COMPLETE, fleet.record()


def entries(path: Path) -> list[Line]:
    return [json.loads(line) for line in whole_lines(path)]


def test_real_logs_replay_without_divergence(events: Path) -> None:
    assert divergences(events) == []


def test_the_run_has_all_kinds_of_events(events: Path) -> None:
    lines = entries(events / f"{SURVIVOR}.jsonl")
    kinds = {
        kind for line in lines for kind in ("stop", "install", "arrive", "done") if kind in line
    }
    assert kinds == {"stop", "install", "arrive", "done"}
    assert sum("install" in line for line in lines) >= 2, "no plan after the loss"
    assert sum("done" in line for line in lines) > 100
    assert (events / f"{VICTIM}.jsonl").exists()


def forget(lines: list[Line]) -> None:
    """An arrival that was not logged, of those that an instruction waited for."""
    del lines[
        next(
            n
            for n, line in enumerate(lines)
            if "arrive" in line and any(e.startswith("run ") for e in line["effects"])
        )
    ]


def swap(lines: list[Line]) -> None:
    """An instruction that another one was run for."""
    runs = [n for n, line in enumerate(lines) if any("run F" in e for e in line.get("effects", ()))]
    a, b = lines[runs[0]], lines[runs[1]]
    a["effects"], b["effects"] = b["effects"], a["effects"]


def repeat(lines: list[Line]) -> None:
    """A message that was sent twice."""
    sends = next(
        line for line in lines if any(e.startswith("send ") for e in line.get("effects", ()))
    )
    sends["effects"].append(sends["effects"][-1])


def redate(lines: list[Line]) -> None:
    """Data of an older epoch, taken as if it were of this one."""
    lines[_nth(lines, "arrive", -1)]["fence"][2] -= 1


def _nth(lines: list[Line], kind: str, number: int) -> int:
    return [n for n, line in enumerate(lines) if kind in line][number]


@pytest.mark.parametrize("tamper", [forget, swap, repeat, redate])
def test_a_tampered_worker_log_is_found(events: Path, tmp_path: Path, tamper: Tamper) -> None:
    copy = tmp_path / "events"
    shutil.copytree(events, copy)
    path = copy / f"{SURVIVOR}.jsonl"
    lines = entries(path)
    tamper(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert any(SURVIVOR in text for text in divergences(copy))


def test_a_tampered_supervisor_log_is_found(events: Path, tmp_path: Path) -> None:
    copy = tmp_path / "events"
    shutil.copytree(events, copy)
    path = copy / "supervisors" / f"{SURVIVOR}.jsonl"
    lines = entries(path)
    told = next(
        n for n, x in enumerate(lines) if any(e["is"] == "ToWorker" for e in x.get("effects", ()))
    )
    lines[told]["effects"] = []
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert any(SURVIVOR in text for text in divergences(copy))


def test_a_line_that_death_cut_short_is_no_divergence(events: Path, tmp_path: Path) -> None:
    copy = tmp_path / "events"
    shutil.copytree(events, copy)
    with (copy / f"{VICTIM}.jsonl").open("a") as file:
        file.write('{"arrive": "ACT')
    assert divergences(copy) == []


def test_an_empty_log_is_no_divergence(events: Path, tmp_path: Path) -> None:
    copy = tmp_path / "events"
    shutil.copytree(events, copy)
    (copy / "stillborn.jsonl").touch()
    (copy / "supervisors/stillborn.jsonl").write_text('{"identity": "')
    assert divergences(copy) == []


def test_a_folder_without_logs_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="0 workers' and 0 supervisors' logs"):
        divergences(tmp_path)
