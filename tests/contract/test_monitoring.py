"""What the chart ships for Prometheus and Grafana."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from tests.core.controller.builders import JOB
from tests.operator.monitoring.test_health import BUSY

from bamboo_agent.supervisor import health
from bamboo_core.api.progress import MOST_ZONES, Lane, Way
from bamboo_core.validation import reserved
from bamboo_operator.money import prices
from bamboo_operator.monitoring.job_figures import JobFigures
from bamboo_operator.monitoring.registry import Metrics
from bamboo_sim.watching.definitions import boards, rules

from .chart import CHART, helm, of_kind, render

ON = ("serviceMonitor", "podMonitor", "rules", "boards")


PAGES = "https://example.com/run"


def text_of(metrics: Any) -> bytes:
    return generate_latest(metrics.registry)


def all_on(*more: str) -> list[dict[str, Any]]:
    flags = [arg for name in ON for arg in ("--set", f"monitoring.{name}.enabled=true")]
    return render(*more, *flags, "--set", f"monitoring.rules.runbooks={PAGES}")


@pytest.fixture(scope="module")
def objects() -> list[dict[str, Any]]:
    pools = json.dumps([{"labels": {"pool": "spot"}, "dollarsPerHour": 1.5}])
    return all_on(
        "--set-string", "monitoring.rules.labels.release=prom", "--set-json", f"prices={pools}",
        "--set", "namespaces={team-a}",
    )  # fmt: skip


def test_nothing_of_it_by_default() -> None:
    kinds = {body["kind"] for body in render()}
    assert not kinds & {"ServiceMonitor", "PodMonitor", "PrometheusRule", "ConfigMap"}


def test_boards_are_config_maps(objects: list[dict[str, Any]]) -> None:
    found = of_kind(objects, "ConfigMap")
    assert {b["metadata"]["name"] for b in found} == {
        f"bamboo-operator-board-{name}" for name in boards.every()
    }
    for body in found:
        assert body["metadata"]["labels"]["grafana_dashboard"] == "1"
        ((file, text),) = body["data"].items()
        assert json.loads(text)["uid"] == file.removesuffix(".json")
    (fleet,) = (b["data"]["bamboo-fleet.json"] for b in found if "bamboo-fleet.json" in b["data"])
    assert fleet.strip() == (CHART / "files/boards/fleet.json").read_text().strip()


def test_rules_are_those_of_the_code(objects: list[dict[str, Any]]) -> None:
    (body,) = of_kind(objects, "PrometheusRule")
    assert body["metadata"]["labels"]["release"] == "prom"
    text = rules.text().replace(rules.RUNBOOKS, PAGES)
    assert body["spec"] == yaml.safe_load(text)
    alert = body["spec"]["groups"][1]["rules"][0]
    assert alert["annotations"]["runbook_url"].startswith(f"{PAGES}/Bamboo")


def test_rules_and_boards_look_at_this_release_only() -> None:
    """By the namespace of the operator's target."""
    flags = ("--set", "nameOverride=blue", "--namespace", "mlops")
    objects = all_on(*flags)
    (service,) = of_kind(objects, "Service")
    assert (service["metadata"]["namespace"], service["metadata"]["name"]) == (
        "mlops", "blue-operator",
    )  # fmt: skip
    texts = queries_of(objects)
    assert all('namespace=\\"mlops\\"' in text for text in texts)
    assert not any("bamboo-system" in text for text in texts)
    assert 'pod=~\\"blue-operator-.+\\"' in texts[0]


def queries_of(objects: list[dict[str, Any]]) -> list[str]:
    """The rules and the boards, as JSON."""
    (rule,) = of_kind(objects, "PrometheusRule")
    boards_ = [text for b in of_kind(objects, "ConfigMap") for text in b["data"].values()]
    assert len(boards_) == len(boards.every())
    return [json.dumps(rule["spec"]), *boards_]


