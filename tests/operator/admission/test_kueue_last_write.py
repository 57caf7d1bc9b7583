"""Kueue evicts a job whose last checkpoint cannot be written: it waits, but keeps the quota for no
longer than five minutes.

The reconciler, Kueue's Workload and the arbiter are real; the agents are those of the core's tests.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from tests.core.arbiter.fleet import Fleet, committed
from tests.core.controller.builders import JOB, manifest

from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter_state.events import Event
from bamboo_core.controller.pod_zones import ZONE_LABEL
from bamboo_core.job.leadership import Restarted, Wake
from bamboo_core.validation.reading import from_manifest
from bamboo_operator.admission.kueue import Kueue
from bamboo_operator.arbiters.job_actor import JobActor
from bamboo_operator.kube import api
from bamboo_operator.money.prices import Pool
from bamboo_operator.reconcile.reconciler import Reconciler

from ..harness import PATH, Harness
from ..objects import pod_object
from .test_kueue import VERSION, apply, said, say, serve, workload

FULL = "agent job-p0-s0-i0: writing below /c/uid failed: No space left on device"
SPEC = {
    "pipelines": {"count": 1, "stages": 2},
    "checkpoint": {"uri": "file:///c", "everySteps": 4},
    "training": {
        "steps": 20,
        "globalBatchSize": 8,
        "microBatchSize": 2,
        "optimizer": {"factory": "torch.optim:SGD", "args": {"lr": 0.1}},
    },
}


class LedFleet(Fleet):
    """The agents of a job that the operator under test leads, in the fleet's time."""

    def __init__(self, harness: Harness, actor: JobActor, spec: JobSpec) -> None:
        super().__init__(spec)
        self._harness, self._leadership = harness, actor._leadership
        self.arbiter = self._leadership.arbiter
        actor.tell = self.tell  # type: ignore[method-assign,assignment]

    def tell(self, event: Event) -> None:
        for action in self._leadership.handle(event, self.now, is_leading=True, heard_at=inf):
            assert not isinstance(action, Restarted)
            if not isinstance(action, Wake):
                self.perform(action)

    async def pass_time(self, seconds: float) -> None:
        """Reconciles come every ten seconds, and pods end with their agents."""
        for _ in range(round(seconds / 5)):
            self.wait(5.0)
            self._harness.now += 5.0
            await self.reconcile()

    async def reconcile(self) -> None:
        kube = self._harness.kube
        for name in self._harness.pods():
            if name not in self.agents:
                ended = {"terminated": {"exitCode": 0}}
                body = pod_object(name, phase="Succeeded", state=ended)
                kube.put(api.pod("ns", name), body)
        kube.objects[PATH].setdefault("status", {})["arbiter"] = self.stored
        await self._harness.reconcile()
        self.run()


@pytest.fixture
async def job(harness: Harness) -> LedFleet:
    """A job with checkpoints 4, 8, 12 and 16 of 20 steps, which Kueue has admitted."""
    serve(harness, VERSION)
    kueue = Kueue(harness.kube, clock=lambda: harness.now)
    harness.reconciler = Reconciler(replace(harness.reconciler._ports, kueue=kueue))
    apply(harness, **SPEC)
    await harness.reconcile()
    say(harness, count=2, QuotaReserved=True, Admitted=True)
    await harness.reconcile()
    actor, spec = harness.jobs.find(JOB.uid), from_manifest(manifest(**SPEC))
    assert actor is not None
    assert isinstance(spec, JobSpec)
    fleet = LedFleet(harness, actor, spec)
    for name, zone in zip(harness.pods(), "ab", strict=True):
        harness.add_pod(name, zone=zone)
        fleet.add(name, zone)
    await harness.reconcile()
    return fleet


def training(fleet: LedFleet, step: int) -> None:
    """Train until the step is committed. From then on no file can be written."""
    fleet.until(lambda: committed(fleet, step))
    fleet.full = FULL


async def test_an_evicted_job_keeps_its_quota_for_five_minutes_at_most(
    harness: Harness, job: LedFleet
) -> None:
    training(job, 9)
    say(harness, Evicted=True)
    await job.reconcile()
    await job.pass_time(60.0)
    stalled = harness.condition("Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "LastWriteWaits")
    assert stalled["message"] == (
        "to be suspended (Kueue has evicted it: Kueue says Evicted), but the checkpoint of step 11"
        f" in file:///c is not written (missing: layers 0-3): {FULL}; 2 agents (job-p0-s0-i0,"
        " job-p0-s1-i0) keep the state and try again for 4 minutes, at a cost that is not known,"
        " since the chart's value prices is not set"
    )
    await job.pass_time(235.0)
    assert said(harness, "QuotaReserved")[0] == "True"
    assert len(job.agents) == 2
    await job.pass_time(20.0)
    assert job.agents == {}
    assert said(harness, "QuotaReserved") == ("False", "Pending")
    assert said(harness, "Requeued") == ("True", "Preempted")
    suspended = harness.condition("Suspended")
    assert (suspended["status"], suspended["reason"]) == ("True", "QueuedByKueue")
    assert "could not be written for 300 s" in suspended["message"]
    assert "committed steps since the checkpoint of step 8 will be repeated" in suspended["message"]


async def test_space_that_comes_in_time_saves_all_and_frees_the_quota_at_once(
    harness: Harness, job: LedFleet
) -> None:
    training(job, 9)
    say(harness, Evicted=True)
    await job.reconcile()
    await job.pass_time(200.0)
    steps = harness.status["progress"]["step"]
    job.full = ""
    await job.pass_time(35.0)
    assert said(harness, "QuotaReserved")[0] == "False"
    assert job.sealed[-1].step == steps
    assert harness.condition("Stalled")["status"] == "False"
    assert "will be repeated" not in harness.condition("Suspended")["message"]


async def test_a_finished_job_that_is_evicted_while_it_waits_has_five_more_minutes(
    harness: Harness, job: LedFleet
) -> None:
    training(job, 19)
    await job.pass_time(600.0)
    assert "try again for 51 minutes" in harness.condition("Stalled")["message"]
    assert said(harness, "PodsReady")[0] == "True"  # else Kueue may evict it
    say(harness, Evicted=True)
    await job.reconcile()
    assert "for 5 minutes" in harness.condition("Stalled")["message"]
    await job.pass_time(290.0)
    assert said(harness, "QuotaReserved")[0] == "True"
    await job.pass_time(25.0)
    assert said(harness, "QuotaReserved")[0] == "False"
    assert harness.condition("Failed")["status"] == "False"
    body = workload(harness)
    assert body is not None
    assert "Finished" not in {c["type"] for c in body["status"]["conditions"]}


async def test_the_status_says_what_an_hour_of_the_wait_costs(
    harness: Harness, job: LedFleet
) -> None:
    pools = (Pool({ZONE_LABEL: "a"}, 1.5, 3.0),)
    harness.reconciler = Reconciler(replace(harness.reconciler._ports, prices=pools))
    training(job, 19)
    await job.pass_time(30.0)
    stalled = harness.condition("Stalled")["message"]
    assert stalled.endswith(", at $1.50 an hour without 1 node that no price is known of")
