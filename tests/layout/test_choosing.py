"""docs/choosing-protection.md and its plots are what the result files say."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def filler(root: Path) -> dict[str, Any]:
    return runpy.run_path(str(root / "benchmarks" / "protection_page.py"))


def test_the_page_and_its_plots_quote_the_results(filler: dict[str, Any]) -> None:
    page = filler["PAGE"].read_text(encoding="utf-8")
    expected, plots = filler["filled"](page, filler["load"]())
    assert page == expected, "run python benchmarks/protection_choice.py --page"
    for name, plot in plots.items():
        assert (filler["IMAGES"] / name).read_text(encoding="utf-8") == plot, name


def test_each_block_is_on_the_page(filler: dict[str, Any]) -> None:
    page = filler["PAGE"].read_text(encoding="utf-8")
    assert [name for name in filler["BLOCKS"] if f"<!-- {name} -->" not in page] == []


def test_what_is_not_measured_is_said(filler: dict[str, Any]) -> None:
    text, plots = filler["filled"]("<!-- frc_value -->\nold\n<!-- end -->\n", {})
    assert "Not measured yet: `python benchmarks/frc_value.py`" in text
    assert "old" not in text
    assert plots == {}


def test_pauses_and_overheads_are_drawn(filler: dict[str, Any]) -> None:
    pauses = {"replica_pause_s": 0.5, "eager_pause_s": 0.25, "shorter_by": 0.5, "hazard": -1}
    over = {"replica_over_none": 1.01, "eager_over_none": 1.03, "step_s": 2.0, "ahead": 0.9}
    over |= {"none_gb": 1.0, "replica_gb": 1.25, "eager_gb": 2.0}
    hosted = {**over, "eager_over_none": 1.1, "eager_hosts": "ahead and replicas"}
    small = {name: x for name, x in over.items() if not name.startswith(("eager", "ahead"))}
    overheads = {"bert": over, "bert 8 GiB": hosted, "bert 5.5 GiB": small}
    results = {
        "frc_value": {"commit": "abc", "samples": {"d1_p4": pauses}},
        "redundancy_overhead": {"commit": "abc", "samples": overheads},
    }
    blocks = "".join(f"<!-- {name} -->\n<!-- end -->\n" for name in results)
    text, plots = filler["filled"](blocks, results)
    assert "| d1_p4 | 0.5 s | 0.25 s | 50% | never |" in text
    assert "| bert | 2 s | 1.0 % | 3.0 % | 90% | - | 1, 1.25, 2 GB |" in text
    moved = "| bert 8 GiB | 2 s | 1.0 % | 10.0 % | 90% | Eager: ahead and replicas |"
    assert f"{moved} 1, 1.25, 2 GB |" in text
    assert "| bert 5.5 GiB | 2 s | 1.0 % | does not fit | - | - | 1, 1.25 GB |" in text
    assert sorted(plots) == ["protection-overhead.svg", "protection-pause.svg"]
    assert "3 %" in plots["protection-overhead.svg"]


def test_a_way_that_was_not_run_or_not_in_full_has_a_bound(filler: dict[str, Any]) -> None:
    row = {"taken": "Peers", "Peers": 1.2, "Diffuse": "at most 5.19", "Shadow": "at least 1.34"}
    result = {"commit": "abc", "samples": {"10 Gb/s": row}, "figures": {"usual_10_gbps_s": 3.5}}
    text, _ = filler["filled"]("<!-- one_loss -->\n<!-- end -->\n", {"one_loss": result})
    assert "| `Peers` | **1.2** |\n| `Diffuse` | at most 5.19 |" in text
    assert "| `Shadow` | at least 1.34 |" in text


def test_an_unknown_block_is_refused(filler: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="there is no block other; blocks: one_loss"):
        filler["filled"]("<!-- other -->\n<!-- end -->", {})
