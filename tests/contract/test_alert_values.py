"""Alerts with the chart's values: each can be changed, switched off and routed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from bamboo_sim.watching.definitions import rules
from bamboo_sim.watching.definitions.alert import RELEASE, Alert, Value
from bamboo_sim.watching.proof import promtool, verdict
from bamboo_sim.watching.proof.lives import FAULTS, HARMLESS, Life

from .chart import CHART, helm, of_kind, render

PAGES = "https://example.com/run"
ON = ("--set", "monitoring.rules.enabled=true", "--set", f"monitoring.rules.runbooks={PAGES}")
NAMES = [alert.name for alert in rules.ALERTS]


def flags(alerts: dict[str, Any], **more: Any) -> list[str]:
    """Values of the rules, as helm takes them."""
    return [*ON, "--set-json", f"monitoring.rules={json.dumps({'alerts': alerts, **more})}", *ON]


def rendered(alerts: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """The groups of rules with these values."""
    (body,) = of_kind(render(*flags(alerts, **more)), "PrometheusRule")
    groups: list[dict[str, Any]] = body["spec"]["groups"]
    return groups


def text_of(alerts: dict[str, Any]) -> str:
    """The same as a file for Prometheus."""
    return yaml.safe_dump({"groups": rendered(alerts)}, sort_keys=False)


def schema_of(name: str) -> dict[str, Any]:
    schema = json.loads((CHART / "values.schema.json").read_text())
    monitoring = schema["properties"]["monitoring"]["properties"]
    found: dict[str, Any] = monitoring["rules"]["properties"]["alerts"]["properties"][name]
    return found


def test_the_defaults_are_those_of_the_code() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())["monitoring"]["rules"]["alerts"]
    assert values == {alert.name: alert.defaults for alert in rules.ALERTS}


@pytest.mark.parametrize("alert", rules.ALERTS, ids=NAMES)
def test_the_schema_describes_every_setting(alert: Alert) -> None:
    found = schema_of(alert.name)
    assert found["description"]
    assert found["properties"].keys() == alert.defaults.keys()
    assert set(found["required"]) == alert.defaults.keys() - {"labels"}
    for name in alert.settings:
        assert found["properties"][name]["description"].endswith("."), name


def other(value: Value) -> Value:
    """A value that is no default."""
    return "7h" if isinstance(value, str) else 0.75 if isinstance(value, float) else value + 8


def test_every_value_reaches_its_alert() -> None:
    changed = {
        alert.name: {
            "for": "77s", "severity": f"page-{number}", "labels": {"team": f"t{number}"},
            **{name: other(value) for name, value in alert.settings.items()},
        }
        for number, alert in enumerate(rules.ALERTS)
    }  # fmt: skip
    _, group = rendered(changed, alertLabels={"team": "all", "cluster": "one"})
    assert [rule["alert"] for rule in group["rules"]] == NAMES
    for number, (alert, rule) in enumerate(zip(rules.ALERTS, group["rules"], strict=True)):
        values = alert.defaults | RELEASE | changed[alert.name]
        expected = rules.with_values(alert, values)
        expected["labels"] |= {"team": f"t{number}", "cluster": "one"}
        pages = expected["annotations"]["runbook_url"].replace(rules.RUNBOOKS, PAGES)
        expected["annotations"]["runbook_url"] = pages
        assert rule == expected
        usual = rules.with_values(alert, alert.defaults | RELEASE)
        assert (rule["expr"] != usual["expr"]) == bool(alert.settings)


@pytest.mark.parametrize("unit", ["s", "m", "h", "d"])
def test_seconds_of_a_duration(unit: str) -> None:
    """The template counts as the code does."""
    _, group = rendered({"BambooCheckpointTooOld": {"atLeast": f"90{unit}"}})
    (rule,) = (rule for rule in group["rules"] if rule["alert"] == "BambooCheckpointTooOld")
    (alert,) = (alert for alert in rules.ALERTS if alert.name == "BambooCheckpointTooOld")
    values = alert.defaults | RELEASE | {"atLeast": f"90{unit}"}
    assert rule["expr"] == rules.with_values(alert, values)["expr"]


def test_each_alert_can_be_switched_off() -> None:
    off = {"BambooNoLeader": {"enabled": False}, "BambooJobSlow": None}
    _, group = rendered(off)
    assert [rule["alert"] for rule in group["rules"]] == [n for n in NAMES if n not in off]
    (recorded,) = rendered({name: {"enabled": False} for name in NAMES})
    assert recorded["name"] == "bamboo-recorded"


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"BambooNothing": {"enabled": True}}, "BambooNothing"),
        ({"BambooJobSlow": {"window": "10"}}, "window"),
        ({"BambooJobSlow": {"window": "0m"}}, "window"),
        ({"BambooJobSlow": {"window": "1h30m"}}, "window"),
        ({"BambooJobSlow": {"times": 1}}, "times"),
        ({"BambooJobSlow": {"times": "5"}}, "times"),
        ({"BambooJobSlow": {"For": "5m"}}, "For"),
        ({"BambooJobSlow": {"for": "5 m"}}, "for"),
        ({"BambooJobSlow": {"for": None}}, "for"),
        ({"BambooJobSlow": {"severity": ""}}, "severity"),
        ({"BambooJobSlow": {"labels": {"a b": "c"}}}, "labels"),
        ({"BambooJobSlow": {"labels": {"severity": "c"}}}, "labels"),
        ({"BambooPausesTooLong": {"share": 20}}, "share"),
        ({"BambooStartsFail": {"starts": 1.5}}, "starts"),
        ({"BambooStartsFail": {"starts": 0}}, "starts"),
    ],
)
def test_wrong_values_are_refused(setting: dict[str, Any], named: str) -> None:
    done = helm("template", "bamboo", str(CHART), *flags(setting))
    assert done.returncode != 0
    assert named in done.stderr


STUCK = "a job that never starts, though nothing is known to be stuck"
FIRST = "a slow first step"


@pytest.mark.parametrize(
    ("values", "name", "fires"),
    [
        ({}, STUCK, ("BambooJobNotRunning",)),
        ({"BambooJobNotRunning": {"window": "2h"}}, STUCK, ()),
        ({"BambooJobNotRunning": {"enabled": False}}, STUCK, ()),
        ({}, FIRST, ()),
        ({"BambooJobStandsStill": {"firstStepWindow": "30m"}}, FIRST, ("BambooJobStandsStill",)),
    ],
)
def test_changed_values_change_when_an_alert_fires(
    tmp_path: Path, values: dict[str, Any], name: str, fires: tuple[str, ...]
) -> None:
    life = Life((HARMLESS | FAULTS)[name].parts, fires)
    assert verdict.fired(tmp_path, text_of(values), name, life) == set(fires)


def test_prometheus_takes_the_rules_with_and_without_helm(tmp_path: Path) -> None:
    for name, text in (("helm", text_of({})), ("file", (CHART / "files/rules.yaml").read_text())):
        file = tmp_path / f"{name}.yaml"
        file.write_text(text)
        done = promtool.run("check", "rules", str(file))
        assert done.returncode == 0, done.stdout + done.stderr
