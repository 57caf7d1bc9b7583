"""Each alert fires when it must and not otherwise, by promtool's own unit tests."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from bamboo_devcluster.programs import prometheus
from bamboo_sim.programs.results_file import ROOT
from bamboo_sim.watching.definitions import boards, rules, source
from bamboo_sim.watching.prometheus import queries
from bamboo_sim.watching.prometheus.story import Story

AT = "2h"


class Case(NamedTuple):
    """Series by name and further labels: promtool's notation, one value a minute."""

    alert: str
    fires: dict[str, str]
    quiet: dict[str, str]  # what differs when it must not fire


def condition(kind: str) -> str:
    return f"bamboo_job_condition|type={kind}"


def handed_on(counter: str, before: str, after: str) -> dict[str, str]:
    """The counter ends at one operator's pod, and begins at the next one's."""
    return {f"{counter}|pod=a": f"{before}x100 stale", f"{counter}|pod=b": f"_x101 {after}x99"}


NEVER_SAVED = {
    "bamboo_job_time_seconds_total|state=Training": "0+60x200",
    "bamboo_checkpoint_configured": "1x200",
    condition("Running"): "1x200",
}
CASES = [
    Case(
        "BambooJobStandsStill",
        {"bamboo_job_steps_total": "7x200", condition("Running"): "1x200"},
        {"bamboo_job_steps_total": "7+1x200"},
    ),
    Case(
        "BambooJobStandsStill",
        {**handed_on("bamboo_job_steps_total", "7", "7"), condition("Running"): "1x200"},
        {"bamboo_job_steps_total|pod=b": "_x101 8+1x99"},
    ),
    Case(  # a job that does not train may stand still
        "BambooJobStandsStill",
        {condition("Stalled"): "1x200"},
        {"bamboo_job_steps_total": "7x200", condition("Stalled"): "0x200"},
    ),
    Case(
        "BambooJobWaitsForCapacity",
        {condition("CapacityAvailable"): "1x80 0x100"},
        {condition("CapacityAvailable"): "1x100 0x100"},  # not for long enough
    ),
    Case(
        "BambooCheckpointTooOld",
        {"bamboo_checkpoint_last_timestamp_seconds": "600x200", condition("Running"): "1x200"},
        {"bamboo_checkpoint_last_timestamp_seconds": "0+60x200"},
    ),
    Case(
        "BambooCheckpointTooOld",
        {"bamboo_checkpoint_last_timestamp_seconds": "600x200", condition("Running"): "1x200"},
        {condition("Running"): "0x200"},
    ),
    Case(  # none was ever written
        "BambooCheckpointTooOld",
        NEVER_SAVED,
        {"bamboo_checkpoint_configured": "0x200"},
    ),
    Case(
        "BambooCheckpointTooOld",
        NEVER_SAVED,
        {"bamboo_checkpoint_last_timestamp_seconds": "_x70 4200+60x130"},
    ),
    Case(  # it has waited for most of the time
        "BambooCheckpointTooOld",
        NEVER_SAVED,
        {"bamboo_job_time_seconds_total|state=Training": "0x100 0+60x100"},
    ),
    Case(
        "BambooJobNotAccepted",
        {condition("Accepted"): "0x200"},
        {condition("Accepted"): "0x100 1x100"},
    ),
    Case(
        "BambooOneLossFromRestore",
        {"bamboo_job_least_copies": "1x200", condition("Degraded"): "1x200"},
        {condition("Degraded"): "0x200"},  # the spec does not ask for more
    ),
    Case(
        "BambooOneLossFromRestore",
        {"bamboo_job_least_copies": "1x200", condition("Degraded"): "1x200"},
        {"bamboo_job_least_copies": "2x200"},
    ),
    Case(
        "BambooWorkRepeated",
        {"bamboo_job_repeated_steps_total": "0x100 5x100"},
        {"bamboo_job_repeated_steps_total": "5x200"},
    ),
    Case(
        "BambooWorkRepeated",
        handed_on("bamboo_job_repeated_steps_total", "0", "500"),
        handed_on("bamboo_job_repeated_steps_total", "500", "500"),
    ),
    Case(
        "BambooPausesTooLong",
        {"bamboo_job_pause_seconds_total|cause=Loss": "0+18x200"},
        {"bamboo_job_pause_seconds_total|cause=Loss": "0+6x200"},
    ),
    Case(
        "BambooUnannouncedLosses",
        {
            "bamboo_preemptions_total|noticed=false": "0x10 6x200",
            "bamboo_preemptions_total|noticed=true": "0x200",
        },
        {"bamboo_preemptions_total|noticed=true": "0x10 1x200"},
    ),
    Case(
        "BambooUnannouncedLosses",
        {
            "bamboo_preemptions_total|noticed=false": "0x10 6x200",
            "bamboo_preemptions_total|noticed=true": "0x200",
        },
        {"bamboo_preemptions_total|noticed=false": "0x10 2x200"},
    ),
    Case(
        "BambooUnannouncedLosses",
        {
            **handed_on("bamboo_preemptions_total|noticed=false", "1", "7"),
            **handed_on("bamboo_preemptions_total|noticed=true", "3", "3"),
        },
        handed_on("bamboo_preemptions_total|noticed=true", "3", "4"),
    ),
    Case(
        "BambooAgentsFail",
        handed_on("bamboo_job_failures_total|cause=TaskFailed", "2", "7"),
        handed_on("bamboo_job_failures_total|cause=TaskFailed", "7", "7"),
    ),
    Case(
        "BambooAgentsFail",
        {"bamboo_job_failures_total|cause=TaskFailed": "0x100 6x100"},
        {"bamboo_job_failures_total|cause=TaskFailed": "0x100 2x100"},
    ),
    Case(
        "BambooCorruptionFound",
        {"bamboo_job_corruptions_total": "0x100 1x100"},
        {"bamboo_job_corruptions_total": "1x200"},
    ),
    Case(
        "BambooCorruptionFound",
        {"bamboo_job_failures_total|cause=Corruption": "0x100 1x100"},
        {"bamboo_job_failures_total|cause=Corruption": "0x200"},
    ),
    Case(
        "BambooCorruptionFound",
        handed_on("bamboo_job_corruptions_total", "1", "2"),
        handed_on("bamboo_job_corruptions_total", "2", "2"),
    ),
    Case(
        "BambooJobFailed",
        {condition("Failed"): "0x100 1x100"},
        {condition("Failed"): "0x200"},
    ),
    Case(
        "BambooNoLeader",
        {"bamboo_operator_leader": "1x100 0x100"},
        {"bamboo_operator_leader": "1x200"},
    ),
    Case(
        "BambooOperatorFails",
        {"bamboo_operator_reconcile_total|outcome=error": "0+6x200"},
        {"bamboo_operator_reconcile_total|outcome=error": "0+1x200"},
    ),
]


