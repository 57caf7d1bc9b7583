"""What a pod template must not contain."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.controller.builders import JOB, spec

from bamboo_core.api.pod_template import _LISTS, problems
from bamboo_core.api.spec import WorkerSpec
from bamboo_core.controller.reconcile import CreatePod
from bamboo_core.controller.view import Slot
from bamboo_operator import manifests


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ({"kind": "Pod"}, "t.kind"),
        ({"spec": []}, "t.spec"),
        ({"metadata": None}, "t.metadata"),
        ({"metadata": {"labels": "x"}}, "t.metadata.labels"),
        ({"metadata": {"annotations": {"a": 5}}}, "t.metadata.annotations.a"),
        ({"spec": {"nodeSelector": "x"}}, "t.spec.nodeSelector"),
        ({"spec": {"securityContext": None}}, "t.spec.securityContext"),
        ({"spec": {"affinity": []}}, "t.spec.affinity"),
        ({"spec": {"restartPolicy": "Always"}}, "t.spec.restartPolicy"),
        ({"spec": {"nodeName": "n"}}, "t.spec.nodeName"),
        ({"spec": {"hostNetwork": True}}, "t.spec.hostNetwork"),
        ({"spec": {"hostPID": True}}, "t.spec.hostPID"),
        ({"spec": {"volumes": "v"}}, "t.spec.volumes"),
        ({"spec": {"volumes": [{"name": "v", "hostPath": {}}]}}, "t.spec.volumes[0].hostPath"),
        ({"spec": {"volumes": [{"emptyDir": {}}]}}, "t.spec.volumes[0].name"),
        ({"spec": {"containers": [{"image": "i"}]}}, "t.spec.containers[0].name"),
        (
            {"spec": {"containers": [{"name": "x", "securityContext": {"privileged": True}}]}},
            "t.spec.containers[0].securityContext.privileged",
        ),
        ({"spec": {"containers": [{"name": 5}]}}, "t.spec.containers[0].name"),
        (
            {"spec": {"containers": [{"name": "x", "securityContext": "x"}]}},
            "t.spec.containers[0].securityContext",
        ),
        ({"spec": {"containers": [{"name": "x", "env": 5}]}}, "t.spec.containers[0].env"),
        ({"spec": {"containers": [{"name": "x", "env": ["A"]}]}}, "t.spec.containers[0].env"),
        (
            {"spec": {"containers": [{"name": "x", "env": [{"value": "v"}]}]}},
            "t.spec.containers[0].env[0].name",
        ),
        (
            {"spec": {"containers": [{"name": "x", "env": [{"name": ["v"]}]}]}},
            "t.spec.containers[0].env[0].name",
        ),
        (
            {"spec": {"containers": [{"name": "agent", "volumeMounts": {}}]}},
            "t.spec.containers[0].volumeMounts",
        ),
        (
            {"spec": {"initContainers": [{"name": "x", "env": [{"name": "BAMBOO_JOB"}]}]}},
            "t.spec.initContainers[0].env[0].name",
        ),
    ],
)
def test_refused(template: dict[str, Any], field: str) -> None:
    assert [problem.field for problem in problems(template, path="t")] == [field]


def test_a_wrong_type_is_reported_with_value_and_remedy() -> None:
    (problem,) = problems({"spec": {"nodeSelector": "x"}}, path="t")
    assert problem.message == "is 'x'; it must be an object, or be left out"
    (problem,) = problems({"metadata": {"labels": {"version": 1}}}, path="t")
    assert problem.message == "is 1; it must be a string (in quotes), or be left out"
    (problem,) = problems({"metadata": {"labels": "x" * 5000}}, path="t")
    assert problem.message.endswith("...; it must be an object, or be left out")
    assert len(problem.message) < 150


JUNK: tuple[Any, ...] = (None, 5, "x", [], {}, [5], [{}], {"name": None}, [{"name": []}], True)


@pytest.mark.parametrize("value", JUNK)
@pytest.mark.parametrize(
    "place",
    [
        ("metadata", "labels"),
        ("metadata", "annotations"),
        *(("spec", key) for key in (*_LISTS, "nodeSelector", "securityContext", "affinity")),
        *(
            ("spec", "containers", key)
            for key in ("env", "volumeMounts", "securityContext", "args")
        ),
    ],
)
def test_an_accepted_template_makes_a_pod(place: tuple[str, ...], value: Any) -> None:
    """Whatever the API server thinks of it: never an error of ours."""
    template: dict[str, Any] = {place[0]: {place[1]: value}}
    if len(place) == 3:
        template = {"spec": {"containers": [{"name": "agent", place[2]: value}]}}
    if problems(template, path="t"):
        return
    worker = WorkerSpec("agent:1", pod_template=template)
    made = manifests.pod(
        spec(worker=worker), JOB, CreatePod("job-p0-s0-i0", Slot(0, 0), 0, "a"),
        operator_address="op:1",
    )  # fmt: skip
    assert made["spec"]["containers"][0]["name"] == "agent"


def test_accepted() -> None:
    template = {
        "metadata": {"labels": {"team": "a"}},
        "spec": {
            "hostNetwork": False,
            "containers": [{"name": "agent", "volumeMounts": []}, {"name": "sidecar"}],
            "volumes": [{"name": "cache", "emptyDir": {}}],
            "tolerations": [{"key": "spot", "operator": "Exists"}],
        },
    }
    assert problems(template, path="t") == []
    assert problems({}, path="t") == []
