"""Each alert fires when it must and not otherwise, by promtool's own unit tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bamboo_sim.programs.results_file import ROOT
from bamboo_sim.watching.definitions import boards, rules, source
from bamboo_sim.watching.prometheus import queries
from bamboo_sim.watching.prometheus.story import Story
from bamboo_sim.watching.proof import cases, promtool
from bamboo_sim.watching.proof.cases import AT, CASES, LEADER, asked, fired, inputs


def test_alerts_fire_when_they_must_and_not_otherwise(tmp_path: Path) -> None:
    assert {case.alert for case in CASES} == {alert.name for alert in rules.ALERTS}
    done = promtool.try_rules(tmp_path, rules.text(), cases.tests())
    assert done.returncode == 0, done.stdout + done.stderr


TENANT = {"namespace": "evil", "job": "bamboo-system/bamboo-operator-agents", "instance": "x:1"}
"""What Prometheus says of a pod of a tenant that has the label and the port of agents."""


def test_no_other_pod_fires_or_silences_alerts(tmp_path: Path) -> None:
    """The same series as in the test above, but from another target."""
    series = [
        one
        for number, case in enumerate(CASES)
        for one in inputs(case.fires, {"job_namespace": "ns", "training_job": str(number)}, TENANT)
    ]
    expected = dict[str, list[dict[str, Any]]]()
    for name in ("BambooNoLeader", "BambooOperatorMissing"):
        (case, *_) = (c for c in CASES if c.alert == name and LEADER in c.fires)
        expected[name] = [fired(case, {})]
    series += inputs({LEADER: "1x100 stale"}, {}) + inputs({LEADER: "1x200"}, {}, TENANT)
    asks = [asked(alert.name, expected.get(alert.name, [])) for alert in rules.ALERTS]
    forged = promtool.test("forged", series, alert_rule_test=asks)
    done = promtool.try_rules(tmp_path, rules.text(), [forged])
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_other_pod_raises_a_recorded_counter(tmp_path: Path) -> None:
    """Neither by the operator's name of the counter nor by that of the record."""
    job = {"job_namespace": "ns", "training_job": "digits"}
    forged = {"bamboo_job_steps_total": "0+1x200", "bamboo:job_steps:max": "0+1x200"}
    (case, *_) = (case for case in CASES if case.alert == "BambooJobStandsStill")
    record = 'bamboo:job_steps:max{job_namespace="ns",training_job="digits"}'
    query = {
        "expr": 'bamboo:job_steps:max{instance=""}',
        "eval_time": AT,
        "exp_samples": [{"labels": record, "value": 90}],
    }
    test = promtool.test(
        "forged steps",
        inputs(case.fires, job) + inputs(forged, job, TENANT),
        alert_rule_test=[asked(case.alert, [fired(case, job)])],
        promql_expr_test=[query],
    )
    done = promtool.try_rules(tmp_path, rules.text(), [test])
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_series_says_where_it_comes_from() -> None:
    """Only those of agents do not, which the PodMonitor binds to their namespace."""
    own = '{namespace="bamboo-system"'
    assert source.bound("max(bamboo_jobs) / bamboo:a:max[1h]") == (
        f'max(bamboo_jobs{own}}}) / bamboo:a:max{{instance=""}}[1h]'
    )
    assert source.bound('bamboo_agent_connections{a="b"}') == (
        f'bamboo_agent_connections{own},a="b"}}'
    )
    assert source.bound('bamboo_agent_step_seconds{a="b"}') == 'bamboo_agent_step_seconds{a="b"}'


def test_a_wrong_rule_fails(tmp_path: Path) -> None:
    """The test above can fail."""
    wrong = rules.text().replace("bamboo_job_least_copies{", "bamboo_job_attempt{")
    assert wrong != rules.text()
    found = [case for case in CASES if case.quiet == {"bamboo_job_least_copies": "2x200"}]
    done = promtool.try_rules(tmp_path, wrong, [cases.of_jobs(found)])
    assert done.returncode != 0
    assert promtool.wrong(done) == {"BambooOneLossFromRestore"}


def test_the_operator_exports_what_boards_and_rules_use() -> None:
    story = Story(lambda: 0.0)
    assert list(story.metrics.registry.collect())  # the first moment; then counters have labels
    exported = set()
    for registry in story.registries:
        for family in registry.collect():
            exported |= {family.name, *(sample.name for sample in family.samples)}
    assert queries.metrics_used() - exported == set()


def test_every_alert_has_a_runbook() -> None:
    pages = {path.stem: path.read_text() for path in (ROOT / rules.RUNBOOKS).glob("Bamboo*.md")}
    assert set(pages) == {alert.name for alert in rules.ALERTS}
    for name, page in pages.items():
        assert page.startswith(f"# {name}\n"), name
        for heading in ("## What it means", "## What to look at", "## What to do"):
            assert f"\n{heading}\n" in page, name


def test_the_page_of_runbooks_lists_all_alerts() -> None:
    page = (ROOT / rules.RUNBOOKS / "README.md").read_text()
    rows = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) \| (\w+) \|", page, flags=re.M)
    assert rows == [(alert.name, alert.name, alert.severity) for alert in rules.ALERTS]


def test_runbooks_name_settings_that_exist() -> None:
    """A number in a runbook is a default, so each setting is named beside it."""
    for alert in rules.ALERTS:
        page = (ROOT / rules.RUNBOOKS / f"{alert.name}.md").read_text()
        meaning = page.partition("## What to look at")[0]
        missing = [name for name in alert.settings if f"`{name}`" not in meaning]
        assert not missing, alert.name


def test_runbooks_name_panels_that_exist() -> None:
    """Outside code, words in quotation marks that begin with a capital are names of panels."""
    titles = {p.title for board in boards.every().values() for p in board.panels()}
    named = set()
    for path in (ROOT / rules.RUNBOOKS).glob("Bamboo*.md"):
        text = re.sub(r"```.*?```|`[^`]*`", "", path.read_text(), flags=re.DOTALL)
        named |= set(re.findall(r'"([A-Z][^"]*)"', text))
    assert len(named) > 10
    assert named <= titles
