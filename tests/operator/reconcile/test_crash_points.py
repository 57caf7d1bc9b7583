"""The operator may end between any two calls of the API, and any call may fail: it converges.

Each story is played undisturbed first. Then it is played again for each of its calls and each way
in which a call can go wrong, and must end with the same objects, up to UIDs, times and the numbers
in pods' names. A commit plays a part of these runs in turn; ``--all`` plays all of them.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.rotation import in_turn

from bamboo_core.controller.view import Memory
from bamboo_operator.arbiters import job_actor
from bamboo_operator.kube import api, client
from bamboo_operator.kube.api import ApiError
from bamboo_operator.status import statuses
from bamboo_operator.trust import seals, tls

from ..crash_api import Crash, Fault, FaultyApi, How
from ..crash_world import PATH, World
from ..objects import pod_object

Story = Callable[[World], Awaitable[None]]
GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
WORKER = {"image": "agent:1", **GPU}
TWO = {"count": 1, "stages": 2}
SHARE = 32
READS = ("get", "list")


async def start(world: World) -> None:
    world.apply(pipelines={"count": 2, "stages": 2}, worker=WORKER)
    await world.settle()


async def loss_of_a_pod(world: World) -> None:
    await start(world)
    path = api.pod("ns", next(p for p in world.pods() if "-p0-s1-" in p).rpartition("/")[2])
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": "TaskFailed: x"}}
    body = world.kube.objects[path]
    body["status"] = {
        "phase": "Failed", "containerStatuses": [{"name": "agent", "state": ended}],
    }  # fmt: skip
    world.kube.put(path, body)
    await world.settle()


async def loss_of_a_node(world: World) -> None:
    await start(world)
    before = set(world.pods())
    world.remove_node("node-a")
    await world.settle()
    assert len(world.running()) == len(before) == 4
    assert set(world.pods()) != before


async def growth_and_shrinking(world: World) -> None:
    world.apply(pipelines={"count": 1, "stages": 2, "max": 3}, worker=WORKER)
    await world.settle()
    for count in (3, 1):
        world.apply(pipelines={"count": count, "stages": 2, "max": 3}, worker=WORKER)
        await world.settle()


async def suspension(world: World) -> None:
    await start(world)
    for is_suspended in (True, False):
        world.apply(pipelines={"count": 2, "stages": 2}, worker=WORKER, suspend=is_suspended)
        await world.settle()


async def completion(world: World) -> None:
    policy = {"ttlSecondsAfterFinished": 60}
    world.apply(pipelines={"count": 1, "stages": 2}, worker=WORKER, runPolicy=policy)
    await world.settle()
    world.finish()
    await world.settle()
    assert PATH not in world.kube.objects


async def deletion(world: World) -> None:
    await start(world)
    await deletion_of(world)


async def deletion_of(world: World) -> None:
    world.delete_job()
    await world.settle()
    assert not world.pods()


async def shortage(world: World) -> None:
    """Zone a seems to have room, but the scheduler puts nothing there."""
    world.room["node-a"] = 0
    await start(world)
    assert len(world.running()) == 4


async def on_demand(world: World) -> None:
    """There is a spot node for one agent only; one more may use an on-demand node."""
    for zone in "abc":
        world.remove_node(f"node-{zone}")
    world.add_node("spot", "a", room=1, **{"bamboo.dev/spot": "true", "pool": "spot"})
    world.add_node("other", "b", room=4, pool="plain")
    placement = {
        "pools": [{"zones": ["a", "b"], "nodeSelector": {"pool": "spot"}}],
        "onDemand": {"afterSeconds": 60, "maxShare": 0.5, "nodeSelector": {"pool": "plain"}},
    }
    world.apply(pipelines={"count": 1, "stages": 2}, worker=WORKER, placement=placement)
    await world.settle()
    assert len(world.running()) == 2


async def refusal(world: World) -> None:
    world.apply(pipelines={"count": 1, "stages": 2}, worker=WORKER, seed="x")
    await world.settle()
    assert not world.pods()
    world.apply(pipelines={"count": 1, "stages": 2}, worker=WORKER)
    await world.settle()


async def ending(world: World) -> None:
    world.apply(pipelines=TWO, worker=WORKER)
    await world.settle()
    world.finish()
    await world.settle()
    assert PATH in world.kube.objects


async def more_steps(world: World) -> None:
    """The job is complete, and gets more steps."""
    await ending(world)
    world.raise_steps(25, pipelines=TWO, worker=WORKER)
    await world.settle()
    assert world.kube.objects[PATH]["status"]["progress"]["steps"] == 25
    assert len(world.running()) == 2


async def rest(world: World) -> None:
    for is_suspended in (False, True):
        world.apply(pipelines=TWO, worker=WORKER, suspend=is_suspended)
        await world.settle()
    assert not world.running()


async def ending_alone(world: World) -> None:
    world.leave_alone = True
    await ending(world)


async def rest_alone(world: World) -> None:
    world.leave_alone = True
    await rest(world)


# ---------------------------------------------------------------- in a queue of Kueue


async def queued(world: World) -> None:
    world.kueue.install()
    world.apply(queue="team", pipelines={"count": 2, "stages": 2}, worker=WORKER)
    await world.settle()


async def queued_start(world: World) -> None:
    await queued(world)
    assert len(world.running()) == 4


async def queued_preemption(world: World) -> None:
    await queued(world)
    world.kueue.is_full = world.kueue.preempts = True
    await world.settle()
    assert not world.running()
    world.kueue.is_full = False
    await world.settle()
    assert len(world.running()) == 4


async def queued_end(world: World) -> None:
    await queued(world)
    world.finish()
    await world.settle()


async def queued_more_steps(world: World) -> None:
    await queued_end(world)
    assert world.kueue.ended() == [True]
    world.raise_steps(25, queue="team", pipelines={"count": 2, "stages": 2}, worker=WORKER)
    await world.settle()
    assert len(world.running()) == 4
    assert world.kueue.ended() == [False]


async def queued_deletion(world: World) -> None:
    await queued(world)
    await deletion_of(world)


async def queued_suspension(world: World) -> None:
    await queued(world)
    for is_suspended in (True, False):
        grid = {"count": 2, "stages": 2}
        world.apply(queue="team", pipelines=grid, worker=WORKER, suspend=is_suspended)
        await world.settle()


async def queued_change(world: World) -> None:
    """The job's size changes before Kueue admits it."""
    world.kueue.is_full = True
    await queued(world)
    world.apply(queue="team", pipelines={"count": 3, "stages": 2, "max": 3}, worker=WORKER)
    await world.settle()
    assert not world.pods()
    world.kueue.is_full = False
    await world.settle()
    assert len(world.running()) == 6


