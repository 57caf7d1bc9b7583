"""Jobs that compete, through whole reconciles: who gets pods, and what the others say."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.core.controller.builders import manifest, spec

from bamboo_core.admission.quota import QUEUE_LABEL
from bamboo_core.api.spec import JobSpec, WorkerSpec
from bamboo_core.controller import turn as turns
from bamboo_core.controller.dry_zones import REFUSED_S
from bamboo_core.controller.pod_zones import ZONE_LABEL
from bamboo_core.controller.reconcile import ASK_ELSEWHERE_S
from bamboo_core.controller.turn import PATIENCE_S
from bamboo_operator.admission import line as line_module
from bamboo_operator.admission.priority_classes import MAX_AGE_S, Priorities
from bamboo_operator.kube import api
from bamboo_operator.kube.api import ApiError, Object
from bamboo_operator.kube.timestamps import instant
from bamboo_operator.reconcile.reconciler import Reconciler

from ..harness import Harness, failing
from ..objects import placed

GPU = {"image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}}
TWO, FOUR = {"count": 1, "stages": 2}, {"count": 2, "stages": 2, "min": 2}


def put(
    harness: Harness, name: str, *, second: int = 0, namespace: str = "ns", **spec: Any
) -> Object:
    """A job that was created at that second."""
    body = manifest(**({"worker": GPU, "pipelines": TWO} | spec))
    created = f"2026-01-01T00:00:{second:02}Z"
    uid = f"uid-{namespace}-{name}"
    body["metadata"] |= {
        "name": name, "namespace": namespace, "uid": uid, "creationTimestamp": created,
    }  # fmt: skip
    return harness.kube.put(api.job(namespace, name), body)


def of_class(name: str) -> Object:
    return GPU | {"podTemplate": {"spec": {"priorityClassName": name}}}


def add_class(harness: Harness, name: str, value: int, **more: Any) -> None:
    body = {"metadata": {"name": name}, "value": value, **more}
    harness.kube.put(f"{api.priority_classes()}/{name}", body)


def pods(harness: Harness, name: str, namespace: str = "ns") -> list[Object]:
    return [
        body
        for path, body in sorted(harness.kube.objects.items())
        if path.startswith(f"{api.pods(namespace)}/{name}-")
    ]


def bind(harness: Harness, pod: Object, node: str) -> None:
    """As the scheduler and the kubelet do."""
    meta = pod["metadata"]
    pod["spec"]["nodeName"], pod["status"] = node, {"phase": "Running"}
    stored = harness.kube.put(api.pod(meta["namespace"], meta["name"]), pod)
    harness.usage.put(stored)


async def look(harness: Harness, name: str, namespace: str = "ns") -> Object:
    """Reconcile; the condition CapacityAvailable afterwards."""
    await harness.reconciler.reconcile(namespace, name)
    drop_gone(harness)
    status = harness.kube.objects[api.job(namespace, name)]["status"]
    found: Object = next(c for c in status["conditions"] if c["type"] == "CapacityAvailable")
    return found


def drop_gone(harness: Harness) -> None:
    """Pods that were deleted leave their nodes."""
    there = {b["metadata"]["uid"] for p, b in harness.kube.objects.items() if "/pods/" in p}
    harness.usage.keep(there | {"stranger"}, "")


async def test_the_older_job_gets_the_room_and_the_other_one_no_pods(harness: Harness) -> None:
    put(harness, "old", second=1)
    put(harness, "mid", second=2)
    put(harness, "new", second=3)
    for name in ("old", "mid", "new"):
        await look(harness, name)
    # Three GPUs: the first has room. Once it has started, the second one asks an autoscaler.
    assert [len(pods(harness, name)) for name in ("old", "mid", "new")] == [2, 0, 0]
    assert (await look(harness, "mid"))["message"].endswith("; job ns/old is first in line")
    for pod in pods(harness, "old"):
        zone = pod["spec"]["nodeSelector"]["topology.kubernetes.io/zone"]
        bind(harness, pod, f"node-{zone}")
    harness.line_woken.clear()
    await look(harness, "old")
    assert ("ns", "mid") in harness.line_woken
    await look(harness, "mid")
    assert [len(pods(harness, name)) for name in ("old", "mid", "new")] == [2, 2, 0]
    found = await look(harness, "new")
    assert (found["status"], found["reason"]) == ("False", "WaitsInLine")
    assert found["message"] == (
        "waits without pods: 0 nvidia.com/gpu are free, the smallest grid (1 x 2) needs 2;"
        " job ns/mid is first in line"
    )
    assert "this job is first in line" in (await look(harness, "mid"))["message"]


async def test_a_job_whose_pods_no_scheduler_looks_at_does_not_hold_up_the_others(
    harness: Harness,
) -> None:
    """It has room, so its turn is to start; but nobody places its pods, and nobody says why."""
    nobody = GPU | {"podTemplate": {"spec": {"schedulerName": "nobody"}}}
    put(harness, "old", second=1, worker=nobody)
    put(harness, "mid", second=2)
    put(harness, "new", second=3)
    for name in ("old", "mid", "new"):
        await look(harness, name)
    made = pods(harness, "old")
    for pod in made:
        pod["metadata"]["creationTimestamp"] = instant(harness.now)
    assert len(made) == 2
    harness.now += ASK_ELSEWHERE_S - 1
    await look(harness, "old")
    assert (await look(harness, "new"))["reason"] == "WaitsInLine"
    harness.now += 1
    await look(harness, "old")
    assert ("ns", "new") in harness.line_woken
    # Now the second job has the room, and the third one will be the first to ask for more.
    assert (await look(harness, "mid"))["reason"] == "WaitingForNodes"
    assert "job ns/mid is first in line" in (await look(harness, "new"))["message"]
    assert (await look(harness, "old"))["reason"] == "WaitsInLine"


async def test_only_jobs_whose_turn_has_changed_are_woken(harness: Harness) -> None:
    """Else each pass would cause the next one."""
    for second, name in enumerate(("old", "mid", "new")):
        put(harness, name, second=second)
    for name in ("old", "mid", "new"):
        await look(harness, name)
    harness.line_woken.clear()
    harness.usage.put(placed("stranger", gpus=0))
    await look(harness, "old")
    assert harness.line_woken == []
    for node in ("node-a", "node-b"):  # now the first one asks, and the second one waits
        harness.usage.put(placed(f"stranger on {node}", node))
    await look(harness, "new")
    assert set(harness.line_woken) == {("ns", "old"), ("ns", "mid")}


async def test_names_of_other_namespaces_are_not_told(harness: Harness) -> None:
    put(harness, "old", second=1, pipelines=FOUR, namespace="secret")
    put(harness, "new", second=2)
    await look(harness, "old", "secret")
    text = (await look(harness, "new"))["message"]
    assert text.endswith("a job of another namespace is first in line")
    assert "secret" not in text


async def test_a_job_of_higher_priority_goes_first_and_pods_are_given_back(
    harness: Harness,
) -> None:
    add_class(harness, "urgent", 1000)
    put(harness, "low", second=1, pipelines=FOUR)
    await look(harness, "low")
    for pod, node in zip(pods(harness, "low"), ("node-a", "node-b"), strict=False):
        bind(harness, pod, node)  # half of its minimum
    assert (await look(harness, "low"))["reason"] == "WaitingForNodes"
    put(harness, "high", second=2, worker=of_class("urgent"))
    await look(harness, "high")
    assert ("ns", "low") in harness.line_woken
    found = await look(harness, "low")
    assert "job ns/high of higher priority is first in line" in found["message"]
    assert pods(harness, "low") == []
    assert len(pods(harness, "high")) == 2


async def test_a_job_that_has_its_minimum_keeps_it(harness: Harness) -> None:
    add_class(harness, "urgent", 1000)
    put(harness, "low", second=1, pipelines={"count": 2, "stages": 2, "min": 1})
    await look(harness, "low")
    both = {p["metadata"]["name"]: p for p in pods(harness, "low")}
    bind(harness, both["low-p0-s0-i0"], "node-a")
    bind(harness, both["low-p0-s1-i0"], "node-b")
    put(harness, "high", second=2, worker=of_class("urgent"), pipelines=FOUR)
    await look(harness, "high")
    found = await look(harness, "low")
    assert [p["metadata"]["name"] for p in pods(harness, "low")] == [
        "low-p0-s0-i0",
        "low-p0-s1-i0",
    ]
    assert "agents beyond the smallest grid wait, since job ns/high" in found["message"]


@pytest.mark.parametrize("new_operator", [False, True])
async def test_a_raised_minimum_makes_no_pods_before_those_of_others(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, new_operator: bool
) -> None:
    """Nor does it once another operator has taken over."""
    on_nodes = lambda view, training: any(pod.node for pod in view.pods)  # noqa: E731
    monkeypatch.setattr(turns, "is_training", on_nodes)
    add_class(harness, "urgent", 1000)
    put(harness, "low", second=1)
    await look(harness, "low")
    for pod, node in zip(pods(harness, "low"), ("node-a", "node-b"), strict=True):
        bind(harness, pod, node)
    await look(harness, "low")
    job = harness.kube.objects[api.job("ns", "low")]
    assert job["status"]["pods"]["assured"] == 2
    job["spec"]["pipelines"] = FOUR
    put(harness, "high", second=2, worker=of_class("urgent"))
    if new_operator:
        line = harness.make_line()
        await line.load(("ns",), harness.jobs.held)
        harness.reconciler = Reconciler(replace(harness.reconciler._ports, line=line))
    await look(harness, "high")
    found = await look(harness, "low")
    assert (len(pods(harness, "high")), len(pods(harness, "low"))) == (2, 2)
    assert found["message"].endswith(
        "agents beyond the 2 that the job has started with wait, since job ns/high of higher"
        " priority is first in line"
    )
    assert job["status"]["pods"]["assured"] == 2


async def test_a_job_that_only_grows_leaves_new_nodes_to_one_that_has_lost_an_agent(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is older, and nobody waits to start. Its pods would be before the other's."""
    on_nodes = lambda view, training: any(pod.node for pod in view.pods)  # noqa: E731
    monkeypatch.setattr(turns, "is_training", on_nodes)
    alone = {"count": 1, "stages": 1}
    put(harness, "grows", second=1, pipelines=alone, redundancy={"mode": "None"})
    put(harness, "hurt", second=2)
    for name, free in (("grows", ("node-c",)), ("hurt", ("node-a", "node-b"))):
        await look(harness, name)
        for pod, node in zip(pods(harness, name), free, strict=True):
            bind(harness, pod, node)
        await look(harness, name)
    harness.kube.objects[api.job("ns", "grows")]["spec"]["pipelines"]["count"] = 30
    await look(harness, "grows")
    assert len(pods(harness, "grows")) == 30
    lost = pods(harness, "hurt")[0]["metadata"]["name"]
    harness.hear(lost, job_uid="uid-ns-hurt")
    del harness.kube.objects[api.pod("ns", lost)]
    drop_gone(harness)
    await look(harness, "hurt")
    found = await look(harness, "grows")
    assert (len(pods(harness, "grows")), len(pods(harness, "hurt"))) == (1, 2)
    assert "wait, since job ns/hurt is first in line" in found["message"]
    back = next(pod for pod in pods(harness, "hurt") if not pod["spec"].get("nodeName"))
    bind(harness, back, "node-a")
    await look(harness, "hurt")
    await look(harness, "grows")
    assert len(pods(harness, "grows")) == 30


