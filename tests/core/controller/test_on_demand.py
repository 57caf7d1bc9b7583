"""On-demand nodes for agents that get no spot node."""

from __future__ import annotations

from dataclasses import replace

from bamboo_core.api.spec import JobSpec, OnDemandSpec
from bamboo_core.controller.reconcile import CreatePod, DeletePod, Step, step
from bamboo_core.controller.view import (
    ClusterView,
    Memory,
    PodPhase,
    PodView,
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
    view, memory = ClusterView(NODES, pods), Memory(short_since=since)
    return step(spec_ or wanted(), view, TrainingView(), memory, job=JOB, now=now)


def created(done: Step) -> list[CreatePod]:
    return [action for action in done.actions if isinstance(action, CreatePod)]


def reasons(done: Step) -> list[str]:
    return [action.reason for action in done.actions if isinstance(action, DeletePod)]


def test_on_demand_nodes_are_no_room_until_spot_is_dry() -> None:
    first = run(PLACED, WAITING, since=None, now=100.0)
    assert first.actions == ()
    assert first.memory.short_since == 100.0
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
    assert run(PLACED, placed, since=100.0, now=700.0).memory.short_since is None
    resting = replace(wanted(), suspend=True)
    assert run(PLACED, since=100.0, now=700.0, spec_=resting).memory.short_since is None


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
    assert "at most 1 agents may use on-demand nodes from 1970-01-01T00:11:40Z on" in text
