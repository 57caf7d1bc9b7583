"""Budgets and Workloads of jobs that were deleted without them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.core.controller.builders import JOB as SHORT
from tests.core.controller.builders import manifest, spec

from bamboo_operator import config
from bamboo_operator.admission import kueue
from bamboo_operator.admission.kueue import Kueue
from bamboo_operator.app import App
from bamboo_operator.kube import api
from bamboo_operator.kube.api import ApiError, Object
from bamboo_operator.pods.disruption_budgets import Budgets
from bamboo_operator.process.event_loop import LoopHearing
from bamboo_operator.reconcile.leftovers import Leftovers

from ..agent_client import until
from ..harness import PATH, failing
from ..memory_api import MemoryApi

JOB = replace(SHORT, uid="11111111-2222-3333")  # as long as real ones
BUDGET = api.disruption_budget("ns", f"job-agents-{JOB.uid[:8]}")
WORKLOAD = f"{kueue.workloads('v1beta2', 'ns')}/{kueue.workload_name('job', JOB.uid)}"


def body_of(uid: str) -> Object:
    body = manifest()
    body["metadata"]["uid"] = uid
    return body


async def made() -> MemoryApi:
    """With all that the operator makes for a job, beside its pods."""
    kube = MemoryApi()
    kube.put(f"/apis/{kueue.GROUP}", {"versions": [{"version": "v1beta2"}]})
    kube.put(PATH, body_of(JOB.uid))
    await Budgets(kube).keep(JOB, 2)
    body = kueue.workload(JOB, spec(), "queue", priority=0, version="v1beta2")
    await kube.create(kueue.workloads("v1beta2", "ns"), body)
    return kube


def orphaned(kube: MemoryApi) -> None:
    """As the garbage collector leaves it after ``kubectl delete --cascade=orphan``."""
    del kube.objects[PATH]
    for path in (BUDGET, WORKLOAD):
        kube.objects[path]["metadata"]["ownerReferences"] = []


async def resync(kube: MemoryApi, rounds: int = 2) -> None:
    """An operator that has just started looks at all jobs."""
    environment = {"POD_IP": "127.0.0.1", "BAMBOO_NAMESPACES": "ns", "BAMBOO_KUEUE": "true"}
    app = App(replace(config.from_env(environment), resync_s=0.01), kube, LoopHearing())

    count = 0

    def worked() -> None:
        nonlocal count
        count += 1

    app.pulse.worked = worked  # type: ignore[method-assign]
    task = asyncio.create_task(app._resync())
    await until(lambda: count >= rounds)
    task.cancel()


async def test_they_are_deleted() -> None:
    kube = await made()
    orphaned(kube)
    await resync(kube)
    assert not {BUDGET, WORKLOAD} & set(kube.objects)


async def test_those_of_an_earlier_job_of_the_name_are_deleted_and_its_own_stay() -> None:
    kube = await made()
    orphaned(kube)
    later = replace(JOB, uid="99999999-2222-3333")
    kube.put(PATH, body_of(later.uid))
    await Budgets(kube).keep(later, 2)
    own = api.disruption_budget("ns", f"job-agents-{later.uid[:8]}")
    kube.objects[own]["metadata"]["ownerReferences"] = []  # a user's mistake
    await resync(kube)
    assert not {BUDGET, WORKLOAD} & set(kube.objects)
    assert own in kube.objects


async def test_the_objects_of_a_job_and_those_of_others_stay() -> None:
    kube = await made()
    users = api.disruption_budget("ns", "job-agents")
    release = api.disruption_budget("ns", "bamboo-operator")
    labels: dict[str, dict[str, Any]] = {
        users: {"bamboo.dev/job": "job", "app.kubernetes.io/part-of": "bamboo"},
        release: {"app.kubernetes.io/part-of": "bamboo"},
    }
    for path, given in labels.items():
        kube.put(path, {"metadata": {"namespace": "ns", "labels": given}})
    unlabelled = api.disruption_budget("ns", "gone-agents-12345678")
    kube.put(unlabelled, {"metadata": {"namespace": "ns"}})
    before = set(kube.objects)
    await resync(kube)
    assert set(kube.objects) == before


async def test_a_job_that_is_made_meanwhile_keeps_its_own() -> None:
    """Candidates are read before the jobs are."""
    kube = MemoryApi()
    left = Leftovers(kube, ["ns"], budgets=True, kueue=None)
    found = await left.find()
    await Budgets(kube).keep(JOB, 2)
    kube.objects[BUDGET]["metadata"]["ownerReferences"] = []
    await left.remove(found, [])
    assert BUDGET in kube.objects


@pytest.mark.parametrize("verb", ["list", "delete"])
async def test_an_error_is_logged_and_jobs_go_on(
    verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    kube = await made()
    orphaned(kube)
    kube.fail = failing(verb, "poddisruptionbudgets", ApiError(403, "Forbidden", "no"))
    await resync(kube)
    assert "deleted job" in caplog.text
    assert BUDGET in kube.objects
    assert WORKLOAD not in kube.objects


async def test_without_kueue_and_budgets_nothing_is_read() -> None:
    kube = MemoryApi()
    assert await Leftovers(kube, [], budgets=False, kueue=None).find() == []
    assert kube.requests == []
    cluster_without: Object = {"versions": []}
    kube.put(f"/apis/{kueue.GROUP}", cluster_without)
    assert await Leftovers(kube, ["ns"], budgets=False, kueue=Kueue(kube)).find() == []
