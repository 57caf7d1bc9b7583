"""Which losses are left, what is kept of them, and what becomes a figure."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from benchmarks.peers import record, variants
from benchmarks.peers.gaps import Cost
from benchmarks.peers.variants import BY_NAME, VARIANTS

from bamboo_sim.programs import results_file

COST = Cost(0.4, 0.2, None, 0.05, 2.5, 0, 0, 0)


def test_variants_take_turns() -> None:
    names = [variant.name for variant in variants.order(VARIANTS, 8, {}, seed=1)]
    compared = {variant.name for variant in VARIANTS if not variant.beside}
    assert set(names[: len(VARIANTS)]) == {variant.name for variant in VARIANTS}
    assert set(names[len(VARIANTS) :][: len(compared)]) == compared
    assert Counter(names) == {v.name: 2 if v.beside else 8 for v in VARIANTS}


def test_only_what_is_left_is_done() -> None:
    done = {"bamboo": 3, "torchrun_standard": 1}
    chosen = [BY_NAME[name] for name in (*done, "torchft_tuned", "bamboo_at_once")]
    names = Counter(variant.name for variant in variants.order(chosen, 4, done, seed=1))
    assert names == {"bamboo": 1, "torchft_tuned": 4, "bamboo_at_once": 1}


def test_a_word_chooses_variants() -> None:
    assert {variant.name for variant in variants.chosen("torchrun")} == {
        "torchrun_forked",
        "torchrun_standard",
    }
    names = [variant.name for variant in variants.chosen("defaults,bamboo")]
    assert names == ["bamboo", "torchft_defaults", "torchft_defaults_at_once"]
    with pytest.raises(ValueError, match="--only zzz matches nothing; there are: bamboo, "):
        variants.chosen("bamboo,zzz")


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder in the place of those of results and of progress."""
    monkeypatch.setattr(results_file, "RESULTS", tmp_path)
    monkeypatch.setattr(results_file, "PROGRESS", tmp_path)
    return tmp_path


def test_a_record_is_resumed(files: Path) -> None:
    kept = record.Record()
    kept.add("bamboo", COST)
    kept.add("torchft_tuned", "TimeoutError: full strength")
    kept.save()
    again = record.resume()
    assert (again.costs, again.failures) == (kept.costs, kept.failures)
    assert again.done()["bamboo"] == again.done()["torchft_tuned"] == 1
    result = json.loads((files / "against_peers.json").read_text())
    assert result["samples"]["bamboo"]["delay_s"] == [0.2]
    assert result["samples"]["failures"] == [["torchft_tuned", "TimeoutError: full strength"]]


def test_a_record_of_other_code_is_not_resumed(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = record.Record()
    kept.add("bamboo", COST)
    kept.save()
    monkeypatch.setattr(results_file, "fingerprint", lambda paths: "other")
    assert record.resume().costs == {}
    with pytest.raises(SystemExit, match="has changed: the last loss is not counted"):
        kept.save()


def test_ratios_are_of_medians_and_unknown_figures_are_left_out() -> None:
    kept = record.Record()
    for delay_s in (0.2, 0.1, 0.4):
        kept.add("bamboo", Cost(0.4, delay_s, 0.3, 0.05, 2.5, 0, 0, 0))
    kept.add("torchft_tuned", Cost(0.4, 1.0, 0.1, 0.05, 3.0, 0, 1, 16))
    figures = kept.figures()
    assert figures["over_torchft_tuned"] == 5.0
    assert (figures["bamboo_delay_s"], figures["bamboo_delay_max_s"]) == (0.2, 0.4)
    assert figures["torchft_tuned_skipped_samples"] == 16
    assert not {"over_torchrun_forked", "torchrun_forked_delay_s"} & figures.keys()
    assert (figures["torchrun_forked_kills"], figures["failures"]) == (0, 0)


def test_a_delay_of_ours_that_is_not_positive_gives_no_ratio() -> None:
    kept = record.Record()
    kept.add("bamboo", Cost(0.4, -0.01, 0.3, 0.05, 2.5, 0, 0, 0))
    kept.add("torchft_tuned", COST)
    assert "over_torchft_tuned" not in kept.figures()


def test_the_result_of_a_full_run_is_a_summary(files: Path) -> None:
    kept = record.Record()
    for variant in VARIANTS:
        for _ in range(variant.kills(20)):
            kept.add(variant.name, Cost(0.4123, 10.5123, 0.3123, 0.0512, 32.5123, 4, 1, 1232))
    kept.save()
    lines = (files / "against_peers.json").read_text().splitlines()
    assert len(lines) <= 300
    assert not [figure for figure, value in kept.figures().items() if value is None]