STORIES: dict[str, Story] = {
    story.__name__: story
    for story in (
        start, loss_of_a_pod, loss_of_a_node, growth_and_shrinking, suspension, completion,
        deletion, shortage, on_demand, refusal, ending, ending_alone, rest, rest_alone,
        queued_start, queued_preemption, queued_end, queued_deletion, queued_suspension,
        queued_change, more_steps, queued_more_steps,
    )
}  # fmt: skip


async def play(story: Story, fault: Fault | None = None) -> World:
    """The world after the story."""
    world = World(fault)
    await story(world)
    await world.operator.close()
    for path, body in world.foreign.items():
        if world.kube.objects.get(path) != body:
            world.wrong.append(f"{path} has changed")
    return world


@functools.cache
def undisturbed(name: str) -> tuple[tuple[tuple[str, str], ...], dict[str, Any]]:
    """The calls, and the picture at the end."""
    world = asyncio.run(play(STORIES[name]))
    assert world.wrong == []
    return tuple(world.kube.calls), world.picture()


def faults(name: str) -> list[Fault]:
    """All that can go wrong in a story."""
    calls, _ = undisturbed(name)
    return [
        Fault(number, how)
        for number, (verb, _) in enumerate(calls)
        for how in How
        if verb not in READS or how not in (How.CONFLICT, How.CRASH_AFTER)
    ]


