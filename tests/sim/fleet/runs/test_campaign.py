"""The kill-point scenarios: which faults they schedule, count and resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from bamboo_sim.fleet.logs import sample_log
from bamboo_sim.fleet.logs.instruction_log import InstructionLog
from bamboo_sim.fleet.runs import kill_record
from bamboo_sim.fleet.runs.campaign import COMMIT, name_of
from bamboo_sim.fleet.runs.kill_record import KillRecord, Slice, as_text
from bamboo_sim.fleet.runs.scenarios import (
    COMMITTING,
    COORDINATOR,
    IN_GROUPS,
    ONE_PIPELINE,
    TWO_DEATHS,
)
from bamboo_sim.fleet.switches.kill_switch import MOMENTS
from bamboo_sim.programs import results_file


def test_every_instruction_of_every_seat_is_scheduled_once_at_each_moment() -> None:
    points = [point for (point,) in ONE_PIPELINE.faults]
    assert len(set(points)) == len(points) == 4 * len(MOMENTS) * (3 * 8 + 5)
    commits = [point for (point,) in COMMITTING.faults if point.instruction == COMMIT]
    assert len(set(commits)) == 6 * len(MOMENTS) == len(COORDINATOR.faults)
    assert {point.instruction for (point,) in COMMITTING.faults if point.pipeline == 1} == {
        *("FOLD m6", "SLICE", "REDUCE m1", "VOTE", "COMMIT", "UPDATE")
    }


def test_two_deaths_in_one_step_leave_a_copy_of_every_layer() -> None:
    assert all(one.stage != other.stage for one, other in TWO_DEATHS.faults)
    assert len(set(TWO_DEATHS.faults)) == len(TWO_DEATHS.faults)


def test_every_seat_dies_at_every_moment_of_its_groups() -> None:
    points = [str(point) for (point,) in IN_GROUPS.faults]
    assert len(set(points)) == len(points) == 6 * 3 * 4
    assert {"0.0 in MAKE-SENDER", "1.2 after PIECE-RECEIVER"} <= set(points)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("F[2:3] m4", "F m4"),
        ("VOTE 2:3 2:3 0:1 3:6 3:6 0:1", "VOTE"),
        ("COMMIT {m-0,m-1}", "COMMIT"),
        ("UPDATE[2:3] 2:3 0:1", "UPDATE"),
        ("UPDATE[3:6] 3:6 0:1", "UPDATE copy"),
    ],
)
def test_instruction_names_do_not_depend_on_the_cut(text: str, name: str) -> None:
    assert name_of(text, (2, 3)) == name


def test_a_log_is_read_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    log = InstructionLog(path)
    assert log.read().ended == -1
    path.write_text('{"effects": ["run F[0:2] m1 @3", "drop x"]}\n{"effects": ["run VOTE 0:2')
    assert log.read().of(3) == ["F[0:2] m1"]
    with path.open("a") as file:
        file.write(' 0:2 0:1 @3"]}\n{"effects": ["ended CommitRecord(step=3, loss=1.0)"]}\n')
    assert (log.read().ended, log.of(3), log.of(4)) == (3, ["F[0:2] m1", "VOTE 0:2 0:2 0:1"], [])


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Result and progress files of the test."""
    monkeypatch.setattr(results_file, "RESULTS", tmp_path)
    monkeypatch.setattr(results_file, "PROGRESS", tmp_path / "progress")
    return tmp_path


def test_a_run_of_the_same_code_is_resumed(results: Path) -> None:
    scheduled = {ONE_PIPELINE: ONE_PIPELINE.faults[:7]}
    done, failed = (as_text(ONE_PIPELINE.faults[at : at + 3]) for at in (0, 3))
    record = kill_record.resume(scheduled)
    record.slices += [
        Slice("one_pipeline", done, 1.0, deaths=[x for (x,) in done]),
        Slice("one_pipeline", failed, 1.0, failure="bits"),
    ]
    record.write()
    assert (results / "kill_points.json").exists()
    resumed = kill_record.resume(scheduled)
    assert resumed == record
    slices = resumed.pending(3)
    assert [len(faults) for _, faults in slices] == [3, 1]
    assert as_text(slices[0][1]) == failed
    found = resumed.figures()
    assert (found["one_pipeline_scheduled"], found["one_pipeline_survived"]) == (7, 3)
    assert (found["failures"], found["deaths"], found["runs"]) == (1, 3, 2)


def test_slices_of_different_code_are_not_counted_together(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = KillRecord({}, slices=[Slice("one_pipeline", [], 1.0)])
    record.write()
    monkeypatch.setattr(results_file, "fingerprint", lambda _: "another")
    assert kill_record.resume({}).slices == []
    with pytest.raises(SystemExit, match="has changed: the last slice is not counted"):
        record.write()


def test_workers_that_compute_with_different_samples_are_found(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("0 0 INPUT aa\n0 0 TARGET dd\n0 1 INPUT bb\n9 0 INPUT cc\n")
    (tmp_path / "b").write_text("0 1 INPUT bb\n")
    assert sample_log.read(tmp_path, 9) == {
        (0, 0): {"INPUT": "aa", "TARGET": "dd"},
        (0, 1): {"INPUT": "bb"},
    }
    (tmp_path / "b").write_text("0 1 INPUT other\n")
    with pytest.raises(AssertionError, match=r"b: .*0 1 INPUT other"):
        sample_log.read(tmp_path, 9)
