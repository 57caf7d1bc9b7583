"""Zones for new pods."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo_core.api.spec import Adjacency, PipelinesSpec, PoolSpec
from bamboo_core.controller import pod_zones
from bamboo_core.controller.failures import Avoided
from bamboo_core.controller.view import NodeViews, PodPhase, Slot
from bamboo_core.placement.zones import feasible, zone_limit

from .builders import nodes, pod, spec


def seats(count: int, stages: int) -> list[Slot]:
    return [Slot(d, s) for d in range(count) for s in range(stages)]


def limit(count: int, stages: int) -> int:
    """Most agents of one zone that can be seated apart."""
    return zone_limit(stages=stages, pipelines=count, adjacency=Adjacency.ALTERNATE)


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 6), min_size=1),
    st.integers(1, 3),
    st.integers(1, 5),
)
def test_a_fresh_grid_follows_the_zone_rule(room: dict[str, int], count: int, stages: int) -> None:
    wanted = spec(count=count, stages=stages)
    chosen = pod_zones.choose(wanted, nodes(**room), [], seats(count, stages))
    used, most = Counter(filter(None, chosen.values())), limit(count, stages)
    assert all(n <= most for n in used.values())
    fits = feasible(room, stages=stages, pipelines=count)
    assert not fits or all(n <= room[zone] for zone, n in used.items())
    if stages > 1 and (
        fits or not feasible(dict.fromkeys(room, most), stages=stages, pipelines=count)
    ):
        for d, s in chosen:
            after = chosen.get(Slot(d, (s + 1) % stages))
            assert chosen[Slot(d, s)] != after or not after
    if len(room) >= 3 or (len(room) == 2 and stages % 2 == 0) or stages == 1:
        assert set(chosen) == set(seats(count, stages))


@pytest.mark.parametrize("begun", [1, 2, 3])
def test_a_grid_that_was_begun_is_completed(begun: int) -> None:
    """As if the operator had ended before it made all pods."""
    wanted, there = spec(stages=4), {"a": 1, "b": 3, "c": 0, "d": 3}
    whole = pod_zones.choose(wanted, nodes(**there), [], seats(1, 4))
    made = [pod(*slot, zone=whole[slot], node="") for slot in seats(1, 4)[:begun]]
    rest = pod_zones.choose(wanted, nodes(**there), made, seats(1, 4)[begun:])
    used = Counter([*(pod.zone for pod in made), *rest.values()])
    assert used.total() == 4
    assert all(count <= min(2, there[zone]) for zone, count in used.items())


def test_only_named_zones_are_used_even_if_they_have_no_nodes_yet() -> None:
    wanted = spec(zones=("x", "y"))
    chosen = pod_zones.choose(wanted, nodes(a=9, b=9), [], seats(1, 2))
    assert set(chosen.values()) == {"x", "y"}


def test_nodes_that_cannot_be_used_give_no_room() -> None:
    (ready,) = nodes(a=3)
    others = [
        replace(ready, name="1", zone="b", ready=False),
        replace(ready, name="2", zone="c", schedulable=False),
        replace(ready, name="3", zone="d", departing=True),
    ]
    assert pod_zones.room(spec(), [ready, *others]) == {"a": 3, "b": 0, "c": 0, "d": 0}


def test_a_hole_prefers_room_then_distance_from_copies() -> None:
    wanted = spec(count=2, stages=2)
    stay = [pod(0, 0, zone="b"), pod(0, 1, zone="a"), pod(1, 0, zone="b")]
    hole = Slot(1, 1)
    assert pod_zones.choose(wanted, nodes(a=2, b=2, c=1), stay, [hole]) == {hole: "c"}
    assert pod_zones.choose(wanted, nodes(a=2, b=2, c=0), stay, [hole]) == {hole: "a"}


def test_a_hole_between_neighbours_of_all_zones_asks_for_another_zone() -> None:
    stay, hole = [pod(0, 0, zone="a"), pod(0, 2, zone="b")], Slot(0, 1)
    assert pod_zones.choose(spec(stages=3), nodes(a=9, b=9), stay, [hole]) == {hole: ""}
    named = spec(stages=3, zones=("a", "b"))
    assert pod_zones.choose(named, nodes(a=9, b=9), stay, [hole]) == {}


def test_nodes_that_suit_no_agent_do_not_tell_zones() -> None:
    """As the system's nodes, when the pools of GPU nodes are empty."""
    system = tuple(replace(node, agents=0, suits=False) for node in nodes(a=1, b=1))
    assert pod_zones.room(spec(), system) == {}
    chosen = pod_zones.choose(spec(count=2, stages=4), system, [], seats(2, 4))
    assert chosen == {Slot(0, 0): "", Slot(0, 1): ""}, "as many as can show enough zones"
    waiting = [pod(0, s, zone="", node="", phase=PodPhase.PENDING) for s in range(2)]
    rest = seats(2, 4)[2:]
    assert pod_zones.choose(spec(count=2, stages=4), system, waiting, rest) == {}
    alone = pod_zones.choose(spec(count=3, stages=1), (), [], seats(3, 1))
    assert alone == dict.fromkeys(seats(3, 1), ""), "without neighbours any zone will do"


