"""The job's PodDisruptionBudget, with an API in memory."""

from __future__ import annotations

import pytest
from tests.core.controller.builders import JOB

from bamboo_operator import api
from bamboo_operator.api import ApiError
from bamboo_operator.budgets import Budgets

from .harness import failing
from .memory_api import MemoryApi

PATH = api.disruption_budget("ns", "job-agents")


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
    assert body["spec"]["selector"] == {"matchLabels": {"bamboo.dev/job": "job"}}
    assert body["metadata"]["ownerReferences"][0]["uid"] == JOB.uid
    await budgets.keep(JOB, None)
    assert PATH not in kube.objects
    await budgets.keep(JOB, 2)
    budgets.forget([JOB.uid])
    await budgets.keep(JOB, 2)
    assert kube.requests[2:] == [("delete", PATH), ("apply", PATH), ("apply", PATH)]


async def test_an_error_is_logged_and_the_write_is_repeated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kube = MemoryApi()
    kube.fail = failing("apply", "poddisruptionbudgets", ApiError(403, "Forbidden", "no"))
    budgets = Budgets(kube)
    await budgets.keep(JOB, 3)
    assert "the disruption budget is not written" in caplog.text
    kube.fail = lambda verb, path: None
    await budgets.keep(JOB, 3)
    assert kube.objects[PATH]["spec"]["minAvailable"] == 3
