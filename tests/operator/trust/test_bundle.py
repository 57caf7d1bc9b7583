"""The config map of agents whose jobs were deleted without what they own."""

from __future__ import annotations

import logging

import pytest

from bamboo_core.controller.view import JobView
from bamboo_operator.kube import api
from bamboo_operator.kube.api import ApiError
from bamboo_operator.trust.bundle import CA_CONFIG_MAP, Trust

from ..harness import failing
from ..memory_api import MemoryApi

PATH = api.config_map("ns", CA_CONFIG_MAP)
JOB, OTHER = (JobView("ns", f"job-{i}", f"uid-{i}", 1, 0.0) for i in range(2))


@pytest.fixture
def kube() -> MemoryApi:
    return MemoryApi()


def owned_by(kube: MemoryApi, *uids: str) -> None:
    kube.objects[PATH]["metadata"]["ownerReferences"] = [{"uid": uid} for uid in uids]


@pytest.mark.parametrize("left", [(), (JOB.uid,)])
async def test_it_goes_with_the_last_job(kube: MemoryApi, left: tuple[str, ...]) -> None:
    """Whether or not the garbage collector has taken the owner off it already."""
    trust = Trust(kube, "bundle", "op:1")
    await trust.publish(JOB)
    owned_by(kube, *left)
    await trust.forget("ns", [JOB.uid])
    assert PATH not in kube.objects
    await trust.publish(OTHER)
    assert PATH in kube.objects


async def test_it_stays_for_jobs_that_are_not_looked_at_yet(kube: MemoryApi) -> None:
    trust = Trust(kube, "bundle", "op:1")
    await trust.publish(JOB)
    owned_by(kube, OTHER.uid)
    await trust.forget("ns", [JOB.uid])
    assert PATH in kube.objects


async def test_what_somebody_else_made_stays(kube: MemoryApi) -> None:
    """A leader that has published nothing deletes nothing."""
    await Trust(kube, "bundle", "op:1").publish(JOB)
    owned_by(kube)
    await Trust(kube, "bundle", "op:1").forget("ns", [JOB.uid])
    assert PATH in kube.objects


async def test_a_users_map_of_that_name_stays(kube: MemoryApi) -> None:
    trust = Trust(kube, "bundle", "op:1")
    await trust.publish(JOB)
    kube.objects[PATH]["metadata"] |= {"ownerReferences": [], "labels": {}}
    await trust.forget("ns", [JOB.uid])
    assert PATH in kube.objects


async def test_a_job_that_comes_meanwhile_has_it(kube: MemoryApi) -> None:
    trust = Trust(kube, "bundle", "op:1", clock=lambda: 0.0)
    await trust.publish(JOB)
    delete = kube.delete

    async def meanwhile(path: str, *, uid: str = "", grace_s: int | None = None) -> bool:
        await trust.publish(OTHER)
        return await delete(path, uid=uid, grace_s=grace_s)

    kube.delete = meanwhile  # type: ignore[method-assign]
    await trust.forget("ns", [JOB.uid])
    (owner,) = kube.objects[PATH]["metadata"]["ownerReferences"]
    assert owner["uid"] == OTHER.uid


async def test_a_job_that_comes_meanwhile_and_cannot_have_it_yet_stops_nothing(
    kube: MemoryApi,
) -> None:
    """Its own reconcile tries again; what belongs to the deleted jobs must still go."""
    trust = Trust(kube, "bundle", "op:1", clock=lambda: 0.0)
    await trust.publish(JOB)
    delete = kube.delete

    async def meanwhile(path: str, *, uid: str = "", grace_s: int | None = None) -> bool:
        await trust.publish(OTHER)
        kube.fail = failing("apply", "/configmaps", ApiError(0, "Unreachable", "away"))
        return await delete(path, uid=uid, grace_s=grace_s)

    kube.delete = meanwhile  # type: ignore[method-assign]
    await trust.forget("ns", [JOB.uid])
    assert PATH not in kube.objects
    kube.fail = lambda verb, path: None
    await trust.publish(OTHER)
    assert PATH in kube.objects


async def test_without_the_right_it_stays(
    kube: MemoryApi, caplog: pytest.LogCaptureFixture
) -> None:
    """As under a chart that is older than the operator."""
    trust = Trust(kube, "bundle", "op:1")
    await trust.publish(JOB)
    kube.fail = failing("delete", "/configmaps", ApiError(403, "Forbidden", "may not"))
    with caplog.at_level(logging.WARNING):
        await trust.forget("ns", [JOB.uid])
    assert PATH in kube.objects
    assert "may not" in str([vars(record) for record in caplog.records])
