"""One reconcile against an API in memory: what is read, written and done, in which order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bamboo_core import durable as codec
from bamboo_core.arbitration import Persist, Record
from bamboo_core.durable import Durable
from bamboo_core.ids import AgentId, Fence
from bamboo_core.reconcile import FAILED_FAREWELL_S
from bamboo_core.spec import WorkerSpec
from bamboo_core.view import JobView
from bamboo_operator import api, facts, jobs, manifests
from bamboo_operator.api import ApiError
from bamboo_operator.metrics import Metrics
from bamboo_operator.nodes import MAX_AGE_S, Nodes
from bamboo_operator.reconciler import PROGRESS_S, REFUSED_PAUSE_S, Ports, Reconciler
from bamboo_operator.trust import AGAIN_S, MAX_OWNERS, Trust
from bamboo_operator.workers import Workers
from bamboo_operator.workqueue import WorkQueue

from .builders import manifest, spec
from .memory_api import MemoryApi
from .objects import node_object

PATH = api.job("ns", "job")
AGENTS = (AgentId("job-p0-s0-i0"), AgentId("job-p0-s1-i0"))


class Desk:
    """A reconciler, its API, its clock."""

    def __init__(self) -> None:
        self.kube = MemoryApi()
        self.now = 1000.0
        self.again: list[float] = []
        self.forced = 0
        self.jobs = jobs.Jobs(term=1, ports=self._job_ports())
        self.nodes = Nodes(self.kube, clock=lambda: self.now)
        self.reconciler = Reconciler(
            Ports(
                kube=self.kube,
                jobs=self.jobs,
                nodes=self.nodes,
                trust=Trust(self.kube, "bundle", "op:1", clock=lambda: self.now),
                on_forced=self._count,
                operator_address="op:1",
                again=lambda job, s: self.again.append(s),
                clock=lambda: self.now,
            )
        )
        for zone in "abc":
            self.kube.put(f"{api.nodes()}/node-{zone}", node_object(f"node-{zone}", zone))

    def _job_ports(self) -> jobs.Ports:
        async def persist(job: JobView, durable: Durable, line: facts.Line) -> None:
            await facts.write(self.kube, job, durable, line)

        async def dismiss(job: JobView, agent: AgentId, reason: str) -> None:
            await self.kube.delete(api.pod(job.namespace, agent))

        def record(job: JobView, entry: Record) -> None:
            del job, entry

        return jobs.Ports(
            persist=persist,
            dismiss=dismiss,
            record=record,
            wake=lambda job: None,
            wake_later=lambda job: None,
            is_leading=lambda: True,
        )

    def _count(self) -> None:
        self.forced += 1

    def apply(self, **spec: Any) -> None:
        body = manifest(**spec)
        body["metadata"] |= {"uid": "uid-1", "creationTimestamp": "2026-01-01T00:00:00Z"}
        self.kube.put(PATH, body)

    async def reconcile(self) -> float | None:
        return await self.reconciler.reconcile("ns", "job")

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.kube.objects[PATH].get("status") or {}
        return found

    def condition(self, kind: str) -> dict[str, Any]:
        return next(c for c in self.status["conditions"] if c["type"] == kind)

    def pods(self) -> list[str]:
        return sorted(p.rsplit("/", 1)[1] for p in self.kube.objects if "/pods/" in p)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def failing(verb: str, part: str, error: ApiError) -> Callable[[str, str], None]:
    def fail(seen: str, path: str) -> None:
        if seen == verb and part in path:
            raise error

    return fail


async def test_a_new_job_status_first_then_trust_then_pods(desk: Desk) -> None:
    desk.apply()
    await desk.reconcile()
    assert desk.pods() == ["job-p0-s0-i0", "job-p0-s1-i0"]
    writes = [path for verb, path in desk.kube.requests if verb in ("apply", "create")]
    trust = api.config_map("ns", manifests.CA_CONFIG_MAP)
    mine = [w for w in writes if w != api.job_status("ns", "job") or w is writes[0]]
    assert mine[:2] == [api.job_status("ns", "job"), trust]
    assert desk.status["pods"]["incarnation"] == 0
    assert desk.kube.objects[trust]["data"] == {"ca.crt": "bundle", "address": "op:1"}
    assert desk.condition("Accepted")["status"] == "True"


async def test_nothing_new_nothing_written(desk: Desk) -> None:
    desk.apply()
    await desk.reconcile()
    await desk.reconcile()
    desk.kube.requests.clear()
    await desk.reconcile()
    assert {verb for verb, _ in desk.kube.requests} <= {"get", "list"}


async def test_a_job_that_is_gone_is_forgotten(desk: Desk) -> None:
    desk.apply()
    await desk.reconcile()
    assert desk.jobs.find("uid-1") is not None
    del desk.kube.objects[PATH]
    assert await desk.reconcile() is None
    assert desk.jobs.find("uid-1") is None
    assert desk.reconciler.figures == {}
    assert desk.pods() == []


async def test_a_job_that_was_never_accepted_is_forgotten_too(desk: Desk) -> None:
    desk.apply(model={"factory": "m:b", "args": {"a b": 1}})
    await desk.reconcile()
    del desk.kube.objects[PATH]
    await desk.reconcile()
    assert (desk.reconciler._known, desk.reconciler._uids) == ({}, {})


async def test_a_job_of_the_same_name_is_another_one(desk: Desk) -> None:
    desk.apply()
    await desk.reconcile()
    body = manifest()
    body["metadata"] |= {"uid": "uid-2"}
    desk.kube.put(PATH, body)
    await desk.reconcile()
    assert desk.jobs.find("uid-1") is None
    assert desk.jobs.find("uid-2") is not None


async def test_a_bad_spec_is_told_and_no_pods_are_made(desk: Desk) -> None:
    desk.apply(model={"factory": "m:b", "args": {"a b": 1}})
    await desk.reconcile()
    accepted = desk.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecInvalid")
    assert "spec.model.args" in accepted["message"]
    assert desk.pods() == []
    desk.kube.requests.clear()
    await desk.reconcile()
    assert [verb for verb, _ in desk.kube.requests] == ["get"]
    desk.apply()
    await desk.reconcile()
    assert desk.condition("Accepted")["status"] == "True"


async def test_a_spec_that_is_nested_too_deeply_is_refused(desk: Desk) -> None:
    nest: object = 1
    for level in range(97):
        nest = [nest] if level % 2 else {"a": nest}
    desk.apply(model={"factory": "m:b", "args": {"a": nest}})
    await desk.reconcile()
    assert desk.condition("Accepted")["status"] == "True"
    desk.apply(model={"factory": "m:b", "args": {"a": [nest]}})
    await desk.reconcile()
    accepted = desk.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecInvalid")
    assert accepted["message"].startswith("spec: is nested 101 levels deep; at most 100")


async def test_args_that_change_are_refused(desk: Desk) -> None:
    desk.apply()
    await desk.reconcile()
    body = desk.kube.objects[PATH]
    body["spec"]["model"]["args"]["layers"] = 5
    await desk.reconcile()
    assert desk.condition("Accepted")["reason"] == "SpecChanged"
    assert desk.condition("Complete")["status"] == "False"


async def test_pods_that_the_api_server_rejects(desk: Desk) -> None:
    desk.apply()
    desk.kube.fail = failing("create", "/pods", ApiError(422, "Invalid", "bad image name"))
    await desk.reconcile()
    assert desk.again == [REFUSED_PAUSE_S]
    await desk.reconcile()
    accepted = desk.condition("Accepted")
    assert accepted["reason"] == "PodRejected"
    assert "bad image name: create the job again with another spec.worker" in accepted["message"]
    assert [v for v, p in desk.kube.requests if v == "create"] == ["create"]
    desk.kube.fail = lambda verb, path: None
    desk.now += REFUSED_PAUSE_S
    await desk.reconcile()
    await desk.reconcile()
    assert len(desk.pods()) == 2
    assert desk.condition("Accepted")["status"] == "True"


async def test_progress_is_written_now_and_then(desk: Desk) -> None:
    desk.apply()
    await desk.reconcile()
    await desk.reconcile()
    desk.status["progress"]["step"] = 3
    desk.now += 1
    assert await desk.reconcile() == PROGRESS_S - 1
    assert desk.status["progress"]["step"] == 3
    desk.now += PROGRESS_S
    await desk.reconcile()
    assert desk.status["progress"]["step"] == 0


async def test_a_pod_on_a_node_that_is_gone_is_forced_away(desk: Desk) -> None:
    desk.apply()
    await desk.reconcile()
    desk.kube.objects[api.pod("ns", "job-p0-s0-i0")]["spec"]["nodeName"] = "node-z"
    await desk.reconcile()
    assert desk.forced == 1
    assert desk.pods() == ["job-p0-s1-i0"]
    await desk.reconcile()
    assert desk.pods() == ["job-p0-s0-i1", "job-p0-s1-i0"]


async def test_an_end_with_exit_code_2_fails_the_job_for_good(desk: Desk) -> None:
    desk.apply()
    await desk.reconcile()
    ended = {"terminated": {"exitCode": 2, "reason": "Error", "message": "no such module"}}
    desk.kube.objects[api.pod("ns", "job-p0-s0-i0")]["status"] = {
        "phase": "Failed",
        "containerStatuses": [{"name": "agent", "state": ended}],
    }
    await desk.reconcile()
    assert desk.status["phase"] == "Failed"
    assert "no such module" in desk.condition("Failed")["message"]
    desk.now += FAILED_FAREWELL_S
    await desk.reconcile()
    assert desk.pods() == ["job-p0-s0-i0"]
    fresh = Desk()
    fresh.kube.objects = desk.kube.objects
    await fresh.reconcile()
    assert fresh.status["phase"] == "Failed"
    assert fresh.pods() == ["job-p0-s0-i0"]
    assert fresh.jobs.find("uid-1") is None


async def test_a_finished_job_is_deleted_after_its_time(desk: Desk) -> None:
    desk.apply(runPolicy={"ttlSecondsAfterFinished": 60})
    desk.kube.objects[PATH]["status"] = {"arbiter": {"outcome": "Complete", "reason": "X"}}
    left_s = await desk.reconcile()
    assert left_s is not None
    desk.now += 61
    await desk.reconcile()
    assert PATH not in desk.kube.objects


async def test_one_jobs_error_is_shown_and_tried_again(desk: Desk) -> None:
    """Unreadable facts are a defect that only this job has."""
    desk.apply()
    await desk.reconcile()
    await desk.jobs.close()
    desk.status["arbiter"] = {"cut": 3}
    queue: WorkQueue[tuple[str, str]] = WorkQueue()
    workers = Workers(queue, desk.reconciler, Metrics(list))
    await workers._one(("ns", "job"))
    stalled = desk.condition("Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "ReconcileError")
    assert queue._schedule.next_at() is not None


async def test_an_error_at_the_first_look_is_shown_too(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AttributeError("'str' object has no attribute 'get'")

    desk.apply()
    workers = Workers(WorkQueue(), desk.reconciler, Metrics(list))
    with monkeypatch.context() as patched:
        patched.setattr("bamboo_core.spec.from_manifest", fail)
        await workers._one(("ns", "job"))
    accepted, stalled = desk.condition("Accepted"), desk.condition("Stalled")
    assert (accepted["status"], accepted["reason"]) == ("Unknown", "ReconcileError")
    assert "AttributeError: 'str' object has no attribute 'get'" in accepted["message"]
    assert stalled["status"] == "True"
    desk.apply(model={"factory": "m:b", "args": {"a b": 1}})
    await workers._one(("ns", "job"))
    assert desk.condition("Accepted")["reason"] == "SpecInvalid"
    desk.apply()
    await workers._one(("ns", "job"))
    assert desk.condition("Accepted")["status"] == "True"
    assert desk.condition("Stalled")["status"] == "False"


async def test_a_refused_job_that_meets_an_error_is_refused_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.apply(model={"factory": "m:b", "args": {"a b": 1}})
    workers = Workers(WorkQueue(), desk.reconciler, Metrics(list))
    await workers._one(("ns", "job"))
    with monkeypatch.context() as patched:
        patched.setattr("bamboo_core.spec.from_manifest", lambda _: 1 / 0)
        await workers._one(("ns", "job"))
    assert desk.condition("Stalled")["reason"] == "ReconcileError"
    await workers._one(("ns", "job"))
    assert [c["type"] for c in desk.status["conditions"]] == ["Accepted", "Running"]
    assert desk.condition("Accepted")["reason"] == "SpecInvalid"


async def test_an_api_server_that_goes_on_failing_is_shown(desk: Desk) -> None:
    desk.apply()
    desk.kube.fail = failing("list", "/pods", ApiError(500, "InternalError", "no etcd"))
    workers = Workers(WorkQueue(), desk.reconciler, Metrics(list))
    for _ in range(2):
        await workers._one(("ns", "job"))
    assert desk.status == {}
    await workers._one(("ns", "job"))
    assert "no etcd" in desk.condition("Stalled")["message"]


async def test_badly_typed_pod_templates_are_refused(desk: Desk) -> None:
    template = {"spec": {"containers": [{"name": "agent", "securityContext": "x"}]}}
    desk.apply(worker={"image": "agent:1", "podTemplate": template})
    await desk.reconcile()
    accepted = desk.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecInvalid")
    assert "podTemplate.spec.containers[0].securityContext: is 'x'" in accepted["message"]


async def test_a_fault_that_cannot_be_noted_stops_nothing(desk: Desk) -> None:
    desk.apply()
    desk.kube.fail = failing("get", "bamboojobs", ApiError(500, "InternalError", "no etcd"))
    await desk.reconciler.note_fault("ns", "job", ValueError("x"))
    assert desk.status == {}


async def test_a_conflict_is_tried_again_at_once(desk: Desk) -> None:
    desk.apply()
    desk.kube.fail = failing("apply", "/status", ApiError(409, "Conflict", "changed"))
    queue: WorkQueue[tuple[str, str]] = WorkQueue()
    await Workers(queue, desk.reconciler, Metrics(list))._one(("ns", "job"))
    assert len(queue) == 1


def deleting(desk: Desk, verb: str) -> Callable[[str, str], None]:
    """Somebody deletes the job just before it is read or its status is written."""

    def fail(seen: str, path: str) -> None:
        if seen == verb and path.startswith(PATH):
            desk.kube.objects.pop(PATH, None)

    return fail


async def test_a_job_deleted_while_its_status_is_written_is_no_error(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.apply()
    desk.kube.fail = deleting(desk, "apply")
    queue: WorkQueue[tuple[str, str]] = WorkQueue()
    workers = Workers(queue, desk.reconciler, Metrics(list))
    await workers._one(("ns", "job"))
    assert len(queue) == 1
    await workers._one(("ns", "job"))
    assert desk.jobs.find("uid-1") is None
    assert not workers._failures
    desk.apply()
    await desk.reconciler.note_fault("ns", "job", ValueError("x"))
    assert PATH not in desk.kube.objects
    assert not [r for r in caplog.records if r.levelno > logging.INFO]


async def test_what_is_missing_again_is_told(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.apply()
    desk.kube.fail = failing("apply", "/status", ApiError(404, "NotFound", "no such thing"))
    workers = Workers(WorkQueue(), desk.reconciler, Metrics(list))
    for _ in range(2):
        await workers._one(("ns", "job"))
    assert [r.message for r in caplog.records if r.levelname == "WARNING"] == ["a reconcile failed"]


async def written(desk: Desk) -> None:
    """Until the actors' writes are done."""
    while tasks := [task for actor in desk.jobs.all() for task in actor._tasks]:
        await asyncio.gather(*tasks)


