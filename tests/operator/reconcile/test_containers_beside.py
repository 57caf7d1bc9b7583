"""Containers beside the agent, objects that are missing, and what users are told of them."""

from __future__ import annotations

import pytest
from tests.core.controller.builders import JOB

from bamboo_core.evidence.pod_troubles import PodTrouble
from bamboo_operator.kube import object_views

from ..harness import Harness
from ..objects import Object, pod_object
from .test_failed_starts import INITIALIZING, after, ended, report, runs, waits


async def test_a_missing_claim_is_told_with_its_remedy(harness: Harness) -> None:
    harness.apply()
    await harness.reconcile()
    words = (
        '0/3 nodes are available: persistentvolumeclaim "data" not found. preemption: 0/3 nodes are'
        " available: 3 Preemption is not helpful for scheduling."
    )
    for name in harness.pods():
        refusal = {
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words,
            "lastTransitionTime": "1970-01-01T00:16:40Z",
        }  # fmt: skip
        report(harness, name, {"phase": "Pending", "conditions": [refusal]}, node="")
    before = harness.pods()
    for _ in range(100):
        await harness.reconcile()
        harness.now += 10.0
    assert harness.pods() == before
    said = harness.condition("Stalled")
    assert (said["status"], said["reason"]) == ("True", "ObjectMissing")
    assert "PersistentVolumeClaim data in namespace ns does not exist" in said["message"]


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        (
            {
                "initContainerStatuses": [
                    waits("fetch", "CreateContainerConfigError", 'secret "s3" not found')
                ],
                "containerStatuses": INITIALIZING,
            },
            "ObjectMissing",
            "Secret s3 in namespace ns does not exist",
        ),
        (
            {
                "containerStatuses": [
                    waits("agent", "CreateContainerConfigError", 'configmap "c" not found')
                ]
            },
            "ObjectMissing",
            "ConfigMap c in namespace ns does not exist",
        ),
        (
            {
                "initContainerStatuses": [waits("fetch", "ErrImagePull", "no such tag")],
                "containerStatuses": INITIALIZING,
            },
            "ImagePullFailed",
            "container fetch: ErrImagePull: no such tag",
        ),
        (
            {
                "initContainerStatuses": [
                    waits("proxy", "CrashLoopBackOff", "back-off 10s")
                    | {"lastState": {"terminated": {"exitCode": 2, "message": "no config"}}}
                ],
                "containerStatuses": INITIALIZING,
            },
            "ContainerCannotStart",
            "container proxy: CrashLoopBackOff: it ended with exit code 2: no config",
        ),
        (
            {
                "initContainerStatuses": [
                    waits("proxy", "CreateContainerConfigError", 'secret "s3" not found')
                    | {"lastState": {"terminated": {"exitCode": 2, "message": "no config"}}}
                ],
                "containerStatuses": INITIALIZING,
            },
            "ObjectMissing",
            "Secret s3 in namespace ns does not exist",
        ),
        (
            {
                "initContainerStatuses": [
                    waits("proxy", "CrashLoopBackOff", "back-off 10s")
                    | {
                        "lastState": {
                            "terminated": {"exitCode": 2, "message": 'secret "x" not found'}
                        }
                    }
                ],
                "containerStatuses": INITIALIZING,
            },
            "ContainerCannotStart",
            'it ended with exit code 2: secret "x" not found',
        ),
        (
            {"containerStatuses": [waits("agent", "RunContainerError", "no such file")]},
            "ContainerCannotStart",
            "RunContainerError: no such file",
        ),
    ],
)
async def test_a_container_that_cannot_start_is_named(
    status: Object, reason: str, words: str, harness: Harness
) -> None:
    await after(harness, {"phase": "Pending"} | status)
    said = harness.condition("Stalled")
    assert (said["status"], said["reason"]) == ("True", reason)
    assert words in said["message"]
    assert harness.status["failures"]["total"] == 0


def test_a_sidecar_that_failed_once_and_runs_again_is_no_trouble() -> None:
    body = pod_object()
    body["status"]["containerStatuses"].append(
        runs("proxy") | {"lastState": {"terminated": {"exitCode": 2}}}
    )
    body["status"]["initContainerStatuses"] = [ended(0, "Completed", name="fetch")]
    (view,) = object_views.pod_views([body], JOB)
    assert (view.beside.container, view.beside.runs_on) == ("", True)


PROXY = [{"name": "proxy", "restartPolicy": "Always"}]
NO_CONFIG = {"terminated": {"exitCode": 5, "reason": "Error", "message": "bad config\n"}}


