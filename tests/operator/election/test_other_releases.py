"""Two releases in a cluster must not serve the same namespaces."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bamboo_operator.election import other_releases
from bamboo_operator.election.lease import Elector, Holder, Pace
from bamboo_operator.election.other_releases import ACCOUNT, SERVES, Releases, scope
from bamboo_operator.kube import api
from bamboo_operator.kube.api import ApiError
from bamboo_operator.monitoring.health import Pulse

from ..harness import failing
from ..memory_api import MemoryApi

NAME = "bamboo-operator"
QUICK = Pace(renew_s=0.001)


class Release:
    """One operator process."""

    def __init__(self, kube: MemoryApi, namespace: str, *serves: str) -> None:
        self.now = 0.0
        self.pulse = Pulse()
        self.elector = Elector(
            kube, namespace=namespace, name=NAME, holder=Holder(namespace, ""), pace=QUICK,
            annotations={SERVES: scope(serves), ACCOUNT: "op"}, clock=lambda: self.now,
        )  # fmt: skip
        user = f"system:serviceaccount:{namespace}:op"
        kube.granted |= {(user, where) for where in serves or ("", "team-a")}
        kube.reviewers.add(user)
        self.releases = Releases(
            kube, namespace=namespace, name=NAME, namespaces=serves, clock=lambda: self.now
        )

    async def lead(self) -> int:
        pulse = self.pulse
        return await self.releases.acquire(self.elector, pulse.refuse, pulse.stand_by)

    def begin(self) -> asyncio.Task[int]:
        return asyncio.create_task(self.lead())


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_releases, "_PAUSE_S", 0.001)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ((), (), "serves all namespaces already"),
        (("team-a",), (), "serves namespaces team-a already"),
        ((), ("team-a",), "serves namespaces team-a already"),
        (("team-a", "team-b"), ("team-c", "team-b"), "serves namespaces team-b already"),
    ],
)
async def test_the_later_one_waits_and_says_why(
    first: tuple[str, ...], second: tuple[str, ...], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    kube = MemoryApi()
    one, two = Release(kube, "one", *first), Release(kube, "two", *second)
    assert await one.lead() == 1
    waiting = two.begin()
    await turns()
    assert not waiting.done()
    (reason,) = two.pulse.unready()
    assert words in reason
    assert reason.startswith("the release in namespace one")
    assert "`namespaces`" in reason
    assert [r.message for r in caplog.records].count(reason) == 1
    await one.elector.release()
    assert await asyncio.wait_for(waiting, 10) == 1
    assert two.pulse.unready() == ["not the leader, or not started yet"]


async def test_releases_for_different_namespaces_do_not_meet() -> None:
    kube = MemoryApi()
    assert await Release(kube, "one", "team-a").lead() == 1
    assert await Release(kube, "two", "team-b").lead() == 1


async def test_one_that_has_vanished_is_in_nobodys_way() -> None:
    kube = MemoryApi()
    await Release(kube, "one").lead()
    two = Release(kube, "two")
    waiting = two.begin()
    await turns()
    two.now = 16.0  # its Lease has not changed for longer than it is valid
    assert await asyncio.wait_for(waiting, 10) == 1


@pytest.mark.parametrize(("ours", "leads"), [("one", True), ("two", False)])
async def test_of_two_that_begin_at_once_one_leads(
    ours: str, leads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one takes its Lease between our look and ours; both have the same instant."""
    kube = MemoryApi()
    one, two = Release(kube, "one"), Release(kube, "two")
    here, there = (one, two) if ours == "one" else (two, one)
    take = here.elector.acquire

    async def late(*arguments: Any) -> int:
        if not here.elector._lease:
            await there.elector.acquire()
        term = await take(*arguments)
        here.elector._lease["spec"]["acquireTime"] = there.elector._lease["spec"]["acquireTime"]
        return term

    monkeypatch.setattr(here.elector, "acquire", late)
    task = here.begin()
    await turns()
    assert task.done() == leads
    task.cancel()


def claim(namespace: str, **annotations: str) -> dict[str, Any]:
    """A Lease that anybody may write in a namespace of their own: valid for ever."""
    return {
        "metadata": {"name": NAME, "namespace": namespace, "annotations": annotations},
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": 2**31 - 1, "acquireTime": ""},
    }


