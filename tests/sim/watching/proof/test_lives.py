"""Alerts in whole lives of a job and its operator, by what a real operator would export."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bamboo_sim.watching.definitions import rules
from bamboo_sim.watching.proof import promtool, verdict
from bamboo_sim.watching.proof.lives import FAULTS, HARMLESS, Life, Part


@pytest.mark.parametrize("name", HARMLESS)
def test_no_alert_fires_without_a_fault(tmp_path: Path, name: str) -> None:
    life = HARMLESS[name]
    assert verdict.fired(tmp_path, rules.text(), name, life) == set(life.fires)


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_told(tmp_path: Path, name: str) -> None:
    life = FAULTS[name]
    assert life.fires
    assert verdict.fired(tmp_path, rules.text(), name, life) == set(life.fires)


def test_a_wrong_expectation_fails(tmp_path: Path) -> None:
    """The tests above can fail, and say which alerts have fired."""
    life = FAULTS["operators that are gone"]
    quiet = Life(life.parts)
    done = promtool.try_rules(tmp_path, rules.text(), [quiet.test("quiet")])
    assert done.returncode != 0
    assert promtool.fired(done) == set(life.fires)


def test_series_are_written_as_they_are_scraped() -> None:
    life = Life(
        [Part(2, pods=("a",)), Part(2, pods=()), Part(1, pods=("b",)), Part(2, pods=("a",))]
    )
    found = {
        re.sub(r'.*pod="(.)".*', r"\1", x["series"]): x["values"]
        for x in life.inputs()
        if x["series"].startswith("bamboo_job_steps_total")
    }
    assert found == {"a": "30 60 stale _x2 180 210", "b": "_x4 150 stale _"}
    (leader, *_) = (x for x in life.inputs() if x["series"].startswith("bamboo_operator_leader"))
    assert leader["values"] == "1x1 stale _x2 1x1"
    assert 'job="apps/any-name"' in leader["series"]


def test_a_life_in_which_nobody_is_scraped_has_no_series() -> None:
    test = Life([Part(3, None, pods=())]).test("nobody")
    assert test["input_series"] == []
    (ask,) = test["promql_expr_test"]
    assert ask["eval_time"] == "2m"
