"""Jobs whose spec is refused: new ones have no pods, and those that train are led on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bamboo_cli.errors import CommandError
from bamboo_cli.estimate.manifest import read_spec
from bamboo_core.admission.quota import QUEUE_LABEL
from bamboo_core.validation.pod_rules import RESTRICTED, PodRules
from bamboo_operator.admission.held_tasks import TaskLimits
from bamboo_operator.kube import api
from bamboo_operator.reconcile.job_pods import REFUSED_PAUSE_S
from bamboo_operator.reconcile.reconciler import FULL_PAUSE_S, Reconciler

from ..harness import JOB, PATH, Harness

UID = "uid-1"
WORKER = {
    "image": "agent:1",
    "podTemplate": {
        "spec": {
            "containers": [{"name": "agent", "envFrom": [{"secretRef": {"name": "team-key"}}]}]
        }
    },
}


def allow(harness: Harness, rules: PodRules) -> None:
    """An operator with these rules takes over; it remembers nothing."""
    ports = replace(harness.reconciler._ports, pod_rules=rules)
    harness.reconciler = Reconciler(ports)


async def trained(harness: Harness, **spec: Any) -> dict[str, Any]:
    """The body of a job that has had a plan."""
    harness.apply(**spec)
    await harness.reconcile()
    body: dict[str, Any] = harness.kube.objects[PATH]
    body["status"]["arbiter"] = {"batch": [32, 1, 1]}
    return body


async def tightened(harness: Harness) -> dict[str, Any]:
    """A job that trains with a Secret that an upgrade of the chart does not offer any more."""
    allow(harness, PodRules(secrets=("team-*",)))
    body = await trained(harness, worker=WORKER)
    assert harness.condition("Accepted")["status"] == "True"
    await harness.jobs.end(UID)
    allow(harness, RESTRICTED)
    return body


async def labelled(harness: Harness) -> dict[str, Any]:
    """A job that names a queue while it trains, although nobody asks Kueue."""
    body = await trained(harness)
    body["metadata"]["labels"] = {QUEUE_LABEL: "queue"}
    return body


CASES = pytest.mark.parametrize("refuse", [tightened, labelled])


@CASES
async def test_a_job_that_trains_is_led_on_without_new_pods(harness: Harness, refuse: Any) -> None:
    await refuse(harness)
    del harness.kube.objects[api.pod("ns", harness.pods()[0])]
    for _ in range(3):
        await harness.reconcile()
        harness.now += REFUSED_PAUSE_S + 1
    accepted = harness.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecInvalid")
    assert harness.jobs.find(UID) is not None
    assert len(harness.pods()) == 1
    assert harness.condition("CapacityAvailable")["status"] == "False"


@CASES
async def test_it_can_be_suspended(harness: Harness, refuse: Any) -> None:
    body = await refuse(harness)
    body["spec"]["suspend"] = True
    await harness.reconcile()
    assert harness.pods() == []
    assert harness.condition("Accepted")["status"] == "False"


@CASES
async def test_it_gets_pods_again_once_it_is_accepted(harness: Harness, refuse: Any) -> None:
    await refuse(harness)
    del harness.kube.objects[api.pod("ns", harness.pods()[0])]
    await harness.reconcile()
    allow(harness, PodRules(secrets=("team-*",)))
    harness.kube.objects[PATH]["metadata"]["labels"] = {}
    harness.now += REFUSED_PAUSE_S + 1
    await harness.reconcile()
    assert len(harness.pods()) == 2
    assert harness.condition("Accepted")["status"] == "True"


async def test_changed_args_are_not_taken_for_those_of_the_job(harness: Harness) -> None:
    body = await trained(harness)
    identity = harness.status["identity"]
    body["spec"]["model"] = {"factory": "m:build", "args": {"layers": 5}}
    await harness.jobs.end(UID)
    allow(harness, RESTRICTED)
    for _ in range(2):
        await harness.reconcile()
        assert harness.condition("Accepted")["reason"] == "SpecChanged"
        assert harness.jobs.find(UID) is not None
        assert harness.status["identity"] == identity


async def test_a_spec_that_cannot_be_read(harness: Harness) -> None:
    """The job is led by the one before. An operator that has not seen that one says so."""
    body = await trained(harness)
    body["spec"]["model"] = {"factory": "m:build", "args": "none"}
    body["metadata"]["generation"] = 7
    await harness.reconcile()
    assert harness.condition("Accepted")["reason"] == "SpecInvalid"
    assert harness.jobs.find(UID) is not None
    assert harness.status["observedGeneration"] == 7
    await harness.jobs.end(UID)
    allow(harness, RESTRICTED)
    await harness.reconcile()
    assert harness.jobs.find(UID) is None
    assert len(harness.pods()) == 2
    for kind in ("Running", "Degraded"):
        found = harness.condition(kind)
        assert (found["status"], found["reason"]) == ("Unknown", "NotAccepted")


@pytest.mark.parametrize("args", [{"layers": 5}, {"a b": 1}, "none"])
async def test_a_job_whose_args_have_changed_can_be_suspended(harness: Harness, args: Any) -> None:
    body = await trained(harness)
    body["spec"]["model"]["args"] = args
    await harness.reconcile()
    assert harness.condition("Accepted")["status"] == "False"
    assert len(harness.pods()) == 2
    harness.kube.objects[PATH]["spec"]["suspend"] = True
    await harness.reconcile()
    assert harness.pods() == []


async def test_no_agent_gets_changed_args_beside_another_fault(harness: Harness) -> None:
    body = await trained(harness)
    body["spec"]["training"]["optimizer"]["args"] = {"lr": 99.0, "weight-decay": 0.1}
    for _ in range(2):
        await harness.reconcile()
    assert harness.condition("Accepted")["reason"] == "SpecChanged"
    actor = harness.jobs.find(UID)
    assert actor is not None
    spec = json.loads(actor._leadership.arbiter.state.job.spec_json)
    assert spec["training"]["optimizer"]["args"] == {"lr": 0.1}


@pytest.mark.parametrize(
    "template",
    [
        {"spec": {"containers": {"name": "agent"}}},
        {"spec": {"containers": ["agent"]}},
        {"spec": "x"},
        {"spec": {"nodeSelector": ["a"], "tolerations": "x"}},
        {"metadata": "x"},
    ],
)
async def test_a_pod_template_of_wrong_types_is_named(harness: Harness, template: Any) -> None:
    """Such a template may be set while the job's agents still save."""
    body = await trained(harness)
    body["spec"]["suspend"] = True
    body["spec"]["worker"] = {"image": "agent:1", "podTemplate": template}
    await harness.reconcile()
    accepted = harness.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecInvalid")
    assert "spec.worker.podTemplate" in accepted["message"]
    assert harness.pods() == []


