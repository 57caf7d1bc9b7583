"""The figures about alerts are what promtool says."""

from __future__ import annotations

import pytest

from bamboo_sim.watching.definitions import rules
from bamboo_sim.watching.proof import verdict
from bamboo_sim.watching.proof.lives import FAULTS, HARMLESS, Life

SLOW, SHORT = "a slow first step", "a short job"
CALM = {name: HARMLESS[name] for name in (SLOW, SHORT)}
GONE = {name: FAULTS[name] for name in ("operators that are gone",)}


def test_all_alerts_are_shown_and_none_fires_wrongly() -> None:
    found = verdict.of_rules(rules.text(), CALM, GONE)
    assert found.shown == {alert.name for alert in rules.ALERTS}
    assert found.wrongly == {}


@pytest.mark.parametrize(
    ("right", "wrong", "unshown", "wrongly"),
    [
        (  # it fires without a fault
            '(bamboo_job_plan_steps{namespace="bamboo-system"}) > 0',
            '(bamboo_job_plan_steps{namespace="bamboo-system"}) >= 0',
            {"BambooJobStandsStill"},
            {SLOW: {"BambooJobStandsStill"}},
        ),
        (  # it does not fire on its fault
            "bamboo_job_least_copies{",
            "bamboo_job_attempt{",
            {"BambooOneLossFromRestore"},
            {},
        ),
    ],
)
def test_what_is_wrong_is_counted(
    right: str, wrong: str, unshown: set[str], wrongly: dict[str, set[str]]
) -> None:
    text = rules.text()
    assert right in text
    found = verdict.of_rules(text.replace(right, wrong), CALM, GONE)
    assert {alert.name for alert in rules.ALERTS} - found.shown == unshown
    assert found.wrongly == wrongly


def test_a_fault_of_which_another_alert_tells_is_counted() -> None:
    faults = {"gone": Life(GONE["operators that are gone"].parts, ("BambooJobFailed",))}
    found = verdict.of_rules(rules.text(), {}, faults)
    unshown = {"BambooJobFailed", "BambooNoLeader", "BambooOperatorMissing"}
    assert {alert.name for alert in rules.ALERTS} - found.shown == unshown


def test_rules_that_promtool_does_not_take_are_an_error() -> None:
    with pytest.raises(verdict.UnclearError, match="yaml"):
        verdict.of_rules("groups: 1")