async def test_a_job_ends_and_the_next_one_is_woken_and_starts(harness: Harness) -> None:
    put(harness, "first", second=1)
    put(harness, "second", second=2)
    await look(harness, "first")
    for pod, node in zip(pods(harness, "first"), ("node-a", "node-b"), strict=True):
        bind(harness, pod, node)
    put(harness, "third", second=3)
    await look(harness, "second")
    await look(harness, "third")
    assert len(pods(harness, "second")) == 2  # it asks for a node
    assert pods(harness, "third") == []
    del harness.kube.objects[api.job("ns", "first")]
    await harness.reconciler.reconcile("ns", "first")
    drop_gone(harness)
    assert ("ns", "second") in harness.line_woken
    for pod, node in zip(pods(harness, "second"), ("node-a", "node-b"), strict=True):
        bind(harness, pod, node)
    await look(harness, "second")
    await look(harness, "third")
    assert len(pods(harness, "third")) == 2  # now it is the first, and asks
    harness.kube.put(f"{api.nodes()}/node-d", node_like(harness, "node-d"))
    harness.nodes.changed()
    assert (await look(harness, "third"))["reason"] == "WaitingForNodes"


def node_like(harness: Harness, name: str) -> Object:
    body = harness.kube.objects[f"{api.nodes()}/node-a"]
    meta = {k: v for k, v in body["metadata"].items() if k not in ("name", "uid")}
    return body | {"metadata": meta | {"name": name, "uid": f"uid-{name}"}}