@pytest.mark.parametrize("term", [4, 5, 9])
async def test_a_late_write_of_the_old_leader_is_led_on_from(desk: Desk, term: int) -> None:
    """It lands between the new leader's read and its first write: a newer plan, other voters.

    Its arbiter may have begun anew in its process, which raises the term.
    """
    desk.apply()
    old = Durable(term=4, plan=Fence(0, 4, 7), members=AGENTS, voters=AGENTS)
    late = replace(old, term=term, plan=Fence(0, term, 8), members=AGENTS[:1], voters=AGENTS[:1])
    desk.kube.objects[PATH]["status"] = {"arbiter": codec.to_json(old)}
    is_late = True

    def hook(verb: str, path: str) -> None:
        nonlocal is_late
        if is_late and verb == "list":  # the first thing after the read
            is_late = False
            desk.status["arbiter"] = codec.to_json(late)

    desk.kube.fail = hook
    await desk.reconcile()
    first = desk.jobs.find("uid-1")
    await written(desk)
    assert facts.read(desk.kube.objects[PATH]) == late
    await desk.reconcile()
    await written(desk)
    second = desk.jobs.find("uid-1")
    assert first is not None
    assert second is not first
    assert facts.read(desk.kube.objects[PATH]) == replace(late, term=term + 1)
    await desk.reconcile()
    assert desk.jobs.find("uid-1") is second
    assert desk.status["planEpoch"] == 8


