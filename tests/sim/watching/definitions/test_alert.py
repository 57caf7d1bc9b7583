"""Marks in queries and texts of alerts."""

from __future__ import annotations

import pytest

from bamboo_sim.watching.definitions import rules
from bamboo_sim.watching.definitions.alert import RELEASE, Alert, filled, seconds


@pytest.mark.parametrize(
    ("duration", "expected"), [("1s", 1), ("15m", 900), ("2h", 7200), ("10d", 864000)]
)
def test_seconds_of_a_duration(duration: str, expected: int) -> None:
    assert seconds(duration) == expected


def test_marks_are_filled() -> None:
    text = "x[${window}] > ${window.s} / ${times} in ${release.name} for {{ $labels.a }}"
    values = {"window": "2m", "times": 0.5, "release.name": "b"}
    assert filled(text, values) == "x[2m] > 120 / 0.5 in b for {{ $labels.a }}"


@pytest.mark.parametrize("mark", ["${wndow}", "${wndow.s}"])
def test_a_mark_without_a_value_is_an_error(mark: str) -> None:
    with pytest.raises(KeyError, match="wndow"):
        filled(mark, {"window": "2m"})


@pytest.mark.parametrize("alert", rules.ALERTS, ids=[alert.name for alert in rules.ALERTS])
def test_every_setting_changes_its_query(alert: Alert) -> None:
    usual = filled(alert.expr, alert.defaults | RELEASE)
    for name, value in alert.settings.items():
        other = "59d" if isinstance(value, str) else value + 1
        assert filled(alert.expr, alert.defaults | RELEASE | {name: other}) != usual, name


def test_rules_without_helm_have_no_marks() -> None:
    assert "${" not in rules.text()
    assert "${window}" in rules.marked()


@pytest.mark.parametrize("alert", rules.ALERTS, ids=[alert.name for alert in rules.ALERTS])
def test_every_alert_says_what_to_do_first(alert: Alert) -> None:
    assert alert.action
    assert alert.text.endswith(".")
