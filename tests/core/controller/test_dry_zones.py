"""Zones where the scheduler refuses pods: back-off, and moves to other zones."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bamboo_core.api.spec import Adjacency, JobSpec
from bamboo_core.controller import dry_zones
from bamboo_core.controller.dry_zones import FIRST_S, LONGEST_S, MOST, REFUSED_S
from bamboo_core.controller.reconcile import (
    ASK_ELSEWHERE_S,
    MOVE_AFTER_S,
    CreatePod,
    DeletePod,
    step,
)
from bamboo_core.controller.view import (
    ClusterView,
    DryZone,
    Memory,
    NodeView,
    PodPhase,
    PodView,
    TrainingView,
)
from bamboo_core.placement import zones as rules

from .builders import JOB, nodes, pod, spec


def refused(at: float, zone: str = "a", created_at: float = 0.0) -> PodView:
    waiting = pod(0, 0, zone=zone, node="", phase=PodPhase.PENDING, refused_at=at)
    return replace(waiting, created_at=created_at)


def test_a_zone_is_dry_after_a_while_and_for_longer_each_time() -> None:
    waiting, room = [refused(0.0)], {"a": 1}
    assert dry_zones.settle((), waiting, room, now=REFUSED_S - 1) == ()
    now, known, pauses = REFUSED_S, (), list[float]()
    for _ in range(7):
        known = dry_zones.settle(known, waiting, room, now=now)
        (dry,) = known
        assert dry_zones.tried(known, now) == {"a": True}
        assert dry_zones.tried(known, dry.until) == {"a": False}
        assert dry_zones.settle(known, waiting, room, now=dry.until - 1) == known
        pauses.append(dry.until - now)
        now = dry.until
    assert pauses == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S, 8 * FIRST_S, *[LONGEST_S] * 3]


def test_a_dry_zone_is_forgotten_when_it_gives_nodes() -> None:
    dry = (DryZone("a", 3, since=100.0, until=900.0, room=1),)
    placed = replace(pod(0, 0, zone="a"), created_at=101.0)
    with_pod = dry_zones.settle(dry, [placed], {"a": 1}, now=200.0)
    assert dry_zones.tried(with_pod, 200.0) == {}, "it has taken a pod"
    assert dry_zones.settle(with_pod, [placed], {"a": 1}, now=200.0 + REFUSED_S) == ()
    earlier = replace(placed, created_at=99.0)
    assert dry_zones.settle(dry, [earlier], {"a": 1}, now=200.0) == dry
    with_room = dry_zones.settle(dry, [], {"a": 2}, now=200.0)
    assert dry_zones.tried(with_room, 200.0) == {}, "a node has come"
    assert dry_zones.settle(with_room, [], {"a": 2}, now=200.0 + REFUSED_S) == ()
    assert dry_zones.settle(dry, [], {"a": 1}, now=900.0 + LONGEST_S) == ()


def test_refusals_count_again_only_a_while_after_room_has_come() -> None:
    """The scheduler needs a moment for a new node, and its refusal keeps its old time."""
    (dry,) = dry_zones.settle((), waiting := [refused(0.0)], {"a": 1}, now=REFUSED_S)
    at = dry.until - 1
    known = dry_zones.settle((dry,), waiting, {"a": 2}, now=at)
    assert dry_zones.tried(known, at) == {}
    due = at + REFUSED_S
    assert min(x for x in dry_zones.wake_times(known, waiting) if x > at) == due
    known = dry_zones.settle(known, waiting, {"a": 2}, now=due - 1)
    assert dry_zones.tried(known, due - 1) == {}
    placed = replace(pod(0, 0, zone="a"), created_at=0.0)
    assert dry_zones.settle(known, [placed], {"a": 1}, now=due) == ()
    (again,) = dry_zones.settle(known, waiting, {"a": 2}, now=due)
    assert again == DryZone("a", 1, since=due, until=due + FIRST_S, room=2)
    more = dry_zones.settle(known, waiting, {"a": 3}, now=due)
    assert dry_zones.tried(more, due) == {}, "more room has come meanwhile"


@pytest.mark.parametrize(("room", "at"), [(3, 200.0), (0, 200.0), (3, 202.0)])
def test_refusals_count_again_only_a_while_after_a_zone_has_taken_a_pod(
    room: int, at: float
) -> None:
    """Whether its nodes have got room before, or at the same time, or seem to have none."""
    dry = (DryZone("a", 3, since=100.0, until=900.0, room=0),)
    waiting = refused(0.0)
    placed = replace(pod(0, 1, zone="a"), created_at=201.0)
    known = dry_zones.settle(dry, [waiting], {"a": room if at < 202.0 else 0}, now=200.0)
    known = dry_zones.settle(known, [waiting, placed], {"a": room}, now=202.0)
    assert dry_zones.tried(known, 202.0) == {}
    known = dry_zones.settle(known, [waiting, placed], {"a": room}, now=201.0 + REFUSED_S)
    assert dry_zones.tried(known, 201.0 + REFUSED_S) == {}
    due = 202.0 + REFUSED_S
    (again,) = dry_zones.settle(known, [waiting, placed], {"a": room}, now=due)
    assert again == DryZone("a", 1, since=due, until=due + FIRST_S, room=room)


def test_a_pod_is_not_moved_from_a_zone_that_has_just_taken_another() -> None:
    wanted = spec(count=2, stages=2, adjacency=Adjacency.CLUSTER)
    waiting = tuple(
        pod(slot, 0, zone="a", node="", phase=PodPhase.PENDING, refused_at=1.0) for slot in (0, 1)
    )
    there, room = (*waiting, pod(0, 1, zone="b")), nodes(a=4, b=2)
    memory = Memory(dry=(DryZone("a", 3, 100.0, 900.0, 0),))
    done = step(wanted, ClusterView(room, there), TrainingView(), memory, job=JOB, now=200.0)
    (made,) = (action for action in done.actions if isinstance(action, CreatePod))
    assert made.zone == "a"
    placed = replace(pod(*made.slot, made.incarnation, zone="a"), created_at=201.0)
    assert moves(wanted, ClusterView(room, (*there, placed)), done.memory, 202.0) == []


def test_nodes_without_zones_are_one_zone_unless_others_have_some() -> None:
    """A pod without a zone may run anywhere; so if there are zones, its refusal is about none."""
    waiting = [refused(0.0, zone="")]
    for room in ({}, {"a": 1}, {"": 1, "a": 1}):
        assert dry_zones.settle((), waiting, room, now=REFUSED_S) == ()
    (dry,) = known = dry_zones.settle((), waiting, {"": 1}, now=REFUSED_S)
    assert dry == DryZone("", 1, REFUSED_S, REFUSED_S + FIRST_S, 1)
    placed = replace(pod(0, 0, zone="", node="n"), created_at=REFUSED_S + 1)
    known = dry_zones.settle(known, [placed], {"": 1}, now=REFUSED_S + 2)
    assert dry_zones.tried(known, REFUSED_S + 2) == {}


def test_pods_are_made_and_stay_on_nodes_without_zones_that_refuse_them() -> None:
    """There is no other zone to go to."""
    view = ClusterView((NodeView("n", "m", "", agents=9),), (refused(1.0, zone=""),))
    wanted = spec(count=1, stages=2, adjacency=Adjacency.CLUSTER)
    done = step(wanted, view, TrainingView(), Memory(), job=JOB, now=1.0 + ASK_ELSEWHERE_S)
    assert [dry.zone for dry in done.memory.dry] == [""]
    again = step(wanted, view, TrainingView(), done.memory, job=JOB, now=2.0 + ASK_ELSEWHERE_S)
    for found in (done, again):
        assert [type(action) for action in found.actions] == [CreatePod]


def test_only_the_newest_dry_zones_are_remembered() -> None:
    many = [refused(0.0, f"zone-{n:02}") for n in range(MOST + 3)]
    assert len(dry_zones.settle((), many, {}, now=100.0)) == MOST


def moves(spec_: JobSpec, view: ClusterView, memory: Memory, now: float) -> list[str]:
    done = step(spec_, view, TrainingView(), memory, job=JOB, now=now)
    return [action.reason for action in done.actions if isinstance(action, DeletePod)]


def test_a_single_agent_leaves_a_full_zone() -> None:
    waiting = pod(0, 0, zone="a", node="", phase=PodPhase.PENDING)
    view = ClusterView(nodes(a=0, b=7), (waiting,))
    wanted = spec(count=1, stages=1)
    assert moves(wanted, view, Memory(), MOVE_AFTER_S - 1) == []
    assert moves(wanted, view, Memory(), MOVE_AFTER_S) == ["zone a has no room, b has"]


def test_the_schedulers_refusal_counts_more_than_room() -> None:
    view = ClusterView(nodes(a=1, b=1), (refused(1.0),))
    wanted = spec(count=1, stages=1)
    assert moves(wanted, view, Memory(), 1.0 + REFUSED_S - 1) == []
    assert moves(wanted, view, Memory(), 1.0 + REFUSED_S) == [
        "the scheduler finds no node for it in zone a, and zone b has room"
    ]
    done = step(wanted, replace(view, pods=()), TrainingView(),
                Memory(dry=(DryZone("a", 1, 20.0, 80.0, 1),)), job=JOB, now=30.0)  # fmt: skip
    assert [a.zone for a in done.actions if isinstance(a, CreatePod)] == ["b"]
    assert done.wake_at == 80.0


def test_without_room_anywhere_another_zone_is_asked_later() -> None:
    view = ClusterView(nodes(a=0, b=0), (refused(0.0),))
    wanted = spec(count=1, stages=1)
    assert moves(wanted, view, Memory(), ASK_ELSEWHERE_S - 1) == []
    assert moves(wanted, view, Memory(), ASK_ELSEWHERE_S) == [
        "the scheduler finds no node for it in zone a; zone b is next"
    ]
    both = Memory(dry=(DryZone("b", 1, 0.0, 400.0, 0),))
    assert moves(wanted, view, both, ASK_ELSEWHERE_S) == [], "it is dry, too"


class _Cluster:
    """A scheduler with less room than the nodes show, and the pods of one job."""

    def __init__(self, wanted: JobSpec, shown: dict[str, int], real: dict[str, int]) -> None:
        self.spec, self.real = wanted, real
        self.nodes: tuple[NodeView, ...] = nodes(**shown)
        self.pods: dict[str, PodView] = {}
        self.memory, self.now, self.deleted = Memory(), 1000.0, 0

    @property
    def placed(self) -> int:
        """Number of pods that have a node."""
        return sum(bool(p.node) for p in self.pods.values())

    @property
    def has_seats_for_all(self) -> bool:
        """Whether no zone has more pods than seats of it can be apart."""
        grid = self.spec.pipelines
        most = rules.zone_limit(
            stages=grid.stages, pipelines=grid.count, adjacency=Adjacency.ALTERNATE
        )
        return max(Counter(p.zone for p in self.pods.values() if p.zone).values()) <= most

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            view = ClusterView(self.nodes, tuple(self.pods.values()))
            done = step(self.spec, view, TrainingView(), self.memory, job=JOB, now=self.now)
            self.memory = done.memory
            for action in done.actions:
                if isinstance(action, DeletePod):
                    del self.pods[action.name]
                    self.deleted += 1
                elif isinstance(action, CreatePod):
                    new = pod(*action.slot, action.incarnation, zone=action.zone, node="",
                              phase=PodPhase.PENDING)  # fmt: skip
                    self.pods[action.name] = replace(new, created_at=self.now)
            self._schedule()
            if not done.actions:
                self.now = end if done.wake_at is None else min(end, done.wake_at)

    def _schedule(self) -> None:
        for name, found in self.pods.items():
            used = sum(bool(p.node) and p.zone == found.zone for p in self.pods.values())
            if found.node:
                continue
            if used < self.real.get(found.zone, 0):
                node = f"node-{found.zone}"
                self.pods[name] = replace(found, node=node, phase=PodPhase.RUNNING)
            elif found.refused_at is None:
                self.pods[name] = replace(found, refused_at=self.now)


_ROOM = st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), min_size=1)


@given(st.sampled_from([(1, 1), (3, 1), *((d, p) for d in (1, 2) for p in range(2, 9))]),
       _ROOM, _ROOM)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_agents_find_every_node_that_they_may_use(
    grid: tuple[int, int], shown: dict[str, int], real: dict[str, int]
) -> None:
    """Whatever the nodes seem to offer. And without any, moves become rare."""
    count, stages = grid
    wanted = spec(count=count, stages=stages)
    assume(len(shown) >= wanted.least_zones)
    cluster = _Cluster(wanted, shown, real)
    cluster.run(4 * 3600.0)
    there = {zone: real.get(zone, 0) for zone in shown}
    able = rules.capacity(there, stages=stages, pipelines=count, adjacency=Adjacency.ALTERNATE)
    assert cluster.placed == able
    assert len(cluster.pods) == count * stages
    assert cluster.deleted <= 100 * count * stages


@pytest.mark.parametrize("zones", [(), ("a", "b", "c")])
@pytest.mark.parametrize(("count", "stages"), [(1, 4), (4, 4), (1, 8), (4, 8), (2, 5)])
def test_a_grid_survives_the_loss_of_a_zone(
    count: int, stages: int, zones: tuple[str, ...]
) -> None:
    """The lost agents go to zones of their neighbours: the plan gives all agents other seats."""
    even = {"a": 40, "b": 40, "c": 40} | ({"d": 40} if stages % 2 else {})
    zones = tuple(even) if zones else ()
    cluster = _Cluster(spec(count=count, stages=stages, zones=zones), even, even)
    cluster.run(600.0)
    assert cluster.placed == count * stages
    cluster.pods = {name: pod for name, pod in cluster.pods.items() if pod.zone != "b"}
    del even["b"]
    cluster.nodes = nodes(**even)
    cluster.run(3600.0)
    assert cluster.placed == count * stages
    assert cluster.has_seats_for_all


def test_a_grid_finds_the_only_room_beside_its_neighbours() -> None:
    """Slots 1 to 3 run in b, a, c, and only b has room: the ring can be a, b, c, b."""
    cluster = _Cluster(spec(stages=4), room := {"a": 1, "b": 3, "c": 1}, room)
    for stage, zone in enumerate("bac", start=1):
        survivor = pod(0, stage, zone=zone)
        cluster.pods[survivor.name] = survivor
    cluster.run(60.0)
    assert (cluster.placed, cluster.deleted) == (4, 0)
    assert cluster.has_seats_for_all


@given(st.integers(2, 6), _ROOM, _ROOM)
@settings(max_examples=25, deadline=None)
def test_agents_can_be_seated_apart_while_they_move(
    stages: int, shown: dict[str, int], real: dict[str, int]
) -> None:
    cluster = _Cluster(spec(count=2, stages=stages), shown, real)
    for _ in range(20):
        cluster.run(60.0)
        assert cluster.has_seats_for_all
