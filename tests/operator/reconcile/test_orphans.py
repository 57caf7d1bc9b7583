"""Agents whose job was deleted without them, as by ``kubectl delete --cascade=orphan``."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from bamboo_operator.kube import api, pod_watch
from bamboo_operator.kube.labels import JOB_UID_ANNOTATION

from ..harness import PATH, Harness
from ..objects import SEALS, Object, pod_object

NAMES = ["job-p0-s0-i0", "job-p0-s1-i0"]


async def orphaned(harness: Harness) -> None:
    """The job is gone, and the garbage collector has taken its name off its pods."""
    harness.apply()
    await harness.reconcile()
    assert harness.pods() == NAMES
    for name in NAMES:
        harness.kube.objects[api.pod("ns", name)]["metadata"]["ownerReferences"] = []
    del harness.kube.objects[PATH]


async def test_the_agents_of_a_job_that_was_deleted_without_them_are_released(
    harness: Harness,
) -> None:
    await orphaned(harness)
    await harness.reconcile()
    assert harness.pods() == []


async def test_a_new_operator_finds_them(harness: Harness) -> None:
    await orphaned(harness)
    fresh = Harness()
    fresh.kube.objects = harness.kube.objects
    found: list[tuple[str, str]] = []
    follower = pod_watch.agents(
        add=found.append,
        seen=lambda resource: None,
        deleted=lambda pod: None,
        is_ours=SEALS.is_ours,
        is_orphan=SEALS.is_orphan,
    )
    for name in NAMES:
        follower.there(fresh.kube.objects[api.pod("ns", name)])
    assert set(found) == {("ns", "job")}
    await fresh.reconcile()
    assert fresh.pods() == []


async def test_they_are_released_beside_a_new_job_of_the_same_name(harness: Harness) -> None:
    await orphaned(harness)
    harness.apply()
    harness.kube.objects[PATH]["metadata"]["uid"] = "uid-2"
    await harness.reconcile()
    await harness.reconcile()
    pods = [harness.kube.objects[api.pod("ns", name)] for name in harness.pods()]
    assert {pod["metadata"]["ownerReferences"][0]["uid"] for pod in pods} == {"uid-2"}


async def test_a_job_that_is_being_deleted_releases_its_agents(harness: Harness) -> None:
    """While a finalizer, such as `orphan`, keeps the object."""
    harness.apply()
    await harness.reconcile()
    meta = harness.kube.objects[PATH]["metadata"]
    meta |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["orphan"]}
    await harness.reconcile()
    assert harness.pods() == []
    assert harness.jobs.find("uid-1") is None


async def without_uid(harness: Harness) -> None:
    """Pods as an earlier version has made them: only the owner reference has the job's UID."""
    harness.apply()
    await harness.reconcile()
    for name in NAMES:
        del harness.kube.objects[api.pod("ns", name)]["metadata"]["annotations"][JOB_UID_ANNOTATION]


async def test_pods_of_an_earlier_version_are_released_while_their_job_is_being_deleted(
    harness: Harness,
) -> None:
    """Before the garbage collector takes the job's name off them."""
    await without_uid(harness)
    meta = harness.kube.objects[PATH]["metadata"]
    meta |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["orphan"]}
    await harness.reconcile()
    assert harness.pods() == []


async def test_orphans_of_an_earlier_version_are_nobodys(harness: Harness) -> None:
    """The seal proves a UID, and nothing is left that says which. Labels and names are not enough:
    whoever may create pods may write them."""
    await without_uid(harness)
    for name in NAMES:
        harness.kube.objects[api.pod("ns", name)]["metadata"]["ownerReferences"] = []
    del harness.kube.objects[PATH]
    fresh = Harness()
    fresh.kube.objects = harness.kube.objects
    await fresh.reconcile()
    assert fresh.pods() == NAMES


def changed(pod: Object, **meta: Any) -> Object:
    found = copy.deepcopy(pod)
    found["metadata"] |= meta
    return found


async def test_only_pods_that_an_operator_has_made_are_orphans(harness: Harness) -> None:
    await orphaned(harness)
    made = harness.kube.objects[api.pod("ns", NAMES[0])]
    assert SEALS.is_orphan(made)
    notes = made["metadata"]["annotations"]
    controller = {"kind": "Job", "apiVersion": "batch/v1", "name": "j", "uid": "u"}
    others = [
        changed(made, name="mine"),
        changed(made, labels={"bamboo.dev/job": "other"}),
        changed(made, annotations=notes | {JOB_UID_ANNOTATION: "uid-9"}),
        changed(made, annotations={JOB_UID_ANNOTATION: "uid-1"}),
        changed(made, annotations=None),
        changed(made, labels=None),
        changed(made, ownerReferences=[controller | {"controller": True}]),
        pod_object(),
    ]
    assert not any(map(SEALS.is_orphan, others))
    assert SEALS.is_orphan(changed(made, ownerReferences=[controller]))


async def test_a_pod_that_is_deleted_already_is_not_deleted_again(harness: Harness) -> None:
    await orphaned(harness)
    for name in NAMES:
        meta = harness.kube.objects[api.pod("ns", name)]["metadata"]
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    harness.kube.requests.clear()
    await harness.reconcile()
    deleted = [path for verb, path in harness.kube.requests if verb == "delete"]
    assert not any("/pods/" in path for path in deleted)


@pytest.mark.parametrize("uid", [None, 3, ["uid-1"]])
async def test_a_malformed_uid_is_nobodys(uid: Any, harness: Harness) -> None:
    await orphaned(harness)
    made = harness.kube.objects[api.pod("ns", NAMES[0])]
    notes = made["metadata"]["annotations"]
    assert not SEALS.is_orphan(changed(made, annotations=notes | {JOB_UID_ANNOTATION: uid}))
