"""What a soak counts, compares and resumes."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from bamboo_core.protocol.messages import CommitRecord
from bamboo_sim.fleet.logs.state_log import LayerState, StateLogs
from bamboo_sim.programs import results_file
from bamboo_sim.soak import kinds, record
from bamboo_sim.soak.job import Round
from bamboo_sim.soak.record import SoakRecord, quantile
from bamboo_sim.soak.reference import Reference, describe

COMMIT = CommitRecord(step=0, loss=5.5, grad_norm=1.25, finite=True)
REFERENCE = Reference([describe(COMMIT)], {"0 1": "abc"})
GOOD = Round("1x2 None", "kill+reset", "kill a; reset all", 3.0, 1.5, 0.0, False, False)


@pytest.fixture(autouse=True)
def progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress and result files of the test."""
    monkeypatch.setattr(results_file, "PROGRESS", tmp_path / "progress")
    monkeypatch.setattr(results_file, "RESULTS", tmp_path / "results")


def test_one_bit_is_a_difference() -> None:
    assert REFERENCE.differs(COMMIT) == ""
    assert REFERENCE.differs(CommitRecord(0, 5.5, 1.25, True, validation_loss=2.0)) == ""
    assert "is not" in REFERENCE.differs(CommitRecord(0, 5.500000001, 1.25, True))
    assert REFERENCE.differs(CommitRecord(1, 9.0, 9.0, True)) == ""  # the epilogue
    assert REFERENCE.state_differs(LayerState(0, 1, "abc")) == ""
    assert "is not abc" in REFERENCE.state_differs(LayerState(0, 1, "abd"))


def test_states_are_read_while_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("0 1 abc\n4 1 a")
    logs = StateLogs(tmp_path)
    assert list(logs.read()) == [LayerState(0, 1, "abc")]
    with (tmp_path / "a").open("a") as file:
        file.write("bd\n")
    (tmp_path / "b").write_text("4 0 x\n")
    assert list(logs.read()) == [LayerState(4, 1, "abd"), LayerState(4, 0, "x")]


def test_rounds_have_all_kinds_and_one_operator() -> None:
    chance, seen = random.Random(1), Counter[str]()
    for _ in range(500):
        chosen = kinds.choose(chance)
        assert 1 <= len(chosen) <= 3
        assert sum(kind in kinds.ALONE for kind in chosen) <= 1
        seen.update(chosen)
    assert seen.keys() == kinds.KINDS.keys() - {kinds.LAST}


def test_figures_count_faults_failures_and_waits() -> None:
    found = SoakRecord("code")
    found.add("0.1", replace(GOOD, idle="cut+bad_disk", effects={"kill": 2, "cut": 0}))
    hang = Round("1x2 None", "hang", "hang a", 9.0, 8.0, 2.0, True, False, effects={"kill": 1})
    found.add("0.1", hang)
    found.add("0.1", Round("1x2 None", "", "", 1.0, 1.0, 0.0, False, False, idle="slow_disk"))
    found.add("1.1", Round("2x2 None", "cut", "", 99.0, 61.0, 0.0, False, True, True, failure="no"))
    figures = found.figures()
    assert (figures["rounds"], figures["faults"], figures["jobs"]) == (3, 4, 2)
    assert (figures["lost_jobs"], figures["unequal"], figures["stalls_over_60_s"]) == (0, 1, 1)
    assert (figures["voter_waits"], figures["voter_wait_s"], figures["restores"]) == (1, 2.0, 1)
    assert (figures["pause_p50_s"], figures["pause_max_s"], figures["kill"]) == (1.5, 61.0, 1)
    assert (figures["without_effect"], found.effects()) == (3, {"cut": 0, "kill": 3})
    assert found.failures == ["1.1: : no"]


def test_figures_judge_losses_by_the_copies_that_lived() -> None:
    found = SoakRecord("code")
    assert found.figures()["recovery_success"] == 0.0
    found.add("0.1", replace(GOOD, copies_alive=2, recovered=2))
    found.add("0.1", replace(GOOD, restored=True, repeated=5))
    assert found.figures()["recovery_success"] == 1.0
    found.add("0.1", replace(GOOD, copies_alive=1, restored=True, repeated=3, failure="x"))
    found.add("0.2", replace(GOOD, repeated=4, unexplained=1, failure="y"))
    figures = found.figures()
    assert (figures["copies_alive"], figures["recovery_success"]) == (3, 2 / 3)
    assert (figures["suspension_repeats"], figures["unexplained_stalls"]) == (4, 1)


def test_a_run_of_the_same_code_adds_to_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    first = record.resume()
    first.add("0.1", GOOD)
    first.save()
    record.save_reference(REFERENCE)
    assert record.resume().rounds == first.rounds
    assert record.load_reference(1) == REFERENCE
    assert record.load_reference(2) is None
    first.write()
    assert (results_file.RESULTS / "soak.json").exists()
    monkeypatch.setattr(results_file, "fingerprint", lambda _: "another")
    assert record.resume().rounds == []
    assert record.load_reference(1) is None
    with pytest.raises(SystemExit, match="has changed: the rounds since the last save"):
        first.save()


def test_quantiles_are_values_that_were_seen() -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0
    assert quantile([1.0, 2.0], 0.99) == 2.0
    assert quantile([], 0.5) == 0.0