async def test_a_new_operator_knows_all_jobs_before_it_decides(harness: Harness) -> None:
    """Two jobs that hold half of their minimum each: the older one gets the rest, whichever is
    reconciled first."""
    harness.usage.put(placed("stranger", "node-c"))
    ports = harness.reconciler._ports
    harness.reconciler = Reconciler(replace(ports, line=None))  # nobody waits for anybody
    for second, name in enumerate(("old", "new")):
        put(harness, name, second=second)
        await look(harness, name)
        bind(harness, pods(harness, name)[0], f"node-{'ab'[second]}")
    line = harness.make_line()
    await line.load(("ns",), harness.jobs.held)
    harness.reconciler = Reconciler(replace(ports, line=line))
    await look(harness, "new")
    assert pods(harness, "new") == []
    await look(harness, "old")
    assert len(pods(harness, "old")) == 2


async def test_jobs_that_cannot_use_their_turn_do_not_hold_up_others(harness: Harness) -> None:
    for second, name in enumerate(("refused", "ended", "broken", "asleep", "queued", "good")):
        put(harness, name, second=second, pipelines=TWO if name == "good" else FOUR)
    queued = harness.kube.objects[api.job("ns", "queued")]["metadata"]
    queued["labels"] = {QUEUE_LABEL: "queue"}  # its reconcile asks Kueue
    harness.kube.objects[api.job("ns", "asleep")]["spec"]["suspend"] = True
    harness.kube.objects[api.job("ns", "broken")]["spec"]["seed"] = 1
    harness.kube.objects[api.job("ns", "ended")]["status"] = {
        "conditions": [{"type": "Failed", "status": "True", "reason": "UserCodeFailed"}]
    }
    harness.kube.objects[api.job("ns", "broken")]["status"] = {"pods": {"incarnation": "no"}}
    await harness.line.load(("ns",), harness.jobs.held)
    assert sorted(harness.line.keys) == [("ns", "good"), ("ns", "refused")]
    harness.kube.fail = failing("create", "/pods", ApiError(403, "Forbidden", "quota"))
    await look(harness, "refused")
    await look(harness, "refused")
    harness.kube.fail = lambda verb, path: None
    await look(harness, "good")
    assert len(pods(harness, "good")) == 2


