"""On-demand nodes for agents that get no spot node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.spec import JobSpec, OnDemandSpec, PipelinesSpec
from bamboo_core.controller import on_demand, pod_zones
from bamboo_core.controller.reconcile import CreatePod, DeletePod, Step, step
from bamboo_core.controller.turn import Turn, Word
from bamboo_core.controller.view import (
    ClusterView,
    Memory,
    PodPhase,
    PodView,
    Shortage,
    Slot,
    TrainingView,
)

from .builders import JOB, nodes, pod, spec


def wanted(max_share: float = 0.5) -> JobSpec:
    """Two agents that need not be apart."""
    found = spec(count=2, stages=1)
    rule = OnDemandSpec(after_s=600, max_share=max_share)
    return replace(found, placement=replace(found.placement, on_demand=rule))


SPOT = replace(nodes(a=1)[0], spot=True)
NODES = (SPOT, *nodes(b=4))
PLACED = pod(0, 0, zone="a")
WAITING = pod(1, 0, zone="a", node="", phase=PodPhase.PENDING)


def run(*pods: PodView, since: float | None, now: float, spec_: JobSpec | None = None) -> Step:
    """since: when the agents without a node have lost theirs."""
    view, used = ClusterView(NODES, pods), spec_ or wanted()
    short = on_demand.settle(used, pods, (), is_resting=since is None, now=since or 0.0)
    return step(used, view, TrainingView(), Memory(short=short), job=JOB, now=now)


def since(done: Step) -> list[float]:
    """When agents have lost their nodes."""
    return [short.since for short in done.memory.short]


def created(done: Step) -> list[CreatePod]:
    return [action for action in done.actions if isinstance(action, CreatePod)]


def reasons(done: Step) -> list[str]:
    return [action.reason for action in done.actions if isinstance(action, DeletePod)]


def test_on_demand_nodes_are_no_room_until_spot_is_dry() -> None:
    first = run(PLACED, WAITING, since=None, now=100.0)
    assert first.actions == ()
    assert since(first) == [100.0]
    assert run(PLACED, WAITING, since=100.0, now=699.0).actions == ()
    assert run(PLACED, WAITING, since=100.0, now=699.0).wake_at == 700.0
    late = run(PLACED, WAITING, since=100.0, now=700.0)
    assert reasons(late) == ["no spot node has come for it; an on-demand node will do"]
    (new,) = created(run(PLACED, since=100.0, now=700.0))
    assert (new.zone, new.is_on_demand) == ("b", True)
    (early,) = created(run(PLACED, since=100.0, now=699.0))
    assert not early.is_on_demand


def test_the_shortage_ends_when_every_agent_has_a_node() -> None:
    placed = pod(1, 0, zone="b", is_on_demand=True)
    assert since(run(PLACED, placed, since=100.0, now=700.0)) == []
    resting = replace(wanted(), suspend=True)
    assert since(run(PLACED, since=100.0, now=700.0, spec_=resting)) == []


def test_no_more_than_the_share() -> None:
    assert created(run(since=100.0, now=700.0))[0].is_on_demand
    assert len(created(run(since=100.0, now=700.0))) == 1, "the others depend on it"
    used = pod(0, 0, zone="b", is_on_demand=True)
    assert reasons(run(used, WAITING, since=100.0, now=700.0)) == []
    (rest,) = created(run(used, since=100.0, now=700.0))
    assert not rest.is_on_demand
    none = run(PLACED, WAITING, since=100.0, now=700.0, spec_=wanted(max_share=0.4))
    assert none.actions == ()


def test_without_the_rule_any_node_will_do() -> None:
    done = run(PLACED, WAITING, since=100.0, now=700.0, spec_=spec(count=2, stages=1))
    assert reasons(done) == ["zone a has no room, b has"]
    text = next(c for c in done.status.conditions if c.type == "CapacityAvailable").message
    assert "on-demand" not in text


def test_the_condition_says_when_they_may() -> None:
    done = run(PLACED, WAITING, since=100.0, now=200.0)
    text = next(c for c in done.status.conditions if c.type == "CapacityAvailable").message
    assert "at most 1 agent may use on-demand nodes from 1970-01-01T00:11:40Z on" in text
    late = run(PLACED, WAITING, since=100.0, now=700.0)
    text = next(c for c in late.status.conditions if c.type == "CapacityAvailable").message
    assert "at most 1 agent may use on-demand nodes now" in text


def test_the_condition_says_that_idle_nodes_are_no_spot_nodes() -> None:
    waiting = replace(WAITING, zone="b")
    done = run(PLACED, waiting, since=100.0, now=200.0)
    text = next(c for c in done.status.conditions if c.type == "CapacityAvailable").message
    assert "job-p1-s0-i0 in zone b: not a spot node (1 node); add" in text
    late = run(PLACED, replace(waiting, is_on_demand=True), since=100.0, now=200.0)
    text = next(c for c in late.status.conditions if c.type == "CapacityAvailable").message
    assert "job-p1-s0-i0 in zone b: no scheduler has answered" in text


def test_each_agent_must_have_been_without_a_spot_node_for_so_long() -> None:
    """Not some agent or other: here none waits longer than a minute."""
    many = replace(wanted(), pipelines=PipelinesSpec(count=4, stages=1))
    short: tuple[Shortage, ...] = ()
    for turn in range(20):
        now = 50.0 * turn
        pods = [pod(d, 0, turn, node="" if d == turn % 4 else None) for d in range(4)]
        short = on_demand.settle(many, pods, short, is_resting=False, now=now)
        assert short == (Shortage(now, (Slot(turn % 4, 0),)),)
        assert not on_demand.ripe(many, short, now=now + 50.0)
    both = (Shortage(0.0, (Slot(1, 0),)), Shortage(500.0, (Slot(0, 0), Slot(2, 0))))
    assert on_demand.ripe(many, both, now=599.0) == set()
    assert on_demand.ripe(many, both, now=600.0) == {Slot(1, 0)}
    assert list(on_demand.begins_at(many, both)) == [600.0, 1100.0]


def test_only_the_agent_that_has_waited_gets_an_on_demand_node() -> None:
    other = replace(WAITING, slot=Slot(0, 0), name="job-p0-s0-i0")
    view = ClusterView(NODES, (other, WAITING))
    memory = Memory(short=(Shortage(0.0, (Slot(1, 0),)), Shortage(500.0, (Slot(0, 0),))))
    done = step(wanted(), view, TrainingView(), memory, job=JOB, now=700.0)
    assert [x.name for x in done.actions if isinstance(x, DeletePod)] == [WAITING.name]
    empty = step(wanted(), ClusterView(NODES), TrainingView(), memory, job=JOB, now=700.0)
    assert [(x.slot, x.is_on_demand) for x in created(empty)] == [(Slot(1, 0), True)]


def test_the_time_in_the_line_counts() -> None:
    first = step(wanted(), ClusterView(NODES), TrainingView(), Memory(), job=JOB, now=100.0,
                 turn=Turn(Word.WAITS))  # fmt: skip
    assert since(first) == [100.0]


def test_no_more_instants_are_remembered_than_the_status_may_have() -> None:
    """The last ones count as the very last: no agent seems to have waited longer than it has."""
    many = replace(wanted(), pipelines=PipelinesSpec(count=100, stages=1))
    known = [Shortage(float(n), (Slot(n, 0),)) for n in range(100)]
    found = on_demand.settle(many, [], known, is_resting=False, now=200.0)
    assert len(found) == on_demand.MOST
    assert [short.since for short in found] == [*map(float, range(on_demand.MOST - 1)), 99.0]
    assert sorted(slot for short in found for slot in short.slots) == pod_zones.slots(many)


@pytest.mark.parametrize(
    ("share", "count", "most"), [(0.29, 100, 29), (0.25, 4, 1), (0.25, 3, 0), (1.0, 7, 7)]
)
def test_the_share_is_rounded_down_to_whole_agents(share: float, count: int, most: int) -> None:
    many = replace(wanted(share), pipelines=PipelinesSpec(count=count, stages=1))
    assert on_demand.most(many) == most


def test_the_condition_says_that_the_share_is_no_agent() -> None:
    done = run(PLACED, WAITING, since=100.0, now=200.0, spec_=wanted(0.25))
    text = next(c for c in done.status.conditions if c.type == "CapacityAvailable").message
    assert (
        "; no agent may use on-demand nodes, since spec.placement.onDemand.maxShare 0.25 of 2 is"
        " less than one"
    ) in text
