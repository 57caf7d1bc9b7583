"""The resource definition stays small enough for every way to apply it, and explains itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from bamboo_core.api.spec import JobSpec
from bamboo_core.validation.reading import from_manifest

from .chart import CHART

MOST_BYTES_OF_ANNOTATIONS = 256 << 10
"""Of one object, together: TotalAnnotationSizeLimitB of Kubernetes. `kubectl apply` without
--server-side stores the object in one."""


def definition() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "crds/bamboojobs.yaml").read_text())
    return found


def pod_template() -> dict[str, Any]:
    schema = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    worker = schema["properties"]["spec"]["properties"]["worker"]
    found: dict[str, Any] = worker["properties"]["podTemplate"]
    return found


def test_the_definition_fits_into_an_annotation() -> None:
    """With room for it to grow."""
    assert len(json.dumps(definition())) < MOST_BYTES_OF_ANNOTATIONS / 2


def test_the_pod_template_says_what_it_is_and_where_its_rules_are() -> None:
    found = pod_template()
    text = found["description"]
    for words in (
        "kubectl explain pod.spec", "condition Accepted names each field",
        "the chart's value podTemplate", "docs/security-pods.md",
    ):  # fmt: skip
        assert words in text
    assert (CHART.parents[1] / "docs/security-pods.md").is_file()
    assert found["properties"].keys() == {"metadata", "spec"}


def test_the_api_server_keeps_every_field_of_it() -> None:
    """It would drop a field that a typed schema does not know, without a word."""
    found = pod_template()
    for node in (found, *found["properties"].values()):
        assert node["x-kubernetes-preserve-unknown-fields"] is True
        assert "additionalProperties" not in node


@pytest.mark.parametrize("part", ["metadata", "spec"])
def test_a_part_that_is_null_counts_as_left_out(part: str) -> None:
    assert pod_template()["properties"][part]["nullable"] is True
    job = yaml.safe_load((CHART.parents[1] / "examples/quickstart.yaml").read_text())
    job["spec"]["worker"]["podTemplate"] = {part: None}
    spec = from_manifest(job)
    assert isinstance(spec, JobSpec)
    assert spec.worker.pod_template == {}