async def test_a_field_without_effect_keeps_only_a_new_job_out(harness: Harness) -> None:
    """As the reconciles decide: one that has trained, with an earlier version, is led."""
    template = {"spec": {"containers": [{"name": "agent", "image": "other"}]}}
    for second, name in enumerate(("new", "trained")):
        put(harness, name, second=second, worker=GPU | {"podTemplate": template})
    trained = harness.kube.objects[api.job("ns", "trained")]
    trained["status"] = {"phase": "Running", "arbiter": {"batch": [32, 1, 1]}}
    await harness.line.load(("ns",), harness.jobs.held)
    assert sorted(harness.line.keys) == [("ns", "trained")]


async def test_a_job_whose_reconciles_fail_goes_last_until_one_succeeds(harness: Harness) -> None:
    put(harness, "bad", second=1, pipelines=FOUR)
    put(harness, "good", second=2)
    await look(harness, "bad")
    await harness.reconciler.note_fault("ns", "bad", ApiError(500, "Down", "no"))
    await look(harness, "good")
    assert len(pods(harness, "good")) == 2


async def test_jobs_are_known_as_soon_as_they_are_created(harness: Harness) -> None:
    body = put(harness, "old", second=1, pipelines=FOUR)
    harness.line.seen(body)
    harness.line.seen(body)
    assert harness.line.keys == [("ns", "old")]
    harness.line.seen(put(harness, "other") | {"status": {"phase": "Running"}})
    assert harness.line.keys == [("ns", "old")]
    put(harness, "new", second=2)
    assert (await look(harness, "new"))["reason"] == "WaitsInLine"


