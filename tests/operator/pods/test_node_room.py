"""Free room of nodes: what pods take, which nodes a pod may use, and the watch that tells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.controller.builders import spec

from bamboo_core.admission.claims import NodeRoom
from bamboo_core.api.spec import OnDemandSpec, WorkerSpec
from bamboo_core.controller.pod_zones import ZONE_LABEL
from bamboo_core.placement.fitting import ONE, Amounts
from bamboo_operator.kube import api, object_views
from bamboo_operator.kube.api import ApiError, Object
from bamboo_operator.kube.pod_watch import AGAIN_S, FORBIDDEN_S, Follower, PodWatch
from bamboo_operator.pods import node_usage
from bamboo_operator.pods.node_cache import Nodes
from bamboo_operator.pods.node_usage import PLACED, Usage

from ..harness import Harness
from ..memory_api import MemoryApi
from ..objects import SEALS, node_object, placed

GPU = WorkerSpec("i", {"limits": {"nvidia.com/gpu": 1}})


async def room(harness: Harness, uid: str = "uid-1") -> dict[str, int]:
    views = await harness.nodes.views(spec(worker=GPU), uid)
    return {view.name: view.agents for view in views}


async def test_jobs_with_other_labels_for_on_demand_nodes_see_other_room(harness: Harness) -> None:
    for zone, labels in (("a", {"bamboo.dev/spot": "true"}), ("b", {"pool": "x"}), ("c", {})):
        node = harness.kube.objects[f"{api.nodes()}/node-{zone}"]["metadata"]
        node["labels"] = {ZONE_LABEL: zone} | labels
    wanted = spec(worker=GPU)
    rules = (None, OnDemandSpec(), OnDemandSpec(node_selector={"pool": "x"}))
    fit = []
    for rule in rules:
        placement = replace(wanted.placement, on_demand=rule)
        views = await harness.nodes.views(replace(wanted, placement=placement))
        fit.append([view.zone for view in views if view.suits])
    assert fit == [["a", "b", "c"], ["a", "b", "c"], ["a", "b"]]


async def test_room_is_what_pods_of_others_leave(harness: Harness) -> None:
    assert await room(harness) == {"node-a": 1, "node-b": 1, "node-c": 1}
    harness.usage.put(placed("stranger"))
    assert await room(harness) == {"node-a": 0, "node-b": 1, "node-c": 1}
    (full, *_) = await harness.nodes.views(spec(worker=GPU))
    assert (full.lacks, full.suits) == ("insufficient nvidia.com/gpu", True)
    harness.usage.put(placed("stranger", phase="Succeeded"))
    assert await room(harness) == {"node-a": 1, "node-b": 1, "node-c": 1}


async def test_the_room_of_a_jobs_own_pods_is_room_for_it(harness: Harness) -> None:
    harness.usage.put(placed("own", owner="uid-1"))
    assert (await room(harness))["node-a"] == 1
    assert (await room(harness, "uid-2"))["node-a"] == 0
    harness.usage.put(placed("stranger"))  # the node is overcommitted
    assert (await room(harness))["node-a"] == 0


@pytest.mark.parametrize("namespace", ["theirs", "evil"])
async def test_a_pod_that_names_the_job_as_its_owner_is_a_stranger_without_the_seal(
    harness: Harness, namespace: str
) -> None:
    """Anybody may write owner references: they must not pass for the job's share of a node, by
    which it would have room or its turn."""
    forged = placed("forged", owner="uid-1")
    if namespace == "theirs":
        del forged["metadata"]["annotations"]
    forged["metadata"]["namespace"] = namespace
    harness.usage.put(forged)
    assert (await room(harness))["node-a"] == 0
    assert harness.usage.owned("uid-1").total() == 0
    assert (await harness.nodes.room({"uid-1"}))["node-a"].whole["nvidia.com/gpu"] == 0


async def test_a_new_pod_renews_only_its_node(harness: Harness) -> None:
    first = [*await harness.nodes.views(spec(worker=GPU))]
    harness.usage.put(placed("stranger"))
    second = [*await harness.nodes.views(spec(worker=GPU))]
    assert second[0] != first[0]
    assert second[1] is first[1]
    harness.now += 60  # the nodes are listed again, and are the same
    assert [*await harness.nodes.views(spec(worker=GPU))][1] is first[1]


@given(
    st.lists(
        st.tuples(
            st.sampled_from("xyz"),
            st.sampled_from(["node-a", "node-b", ""]),
            st.sampled_from(["", "uid-1"]),
            st.sampled_from(["Running", "Failed", "gone"]),
        )
    )
)
def test_usage_equals_what_the_last_states_say(events: list[tuple[str, str, str, str]]) -> None:
    usage, last = Usage(SEALS.is_ours), dict[str, tuple[str, str, str]]()
    for uid, node, owner, phase in events:
        last[uid] = (node, owner, phase)
        if phase == "gone":
            usage.drop(uid)
        else:
            usage.put(placed(uid, node, owner=owner, phase=phase))
    for name in ("node-a", "node-b"):
        there = [o for node, o, phase in last.values() if (node, phase) == (name, "Running")]
        assert usage.on(name).get("pods", 0) == len(there) * ONE
        assert usage.owned("uid-1")[name] == there.count("uid-1")
    usage.keep(set(), "")
    assert usage._pods == usage._on == usage._owned == {}


# ------------------------------------------------------------ the watch


class Script(MemoryApi):
    """Answers lists and watches with what is written; an exhausted script ends the test."""

    def __init__(self, *answers: Any) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked: list[tuple[str, str, str]] = []
        self.pauses: list[float] = []

    def _next(self, path: str, fields: str, since: str) -> Any:
        self.asked.append((path, fields, since))
        if not self.answers:
            raise asyncio.CancelledError
        answer = self.answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return answer

    async def pages(
        self, path: str, *, fields: str = "", labels: str = ""
    ) -> AsyncIterator[tuple[list[Object], str]]:
        for page in self._next(path, fields or labels, "list"):
            yield page, "7"

    async def watch(
        self, path: str, *, since: str, fields: str = "", labels: str = ""
    ) -> AsyncIterator[Object]:
        for event in self._next(path, fields or labels, since):
            yield event

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


def event(kind: str, pod: Object, version: str) -> Object:
    body = pod | {"metadata": pod["metadata"] | {"resourceVersion": version}}
    return {"type": kind, "object": body}


async def follow(script: Script, namespace: str = "") -> Usage:
    usage = Usage(SEALS.is_ours)
    watch = node_usage.watch(script, usage, namespace, sleep=script.sleep)
    with pytest.raises(asyncio.CancelledError):
        await watch.run()
    assert watch.listed.is_set()
    return usage


async def test_the_watch_goes_on_where_it_ended() -> None:
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "11"}}}
    script = Script(
        [[placed("1")], [placed("2")]],
        [event("ADDED", placed("3", "node-b"), "8"), event("DELETED", placed("1"), "9")],
        [event("MODIFIED", placed("2", phase="Failed"), "10"), bookmark],
    )
    usage = await follow(script)
    assert set(usage._pods) == {"3"}
    assert [since for _, _, since in script.asked] == ["list", "7", "9", "11"]
    assert {asked[:2] for asked in script.asked} == {(api.pods(), PLACED)}


async def test_the_watch_of_agents_tells_what_comes_and_what_goes() -> None:
    script = Script([[placed("1")]], [event("DELETED", placed("1"), "8")])
    told: list[tuple[str, str]] = []
    follower = Follower(
        lambda pod: told.append(("there", pod["metadata"]["uid"])),
        lambda pod: told.append(("gone", pod["metadata"]["uid"])),
    )
    watch = PodWatch(script, follower, labels="bamboo.dev/job", sleep=script.sleep)
    with pytest.raises(asyncio.CancelledError):
        await watch.run()
    assert told == [("there", "1"), ("gone", "1")]
    assert script.asked[0] == (api.pods(), "bamboo.dev/job", "list")


async def test_a_watch_that_is_too_old_lists_again() -> None:
    expired = {"type": "ERROR", "object": {"code": 410, "message": "too old"}}
    script = Script([[placed("1"), placed("2")]], [expired], [[placed("2")]])
    usage = await follow(script, "theirs")
    assert set(usage._pods) == {"2"}
    assert script.pauses == [AGAIN_S]
    assert script.asked[0][0] == api.pods("theirs")


async def test_a_watch_that_is_forbidden_tries_again_later() -> None:
    script = Script(ApiError(403, "Forbidden", "no"), [[placed("1")]])
    assert set((await follow(script))._pods) == {"1"}
    assert script.pauses == [FORBIDDEN_S]


async def test_a_list_of_one_namespace_leaves_the_others_alone() -> None:
    usage = Usage(SEALS.is_ours)
    usage.put(placed("1"))
    usage.keep(set(), "ours")
    assert set(usage._pods) == {"1"}
    usage.keep(set(), "theirs")
    assert not usage._pods


def test_pods_that_are_gone_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may create pods can make each one ask for something else, for as long as he likes."""
    monkeypatch.setattr("bamboo_operator.pods.node_usage._MOST_SHAPES", 8)
    usage = Usage(SEALS.is_ours)
    usage.put(placed("stays", gpus=0))
    for number in range(1, 100):
        usage.put(placed(f"pod-{number}", gpus=number))
        usage.drop(f"pod-{number}")
        assert len(usage._shapes) <= 8
    assert usage.on("node-a") == {"nvidia.com/gpu": 0, "pods": ONE}