def test_a_prometheus_with_labels_of_its_own_is_told_of_them() -> None:
    """The pods' restarts come from kube-state-metrics, which knows the namespace all the same."""
    labels = {"kubernetes_namespace": "bamboo-system", "job": "apps/bamboo"}
    found = all_on("--set-json", f"monitoring.targetLabels={json.dumps(labels)}")
    texts = queries_of(found)
    target = '{job=\\"apps/bamboo\\",kubernetes_namespace=\\"bamboo-system\\"'
    assert all(target in text for text in texts)
    assert [text.count('{namespace=\\"bamboo-system\\"') for text in texts] == [1, 0, 0, 0]
    (restarts,) = re.findall(r'(\w+){namespace=\\"bamboo-system\\"', texts[0])
    assert restarts == "kube_pod_container_status_restarts_total"


def test_a_pod_of_a_tenant_speaks_for_its_namespace_only(objects: list[dict[str, Any]]) -> None:
    (monitor,) = of_kind(objects, "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert [endpoint[k] for k in ("honorLabels", "honorTimestamps", "followRedirects")] == [
        False
    ] * 3
    kept, bound = endpoint["metricRelabelings"]
    assert (kept["action"], kept["sourceLabels"]) == ("keep", ["__name__"])
    own = {
        sample.name
        for family in health.Metrics(job="a/b", agent="c").registry.collect()
        for sample in family.samples
    }
    assert all(re.fullmatch(kept["regex"], name) for name in own)
    assert not re.fullmatch(kept["regex"], "bamboo_operator_leader")
    assert not re.fullmatch(kept["regex"], "bamboo_job_condition")
    assert not re.fullmatch(kept["regex"], "bamboo:job_steps:max")
    assert bound == {
        "action": "replace", "sourceLabels": ["namespace"], "targetLabel": "job_namespace",
    }  # fmt: skip
    assert len(own) < monitor["spec"]["sampleLimit"] <= 1000
    assert monitor["spec"]["labelLimit"] <= 64


def blocks(language: str) -> list[str]:
    """All blocks of code in this language in docs/watching.md."""
    page = (CHART.parents[1] / "docs/watching.md").read_text()
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.M | re.S)
    return [text for named, text in found if named == language]


def test_the_values_of_the_page_are_taken() -> None:
    (example,) = (yaml.safe_load(text) for text in blocks("yaml") if "alertLabels" in text)
    setting = f"monitoring.rules={json.dumps(example['monitoring']['rules'])}"
    (body,) = of_kind(all_on("--set-json", setting), "PrometheusRule")
    alerts = {rule["alert"]: rule for rule in body["spec"]["groups"][1]["rules"]}
    assert alerts.keys() == {alert.name for alert in rules.ALERTS} - {"BambooUnannouncedLosses"}
    assert "[3h]" in alerts["BambooJobNotRunning"]["expr"]
    assert alerts["BambooJobNotRunning"]["labels"] == {"severity": "info", "team": "ml-platform"}


def test_queries_of_the_page_ask_the_operators_own_target() -> None:
    """A tenant's pod can export the same names."""
    (query,) = (text for text in blocks("") if "bamboo_job" in text)
    target = '{namespace="bamboo-system"}'
    assert len(re.findall(r"bamboo_job_\w+", query)) == query.count(target) == 1