def test_pools_name_zones_before_they_have_nodes() -> None:
    wanted = spec(pools=(PoolSpec(("x",), {"pool": "one"}), PoolSpec(("y",), {"pool": "two"})))
    chosen = pod_zones.choose(wanted, nodes(a=9, b=9), [], seats(1, 2))
    assert set(chosen.values()) == {"x", "y"}
    assert wanted.placement.selector("y") == {"pool": "two"}
    assert wanted.placement.selector("z") == {}


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 4), max_size=4),
    st.integers(1, 2),
    st.integers(1, 6),
    st.sets(st.sampled_from("abcd")),
    st.integers(0, 10),
)
def test_agents_can_be_seated_apart_whatever_is_dry(
    room: dict[str, int], count: int, stages: int, dry: set[str], lost: int
) -> None:
    """Also when some pods are placed again, one at a time."""
    wanted = spec(count=count, stages=stages)
    tried = dict.fromkeys(dry, True)
    first = pod_zones.choose(wanted, nodes(**room), [], seats(count, stages), tried)
    stay = [
        pod(*slot, zone=zone or f"z{i}", node="there")  # a pod without a zone has found one
        for i, (slot, zone) in enumerate(first.items())
        if i % 3 != lost % 3
    ]
    holes = [slot for slot in seats(count, stages) if slot not in {p.slot for p in stay}]
    second = pod_zones.choose(wanted, nodes(**room), stay, holes, tried)
    used = Counter(p.zone for p in stay) + Counter(filter(None, second.values()))
    most = limit(count, stages)
    assert max(used.values(), default=0) <= most
    if not feasible(dict.fromkeys(room, most), stages=stages, pipelines=count):
        for slot, zone in second.items():  # then pods look for other zones, apart by their slots
            around = (Slot(slot.pipeline, (slot.stage + turn) % stages) for turn in (-1, 1))
            assert not zone or zone not in {p.zone for p in stay if p.slot in around}


def test_cluster_joins_its_neighbours() -> None:
    wanted = spec(stages=3, adjacency=Adjacency.CLUSTER)
    stay = [pod(0, 0, zone="b"), pod(0, 2, zone="b")]
    assert pod_zones.choose(wanted, nodes(a=9, b=9), stay, [Slot(0, 1)]) == {Slot(0, 1): "b"}


def test_feasible_pipelines() -> None:
    wanted = spec(count=3, stages=2)
    assert pod_zones.feasible_pipelines(wanted, nodes(a=2, b=2)) == 2
    assert "add 2 agents" in pod_zones.problem(wanted, nodes(a=2, b=2))
    assert pod_zones.problem(wanted, nodes(a=3, b=3)) == ""


