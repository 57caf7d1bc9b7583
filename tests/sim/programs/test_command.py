"""The command in a result file: as typed, and without the folders of this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bamboo_sim.programs import results_file


def test_a_result_names_files_that_are_elsewhere_without_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace.csv"
    monkeypatch.setattr(sys, "argv", ["benchmarks/x.py", str(trace), "--seed", "1", "logs/a"])
    monkeypatch.setattr(results_file, "RESULTS", tmp_path)
    path = results_file.write("x", samples={}, figures={})
    found = json.loads(path.read_text())["command"]
    assert str(tmp_path) not in found
    assert found.endswith("trace.csv --seed 1 logs/a")
