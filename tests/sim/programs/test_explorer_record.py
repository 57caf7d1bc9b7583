"""The record of the explorer gives the next run the seeds that have found planted faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from bamboo_sim.programs import results_file
from bamboo_sim.protocol import __main__ as exploring
from bamboo_sim.protocol.exploration.detection import Detection
from bamboo_sim.protocol.exploration.tally import Tally
from bamboo_sim.protocol.planted.faults import FAULTS


def test_seeds_are_read_as_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third, lost, *_ = FAULTS
    monkeypatch.setattr(results_file, "RESULTS", tmp_path)
    found = [
        Detection(first, 3, "does not terminate", seed=5),
        Detection(second, 1, "a wrong result", seed=7),
        Detection(third, 2, "a wrong result", seed=5),
        Detection(lost, 90),
    ]
    exploring._write(Tally(), found, 1.0)
    assert exploring._known_seeds() == {first.row: 5, second.row: 7, third.row: 5}
    record = results_file.read("explorer")
    assert record["samples"]["found_as"] == {
        first.row: "case 3: does not terminate",
        second.row: "case 1: a wrong result",
        third.row: "case 2: a wrong result",
        lost.row: "not found in 90 cases",
    }
    assert (record["figures"]["planted"], record["figures"]["planted_found"]) == (4, 3)


def test_the_record_knows_faults_that_there_are() -> None:
    rows = {fault.row for fault in FAULTS}
    known = exploring._known_seeds()
    assert known.keys() <= rows
    assert len(known) > 100  # else the samples of each commit would begin anew
