"""Amounts of devices: the API server refuses pods with a part of a GPU, so we refuse the job."""

from __future__ import annotations

from typing import Any

import pytest

from bamboo_core.api.spec import JobSpec
from bamboo_core.validation.reading import from_manifest

from .test_reading import manifest

GPU = "nvidia.com/gpu"


def fields(worker: dict[str, Any]) -> list[tuple[str, str]]:
    """The fields with problems, with what is said of them."""
    found = from_manifest(manifest(worker={"image": "agent:1"} | worker))
    return [] if isinstance(found, JobSpec) else [(x.field, x.message) for x in found]


@pytest.mark.parametrize("kind", ["limits", "requests"])
@pytest.mark.parametrize("amount", ["1.5", 0.5, "1500m"])
def test_a_part_of_a_device_is_refused(kind: str, amount: object) -> None:
    text = f"is {amount!r}; it must be a whole number, such as 1 or 2"
    resources = {"resources": {kind: {GPU: amount, "cpu": "1.5"}}}
    assert fields(resources) == [(f"spec.worker.resources.{kind}[{GPU}]", text)]
    beside = {"name": "beside", "image": "i", **resources}
    template = {"podTemplate": {"spec": {"containers": [beside]}}}
    where = f"spec.worker.podTemplate.spec.containers[0].resources.{kind}[{GPU}]"
    assert fields(template) == [(where, text)]


@pytest.mark.parametrize("amount", [2, "2", "2000m", "1k", "many", None, {}])
def test_whole_devices_are_taken_and_junk_is_left_to_other_rules(amount: object) -> None:
    assert not fields({"resources": {"limits": {GPU: amount}}})


@pytest.mark.parametrize("name", ["cpu", "memory", "example.kubernetes.io/part"])
def test_what_is_kubernetes_own_may_be_divided(name: str) -> None:
    assert not fields({"resources": {"limits": {name: "1.5"}}})