@pytest.mark.parametrize(
    "annotations",
    [{}, {SERVES: "*"}, {SERVES: "*", ACCOUNT: "op"}, {SERVES: "team-a,evil", ACCOUNT: "own"}],
    ids=["nothing", "no account", "the name of another account", "an account for one namespace"],
)
async def test_a_lease_of_somebody_who_may_not_serve_jobs_is_in_nobodys_way(
    annotations: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Else every tenant could keep the operator from leading after its next restart."""
    kube = MemoryApi()
    kube.granted = {("system:serviceaccount:evil:own", "evil")}
    kube.put(api.lease("evil", NAME), claim("evil", **annotations))
    assert await asyncio.wait_for(Release(kube, "one", "team-a").lead(), 10) == 1
    assert "the Lease in namespace evil is not a release's" in caplog.text


@pytest.mark.parametrize("serves", [(), ("evil",)])
async def test_who_may_all_in_his_own_namespace_is_in_nobodys_way(serves: tuple[str, ...]) -> None:
    """A tenant can bind his account to cluster-admin there, and no tenant has rights without a
    namespace."""
    kube = MemoryApi()
    kube.granted = {("system:serviceaccount:evil:own", "evil")}
    kube.put(api.lease("evil", NAME), claim("evil", **{SERVES: "evil", ACCOUNT: "own"}))
    assert await asyncio.wait_for(Release(kube, "one", *serves).lead(), 10) == 1
    asked = [review["resourceAttributes"] for review in kube.asked]
    assert asked
    assert all("namespace" not in what for what in asked if what["resource"] == "tokenreviews")


async def test_who_serves_is_asked_for_the_namespaces_that_both_would_serve() -> None:
    kube = MemoryApi()
    await Release(kube, "one", *(f"n{n:02}" for n in range(20))).lead()
    two = Release(kube, "two", *(f"n{n:02}" for n in range(20)))
    kube.granted = {("system:serviceaccount:one:op", "n19")}  # of more than are asked for
    assert await asyncio.wait_for(two.lead(), 10) == 1
    reviews = [x for x in kube.asked if x["resourceAttributes"]["resource"] == "bamboojobs"]
    asked = [spec["resourceAttributes"]["namespace"] for spec in reviews]
    assert asked[:8] == [f"n{n:02}" for n in range(8)]
    assert set(asked) == set(asked[:8])
    first = reviews[0]
    assert first["user"] == "system:serviceaccount:one:op"
    assert first["groups"] == [
        "system:serviceaccounts", "system:serviceaccounts:one", "system:authenticated",
    ]  # fmt: skip
    wanted = {"verb": "patch", "group": "bamboo.dev", "resource": "bamboojobs"}
    assert first["resourceAttributes"].items() >= (wanted | {"subresource": "status"}).items()


async def test_without_the_answer_nobody_leads_beside_another() -> None:
    kube = MemoryApi()
    await Release(kube, "one").lead()
    kube.fail = failing("create", "subjectaccess", ApiError(403, "Forbidden", "no rights"))
    two = Release(kube, "two")
    waiting = two.begin()
    await turns()
    assert "cannot find out whether namespace one has a release: 403" in two.pulse.unready()[0]
    waiting.cancel()


async def test_without_the_list_nobody_leads() -> None:
    kube = MemoryApi()
    kube.fail = failing("list", "leases", ApiError(403, "Forbidden", "no rights"))
    one = Release(kube, "one")
    waiting = one.begin()
    await turns()
    assert "cannot list the Leases of other releases: 403" in one.pulse.unready()[0]
    kube.fail = lambda verb, path: None
    assert await asyncio.wait_for(waiting, 10) == 1


async def test_the_second_process_of_a_release_stands_by_and_is_ready() -> None:
    kube = MemoryApi()
    one, two = Release(kube, "one"), Release(kube, "one")
    await one.lead()
    waiting = two.begin()
    await turns()
    assert two.pulse.unready() == []
    await one.elector.release()
    assert await asyncio.wait_for(waiting, 10) == 2
