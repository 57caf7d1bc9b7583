"""Agents' pods whose seal, or whose label of the job, somebody has changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from bamboo_core.api.events import EventReason
from bamboo_operator.kube import api
from bamboo_operator.kube.labels import JOB_LABEL, JOB_UID_LABEL
from bamboo_operator.reconcile.job_pods import REFUSED_PAUSE_S
from bamboo_operator.trust.seals import ANNOTATION

from ..harness import PATH, Harness
from ..objects import Object
from .test_failed_starts import MANY

FIRST, SECOND = "job-p0-s0-i0", "job-p0-s1-i0"


def seal(meta: Object) -> None:
    meta["annotations"][ANNOTATION] = "bad"


def no_annotations(meta: Object) -> None:
    meta["annotations"] = None


def label(meta: Object) -> None:
    meta["labels"][JOB_LABEL] = "other"


def no_label(meta: Object) -> None:
    del meta["labels"][JOB_LABEL]


def both_labels(meta: Object) -> None:
    meta["labels"] = {}


CHANGES = [seal, no_annotations, label, no_label, both_labels]


def pod(harness: Harness, name: str = FIRST) -> Any:
    return harness.kube.objects[api.pod("ns", name)]


async def made(harness: Harness, *, on_nodes: bool = True) -> None:
    harness.apply(**MANY)
    await harness.reconcile()
    assert harness.pods() == [FIRST, SECOND]
    if on_nodes:
        place(harness)
    await harness.reconcile()


def place(harness: Harness) -> None:
    """The pods get nodes and run."""
    for name in harness.pods():
        pod(harness, name)["spec"]["nodeName"] = "node-a"
        pod(harness, name)["status"] = {"phase": "Running"}
        harness.usage.put(pod(harness, name))


def change(harness: Harness, how: Callable[[Object], None], name: str = FIRST) -> None:
    """As another client does, and the watch of the nodes' pods sees it."""
    how(pod(harness, name)["metadata"])
    harness.usage.put(pod(harness, name))


def told(harness: Harness) -> list[str]:
    return [r.message for r in harness.records if r.reason is EventReason.POD_CHANGED]


@pytest.mark.parametrize("how", CHANGES)
async def test_a_changed_pod_is_deleted_and_replaced(
    harness: Harness, how: Callable[[Object], None]
) -> None:
    """It holds a node, and no agent of it can be heard."""
    await made(harness)
    change(harness, how)
    await harness.reconcile()
    assert harness.pods() == [SECOND]
    (text,) = told(harness)
    what = JOB_LABEL if "label" in how.__name__ else ANNOTATION
    assert text.startswith(f"pod {FIRST}: its ")
    assert f" {what} is not as the operator has made it" in text
    harness.now += REFUSED_PAUSE_S
    await harness.reconcile()
    assert len(harness.pods()) == 2
    assert SECOND in harness.pods()
    assert told(harness) == [text]


@pytest.mark.parametrize("how", [seal, label, no_label])
async def test_a_pod_that_waits_for_a_node_is_found_too(
    harness: Harness, how: Callable[[Object], None]
) -> None:
    await made(harness, on_nodes=False)
    how(pod(harness)["metadata"])
    await harness.reconcile()
    assert harness.pods() == [SECOND]
    assert len(told(harness)) == 1


@pytest.mark.parametrize("how", CHANGES)
async def test_nobody_is_said_to_have_deleted_it(
    harness: Harness, how: Callable[[Object], None]
) -> None:
    await made(harness)
    for _ in range(60):
        for name in harness.pods():
            change(harness, how, name)
        await harness.reconcile()
        place(harness)
        harness.now += 1.0
    text = str(harness.status) + "".join(r.message for r in harness.records)
    assert "deleted its pod" not in text
    assert harness.status["failures"]["total"] == 0
    assert told(harness)


async def test_a_forged_pod_delays_no_others(harness: Harness) -> None:
    """It says that the job controls it. The operator deletes it, and goes on."""
    await made(harness)
    forged = copy.deepcopy(pod(harness))
    forged["metadata"] |= {"name": "job-p0-s0-i7", "uid": "forged"}
    harness.kube.put(api.pod("ns", "job-p0-s0-i7"), forged)
    await harness.reconcile()
    assert harness.pods() == [FIRST, SECOND]
    assert harness.again == []  # else new pods would wait
    assert len(told(harness)) == 1


async def test_who_changes_pods_without_end_gets_a_pair_each_pause(harness: Harness) -> None:
    await made(harness)
    seen: set[str] = set()
    for _ in range(60):
        seen.update(harness.pods())
        for name in harness.pods():
            change(harness, seal, name)
        await harness.reconcile()
        assert len(harness.pods()) <= 2
        place(harness)
        harness.now += 1.0
    assert 2 < len(seen) <= 2 * (2 + 60 / REFUSED_PAUSE_S)


@pytest.mark.parametrize("how", CHANGES)
async def test_a_pod_is_deleted_only_once(harness: Harness, how: Callable[[Object], None]) -> None:
    """It is still there for its grace period."""
    await made(harness)
    change(harness, how)
    pod(harness)["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    harness.kube.requests.clear()
    await harness.reconcile()
    assert not any(verb == "delete" for verb, _ in harness.kube.requests)
    assert told(harness) == []


async def test_pods_of_other_jobs_stay(harness: Harness) -> None:
    """Pods of an earlier job of the name, and of no job."""
    await made(harness)
    for name, uid in ((FIRST, "uid-9"), (SECOND, "")):
        seal(pod(harness, name)["metadata"])
        references = pod(harness, name)["metadata"]["ownerReferences"]
        references[0]["uid"] = uid
        if not uid:
            references.clear()
        harness.usage.put(pod(harness, name))
    harness.kube.requests.clear()
    await harness.reconcile()
    deleted = {path for verb, path in harness.kube.requests if verb == "delete"}
    assert deleted == set()
    assert told(harness) == []


async def test_a_job_whose_pods_are_as_they_were_made_needs_one_list(harness: Harness) -> None:
    await made(harness)
    harness.kube.requests.clear()
    await harness.reconcile()
    asked = [path for verb, path in harness.kube.requests if path.startswith(api.pods("ns"))]
    assert asked == [api.pods("ns")]
    assert pod(harness)["metadata"]["labels"][JOB_UID_LABEL]
    assert PATH in harness.kube.objects


async def test_a_stray_that_is_gone_or_mended_meanwhile_is_nobodys_loss(harness: Harness) -> None:
    """The watch is behind the API."""
    await made(harness)
    for name in (FIRST, SECOND):
        change(harness, both_labels, name)
    pod(harness, FIRST)["metadata"]["ownerReferences"] = []
    del harness.kube.objects[api.pod("ns", SECOND)]
    await harness.reconcile()
    assert told(harness) == []
    assert FIRST in harness.pods()