def test_agents_on_nodes_that_take_no_new_ones_count() -> None:
    """A node with a new taint, or one that is cordoned, keeps its agents."""
    wanted = spec(count=2, stages=2)
    tainted, other = nodes(a=1, b=2)
    tainted = replace(tainted, suits=False, agents=0)
    cordoned = replace(tainted, name="cordoned", suits=True, agents=1, schedulable=False)
    known = [tainted, cordoned, other]
    assert pod_zones.feasible_pipelines(wanted, known) == 0
    there = [
        pod(0, 0, zone="a", node=tainted.name),
        pod(1, 0, zone="a", node=cordoned.name),
        pod(0, 1, zone="b", node=other.name),  # it fits there in any case
        pod(1, 1, zone="b", node=""),
    ]
    assert pod_zones.feasible_pipelines(wanted, known, there) == 2
    assert pod_zones.problem(wanted, known, there) == ""
    assert "usable by zone: a: 1, b: 2: add 1 agent or" in pod_zones.problem(
        wanted, known, there[1:]
    )
    for gone in ({"departing": True}, {"ready": False}):
        leaving = [replace(node, **gone) if node is known[0] else node for node in known]
        assert pod_zones.feasible_pipelines(wanted, leaving, there) == 1
    elsewhere = spec(count=2, stages=2, zones=("b", "c"))
    assert "usable by zone: b: 2, c: 0" in pod_zones.problem(elsewhere, known, there)


def test_the_problem_names_the_zone_where_the_next_node_helps_most() -> None:
    text = pod_zones.problem(spec(count=2, stages=2), nodes(a=3, b=0))
    assert "usable by zone: a: 3, b: 0" in text
    assert text.endswith("; the next node helps most in zone b")


@pytest.mark.parametrize(
    ("room", "stages", "anywhere", "words"),
    [
        ({"a": 1}, 2, 1, "2 stages need 2 zones at least; known zones: a: add nodes in another"),
        ({"a": 9, "b": 9}, 3, 1, "3 stages need 3 zones at least; known zones: a, b: add nodes"),
        ({}, 2, 2, "known zones: none: add nodes in another zone, name zones that an autoscaler"),
    ],
)
def test_zones_that_no_number_of_nodes_could_fill(
    room: dict[str, int], stages: int, anywhere: int, words: str
) -> None:
    """An autoscaler may have nodes in other zones."""
    wanted = spec(stages=stages)
    assert words in pod_zones.problem(wanted, nodes(**room))
    chosen = pod_zones.choose(wanted, nodes(**room), [], seats(1, stages))
    assert sorted(chosen.values()) == [*[""] * anywhere, *room]


def test_nodes_without_a_zone_cannot_keep_neighbours_apart() -> None:
    (labelled,) = nodes(a=4)
    known = [labelled, replace(labelled, name="1", zone=""), replace(labelled, name="2", zone="")]
    assert pod_zones.room(spec(), known) == {"a": 4}
    assert (
        "known zones: a (2 nodes without the label topology.kubernetes.io/zone)"
        in pod_zones.problem(spec(), known)
    )
    for free in (spec(stages=1), spec(adjacency=Adjacency.CLUSTER)):
        assert pod_zones.room(free, known) == {"a": 4, "": 8}


def test_neighbours_that_share_a_zone_are_reported() -> None:
    """By the seats of the plan, whatever the slots."""
    pods = [pod(0, s, zone=zone) for s, zone in enumerate("aabb")]
    a, b, c, d = (p.agent for p in pods)
    assert pod_zones.shared_neighbours([(a, c, b, d)], pods) == []
    assert pod_zones.shared_neighbours([(a, b, c, None)], pods) == [(a, b)]
    assert pod_zones.shared_neighbours([(a, b), (d, c)], pods) == [(a, b), (c, d)]
    assert pod_zones.shared_neighbours([(a,), (b,)], pods) == []
    nowhere = [pod(0, s, zone="", node="") for s in range(4)]
    assert pod_zones.shared_neighbours([(a, b, c, d)], nowhere) == []


def test_more_agents_in_a_zone_than_seats_apart_are_reported() -> None:
    pods = [pod(0, s, zone=zone) for s, zone in enumerate("aabb")]
    assert pod_zones.unseatable(spec(stages=4), pods) == ""
    more = [*pods[:3], pod(0, 3, zone="a")]
    assert "1 of 4 seats stay empty" in pod_zones.unseatable(spec(stages=4), more)


BAD = (Avoided("node-a", "machine-a", 50.0),)