async def test_it_keeps_its_tasks_when_another_operator_leads(harness: Harness) -> None:
    body = await labelled(harness)
    await harness.reconcile()
    own = harness.jobs.held.of(UID)
    assert own > 0
    await harness.jobs.close()
    assert harness.jobs.held.of(UID) == 0
    line = harness.make_line()
    harness.reconciler = Reconciler(replace(harness.reconciler._ports, line=line))
    body = harness.kube.objects[PATH]
    body["status"]["phase"] = "Running"
    await line.load(("ns",), harness.jobs.held)
    assert harness.jobs.held.of(UID) == own
    await harness.jobs.end(UID)
    harness.jobs.held.release(UID)
    await harness.reconcile()
    assert harness.jobs.held.of(UID) == own


async def test_a_job_without_a_plan_gives_its_pods_back(harness: Harness) -> None:
    harness.apply()
    await harness.reconcile()
    assert len(harness.pods()) == 2
    harness.kube.objects[PATH]["spec"]["model"]["args"] = {"a b": 1}
    harness.kube.objects[PATH]["metadata"]["generation"] = 7
    await harness.reconcile()
    assert harness.pods() == []
    assert harness.status["observedGeneration"] == 7
    harness.kube.objects[PATH]["metadata"]["generation"] = 8  # bad in the same way
    await harness.reconcile()
    assert harness.status["observedGeneration"] == 8


async def test_a_job_that_trains_is_led_on_by_a_full_operator(harness: Harness) -> None:
    body = await trained(harness)
    other = replace(JOB, uid="uid-9", name="other")
    own = harness.jobs.held.of(UID)
    assert harness.jobs.held.hold(other, TaskLimits().namespace - own) == ""
    body["spec"]["pipelines"] = {"count": 16, "stages": 2}
    body["status"]["arbiter"] = {"batch": [32, 1, 16]}
    assert await harness.reconcile() == FULL_PAUSE_S
    assert harness.condition("Accepted")["reason"] == "OperatorFull"
    assert harness.jobs.find(UID) is not None
    harness.kube.objects[PATH]["spec"]["suspend"] = True
    await harness.reconcile()
    assert harness.pods() == []