def is_operators(case: Case) -> bool:
    return case.alert in ("BambooNoLeader", "BambooOperatorFails")


def inputs(
    series: dict[str, str], own: dict[str, str], target: Mapping[str, str] = source.LABELS
) -> list[dict[str, str]]:
    """target: labels that Prometheus gives to what it scrapes there."""
    found = []
    for key, values in series.items():
        name, *pairs = key.split("|")
        labels = target | own | dict(pair.split("=") for pair in pairs)
        inside = ",".join(f'{k}="{v}"' for k, v in labels.items())
        found.append({"series": f"{name}{{{inside}}}", "values": values})
    return found


def fired(case: Case, own: dict[str, str]) -> dict[str, Any]:
    """The alert as promtool expects it."""
    (alert,) = (a for a in rules.ALERTS if a.name == case.alert)
    who = f"{own.get('job_namespace')}/{own.get('training_job')}"
    return {
        "exp_labels": own | {"severity": alert.severity},
        "exp_annotations": {
            "summary": alert.summary.replace(rules._WHO, who),
            "description": alert.text,
            "runbook_url": f"docs/runbooks/{alert.name}.md",
        },
    }


def asked(name: str, expected: list[dict[str, Any]]) -> dict[str, Any]:
    return {"eval_time": AT, "alertname": name, "exp_alerts": expected}