@pytest.mark.parametrize(
    ("room", "is_avoided"),
    [
        ({"a": 2, "b": 2, "c": 2}, True),
        ({"a": 2, "b": 2}, False),  # neighbours must be apart
        ({"a": 2}, False),
        ({"a": 2, "b": 0, "c": 0}, False),
    ],
)
def test_a_bad_node_is_better_than_none(room: dict[str, int], is_avoided: bool) -> None:
    found = pod_zones.avoiding(spec(), nodes(**room), BAD)
    assert [node.avoided_until for node in found if node.machine == "machine-a"] == [
        50.0 if is_avoided else 0.0
    ]
    assert all(node.avoided_until == 0.0 for node in found if node.machine != "machine-a")
    assert sum(pod_zones.room(spec(), found).values()) == sum(room.values()) - 2 * is_avoided


def test_the_least_number_of_pipelines_must_fit_elsewhere() -> None:
    room = nodes(a=1, b=2, c=1, d=1)
    wanted = replace(spec(count=2), pipelines=PipelinesSpec(count=2, stages=2, min=2))
    assert any(node.avoided_until for node in pod_zones.avoiding(wanted, room, BAD)) is True
    fewer = nodes(a=1, b=2, c=1)
    assert not any(node.avoided_until for node in pod_zones.avoiding(wanted, fewer, BAD))
    one = spec(count=2)
    assert any(node.avoided_until for node in pod_zones.avoiding(one, fewer, BAD))


# ---------------------------------------------------------------- other kinds of processor

ODD = (Avoided("node-a", "machine-a", 50.0, is_misfit=True, kind="odd"),)


def typed(room: dict[str, int], **types: str) -> NodeViews:
    return NodeViews(replace(n, instance_type=types.get(n.zone, "")) for n in nodes(**room))


def marked(found: NodeViews) -> list[str]:
    return [node.zone for node in found.avoided]


def test_all_nodes_of_the_kind_are_avoided_where_the_others_have_room() -> None:
    room = {"a": 2, "b": 2, "c": 2, "d": 2}
    there = typed(room, a="odd", b="odd", c="good", d="good")
    found = pod_zones.avoiding(spec(), there, ODD)
    assert marked(found) == ["a", "b"]
    assert all(node.is_misfit for node in found.avoided)
    assert pod_zones.avoided_types(found, ODD) == {"odd"}


def test_a_kind_on_which_members_train_is_not_avoided_but_the_machine_is() -> None:
    """Machines of one type may have processors of several kinds."""
    there = typed({"a": 2, "b": 2, "c": 2}, a="odd", b="odd", c="odd")
    found = pod_zones.avoiding(spec(), there, ODD, frozenset({"odd"}))
    assert marked(found) == ["a"]
    assert pod_zones.avoided_types(found, ODD, frozenset({"odd"})) == frozenset()


def test_if_other_kinds_have_no_room_only_the_machine_is_avoided() -> None:
    found = pod_zones.avoiding(spec(), typed({"a": 2, "b": 2, "c": 2}, a="odd", b="odd"), ODD)
    assert marked(found) == ["a"]
    assert pod_zones.avoided_types(found, ODD) == frozenset()


def test_if_other_machines_have_no_room_none_is_avoided() -> None:
    found = pod_zones.avoiding(spec(), typed({"a": 2, "b": 2}, a="odd"), ODD)
    assert marked(found) == []
    assert pod_zones.avoided_types(found, ODD) == frozenset()


def test_a_kind_without_nodes_is_avoided_since_an_autoscaler_may_add_some() -> None:
    found = pod_zones.avoiding(spec(), typed({"b": 2, "c": 2}), ODD)
    assert marked(found) == []
    assert pod_zones.avoided_types(found, ODD) == {"odd"}


def test_nodes_without_an_instance_type_are_avoided_one_by_one() -> None:
    unlabelled = (replace(ODD[0], kind=""),)
    found = pod_zones.avoiding(spec(), typed({"a": 2, "b": 2, "c": 2}), unlabelled)
    assert marked(found) == ["a"]
    assert pod_zones.avoided_types(found, unlabelled) == frozenset()