IGNORED = {
    "image": "agent:1",
    "podTemplate": {"spec": {"containers": [{"name": "agent", "image": "mine:2"}]}},
}


async def test_a_new_job_with_a_field_that_has_no_effect_is_refused(harness: Harness) -> None:
    harness.apply(worker=IGNORED)
    await harness.reconcile()
    accepted = harness.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecInvalid")
    assert accepted["message"] == (
        "spec.worker.podTemplate.spec.containers[0].image: is 'mine:2', but the agents run"
        " spec.worker.image; set it there"
    )
    assert harness.pods() == []


async def test_a_job_that_has_trained_with_such_a_field_is_told_and_goes_on(
    harness: Harness,
) -> None:
    """It was made by an earlier version."""
    harness.apply(worker=IGNORED)
    harness.kube.objects[PATH]["status"] = {"phase": "Running", "arbiter": {"batch": [32, 1, 1]}}
    await harness.reconcile()
    accepted = harness.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("True", "SpecResolved")
    assert "the spec is usable, but spec.worker.podTemplate" in accepted["message"]
    assert "is 'mine:2', but the agents run spec.worker.image" in accepted["message"]
    assert len(harness.pods()) == 2


async def test_problems_that_are_too_long_for_the_status_are_written_once(harness: Harness) -> None:
    both = [[{"name": f"V{n}", "value": value} for n in range(90)] for value in "ab"]
    template = {"spec": {"containers": [{"name": "agent", "env": both[1]}]}}
    harness.apply(worker={"image": "agent:1", "env": both[0], "podTemplate": template})
    for _ in range(10):
        await harness.reconcile()
    written = [path for _, path in harness.kube.requests if path.endswith("/status")]
    assert len(written) == 1


def beside(**fields: Any) -> dict[str, Any]:
    """A template with another container."""
    return {"spec": {"containers": [{"name": "proxy", "image": "proxy:1"} | fields]}}


def own(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "agent"} | fields]}}


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ({"spec": {"volumes": [{"name": "bamboo-identity", "emptyDir": {}}]}}, "volumes[0].name"),
        *(
            (own(volumeMounts=[{"name": "x", "mountPath": path}]), "volumeMounts[0].mountPath")
            for path in ("/var/run/bamboo", "/run/bamboo/", "/var/run/../run/bamboo/token")
        ),
        *(
            (make(volumeMounts=[{"name": "bamboo-identity", "mountPath": "/x"}]),
             "volumeMounts[0].name")
            for make in (own, beside)
        ),
        (beside(ports=[{"containerPort": 21466}]), "ports[0].containerPort"),
        (beside(ports=[{"containerPort": 1, "name": "bamboo-metrics"}]), "ports[0].name"),
        (own(env=[{"name": "BAMBOO_TOKEN_FILE", "value": "x"}]), "env[0].name"),
        (beside(env=[{"name": "BAMBOO_JOB", "value": "x"}]), "env[0].name"),
        (own(envFrom=[{"prefix": "BAMBOO_", "configMapRef": {"name": "x"}}]), "envFrom[0].prefix"),
        ({"spec": {"initContainers": [{"name": "agent", "image": "x:1"}]}},
         "initContainers[0].name"),
        ({"metadata": {"labels": {"bamboo.dev/job": "other"}}}, "metadata.labels.bamboo.dev/job"),
        ({"metadata": {"annotations": {"bamboo.dev/seal": "0"}}},
         "metadata.annotations.bamboo.dev/seal"),
        ({"spec": {"restartPolicy": "Always"}}, "spec.restartPolicy"),
        ({"spec": {"nodeName": "node-a"}}, "spec.nodeName"),
    ],
)  # fmt: skip
async def test_what_belongs_to_bamboo_in_a_pod_is_refused_by_operator_and_commands(
    template: dict[str, Any], field: str, harness: Harness
) -> None:
    """Both name the field, and no pod is tried. The API server, a kubelet or two programs at one
    port would tell much later."""
    harness.apply(worker={"image": "agent:1", "podTemplate": template})
    await harness.reconcile()
    said = harness.condition("Accepted")
    assert (said["status"], said["reason"]) == ("False", "SpecInvalid")
    assert harness.pods() == []
    with pytest.raises(CommandError) as refused:
        read_spec(harness.kube.objects[PATH], Path("job.yaml"))
    for words in (said["message"], str(refused.value)):
        assert "spec.worker.podTemplate." in words
        assert f"{field}: " in words, words
