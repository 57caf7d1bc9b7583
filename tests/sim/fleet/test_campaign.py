"""What the campaign of kill points options, counts, and does next."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bamboo_sim.protocol.fleet import sample_log
from bamboo_sim.protocol.fleet.campaign import COMMIT, name_of
from bamboo_sim.protocol.fleet.instruction_log import InstructionLog
from bamboo_sim.protocol.fleet.kill_switch import MOMENTS
from bamboo_sim.protocol.fleet.local_fleet import ROOT
from bamboo_sim.protocol.fleet.scenarios import COMMITTING, COORDINATOR, ONE_PIPELINE, TWO_DEATHS


@pytest.fixture(scope="module")
def benchmark() -> Iterator[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield runpy.run_path(str(ROOT / "benchmarks" / "kill_points.py"))


def test_every_instruction_of_every_seat_is_wished_once_at_each_moment() -> None:
    points = [point for (point,) in ONE_PIPELINE.faults]
    assert len(set(points)) == len(points) == 4 * len(MOMENTS) * (3 * 8 + 5)
    commits = [point for (point,) in COMMITTING.faults if point.instruction == COMMIT]
    assert len(set(commits)) == 6 * len(MOMENTS) == len(COORDINATOR.faults)
    assert {point.instruction for (point,) in COMMITTING.faults if point.pipeline == 1} == {
        *("FOLD m7", "REDUCE m1", "VOTE", "COMMIT", "UPDATE")
    }


def test_two_who_die_in_one_step_leave_a_copy_of_every_layer() -> None:
    assert all(one.stage != other.stage for one, other in TWO_DEATHS.faults)
    assert len(set(TWO_DEATHS.faults)) == len(TWO_DEATHS.faults)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("F[2:3] m4", "F m4"),
        ("VOTE 2:3 2:3 3:6 3:6", "VOTE"),
        ("COMMIT {m-0,m-1}", "COMMIT"),
        ("UPDATE[2:3] 2:3", "UPDATE"),
        ("UPDATE[3:6] 3:6", "UPDATE copy"),
    ],
)
def test_names_do_not_depend_on_the_cut(text: str, name: str) -> None:
    assert name_of(text, (2, 3)) == name


def test_a_log_is_read_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    ran = InstructionLog(path)
    assert ran.read().ended == -1
    path.write_text('{"effects": ["run F[0:2] m1 @3", "drop x"]}\n{"effects": ["run VOTE 0:2')
    assert ran.read().of(3) == ["F[0:2] m1"]
    with path.open("a") as file:
        file.write(' 0:2 @3"]}\n{"effects": ["ended CommitRecord(step=3, loss=1.0)"]}\n')
    assert (ran.read().ended, ran.of(3), ran.of(4)) == (3, ["F[0:2] m1", "VOTE 0:2 0:2"], [])


def test_a_run_goes_on_where_the_last_one_was_ended(benchmark: dict[str, Any]) -> None:
    wished = {ONE_PIPELINE: ONE_PIPELINE.faults[:7]}
    done, failed = (benchmark["written"](ONE_PIPELINE.faults[at : at + 3]) for at in (0, 3))
    samples = [
        {
            "scenario": "one_pipeline",
            "faults": done,
            "deaths": [x for (x,) in done],
            "seconds": 1.0,
        },
        {"scenario": "one_pipeline", "faults": failed, "failure": "bits", "seconds": 1.0},
    ]
    slices = benchmark["pending"](samples, wished, 3)
    assert [len(faults) for _, faults in slices] == [3, 1]
    assert benchmark["written"](slices[0][1]) == failed
    found = benchmark["figures"](samples, {"one_pipeline": wished[ONE_PIPELINE]})
    assert (found["one_pipeline_wished"], found["one_pipeline_survived"]) == (7, 3)
    assert (found["failures"], found["deaths"], found["runs"]) == (1, 3, 2)


def test_slices_of_different_code_are_not_counted_together(benchmark: dict[str, Any]) -> None:
    assert benchmark["earlier"]("another") == []
    with pytest.raises(SystemExit, match="have changed: the last slice is not counted"):
        benchmark["write"]("another", [], {})


def test_two_workers_that_compute_with_other_samples_are_found(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("0 0 aa\n0 1 bb\n9 0 cc\n")
    (tmp_path / "b").write_text("0 1 bb\n")
    assert sample_log.read(tmp_path, 9) == {(0, 0): "aa", (0, 1): "bb"}
    (tmp_path / "b").write_text("0 1 other\n")
    with pytest.raises(AssertionError, match="b: other samples as 0 1 other"):
        sample_log.read(tmp_path, 9)
