"""Agents on another kind of processor: they are replaced elsewhere, and are no failures."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from bamboo_core.controller.failures import AVOID_S, Avoided, Failures, Misfits
from bamboo_core.controller.lifecycle import JobStatus, status_of
from bamboo_core.controller.reconcile import MOVE_AFTER_S, CreatePod, DeletePod, Step, step
from bamboo_core.controller.view import (
    ClusterView,
    Condition,
    LastWords,
    Memory,
    NodeView,
    PodPhase,
    PodView,
    TrainingView,
)
from bamboo_core.model.ids import AgentId

from .builders import JOB, nodes, pod, spec

NODES = nodes(a=8, b=8, c=8)
TYPED = tuple(
    replace(node, instance_type=kind)
    for node, kind in zip(nodes(a=8, b=8, c=8, d=8), ("odd", "good", "odd", "good"), strict=True)
)
REFUSED = TrainingView(
    failed=(
        LastWords(
            AgentId("job-p0-s0-i0"), "DeviceDiffers", "device of agent job-p0-s0-i0 is 'x', of"
            " agent job-p0-s1-i0 'y'", node="node-a", machine="machine-a", is_refused=True,
        ),
    ),
    dismissed=frozenset({AgentId("job-p0-s0-i0")}),
)  # fmt: skip


def run(
    *pods: PodView,
    training: TrainingView | None = None,
    memory: Memory | None = None,
    now: float = 1000.0,
    nodes_: tuple[NodeView, ...],
) -> Step:
    training = training if training is not None else TrainingView()
    memory = memory if memory is not None else Memory()
    return step(spec(), ClusterView(nodes_, pods), training, memory, job=JOB, now=now)


def created(result: Step) -> list[CreatePod]:
    return [action for action in result.actions if isinstance(action, CreatePod)]


def deleted(result: Step) -> dict[str, DeletePod]:
    return {action.name: action for action in result.actions if isinstance(action, DeletePod)}


def capacity(status: JobStatus) -> Condition:
    return next(c for c in status.conditions if c.type == "CapacityAvailable")


def test_an_agent_of_another_kind_is_replaced_on_a_node_of_another_kind() -> None:
    odd, neighbour = pod(0, 0), pod(0, 1, zone="b")
    first = run(odd, neighbour, training=REFUSED, nodes_=TYPED)
    assert list(deleted(first)) == [odd.name]
    assert (created(first), first.wake_at) == ([], 1001.0)
    later = run(neighbour, training=REFUSED, memory=first.memory, nodes_=TYPED, now=1001.0)
    (new,) = created(later)
    assert (new.zone, new.avoids, new.avoids_types) == ("d", (), ("odd",))
    back = run(neighbour, memory=first.memory, nodes_=TYPED, now=1000.0 + AVOID_S)
    (new,) = created(back)
    assert (new.avoids, new.avoids_types) == ((), ())


def test_a_machine_of_a_kind_on_which_members_train_is_avoided_alone() -> None:
    same = tuple(replace(node, instance_type="same") for node in NODES)
    neighbour = pod(0, 1, zone="b")
    training = replace(REFUSED, members=frozenset({neighbour.agent}))
    first = run(pod(0, 0), neighbour, training=training, nodes_=same)
    later = run(neighbour, training=training, memory=first.memory, nodes_=same, now=1001.0)
    (new,) = created(later)
    assert (new.zone, new.avoids, new.avoids_types) == ("c", ("node-a",), ())


def test_where_no_other_node_has_room_the_agent_comes_back_ever_more_rarely() -> None:
    neighbour, memory, now, made = pod(0, 1, zone="b"), Memory(), 1000.0, []
    two = TYPED[:2]
    for number in range(5):
        (words,) = REFUSED.failed
        agent = AgentId(f"job-p0-s0-i{number}")
        told = replace(
            REFUSED,
            failed=(replace(words, agent=agent),),
            dismissed=frozenset({agent}),
            heard={neighbour.agent: ""},
        )
        odd = pod(0, 0, number)
        result = run(odd, neighbour, training=told, memory=memory, nodes_=two, now=now)
        assert list(deleted(result)) == [odd.name]
        result = run(neighbour, training=told, memory=result.memory, nodes_=two, now=now)
        assert created(result) == []
        lacking = capacity(result.status)
        assert (lacking.status, lacking.reason) == (False, "DeviceDiffers")
        assert "(none is made before " in lacking.message
        assert "device of agent job-p0-s0-i0 is 'x', of agent job-p0-s1-i0 'y'" in lacking.message
        assert "no node is avoided for it, since the others have no room" in lacking.message
        assert result.wake_at is not None
        now = result.wake_at
        again = run(neighbour, training=told, memory=result.memory, nodes_=two, now=now)
        (new,) = created(again)
        assert (new.zone, new.avoids, new.avoids_types) == ("a", (), ())
        memory = again.memory
        made.append(now)
    assert [later - at for at, later in pairwise(made)] == [2.0, 4.0, 8.0, 16.0]


def test_a_pod_that_waits_is_made_again_once_its_kind_need_not_be_avoided() -> None:
    waiting = pod(0, 1, zone="b", node="", phase=PodPhase.PENDING, avoids_types=frozenset({"odd"}))
    late = run(pod(0, 0), waiting, now=MOVE_AFTER_S, nodes_=TYPED)
    reason = "instance type odd need not be avoided any more"
    assert deleted(late)[waiting.name].reason == reason
    place = Avoided("node-c", "machine-c", 99.0, is_misfit=True, kind="odd")
    known = Memory(failures=Failures(avoided=(place,)))
    kept = run(pod(0, 0), waiting, memory=known, now=MOVE_AFTER_S, nodes_=TYPED)
    assert deleted(kept) == {}


def test_avoided_nodes_of_another_kind_are_told_apart_from_bad_ones() -> None:
    a, b, c = nodes(a=4, b=4, c=4)
    odd = replace(b, avoided_until=3600.0, is_misfit=True)
    view = ClusterView((replace(a, avoided_until=60.0), odd, c), (pod(0, 0), pod(0, 1, zone="b")))
    misfits = Misfits(2, 40.0, "device of agent x is 'y': use a node pool of one kind")
    known = Memory(failures=Failures(misfits=misfits))
    found = status_of(spec(), view, TrainingView(), known, job=JOB, now=50.0)
    line = capacity(found)
    assert line.status is True
    assert line.message == (
        "every agent has a node; new agents avoid node-a until 1970-01-01T00:01:00Z, since agents"
        " have failed there; new agents avoid node-b until 1970-01-01T01:00:00Z, since their"
        " processors compute other bits than those of the other agents; in 2 rounds of new pods an"
        " agent was refused, the last: device of agent x is 'y': use a node pool of one kind"
    )


def test_agents_that_are_refused_beside_a_plan_come_back_ever_more_rarely() -> None:
    """Their state does not fit, say, so that each new one is refused, on any node."""
    kept, memory, now, made = pod(0, 1, zone="b"), Memory(), 1000.0, []
    training = TrainingView(epoch=3, planned=True, members=frozenset({kept.agent}))
    (words,) = REFUSED.failed
    for number in range(5):
        new = pod(0, 0, number)
        told = replace(words, agent=new.agent, cause="FingerprintMismatch")
        gone = frozenset({new.agent})
        training = replace(training, failed=(told,), dismissed=gone)
        training = replace(training, heard=dict.fromkeys((new.agent, kept.agent), ""))
        result = run(new, kept, training=training, memory=memory, nodes_=NODES, now=now)
        assert created(result) == []
        assert result.wake_at is not None
        now = result.wake_at
        again = run(kept, training=training, memory=result.memory, nodes_=NODES, now=now)
        assert len(created(again)) == 1
        memory = again.memory
        made.append(now)
    assert [later - at for at, later in pairwise([1000.0, *made])] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert (memory.failures.unforgiven, memory.failures.total) == (0, 5)