async def test_jobs_that_cannot_be_listed_come_in_later(harness: Harness) -> None:
    put(harness, "job")
    harness.kube.fail = failing("list", "/bamboojobs", ApiError(503, "Down", "no"))
    await harness.line.load(("ns",), harness.jobs.held)
    assert harness.line.keys == []


async def test_a_long_pass_is_not_made_again_at_once(harness: Harness) -> None:
    """A job that is known gets its last turn; a new one waits for the next pass."""
    put(harness, "old", second=1, pipelines=FOUR)
    put(harness, "new", second=2)
    await look(harness, "old")
    loop = asyncio.get_running_loop()
    harness.line._not_before = loop.time() + 1000
    harness.usage.put(placed("stranger"))
    before = harness.line._versions
    await look(harness, "old")
    assert harness.line._versions == before
    assert harness.line._later is not None  # it comes back by itself
    harness.line._later.cancel()
    harness.line._not_before = loop.time() + 0.01
    assert (await look(harness, "new"))["reason"] == "WaitsInLine"
    assert harness.line._versions != before


async def test_a_known_job_does_not_wait_until_new_ones_have_their_pass(harness: Harness) -> None:
    """All workers would wait with it, and nobody would make pods."""
    put(harness, "old", second=1)
    await look(harness, "old")
    loop = asyncio.get_running_loop()
    harness.line._not_before = loop.time() + 1000
    put(harness, "new", second=2)
    waits = asyncio.create_task(harness.reconciler.reconcile("ns", "new"))
    while not harness.line._lock.locked():  # noqa: ASYNC110 - it ends with the time limit
        await asyncio.sleep(0)
    assert (await asyncio.wait_for(look(harness, "old"), 60))["reason"] == "WaitingForNodes"
    assert not waits.done()
    waits.cancel()
    assert harness.line._later is not None
    harness.line._later.cancel()


async def test_a_job_may_leave_while_a_pass_lists_the_priority_classes(harness: Harness) -> None:
    """The pass belongs to another job's reconcile, which must not fail."""
    put(harness, "old", second=1, pipelines=FOUR)
    put(harness, "new", second=2)
    await look(harness, "old")
    add_class(harness, "urgent", 1000)
    harness.kube.objects[api.job("ns", "new")]["spec"]["worker"] = of_class("urgent")
    listed, left = harness.kube.list, []

    async def slow(path: str, **more: Any) -> list[Object]:
        found = await listed(path, **more)
        if path == api.priority_classes():
            harness.line.leave("ns", "old")
            left.append(path)
        return found

    harness.kube.list = slow  # type: ignore[method-assign]
    await look(harness, "new")
    assert left
    assert len(pods(harness, "new")) == 2


async def test_without_zone_labels_a_job_that_the_scheduler_refuses_holds_no_room(
    harness: Harness,
) -> None:
    """The nodes seem to have room for it, and only the scheduler knows why they have not."""
    for zone in "abc":
        del harness.kube.objects[f"{api.nodes()}/node-{zone}"]["metadata"]["labels"][ZONE_LABEL]
    harness.nodes.changed()
    anywhere = {"adjacency": "Cluster"}
    put(harness, "old", second=1, placement=anywhere)
    put(harness, "new", second=2, placement=anywhere)
    for name in ("old", "new"):
        await look(harness, name)
    assert [len(pods(harness, name)) for name in ("old", "new")] == [2, 0]
    since = instant(harness.now)
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    for pod in pods(harness, "old"):
        pod["metadata"]["creationTimestamp"] = since
        pod["status"] = {"phase": "Pending", "conditions": [why | {"lastTransitionTime": since}]}
    harness.now += REFUSED_S
    for _ in range(2):
        await look(harness, "old")
    await look(harness, "new")
    assert len(pods(harness, "new")) == 2