@pytest.mark.parametrize(
    "shown",
    [
        {"state": NO_CONFIG},
        {"state": {"running": {}}, "started": False, "lastState": NO_CONFIG},
        waits("proxy", "CrashLoopBackOff", "back-off 10s") | {"lastState": NO_CONFIG},
    ],
)
def test_a_sidecar_that_ends_again_and_again_is_told_all_the_time(shown: Object) -> None:
    """It was told only while it waited, so the alert began anew whenever it ran."""
    body = pod_object(phase="Pending")
    body["spec"]["initContainers"] = PROXY
    body["status"]["initContainerStatuses"] = [{"name": "proxy"} | shown]
    body["status"]["containerStatuses"] = INITIALIZING
    (view,) = object_views.pod_views([body], JOB)
    words = "it ended with exit code 5: bad config"
    assert view.beside == PodTrouble(container="proxy", state="CrashLoopBackOff", words=words)


def test_a_sidecar_that_is_there_again_keeps_nobody() -> None:
    """Its startup probe has succeeded: another one is awaited, or the agent's image."""
    body = pod_object(phase="Pending")
    body["spec"]["initContainers"] = [*PROXY, {"name": "fetch"}]
    again = runs("proxy") | {"started": True, "lastState": NO_CONFIG}
    body["status"]["initContainerStatuses"] = [again, runs("fetch") | {"started": True}]
    body["status"]["containerStatuses"] = INITIALIZING
    (view,) = object_views.pod_views([body], JOB)
    assert (view.beside.container, view.beside.awaited) == ("", "fetch")


NOT_YET = {"state": {"running": {}}, "started": False}
UNSEEN = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}


@pytest.mark.parametrize(
    ("shown", "works"),
    [
        (runs("fetch") | {"started": True}, True),
        (runs("fetch") | {"lastState": {"terminated": {"exitCode": 0}}}, True),
        (runs("fetch") | {"lastState": UNSEEN}, False),
        ({"name": "proxy"} | NOT_YET, False),
    ],
)
def test_an_init_container_that_ends_by_itself_works(shown: Object, works: bool) -> None:
    """A sidecar has no work that it ends with; its startup probe does not succeed."""
    body = pod_object(phase="Pending")
    body["spec"]["initContainers"] = [*PROXY, {"name": "fetch"}]
    body["status"]["initContainerStatuses"] = [shown]
    body["status"]["containerStatuses"] = INITIALIZING
    (view,) = object_views.pod_views([body], JOB)
    assert (view.beside.awaited, view.beside.works) == (shown["name"], works)


async def test_an_init_container_may_work_for_longer_than_an_image_is_pulled(
    harness: Harness,
) -> None:
    """It was told as stuck after 8 minutes, though it loaded data."""
    status = {
        "phase": "Pending",
        "startTime": "1970-01-01T00:16:40Z",
        "initContainerStatuses": [runs("fetch")],
        "containerStatuses": INITIALIZING,
    }
    await after(harness, status)
    for now, is_stuck in ((1000.0 + 2999.0, False), (1000.0 + 3000.0, True)):
        harness.now = now
        await harness.reconcile()
        said = harness.condition("Stalled")
        assert said["status"] == str(is_stuck), now
    assert (
        "container fetch goes first, and has not let the agent start for over 50 minutes"
        in (said["message"])
    )


def test_the_kubelet_says_whether_the_volumes_are_there() -> None:
    body = pod_object(phase="Pending")
    assert object_views.pod_views([body], JOB)[0].beside.has_volumes is None
    for status, has_volumes in (("False", False), ("True", True)):
        told = {"type": "PodReadyToStartContainers", "status": status}
        body["status"]["conditions"] = [told]
        assert object_views.pod_views([body], JOB)[0].beside.has_volumes is has_volumes


async def test_a_sidecar_that_has_failed_is_told_and_costs_nothing(harness: Harness) -> None:
    failed = ended(5, name="proxy")
    failed["state"]["terminated"]["message"] = "mount lost"
    status = {"phase": "Running", "containerStatuses": [runs("agent"), failed]}
    await after(harness, status)
    said = harness.condition("Stalled")
    assert (said["status"], said["reason"]) == ("False", "ContainerFailed")
    assert "container proxy: Error: it ended with exit code 5: mount lost" in said["message"]
    assert harness.status["failures"]["total"] == 0
    assert "job-p0-s0-i0" in harness.pods()


def test_a_sidecar_that_ends_with_its_pod_is_not_the_cause() -> None:
    body = pod_object(phase="Failed")
    body["status"]["containerStatuses"] = [ended(1), ended(143, name="proxy")]
    assert object_views.pod_views([body], JOB)[0].beside.container == ""
