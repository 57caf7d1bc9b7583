"""Pods that were made before the user has changed what they are made from."""

from __future__ import annotations

import pytest

from bamboo_core.arbiter_state.durable import Durable, to_json
from bamboo_core.model.ids import AgentId, Fence
from bamboo_operator.kube import api
from bamboo_operator.kube.labels import TEMPLATE_ANNOTATION

from ..harness import PATH, Harness
from ..objects import Object
from .test_failed_starts import KINDS, MANY, live, report, waits

WAITING: Object = {
    "phase": "Pending",
    "containerStatuses": [waits("agent", "ImagePullBackOff", "no such tag")],
}


def images(harness: Harness) -> set[str]:
    pods = [harness.kube.objects[api.pod("ns", name)] for name in harness.pods()]
    return {pod["spec"]["containers"][0]["image"] for pod in pods}


async def waiting(harness: Harness) -> None:
    """A job whose image does not exist."""
    harness.apply(**MANY)
    await harness.reconcile()
    for name in harness.pods():
        report(harness, name, WAITING)
    await harness.reconcile()
    assert harness.condition("Stalled")["reason"] == "ImagePullFailed"
    assert images(harness) == {"agent:1"}


async def test_an_image_is_mended_although_nobody_has_seen_the_suspension(
    harness: Harness,
) -> None:
    """Two updates within a moment: the operator reads the job once, after both."""
    await waiting(harness)
    harness.kube.objects[PATH]["spec"]["worker"] = {"image": "agent:2"}
    for _ in range(2):
        await harness.reconcile()
        harness.now += 1.0
    assert images(harness) == {"agent:2"}
    assert len(harness.pods()) == 2
    assert harness.status["failures"]["total"] == 0
    assert harness.condition("Stalled")["status"] == "False"
    before = harness.pods()
    await harness.reconcile()
    assert harness.pods() == before


async def test_one_update_mends_the_image_of_a_suspended_job(harness: Harness) -> None:
    await waiting(harness)
    harness.kube.objects[PATH]["spec"]["suspend"] = True
    await harness.reconcile()
    assert harness.pods() == []
    harness.kube.objects[PATH]["spec"] |= {"worker": {"image": "agent:2"}, "suspend": False}
    for _ in range(2):
        await harness.reconcile()
    assert images(harness) == {"agent:2"}


async def test_a_mend_during_a_pause_ends_it(harness: Harness) -> None:
    harness.apply(**MANY)
    await live(harness, KINDS["a device plugin that is not there after a reboot"], 100)
    made = set(harness.pods())
    harness.kube.objects[PATH]["spec"]["worker"] = {"image": "agent:2"}
    await harness.reconcile()
    new = set(harness.pods()) - made
    assert len(new) == 2
    assert harness.condition("Stalled")["status"] == "False"


def keep_facts(harness: Harness, durable: Durable) -> None:
    """As an operator left them that has ended."""
    body = harness.kube.objects[PATH]
    status = (body.get("status") or {}) | {"arbiter": to_json(durable)}
    harness.kube.put(PATH, body | {"status": status})


@pytest.mark.parametrize("has_plan", [True, False])
async def test_agents_that_were_heard_make_room_for_those_of_the_new_template(
    harness: Harness, has_plan: bool
) -> None:
    """Before the first plan of a start they hold no state. After it the job comes to rest first."""
    harness.apply(**MANY)
    await harness.reconcile()
    await harness.jobs.close()
    first, second = map(AgentId, harness.pods())
    members = (AgentId("job-p0-s0-i9"),) if has_plan else ()  # it is gone
    keep_facts(harness, Durable(term=3, attempt=1, plan=Fence(0, 3, 4), members=members))
    harness.status["phase"] = "Running"
    await harness.reconcile()
    harness.hear(first)
    harness.edit(worker={"image": "agent:2"})
    seen = []
    for _ in range(4):
        await harness.reconcile()
        await harness.settle()
        seen.append(images(harness))
    assert {"agent:1", "agent:2"} not in seen
    assert seen[-1] == ({"agent:2"} if not has_plan else set())  # a member is still awaited
    assert not {first, second} & {*harness.pods()}
    assert harness.status["failures"]["total"] == 0


async def test_a_member_of_the_durable_facts_stays(harness: Harness) -> None:
    """The operator has ended between the first plan and the status."""
    harness.apply(**MANY)
    await harness.reconcile()
    await harness.jobs.close()
    first, second = map(AgentId, harness.pods())
    keep_facts(harness, Durable(term=3, plan=Fence(0, 3, 4), members=(first,)))
    harness.edit(worker={"image": "agent:2"})
    await harness.reconcile()
    assert first in harness.pods()
    assert second not in harness.pods()


@pytest.mark.parametrize(
    "change",
    [
        {"placement": {"zones": ["a", "b"]}},
        {"redundancy": {"mode": "Replica"}},
        {"recovery": {"policy": "Peers"}},
        {"transport": {"encryption": "Off"}},
        {"corruption": {"mode": "Detect"}},
        {"checkpoint": {"uri": "file:///c"}},
    ],
    ids=str,
)
async def test_agents_are_made_anew_for_all_that_may_change_before_the_plan(
    harness: Harness, change: Object
) -> None:
    """They are set up with it. What may change at any time makes no new agents."""
    harness.apply(**MANY)
    await harness.reconcile()
    before = harness.pods()
    harness.hear(before[0])
    harness.edit(transport={"bandwidthGbps": 3}, runPolicy={"backoffLimit": 2})
    await harness.reconcile()
    assert harness.pods() == before
    harness.edit(**change)
    for _ in range(2):
        await harness.reconcile()
    assert len(harness.pods()) == 2
    assert not {*before} & {*harness.pods()}


@pytest.mark.parametrize("word", [None, ""])
async def test_a_pod_of_an_earlier_version_stays(word: str | None, harness: Harness) -> None:
    """It does not say what it was made from."""
    harness.apply(**MANY)
    await harness.reconcile()
    before = harness.pods()
    for name in before:
        notes = harness.kube.objects[api.pod("ns", name)]["metadata"]["annotations"]
        assert notes.pop(TEMPLATE_ANNOTATION)
        notes |= {} if word is None else {TEMPLATE_ANNOTATION: word}
    harness.kube.objects[PATH]["spec"]["worker"] = {"image": "agent:2"}
    await harness.reconcile()
    assert harness.pods() == before


@pytest.mark.parametrize("change", ["spec", "metadata"])
async def test_a_job_that_changes_while_it_is_reconciled_gets_no_pod(
    change: str, harness: Harness
) -> None:
    """It is suspended or deleted, and the reconcile has read it before."""
    harness.apply()

    def meanwhile(verb: str, path: str) -> None:
        if (verb, path) == ("list", api.pods("ns")):
            body = harness.kube.objects[PATH]
            body["metadata"]["generation"] = 7
            body[change] |= {"suspend": True, "deletionTimestamp": "2026-01-01T00:00:10Z"}

    harness.kube.fail = meanwhile
    await harness.reconcile()
    assert harness.again == [0.0]
    await harness.reconcile()
    assert not [path for verb, path in harness.kube.requests if verb == "create"]
    assert harness.pods() == []