async def test_facts_that_became_unreadable_are_shown_not_overwritten(desk: Desk) -> None:
    desk.apply()
    await desk.reconcile()
    desk.status["arbiter"] = {"cut": 3}
    await written(desk)
    workers = Workers(WorkQueue(), desk.reconciler, Metrics(list))
    await workers._one(("ns", "job"))
    assert desk.condition("Stalled")["reason"] == "ReconcileError"
    assert desk.status["arbiter"] == {"cut": 3}


@pytest.mark.parametrize("verb", ["get", "apply"])
async def test_the_facts_of_a_deleted_job_are_dropped_silently(
    desk: Desk, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    desk.apply()
    await desk.reconcile()
    actor = desk.jobs.find("uid-1")
    assert actor is not None
    desk.kube.fail = deleting(desk, verb)
    actor._pending = Persist(Durable(term=9), version=99)
    await actor._persist()
    assert desk.kube.requests[-1][0] == verb
    assert not [r for r in caplog.records if r.levelno > logging.INFO]


async def test_nodes_are_listed_once_for_many_jobs(desk: Desk) -> None:
    def lists() -> int:
        return sum(path == api.nodes() for _, path in desk.kube.requests)

    await desk.nodes.list()
    await desk.nodes.list()
    assert lists() == 1
    desk.nodes.changed()
    await desk.nodes.list()
    desk.now += MAX_AGE_S + 1
    await desk.nodes.list()
    assert lists() == 3
    desk.nodes.changed()
    desk.kube.fail = failing("list", "nodes", ApiError(500, "", "oops"))
    with pytest.raises(ApiError):
        await desk.nodes.list()
    desk.kube.fail = lambda verb, path: None
    assert len(await desk.nodes.list()) == 3


async def test_jobs_that_ask_for_the_same_share_the_view_of_nodes(desk: Desk) -> None:
    small, big = (spec(worker=WorkerSpec("i", {"limits": {"cpu": n}})) for n in (1, 4))
    first = await desk.nodes.views(small)
    assert await desk.nodes.views(replace(small, seed=9)) is first
    assert [node.agents for node in first] == [8, 8, 8]
    assert [node.agents for node in await desk.nodes.views(big)] == [2, 2, 2]
    del desk.kube.objects[f"{api.nodes()}/node-a"]
    desk.nodes.changed()
    assert [node.zone for node in await desk.nodes.views(small)] == ["b", "c"]


async def test_trust_that_somebody_deleted_comes_back(desk: Desk) -> None:
    desk.apply()
    await desk.reconcile()
    trust = api.config_map("ns", manifests.CA_CONFIG_MAP)
    del desk.kube.objects[trust]
    desk.now += AGAIN_S + 1
    await desk.reconcile()
    assert trust in desk.kube.objects


async def test_the_jobs_of_a_namespace_own_the_trust_together(desk: Desk) -> None:
    """It must not outlive them, nor go with the first of them."""
    trust = Trust(desk.kube, "bundle", "op:1", clock=lambda: desk.now)
    views = [JobView("ns", f"job-{i}", f"uid-{i}", 1, 0.0) for i in range(MAX_OWNERS + 2)]

    def owners() -> list[str]:
        path = api.config_map("ns", manifests.CA_CONFIG_MAP)
        references = desk.kube.objects[path]["metadata"]["ownerReferences"]
        assert not any(reference.get("controller") for reference in references)
        return [reference["uid"] for reference in references]

    for view in views:
        await trust.publish(view)
    assert owners() == [f"uid-{i}" for i in range(MAX_OWNERS)]
    trust.forget("ns", ["uid-0", "uid-never"])
    await trust.publish(views[-1])
    assert owners() == [f"uid-{i}" for i in [*range(1, MAX_OWNERS), MAX_OWNERS + 1]]
    applied = len(desk.kube.applied)
    await trust.publish(views[-2])
    assert len(desk.kube.applied) == applied, "there is room for no more"
    trust.forget("ns", [view.uid for view in views])
    assert not trust._owners


async def test_a_deleted_job_does_not_own_the_trust_any_more(desk: Desk) -> None:
    desk.apply()
    await desk.reconcile()
    path = api.config_map("ns", manifests.CA_CONFIG_MAP)
    (owner,) = desk.kube.objects[path]["metadata"]["ownerReferences"]
    assert owner == {
        "apiVersion": "bamboo.dev/v1alpha1", "kind": "BambooJob", "name": "job", "uid": "uid-1",
    }  # fmt: skip
    body = manifest()
    body["metadata"] |= {"uid": "uid-2"}
    desk.kube.put(PATH, body)
    await desk.reconcile()
    (owner,) = desk.kube.objects[path]["metadata"]["ownerReferences"]
    assert owner["uid"] == "uid-2"