def test_the_pod_monitoring_of_the_page_makes_the_operators_target() -> None:
    """By its namespace."""
    (example,) = (yaml.safe_load(text) for text in blocks("yaml") if "PodMonitoring" in text)
    (deployment,) = of_kind(render("--namespace", "bamboo-system"), "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert example["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert example["spec"]["endpoints"][0]["port"] in {p["name"] for p in container["ports"]}
    assert f'{{namespace="{example["metadata"]["namespace"]}"}}' in rules.text()


def megabytes(monitor: dict[str, Any]) -> int:
    """The limit of an answer, in bytes."""
    number = str(monitor["spec"]["bodySizeLimit"])
    assert number.endswith("MB")
    return int(number.removesuffix("MB")) << 20


def test_an_answer_without_an_end_is_refused_and_a_long_one_of_the_operator_is_not(
    objects: list[dict[str, Any]],
) -> None:
    """The operator has 1,000 jobs, each with agents in as many zones as are told apart."""
    (monitor,) = of_kind(objects, "PodMonitor")
    assert megabytes(monitor) > 100 * len(text_of(health.Metrics(job="a/b", agent="c")))
    zones = [f"europe-west{number}-b" for number in range(MOST_ZONES + 2)]
    sent = {Way(lane, a, b): 10**15 for lane in Lane for a, b in product(zones, zones)}
    status = replace(BUSY, totals=replace(BUSY.totals, sent=sent))
    job = JobFigures(replace(JOB, name="n" * 40, namespace="s" * 20), status, 64)
    none, ten = (len(text_of(Metrics(lambda n=n: [job] * n))) for n in (0, 10))
    (monitor,) = of_kind(objects, "ServiceMonitor")
    assert none + 100 * (ten - none) < megabytes(monitor)


def test_an_older_prometheus_operator_gets_no_limit_of_an_answer() -> None:
    """Its definitions do not have the field."""
    found = all_on(
        "--set", "monitoring.podMonitor.bodySizeLimit=",
        "--set", "monitoring.serviceMonitor.bodySizeLimit=",
    )  # fmt: skip
    monitors = [*of_kind(found, "PodMonitor"), *of_kind(found, "ServiceMonitor")]
    assert ["bodySizeLimit" in body["spec"] for body in monitors] == [False, False]


@pytest.mark.parametrize("pages", ["", "docs/runbooks", "wiki.example.com/run"])
def test_a_runbook_is_a_link_that_can_be_followed(pages: str) -> None:
    done = helm(
        "template", "bamboo", str(CHART), "--set", "monitoring.rules.enabled=true",
        "--set", f"monitoring.rules.runbooks={pages}",
    )  # fmt: skip
    assert done.returncode != 0
    assert f"monitoring.rules.runbooks {pages!r}".replace("'", '"') in done.stderr
    assert "for example https://" in done.stderr


def test_monitors_find_the_operator_and_the_agents(objects: list[dict[str, Any]]) -> None:
    (service,) = of_kind(objects, "Service")
    (monitor,) = of_kind(objects, "ServiceMonitor")
    assert (
        monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    )
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    (pods,) = of_kind(objects, "PodMonitor")
    assert pods["spec"]["podMetricsEndpoints"][0]["port"] == reserved.METRICS_PORT
    assert pods["spec"]["namespaceSelector"] == {"matchNames": ["team-a"]}
    assert pods["spec"]["selector"]["matchLabels"] == {"app.kubernetes.io/name": "bamboo-agent"}


def test_the_operator_gets_the_prices(objects: list[dict[str, Any]]) -> None:
    (deployment,) = of_kind(objects, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (text,) = (e["value"] for e in container["env"] if e["name"] == "BAMBOO_PRICES")
    (pool,) = prices.parse(text)
    assert (pool.labels, pool.dollars_per_hour) == ({"pool": "spot"}, 1.5)


@pytest.mark.parametrize(
    "setting",
    [
        'prices=[{"labels":{},"dollarsPerHour":1}]', 'prices=[{"labels":{"a":"b"}}]',
        'prices=[{"labels":{"a":"b"},"dollarsPerHour":-1}]', 'monitoring.rules={"on":true}',
        'monitoring.podMonitor.interval="15"', 'monitoring.podMonitor.bodySizeLimit="1 MB"',
        'monitoring.rules.runbooks="https://a/"', 'monitoring.targetLabels={"a-b":"c"}',
        'monitoring.targetLabels={"a":"c\\"}"}', 'monitoring.rules.alertLabels={"severity":"a"}',
    ],
)  # fmt: skip
def test_wrong_values_are_refused(setting: str) -> None:
    done = helm("template", "bamboo", str(CHART), "--set-json", setting)
    assert done.returncode != 0
    assert setting.split("=")[0].split(".")[0] in done.stderr
