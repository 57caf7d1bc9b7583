"""The job's PodDisruptionBudget, with an API in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.controller.builders import JOB

from bamboo_operator.kube import api
from bamboo_operator.kube.api import ApiError, Object
from bamboo_operator.pods.disruption_budgets import AGAIN_S, RETRY_S, Budgets

from ..harness import AGENTS, Harness, failing
from ..harness import PATH as JOB_PATH
from ..memory_api import MemoryApi
from ..objects import pod_object

PATH = api.disruption_budget("ns", f"job-agents-{JOB.uid}")


async def test_it_is_written_when_it_changes_and_ends_with_the_training() -> None:
    kube = MemoryApi()
    budgets = Budgets(kube)
    await budgets.keep(JOB, None)
    assert kube.requests == []
    for least in (3, 3, 2):
        await budgets.keep(JOB, least)
    assert kube.requests == [("apply", PATH)] * 2
    body = kube.objects[PATH]
    assert body["spec"]["minAvailable"] == 2
    own = {"bamboo.dev/job": "job", "bamboo.dev/job-uid": JOB.uid}
    assert body["spec"]["selector"] == {"matchLabels": own}
    assert body["metadata"]["ownerReferences"][0]["uid"] == JOB.uid
    await budgets.keep(JOB, None)
    assert PATH not in kube.objects
    await budgets.keep(JOB, 2)
    budgets.forget([JOB.uid])
    await budgets.keep(JOB, 2)
    assert kube.requests[2:] == [("delete", PATH), ("apply", PATH), ("apply", PATH)]


async def test_the_budgets_of_users_stay() -> None:
    kube = MemoryApi()
    users = {name: api.disruption_budget("ns", name) for name in ("job", "job-agents")}
    for name, path in users.items():
        kube.put(path, {"metadata": {"name": name}, "spec": {"minAvailable": 7}})
    budgets = Budgets(kube)
    await budgets.keep(JOB, 2)
    await budgets.keep(JOB, None, may_be_left=True)
    assert [kube.objects[path]["spec"]["minAvailable"] for path in users.values()] == [7, 7]


@pytest.mark.parametrize("epoch", [0, 3])
@pytest.mark.parametrize("pods", [(), AGENTS])
async def test_one_that_an_earlier_operator_has_left_is_deleted_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, epoch: int, pods: tuple[str, ...]
) -> None:
    """It has ended, and then the agents or so many of them that the rest wait. A job that never
    had a plan has none."""
    reconciler, kube = harness.reconciler, harness.kube
    reconciler._ports = replace(reconciler._ports, budgets=Budgets(kube))
    actor = harness.lead()
    training = replace(actor.view(), planned=False, epoch=epoch)
    monkeypatch.setattr(actor, "view", lambda: training)
    for name in pods:
        kube.put(api.pod("ns", name), pod_object(name))
    for _ in range(2):
        await harness.reconcile()
    assert kube.requests.count(("delete", PATH)) == (1 if epoch else 0)


async def test_what_others_do_to_it_is_undone_after_a_while() -> None:
    kube, now = MemoryApi(), [0.0]
    budgets = Budgets(kube, clock=lambda: now[0])
    await budgets.keep(JOB, 2)
    del kube.objects[PATH]
    now[0] = AGAIN_S - 1.0
    await budgets.keep(JOB, 2)
    assert PATH not in kube.objects
    now[0] = AGAIN_S
    await budgets.keep(JOB, 2)
    kube.put(PATH, kube.objects[PATH] | {"spec": {"minAvailable": 0}})
    now[0] = 2 * AGAIN_S
    await budgets.keep(JOB, 2)
    assert kube.objects[PATH]["spec"]["minAvailable"] == 2
    assert kube.requests == [("apply", PATH)] * 3


async def test_an_error_is_logged_and_the_write_is_repeated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kube = MemoryApi()
    kube.fail = failing("apply", "poddisruptionbudgets", ApiError(403, "Forbidden", "no"))
    budgets = Budgets(kube)
    assert await budgets.keep(JOB, 3) == RETRY_S
    assert "the disruption budget is not written" in caplog.text
    kube.fail = lambda verb, path: None
    assert await budgets.keep(JOB, 3) is None
    assert kube.objects[PATH]["spec"]["minAvailable"] == 3


async def test_a_reconcile_after_an_error_comes_soon(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    reconciler, kube = harness.reconciler, harness.kube
    reconciler._ports = replace(reconciler._ports, budgets=Budgets(kube))
    actor = harness.lead(suspend=True)
    training = replace(actor.view(), planned=False, epoch=3)
    monkeypatch.setattr(actor, "view", lambda: training)
    kube.fail = failing("delete", "poddisruptionbudgets", ApiError(500, "", "no"))
    assert await harness.reconcile() == RETRY_S
    kube.fail = lambda verb, path: None
    assert await harness.reconcile() is None


async def test_a_reconcile_keeps_the_budget_of_a_job_that_trains(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    reconciler = harness.reconciler
    reconciler._ports = replace(reconciler._ports, budgets=Budgets(harness.kube))
    harness.apply()
    await harness.reconcile()
    assert PATH not in harness.kube.objects
    for name in AGENTS:
        harness.kube.put(api.pod("ns", name), pod_object(name))
    actor = harness.jobs.find(JOB.uid)
    assert actor is not None
    training = replace(actor.view(), planned=True, members=frozenset(AGENTS))
    monkeypatch.setattr(actor, "view", lambda: training)
    await harness.reconcile()
    assert harness.kube.objects[PATH]["spec"]["minAvailable"] == 1
    del harness.kube.objects[api.pod("ns", AGENTS[0])]
    await harness.reconcile()
    assert harness.kube.objects[PATH]["spec"]["minAvailable"] == 1
    training = replace(training, planned=False, epoch=1)
    await harness.reconcile()
    assert PATH not in harness.kube.objects
    del harness.kube.objects[JOB_PATH]
    await harness.reconcile()
    assert reconciler._ports.budgets is not None
    assert reconciler._ports.budgets._written == {}


async def test_it_selects_by_name_while_pods_of_an_earlier_version_run() -> None:
    """They have no label with the job's UID, and would be without a budget."""
    kube = MemoryApi()
    budgets = Budgets(kube)
    name, uid = {"bamboo.dev/job": "job"}, {"bamboo.dev/job-uid": JOB.uid}

    def pod(phase: str, labels: dict[str, str]) -> Object:
        return {"metadata": {"labels": labels}, "status": {"phase": phase}}

    for old, selected in (("Running", name), ("Pending", name), ("Failed", name | uid)):
        await budgets.keep(JOB, 2, pods=[pod("Running", name | uid), pod(old, name)])
        assert kube.objects[PATH]["spec"]["selector"] == {"matchLabels": selected}