def of_jobs(cases: list[Case]) -> dict[str, Any]:
    """One test: each case is two jobs, one for which its alert fires and one for which it does
    not. So none of them may fire another alert either."""
    series, expected = [], dict[str, list[dict[str, Any]]]()
    for number, case in enumerate(cases):
        loud = {"job_namespace": "ns", "training_job": f"{number}-fires"}
        series += inputs(case.fires, loud)
        series += inputs(case.fires | case.quiet, loud | {"training_job": f"{number}-quiet"})
        expected.setdefault(case.alert, []).append(fired(case, loud))
    return {
        "name": "jobs",
        "interval": "1m",
        "input_series": series,
        "alert_rule_test": [asked(name, alerts) for name, alerts in expected.items()],
    }


def of_operator(case: Case, *, fires: bool) -> dict[str, Any]:
    series = case.fires if fires else case.fires | case.quiet
    return {
        "name": f"{case.alert}, {'fires' if fires else 'is quiet'}",
        "interval": "1m",
        "input_series": inputs(series, {}),
        "alert_rule_test": [asked(case.alert, [fired(case, {})] if fires else [])],
    }


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = prometheus.ensure(print)["promtool"]
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


def run(folder: Path, text: str, tests: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    body = {"rule_files": ["rules.yaml"], "evaluation_interval": "5m", "tests": tests}
    (folder / "rules.yaml").write_text(text)
    (folder / "tests.yaml").write_text(yaml.safe_dump(body, sort_keys=False))
    return promtool("test", "rules", str(folder / "tests.yaml"))


def test_alerts_fire_when_they_must_and_not_otherwise(tmp_path: Path) -> None:
    assert {case.alert for case in CASES} == {alert.name for alert in rules.ALERTS}
    of_one = [case for case in CASES if is_operators(case)]
    tests = [of_operator(case, fires=fires) for case in of_one for fires in (True, False)]
    tests.append(of_jobs([case for case in CASES if not is_operators(case)]))
    done = run(tmp_path, rules.text(), tests)
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
    (no_leader,) = (case for case in CASES if case.alert == "BambooNoLeader")
    forged = {
        "name": "forged",
        "interval": "1m",
        "input_series": [*series, *inputs({"bamboo_operator_leader": "1x200"}, {}, TENANT)],
        "alert_rule_test": [
            asked(a.name, [fired(no_leader, {})] if a.name == "BambooNoLeader" else [])
            for a in rules.ALERTS
        ],
    }
    done = run(tmp_path, rules.text(), [forged])
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_other_pod_raises_a_recorded_counter(tmp_path: Path) -> None:
    """Neither by the operator's name of the counter nor by that of the record."""
    job = {"job_namespace": "ns", "training_job": "digits"}
    still = {"bamboo_job_steps_total": "7x200", condition("Running"): "1x200"}
    forged = {"bamboo_job_steps_total": "0+1x200", "bamboo:job_steps:max": "0+1x200"}
    (case, *_) = (case for case in CASES if case.alert == "BambooJobStandsStill")
    test = {
        "name": "forged steps",
        "interval": "1m",
        "input_series": inputs(still, job) + inputs(forged, job, TENANT),
        "alert_rule_test": [asked(case.alert, [fired(case, job)])],
        "promql_expr_test": [
            {
                "expr": 'bamboo:job_steps:max{instance=""}',
                "eval_time": AT,
                "exp_samples": [
                    {
                        "labels": 'bamboo:job_steps:max{job_namespace="ns",training_job="digits"}',
                        "value": 7,
                    }
                ],
            }
        ],
    }
    done = run(tmp_path, rules.text(), [test])
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_series_says_where_it_comes_from() -> None:
    """Only those of agents do not, which the PodMonitor binds to their namespace."""
    own = '{namespace="bamboo-system",job="bamboo-operator"'
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
    cases = [case for case in CASES if case.quiet == {"bamboo_job_least_copies": "2x200"}]
    assert run(tmp_path, wrong, [of_jobs(cases)]).returncode != 0


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


def test_runbooks_name_panels_that_exist() -> None:
    """Outside code, words in quotation marks that begin with a capital are names of panels."""
    titles = {p.title for board in boards.every().values() for p in board.panels()}
    named = set()
    for path in (ROOT / rules.RUNBOOKS).glob("Bamboo*.md"):
        text = re.sub(r"```.*?```|`[^`]*`", "", path.read_text(), flags=re.DOTALL)
        named |= set(re.findall(r'"([A-Z][^"]*)"', text))
    assert len(named) > 10
    assert named <= titles