async def test_thousands_of_pods_share_their_requests() -> None:
    kube = MemoryApi()
    for number in range(50):
        kube.put(f"{api.nodes()}/node-{number}", node_object(f"node-{number}"))
    usage = Usage(SEALS.is_ours)
    for number in range(2000):
        usage.put(placed(str(number), f"node-{number % 50}", gpus=number % 2))
    assert len(usage._shapes) == 2
    views = await Nodes(kube, usage).views(spec(worker=GPU))
    assert {view.agents for view in views} == {0, 1}


@given(
    st.lists(
        st.tuples(
            st.sampled_from("xyz"),
            st.sampled_from(["node-a", "node-b"]),
            st.sampled_from(["", "uid-1", "uid-2"]),
            st.sets(st.sampled_from(["uid-1", "uid-2"])),
        )
    )
)
async def test_room_made_again_in_part_is_that_of_all_nodes(
    events: list[tuple[str, str, str, set[str]]],
) -> None:
    """Pods come and move, and jobs enter and leave the line, whose pods may go."""
    kube, usage = MemoryApi(), Usage(SEALS.is_ours)
    for name in ("node-a", "node-b"):
        kube.put(f"{api.nodes()}/{name}", node_object(name))
    nodes = Nodes(kube, usage)
    for uid, node, owner, ours in events:
        usage.put(placed(uid, node, owner=owner))
        assert await nodes.room(ours) == await Nodes(kube, usage).room(ours)


async def test_a_job_that_enters_the_line_renews_only_nodes_with_its_pods(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.usage.put(placed("own", "node-b", owner="uid-1"))
    await harness.nodes.room(set())
    made: list[str] = []
    node_room = object_views.node_room

    def counted(node: Object, taken: Amounts, by_others: Amounts) -> NodeRoom:
        made.append(node["metadata"]["name"])
        return node_room(node, taken, by_others)

    monkeypatch.setattr(object_views, "node_room", counted)
    found = await harness.nodes.room({"uid-1", "uid-2"})
    assert made == ["node-b"]
    assert (found["node-b"].free["nvidia.com/gpu"], found["node-b"].whole["nvidia.com/gpu"]) == (
        0,
        ONE,
    )
