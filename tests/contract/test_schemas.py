"""Every object that the chart makes, by its kind's schema: known fields only, of their type."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator, ValidationError

from .chart import CHART, render

FILES = ["devcluster-values.yaml", *(f"values/{p.name}" for p in (CHART / "values").glob("*"))]
EVERYTHING = [
    "notices.daemonSet.enabled=true", "networkPolicy.enabled=true", "kueue.enabled=true",
    "monitoring.serviceMonitor.enabled=true", "monitoring.podMonitor.enabled=true",
    "monitoring.rules.enabled=true", "monitoring.rules.runbooks=https://example.com/run",
    "monitoring.boards.enabled=true", "monitoring.podMonitor.labels.release=prom",
    "namespaces={team-a,team-b}", "tolerations[0].operator=Exists", "fullnameOverride=all",
    "commonLabels.team=a", "commonAnnotations.team=a", "podLabels.team=b",
    "networkPolicy.agents.extraEgress[0].ports[0].port=443",
    "networkPolicy.operator.extraEgress[0].to[0].ipBlock.cidr=10.0.0.0/8",
    "extraObjects[0]=apiVersion: v1\nkind: ConfigMap\nmetadata: {name: further}",
]  # fmt: skip

_TEXT = {"type": "string", "minLength": 1}
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_FLAG = {"type": "boolean"}
_LIMIT = {"type": "integer", "minimum": 0}
_SIZE = {"type": "string", "pattern": r"(^0|([0-9]*[.])?[0-9]+((K|M|G|T|E|P)i?)?B)$"}
_DURATION = {"type": "string", "pattern": r"^(([0-9]+)(ms|s|m|h|d))+$"}


def _object(required: list[str], **fields: Any) -> dict[str, Any]:
    return {
        "type": "object", "required": required, "properties": fields, "additionalProperties": False,
    }  # fmt: skip


def _monitor(endpoints: str, **more: Any) -> dict[str, Any]:
    selector = _object(["matchLabels"], matchLabels=_TEXTS)
    relabeling = _object(
        ["action"], action={"enum": ["keep", "replace"]}, regex=_TEXT, targetLabel=_TEXT,
        sourceLabels={"type": "array", "items": _TEXT},
    )  # fmt: skip
    endpoint = _object(
        ["port"], port=_TEXT, interval=_DURATION, honorLabels=_FLAG, honorTimestamps=_FLAG,
        followRedirects=_FLAG, metricRelabelings={"type": "array", "items": relabeling},
    )  # fmt: skip
    each = {"type": "array", "minItems": 1, "items": endpoint}
    return _object(["selector", endpoints], selector=selector, **{endpoints: each}, **more)


_RULE = {
    **_object(
        ["expr"], alert=_TEXT, record={"type": "string", "pattern": "^[a-zA-Z_:][a-zA-Z0-9_:]*$"},
        expr=_TEXT, labels=_TEXTS, annotations=_TEXTS, **{"for": _DURATION},
    ),
    "oneOf": [{"required": ["alert"]}, {"required": ["record"]}],
}  # fmt: skip
_GROUP = _object(
    ["name"], name=_TEXT, interval=_DURATION, rules={"type": "array", "items": _RULE},
)  # fmt: skip

# Our own excerpt of monitoring.coreos.com/v1: only fields that the chart uses, written after the
# Prometheus operator's API reference, since no Python package brings its definitions.
MONITORING = {
    "ServiceMonitor": _monitor("endpoints", bodySizeLimit=_SIZE),
    "PodMonitor": _monitor(
        "podMetricsEndpoints",
        namespaceSelector=_object(
            [], any=_FLAG, matchNames={"type": "array", "items": _TEXT}
        ),
        bodySizeLimit=_SIZE,
        sampleLimit=_LIMIT,
        labelLimit=_LIMIT,
        labelNameLengthLimit=_LIMIT,
        labelValueLengthLimit=_LIMIT,
    ),
    "PrometheusRule": _object(
        ["groups"], groups={"type": "array", "minItems": 1, "items": _GROUP}
    ),
}  # fmt: skip


def oldest() -> str:
    """The oldest Kubernetes that the chart allows."""
    wanted = yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]
    (version,) = re.findall(r">=\s*(\d+\.\d+)", wanted)
    return str(version)


def check(body: dict[str, Any], version: str) -> None:
    """ValidationError names the field."""
    if body["apiVersion"] == "monitoring.coreos.com/v1":
        assert body.keys() == {"apiVersion", "kind", "metadata", "spec"}
        Draft202012Validator(MONITORING[body["kind"]]).validate(body["spec"])
    else:
        kubernetes_validate.validate(body, version, strict=True)


def versions() -> list[str]:
    return [oldest(), kubernetes_validate.latest_version()]


@pytest.mark.parametrize("values", [None, *sorted(FILES)])
def test_objects_of_every_value_file(values: str | None) -> None:
    objects = render(*(() if values is None else ("--values", str(CHART / values))))
    assert len(objects) >= 5
    for version in versions():
        for body in objects:
            check(body, version)


def test_objects_with_everything_switched_on() -> None:
    objects = render(*(word for setting in EVERYTHING for word in ("--set", setting)))
    kinds = {body["kind"] for body in objects}
    assert kinds >= {"NetworkPolicy", "DaemonSet", "PodDisruptionBudget", "ConfigMap", *MONITORING}
    for version in versions():
        for body in objects:
            check(body, version)


def _policy(spec: dict[str, Any]) -> None:
    spec["ingress"][0]["ports"][0]["prot"] = 1


def _deployment(spec: dict[str, Any]) -> None:
    spec["replicas"] = "two"


def _service_monitor(spec: dict[str, Any]) -> None:
    spec["endpoints"][0]["intervall"] = "15s"


def _rules(spec: dict[str, Any]) -> None:
    spec["groups"][0]["rules"][0]["alert"] = "Both"


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("NetworkPolicy", _policy), ("Deployment", _deployment),
        ("ServiceMonitor", _service_monitor), ("PrometheusRule", _rules),
    ],
)  # fmt: skip
def test_a_wrong_field_is_found(kind: str, spoil: Callable[[dict[str, Any]], None]) -> None:
    objects = render(*(word for setting in EVERYTHING for word in ("--set", setting)))
    body = next(body for body in objects if body["kind"] == kind)
    spoil(body["spec"])
    with pytest.raises(ValidationError):
        check(body, versions()[-1])
