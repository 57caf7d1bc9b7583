"""Two releases in a cluster must not serve the same namespaces."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bamboo_operator import releases
from bamboo_operator.api import ApiError
from bamboo_operator.health import Pulse
from bamboo_operator.lease import Elector, Pace
from bamboo_operator.releases import SERVES, Releases, scope

from .harness import failing
from .memory_api import MemoryApi

NAME = "bamboo-operator"
QUICK = Pace(renew_s=0.001)


class Release:
    """One operator process."""

    def __init__(self, kube: MemoryApi, namespace: str, *serves: str) -> None:
        self.now = 0.0
        self.pulse = Pulse()
        self.elector = Elector(
            kube, namespace=namespace, name=NAME, identity=namespace, pace=QUICK,
            annotations={SERVES: scope(serves)}, clock=lambda: self.now,
        )  # fmt: skip
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
    monkeypatch.setattr(releases, "_PAUSE_S", 0.001)


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
