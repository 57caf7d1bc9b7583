"""What the pod template says, and the agents' pods do not get."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.controller.builders import JOB, manifest, spec

from bamboo_core.api.spec import JobSpec, WorkerSpec
from bamboo_core.controller.reconcile import CreatePod
from bamboo_core.controller.view import Slot
from bamboo_core.validation import pod_rules
from bamboo_core.validation.overridden import problems
from bamboo_core.validation.pod_rules import PodRules
from bamboo_core.validation.reading import from_manifest, read
from bamboo_operator.pods import manifests

TRUSTED = PodRules(trusted=True)
ZONE = "topology.kubernetes.io/zone"
ACTION = CreatePod("job-p0-s1-i3", Slot(0, 1), 3, "zone-b")


def job(template: dict[str, Any], **more: Any) -> dict[str, Any]:
    found = manifest()
    found["spec"]["worker"] = {"image": "agent:1", "podTemplate": template} | more.pop("worker", {})
    found["spec"] |= more
    return found


def refusals(body: dict[str, Any], **how: Any) -> dict[str, str]:
    found = from_manifest(body, **how)
    if isinstance(found, JobSpec):
        return {}
    return {p.field.removeprefix("spec.worker.podTemplate."): p.message for p in found}


def agent(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "agent", **fields}]}}


@pytest.mark.parametrize(
    ("template", "worker", "field", "words"),
    [
        (agent(image="mine:2"), {}, "spec.containers[0].image",
         "is 'mine:2', but the agents run spec.worker.image; set it there"),
        (agent(resources={"limits": {"cpu": 2}}), {"resources": {"limits": {"cpu": 1}}},
         "spec.containers[0].resources", "set all of them there"),
        (agent(env=[{"name": "A", "value": "1"}]), {"env": [{"name": "A", "value": "2"}]},
         "spec.containers[0].env[0].name", "'A' is in spec.worker.env, too"),
        (agent(args=["python", "train.py"]), {}, "spec.containers[0].args",
         "the agent takes no arguments; remove it, or set command, too"),
        ({"spec": {"enableServiceLinks": True}}, {}, "spec.enableServiceLinks", "remove it"),
        ({"spec": {"activeDeadlineSeconds": 60}}, {}, "spec.activeDeadlineSeconds",
         "set spec.runPolicy.activeDeadlineSeconds to end the job"),
        ({"metadata": {"labels": {"bamboo.dev/job": "x"}}}, {}, "metadata.labels.bamboo.dev/job",
         "is set by the operator"),
        ({"metadata": {"labels": {"app.kubernetes.io/name": "x"}}}, {},
         "metadata.labels.app.kubernetes.io/name", "is set by the operator"),
        ({"metadata": {"annotations": {"bamboo.dev/avoids": "n"}}}, {},
         "metadata.annotations.bamboo.dev/avoids", "is set by the operator"),
    ],
)  # fmt: skip
def test_a_new_job_is_refused_and_one_that_has_trained_is_not(
    template: dict[str, Any], worker: dict[str, Any], field: str, words: str
) -> None:
    body = job(template, worker=worker)
    for rules in (pod_rules.RESTRICTED, TRUSTED):
        found = refusals(body, rules=rules)
        assert list(found) == [field]
        assert words in found[field]
        assert refusals(body, rules=rules, is_started=True) == {}


@pytest.mark.parametrize(
    ("template", "worker"),
    [
        (agent(image="agent:1"), {}),
        (agent(image=None), {}),
        (agent(resources={"limits": {"cpu": 2}}), {}),
        (agent(resources={"limits": {"cpu": 2}}), {"resources": {"limits": {"cpu": 2}}}),
        (agent(env=[{"name": "A", "value": "1"}]), {"env": [{"name": "B", "value": "2"}]}),
        ({"spec": {"containers": [{"name": "side", "image": "other:1"}]}}, {}),
        ({"spec": {"enableServiceLinks": False}}, {}),
        ({"metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}}}, {}),
    ],
)
def test_what_has_an_effect_or_says_the_same_is_taken(
    template: dict[str, Any], worker: dict[str, Any]
) -> None:
    assert refusals(job(template, worker=worker)) == {}


def test_the_placement_goes_before_the_node_selector() -> None:
    pools = [{"zones": ["a"], "nodeSelector": {"pool": "spot"}}]
    own = {"spec": {"nodeSelector": {ZONE: "z", "pool": "other"}}}
    found = refusals(job(own, placement={"zones": ["a"], "pools": pools}))
    assert found == {
        f"spec.nodeSelector.{ZONE}": "is 'z', but spec.placement.zones names a, which goes first;"
        " remove it here, or name the zone there",
        "spec.nodeSelector.pool": "is 'other', but spec.placement.pools[0].nodeSelector says"
        " 'spot', which goes first; remove one of them",
    }
    same = {"spec": {"nodeSelector": {ZONE: "a", "pool": "spot"}}}
    assert refusals(job(same, placement={"zones": ["a"], "pools": pools})) == {}


def test_the_rest_of_the_metadata_is_refused_where_users_are_trusted() -> None:
    body = job({"metadata": {"name": "mine", "finalizers": []}})
    assert list(refusals(body, rules=TRUSTED)) == ["metadata.name"]


@pytest.mark.parametrize(
    "template",
    [
        {"metadata": 5, "spec": []},
        {"metadata": {"labels": 5, "annotations": ["x"]}, "spec": {"containers": "x"}},
        {"spec": {"nodeSelector": "x", "containers": [5, {"name": ["agent"]}]}},
        {"spec": {"containers": [{"name": "agent", "env": [{"name": ["A"]}, {}, 5]}]}},
    ],
)
def test_a_started_job_with_wrong_types_is_led_all_the_same(template: dict[str, Any]) -> None:
    """It is refused, but its status is computed from the spec that can be read."""
    body = job(template, worker={"env": [{"value": "no name"}, {"name": ["A"]}]})
    found = read(body)
    assert isinstance(found, JobSpec)
    assert problems(found) == []


_OBJECTS = ("affinity", "dnsConfig", "lifecycle", "livenessProbe", "os", "overhead")
_MARKS: dict[str, Any] = {
    "securityContext": {"runAsUser": 7},
    "nodeSelector": {"mark": "1"},
    "containers": [{"name": "agent", "tty": True}],
    "initContainers": [{"name": "mark", "image": "i"}],
    "image": "other:1",
    "resources": {"limits": {"cpu": "7"}},
    "env": [{"name": "MARK", "value": "1"}],
    "restartPolicy": "Always",
    "name": "agent",
    "enableServiceLinks": True,
    "automountServiceAccountToken": True,
    "serviceAccountName": "bamboo-job-a",
    "affinity": {"podAffinity": {"mark": []}},
    "ports": [{"containerPort": 7}],
}


def mark(name: str) -> Any:
    """A value that is not the default."""
    lists = ("volumes", "tolerations", "imagePullSecrets", "envFrom", "volumeMounts", "args")
    if name in _MARKS:
        return _MARKS[name]
    if name in lists:
        return [{"name": "mark", "key": "mark", "mountPath": "/mark"}]
    return {"mark": 1} if name in _OBJECTS else "mark"


def holds(found: Any, wanted: Any) -> bool:
    """Whether all of ``wanted`` is in there."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(holds(found.get(k), v) for k, v in wanted.items())
    if isinstance(wanted, list):
        return all(any(holds(x, each) for x in found or []) for each in wanted)
    return bool(found == wanted)


@pytest.mark.parametrize(
    ("where", "name"),
    [
        *(("spec", name) for name in sorted(pod_rules._POD)),
        *(("agent", name) for name in sorted(pod_rules._CONTAINER)),
        *(("metadata", name) for name in ("labels", "annotations", "name", "finalizers")),
    ],
)
def test_each_field_of_a_template_is_in_the_pods_or_refused(where: str, name: str) -> None:
    """So no field that is allowed later can be without effect unseen."""
    template: dict[str, Any] = {where: {name: mark(name)}}
    if where == "agent":
        template = agent(**{name: mark(name)})
    elif name in ("labels", "annotations"):
        template = {"metadata": {name: {"mark": "1"}}}
    worker = WorkerSpec("agent:1", pod_template=template)
    pod = manifests.pod(spec(worker=worker), JOB, ACTION, operator_address="op:9443")
    is_there = holds(pod, template)
    assert is_there or refusals(job(template), rules=TRUSTED), f"{name} has no effect"