def _unequal(path: str, found: Any, wanted: Any) -> list[str]:
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = sorted(found.keys() | wanted.keys())
        return [x for k in keys for x in _unequal(f"{path} {k}", found.get(k), wanted.get(k))]
    return [] if found == wanted else [f"{path}: {found} instead of {wanted}"]


def differences(name: str, fault: Fault) -> list[str]:
    """Between the undisturbed story and the one with the fault, and what is wrong by itself."""
    calls, wanted = undisturbed(name)
    world = asyncio.run(play(STORIES[name], fault))
    found = world.picture()
    assert world.kube.injected == 1, f"{name} has no call {fault.call}"
    where = f"{name}, call {fault.call} {' '.join(calls[fault.call])}, {fault.how.value}"
    changed = _unequal("", found, wanted)
    return [f"{where}: {text}" for text in (*world.wrong, *changed)]


# ---------------------------------------------------------------- the tests


@functools.cache
def cases() -> list[tuple[str, Fault]]:
    """Every fault of every story."""
    return [(name, fault) for name in STORIES for fault in faults(name)]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The world's clock stands still while an actor waits to write its facts again."""
    monkeypatch.setattr(job_actor, "_RETRY_S", 0.0)


@pytest.mark.parametrize("part", in_turn(SHARE, range(SHARE)))
def test_every_disturbed_story_ends_as_the_undisturbed_one(part: int) -> None:
    mine = cases()[part::SHARE]
    found = [text for name, fault in mine for text in differences(name, fault)]
    assert not found, "\n".join(found[:20])
    assert len(mine) >= len(cases()) // SHARE > 0


def test_the_stories_contain_every_kind_of_call() -> None:
    calls = [call for name in STORIES for call in undisturbed(name)[0]]
    assert {f"{verb} {client._resource(path)}" for verb, path in calls} == {
        "get secrets", "replace secrets", "get bamboojobs", "list pods", "list nodes",
        "apply bamboojobs", "apply configmaps", "apply poddisruptionbudgets", "create pods",
        "delete pods", "delete poddisruptionbudgets", "delete bamboojobs", "list bamboojobs",
        "list priorityclasses", "get apis", "get workloads", "create workloads",
        "replace workloads", "delete workloads", "get configmaps",
    }  # fmt: skip


def test_an_operator_that_forgets_what_it_wrote_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: a planted fault, which the undisturbed story does not show."""
    name = "shortage"
    ends = [f for f in faults(name) if f.how is How.CRASH_BEFORE]
    assert not differences(name, ends[-8])
    monkeypatch.setattr(statuses, "read_memory", lambda body: Memory())
    assert any(differences(name, fault) for fault in ends[-8::2])


async def boot(server: FaultyApi, now: datetime) -> seals.Seals:
    """Load the seals as an operator does at its start: it tries again until it succeeds."""
    while True:
        try:
            await tls.load_authorities(server, "system", now=now)
            return await seals.load(server, "system", tls.SECRET)
        except (Crash, ApiError):
            server.is_dead = False


@pytest.mark.parametrize("how", How)
@pytest.mark.parametrize("call", range(7))
async def test_a_sealed_pod_keeps_its_seal(call: int, how: How) -> None:
    """The Secret has the authority, too, which is renewed."""
    first, later = datetime(2026, 1, 1, tzinfo=UTC), datetime(2034, 1, 1, tzinfo=UTC)
    server = FaultyApi(Fault(call, how))
    made = await boot(server, first)
    seal = made.seal(namespace="ns", job="job", job_uid="uid-1", pod="job-p0-s0-i0")
    pod = pod_object()
    pod["metadata"]["annotations"][seals.ANNOTATION] = seal
    before = server.objects[api.secret("system", tls.SECRET)]["data"]
    for now in (first, later, later):
        assert (await boot(server, now)).is_ours(pod)
    assert server.injected == 1
    after = server.objects[api.secret("system", tls.SECRET)]["data"]
    assert before["tls.crt"] != after["tls.crt"]
    assert before["tls.crt"] == after["previous.crt"]
