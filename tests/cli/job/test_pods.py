"""Nodes that count for a job."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cli.conftest import make_node, make_pod

from bamboo_cli.job.pods import useful

GPU = {"cpu": "8", "nvidia.com/gpu": "1"}


def node(name: str, **status: Any) -> dict[str, Any]:
    found = make_node(name, "a")
    found["status"] |= {"allocatable": GPU} | status
    return found


def names(job: dict[str, Any], *nodes: dict[str, Any], pods: Any = ()) -> list[str]:
    return [each["metadata"]["name"] for each in useful(job, pods, nodes)]


def test_the_operators_node_does_not_count(training: dict[str, Any]) -> None:
    """It has no GPU, and agents of the job ask for one."""
    assert names(training, node("system", allocatable={"cpu": "8"}), node("spot")) == ["spot"]
    pod = make_pod("gpt-p0-s0-i0", "system")
    assert names(training, node("system", allocatable={"cpu": "8"}), pods=[pod]) == ["system"]


@pytest.mark.parametrize(
    ("key", "counts"),
    [("dedicated", False), ("node.kubernetes.io/not-ready", True), ("nvidia.com/gpu", True)],
)
def test_a_taint_that_says_what_the_node_is_for_keeps_it_out(
    training: dict[str, Any], key: str, counts: bool
) -> None:
    tainted = node("n") | {"spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}}
    assert bool(names(training, tainted)) is counts


def test_labels_that_the_job_asks_for(training: dict[str, Any]) -> None:
    training["spec"]["worker"]["podTemplate"] = {"spec": {"nodeSelector": {"pool": "gpu"}}}
    labelled = node("n")
    labelled["metadata"]["labels"]["pool"] = "gpu"
    assert names(training, node("other"), labelled) == ["n"]


def test_what_is_not_known_counts(training: dict[str, Any]) -> None:
    bare = make_node("young", "a")
    assert names(training, bare) == ["young"]
    training["spec"] = {"pipelines": {}}
    assert names(training, node("system", allocatable={})) == ["system"]