async def test_a_pass_makes_the_key_of_a_shape_only_of_a_spec_that_has_changed(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[JobSpec] = []
    shape_key = line_module._shape_key

    def counted(found: JobSpec) -> str:
        made.append(found)
        return shape_key(found)

    monkeypatch.setattr(line_module, "_shape_key", counted)
    for second in range(4):
        put(harness, f"job-{second}", second=second)
        await look(harness, f"job-{second}")
    await look(harness, "job-0")
    assert len(made) == 4
    put(harness, "job-0", pipelines=FOUR)
    await look(harness, "job-0")
    assert len(made) == 5


async def test_a_job_that_pods_of_others_keep_out_stands_aside(harness: Harness) -> None:
    """They may stay for ever. What other jobs take comes back some day."""
    harness.usage.put(placed("stranger"))
    put(harness, "big", second=1, pipelines={"count": 1, "stages": 3})
    put(harness, "small", second=2)
    assert "are too few for it even without other jobs" in (await look(harness, "big"))["message"]
    assert (await look(harness, "small"))["reason"] == "WaitsInLine"
    for _ in range(2):
        harness.now += PATIENCE_S
        harness.nodes.changed()
        await look(harness, "big")
    await look(harness, "small")
    assert len(pods(harness, "small")) == 2
    harness.usage.put(placed("stranger", owner="uid-ns-small"))
    harness.nodes.changed()
    await look(harness, "small")
    assert "too few" not in (await look(harness, "big"))["message"]


async def test_priorities_are_those_of_the_classes(harness: Harness) -> None:
    now = 0.0
    known = Priorities(harness.kube, clock=lambda: now)
    plain = spec()
    urgent = spec(worker=WorkerSpec("i", pod_template={"spec": {"priorityClassName": "urgent"}}))
    harness.kube.fail = failing("list", "/priorityclasses", ApiError(403, "Forbidden", "no"))
    await known.refresh()
    assert (known.of(plain), known.of(urgent)) == (0, 0)
    harness.kube.fail = lambda verb, path: None
    add_class(harness, "urgent", 1000)
    add_class(harness, "usual", 7, globalDefault=True)
    await known.refresh()
    assert known.of(urgent) == 0
    await known.refresh([plain])
    assert known.of(urgent) == 0
    await known.refresh([urgent])
    assert known.of(urgent) == 1000
    add_class(harness, "usual", 8, globalDefault=True)
    await known.refresh([urgent])
    assert known.of(plain) == 7
    add_class(harness, "usual", 7, globalDefault=True)
    now = MAX_AGE_S + 1
    await known.refresh()
    assert (known.of(plain), known.of(urgent)) == (7, 1000)


async def test_a_class_that_does_not_exist_is_looked_for_once(harness: Harness) -> None:
    now = 0.0
    known = Priorities(harness.kube, clock=lambda: now)
    none = spec(worker=WorkerSpec("i", pod_template={"spec": {"priorityClassName": "none"}}))
    for _ in range(3):
        await known.refresh([none, spec()])
    assert harness.kube.requests == [("list", api.priority_classes())]
    now = MAX_AGE_S + 1
    for _ in range(3):
        await known.refresh([none])
    assert len(harness.kube.requests) == 2


async def test_a_job_of_a_new_class_is_put_in_its_place_at_once(harness: Harness) -> None:
    put(harness, "old", second=1, pipelines=FOUR)
    await look(harness, "old")
    add_class(harness, "urgent", 1000)
    put(harness, "new", second=2, worker=of_class("urgent"))
    await look(harness, "new")
    assert len(pods(harness, "new")) == 2
    assert "job ns/new of higher priority" in (await look(harness, "old"))["message"]
