"""What is done about a job's pods."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import Adjacency, FactorySpec, JobSpec, RunPolicy
from bamboo_core.controller.failures import AVOID_S
from bamboo_core.controller.reconcile import (
    FAILED_FAREWELL_S,
    FAREWELL_S,
    HOOKED_FAREWELL_S,
    MOVE_AFTER_S,
    STUCK_GRACE_S,
    UNREACHABLE_GRACE_S,
    CreatePod,
    DeleteJob,
    DeletePod,
    Step,
    step,
)
from bamboo_core.controller.view import (
    UNREADY_S,
    ClusterView,
    Memory,
    NodeView,
    PodPhase,
    PodView,
    Slot,
    TrainingView,
)
from bamboo_core.model.ids import AgentId

from .builders import JOB, having_heard, nodes, pod, spec

NODES = nodes(a=8, b=8, c=8)


def run(
    *pods: PodView,
    spec_: JobSpec | None = None,
    training: TrainingView | None = None,
    memory: Memory | None = None,
    now: float = 1000.0,
    nodes_: tuple[NodeView, ...] = NODES,
) -> Step:
    return step(
        spec_ if spec_ is not None else spec(),
        ClusterView(nodes_, pods),
        having_heard(training if training is not None else TrainingView(), pods),
        memory if memory is not None else Memory(),
        job=JOB,
        now=now,
    )


def created(result: Step) -> list[CreatePod]:
    return [action for action in result.actions if isinstance(action, CreatePod)]


def deleted(result: Step) -> dict[str, DeletePod]:
    return {action.name: action for action in result.actions if isinstance(action, DeletePod)}


def test_a_new_job_gets_a_pod_for_every_seat_neighbours_apart() -> None:
    result = run(spec_=spec(count=2, stages=4))
    pods = created(result)
    assert [p.slot for p in pods] == [Slot(d, s) for d in range(2) for s in range(4)]
    assert pods[0].name == "job-p0-s0-i0"
    zone = {p.slot: p.zone for p in pods}
    assert all(zone[Slot(d, s)] != zone[Slot(d, (s + 1) % 4)] for d in range(2) for s in range(4))
    assert result.memory.incarnation == 0


def test_nothing_is_done_twice() -> None:
    first = run()
    pods = [pod(*p.slot, p.incarnation, zone=p.zone) for p in created(first)]
    assert run(*pods, memory=first.memory).actions == ()


def test_a_hole_gets_the_next_number_apart_from_its_neighbours() -> None:
    pods = [pod(0, 0, zone="a"), pod(0, 2, zone="b")]
    (new,) = created(run(*pods, spec_=spec(stages=3), memory=Memory(incarnation=6)))
    assert new == CreatePod("job-p0-s1-i7", Slot(0, 1), 7, "c")


def test_a_pod_that_is_being_deleted_is_replaced_at_once() -> None:
    leaving = pod(0, 1, zone="b", deleting_at=1015.0)
    (new,) = created(run(pod(0, 0), leaving))
    assert new.slot == Slot(0, 1)


def test_numbers_of_existing_pods_are_never_reused() -> None:
    """The status may have been lost; the pods tell."""
    pods = [pod(0, 0), pod(0, 1, 4, phase=PodPhase.FAILED, exit_code=137)]
    (new,) = created(run(*pods, memory=Memory(), training=TrainingView(epoch=1)))
    assert new.incarnation == 5


def test_a_dismissed_agent_is_deleted_and_replaced() -> None:
    pods = [pod(0, 0), pod(0, 1, zone="b")]
    result = run(*pods, training=TrainingView(dismissed=frozenset({AgentId(pods[1].name)})))
    assert list(deleted(result)) == [pods[1].name]
    assert [p.slot for p in created(result)] == [Slot(0, 1)]


@pytest.mark.parametrize("is_noticed", [True, False])
def test_a_departing_agent_is_replaced_before_it_leaves(is_noticed: bool) -> None:
    """It or its node's taint announces the departure. It keeps working, and its pod stays."""
    pods = [pod(0, 0, zone="a"), pod(0, 1, zone="b")]
    members = frozenset(p.agent for p in pods)
    leaver = pods[1].agent
    there = nodes(a=8, c=8)
    if is_noticed:
        training = TrainingView(planned=True, members=members, departing=frozenset({leaver}))
        there = (*there, *nodes(b=1))
    else:
        training = TrainingView(planned=True, members=members)
        there = (*there, replace(nodes(b=1)[0], departing=True))
    first = run(*pods, training=training, nodes_=there)
    (new,) = created(first)
    assert (new.slot, new.zone) == (Slot(0, 1), "c")
    assert deleted(first) == {}
    both = [*pods, pod(0, 1, new.incarnation, zone=new.zone)]
    assert run(*both, training=training, memory=first.memory, nodes_=there).actions == ()


def test_of_agents_without_a_part_one_at_risk_goes_first() -> None:
    pods = [pod(0, 0, zone="a"), pod(0, 1, zone="b"), pod(0, 1, 1, zone="c")]
    idle = [pods[1], pods[2]]
    for risky in idle:
        training = TrainingView(
            planned=True,
            members=frozenset({pods[0].agent}),
            at_risk=frozenset({risky.agent}),
        )
        assert list(deleted(run(*pods, training=training))) == [risky.name]


def test_no_agent_goes_because_it_is_at_risk() -> None:
    pods = [pod(0, 0, zone="a"), pod(0, 1, zone="b")]
    agents = frozenset(p.agent for p in pods)
    training = TrainingView(planned=True, members=agents, at_risk=agents)
    assert run(*pods, training=training).actions == ()


def test_a_cancelled_departure_leaves_no_surplus() -> None:
    pods = [pod(0, 0, zone="a"), pod(0, 1, zone="b"), pod(0, 1, 1, zone="c")]
    training = TrainingView(planned=True, members=frozenset(p.agent for p in pods[:2]))
    assert list(deleted(run(*pods, training=training))) == [pods[2].name]


def test_there_are_at_most_two_pods_for_a_seat() -> None:
    """A node that is about to go, and takes pods all the same."""
    there = (*nodes(a=8), replace(nodes(b=8)[0], departing=True))
    pods = [pod(0, 0, zone="a"), pod(0, 1, zone="b")]
    training = TrainingView(planned=True, members=frozenset(p.agent for p in pods))
    memory = Memory()
    for _ in range(9):
        result = run(*pods, training=training, nodes_=there, memory=memory)
        memory = result.memory
        pods += [pod(*p.slot, p.incarnation, zone="b") for p in created(result)]
        assert not deleted(result)
    assert len(pods) == 4


def test_a_new_operator_keeps_replacements_until_agents_repeat_their_notices() -> None:
    pods = [pod(0, 0, zone="a"), pod(0, 1, zone="b"), pod(0, 1, 1, zone="c")]
    members = frozenset(p.agent for p in pods[:2])
    returning = TrainingView(planned=True, recovering=True, members=members)
    assert run(*pods, training=returning).actions == ()


def test_the_room_of_a_departing_agent_is_not_free() -> None:
    """There is no taint, and the node may stay for a while."""
    pods = [pod(0, 0, zone="a"), pod(0, 1, zone="b")]
    members = frozenset(p.agent for p in pods)
    training = TrainingView(planned=True, members=members, departing=frozenset({pods[1].agent}))
    (new,) = created(run(*pods, training=training, nodes_=nodes(a=1, b=1, c=1)))
    assert new.zone == "c"


def test_a_slow_agent_is_replaced_alone() -> None:
    """Others on its node may be as fast as usual, and the cloud takes nothing away."""
    pods = [pod(d, s, zone="ab"[s]) for d in range(4) for s in range(2)]
    members, slow = frozenset(p.agent for p in pods), frozenset({pods[0].agent})
    training = TrainingView(planned=True, members=members, slow=slow)
    grid = spec(count=4)
    first = run(*pods, spec_=grid, training=training, nodes_=nodes(a=4, b=4, c=8))
    (new,) = created(first)
    assert (new.slot, new.zone) == (Slot(0, 0), "c"), "it keeps its place in zone a meanwhile"
    assert deleted(first) == {}
    both = [*pods, pod(0, 0, 9, zone="c")]
    again = run(*both, spec_=grid, training=training, memory=first.memory)
    assert again.actions == ()


def test_a_departing_agent_without_a_part_is_deleted() -> None:
    pods = [pod(0, 0, zone="a"), pod(0, 1, zone="b"), pod(0, 1, 1, zone="c")]
    leaver = pods[1].agent
    for seated in (pods[:1], [pods[0], pods[2]]):
        training = TrainingView(
            planned=True,
            members=frozenset(p.agent for p in seated),
            departing=frozenset({leaver}),
        )
        gone = [leaver] if len(seated) == 2 else []
        assert list(deleted(run(*pods, training=training))) == gone


def test_with_fewer_pipelines_agents_without_a_part_are_deleted() -> None:
    pods = [pod(d, s, zone="ab"[s]) for d in range(2) for s in range(2)]
    kept = frozenset(AgentId(p.name) for p in pods[2:])
    result = run(*pods, training=TrainingView(planned=True, members=kept))
    assert set(deleted(result)) == {p.name for p in pods[:2]}
    assert created(result) == []


def test_members_are_never_surplus() -> None:
    pods = [pod(d, s, zone="ab"[s]) for d in range(2) for s in range(2)]
    everyone = frozenset(AgentId(p.name) for p in pods)
    assert run(*pods, training=TrainingView(planned=True, members=everyone)).actions == ()


def test_a_pod_on_a_missing_node_is_force_deleted_and_replaced() -> None:
    lost = pod(0, 1, zone="z")
    result = run(pod(0, 0), lost)
    assert deleted(result)[lost.name].force
    # It still exists; the next call sees it gone.
    assert run(pod(0, 0)).actions


def test_a_deleted_pod_on_a_silent_node_is_force_deleted_soon() -> None:
    silent = (*nodes(a=8), NodeView("node-b", "m", "b", ready=False))
    leaving = pod(0, 1, zone="b", deleting_at=1000.0)
    early = run(pod(0, 0), leaving, nodes_=silent, now=1000.0 + UNREACHABLE_GRACE_S - 1)
    assert not deleted(early)
    assert early.wake_at == 1000.0 + UNREACHABLE_GRACE_S
    late = run(pod(0, 0), leaving, nodes_=silent, now=1000.0 + UNREACHABLE_GRACE_S)
    assert deleted(late)[leaving.name].force


def test_a_deleted_pod_on_a_ready_node_is_force_deleted_later() -> None:
    leaving = pod(0, 1, zone="b", deleting_at=1000.0)
    assert not deleted(run(pod(0, 0), leaving, now=1000.0 + UNREACHABLE_GRACE_S))
    assert deleted(run(pod(0, 0), leaving, now=1000.0 + STUCK_GRACE_S))[leaving.name].force


def test_an_agent_that_never_ran_is_replaced_if_its_node_stays_unready() -> None:
    """Kubernetes does not delete it while many nodes of its zone fail at once."""
    unready = NodeView("node-b", "m", "b", ready=False, unready_since=1000.0)
    pods = [pod(0, 0), pod(0, 1, zone="b", phase=PodPhase.PENDING)]

    def at(now: float, *changed: PodView, training: TrainingView | None = None) -> Step:
        there = changed or pods
        return run(*there, nodes_=(*nodes(a=8, c=8), unready), training=training, now=now)

    early = at(1000.0 + UNREADY_S - 1)
    assert early.actions == ()
    assert early.wake_at == 1000.0 + UNREADY_S
    late = deleted(at(1000.0 + UNREADY_S))
    assert list(late) == [pods[1].name]
    assert not late[pods[1].name].force
    assert late[pods[1].name].reason == "node node-b has not been ready for 30 s"
    new = replace(pods[1], created_at=1030.0)
    assert at(1031.0, pods[0], new).actions == (), "it need not go at once"
    assert at(1031.0, pods[0], new).wake_at == 1030.0 + UNREADY_S


def test_an_agent_that_has_run_is_not_given_up_because_its_node_is_unready() -> None:
    """It may hold the only copy of a layer, though neither node nor agent is heard. Only before the
    first plan nobody holds anything."""
    unready = NodeView("node-b", "m", "b", ready=False, unready_since=1000.0)
    pods, late = [pod(0, 0), pod(0, 1, zone="b")], 1000.0 + UNREADY_S

    def at(training: TrainingView) -> Step:
        return run(*pods, nodes_=(*nodes(a=8, c=8), unready), training=training, now=late)

    held = frozenset({AgentId(pods[0].name)})
    assert at(TrainingView(epoch=3, planned=True, recovering=True, members=held)).actions == ()
    assert at(TrainingView(epoch=0, connected=frozenset({AgentId(pods[1].name)}))).actions == ()
    assert list(deleted(at(TrainingView(epoch=0, connected=held)))) == [pods[1].name]


def test_a_suspended_job_keeps_its_agents_until_the_state_is_safe() -> None:
    pods = [pod(0, 0), pod(0, 1, zone="b")]
    resting = spec(suspend=True)
    assert run(*pods, spec_=resting, training=TrainingView(planned=True)).actions == ()
    safe = TrainingView(planned=False, outcome=Outcome.SUSPENDED)
    assert len(deleted(run(*pods, spec_=resting, training=safe))) == 2
    assert created(run(spec_=resting, training=safe)) == []


def test_a_complete_job_lets_its_agents_leave_by_themselves() -> None:
    pods = [pod(0, 0), pod(0, 1, zone="b")]
    done = TrainingView(outcome=Outcome.COMPLETE)
    first = run(*pods, training=done)
    assert first.memory.terminal is Outcome.COMPLETE
    assert first.actions == ()
    assert first.wake_at == 1000.0 + FAREWELL_S
    late = run(*pods, training=done, memory=first.memory, now=1000.0 + FAREWELL_S)
    assert len(deleted(late)) == 2


@pytest.mark.parametrize("outcome", [Outcome.COMPLETE, Outcome.FAILED])
def test_agents_with_hooks_have_more_time_to_leave(outcome: Outcome) -> None:
    hooked = replace(spec(), hooks=(FactorySpec("t:build"),))
    ended = run(pod(0, 0), spec_=hooked, training=TrainingView(outcome=outcome))
    assert (ended.actions, ended.wake_at) == ((), 1000.0 + HOOKED_FAREWELL_S)
    late = run(pod(0, 0), spec_=hooked, memory=ended.memory, now=1000.0 + HOOKED_FAREWELL_S)
    assert len(deleted(late)) == 1


def test_a_failed_job_keeps_ended_pods_for_their_logs() -> None:
    ended = [pod(0, 0, n, phase=PodPhase.FAILED, exit_code=2) for n in range(2)]
    result = run(*ended, pod(0, 1, zone="b"))
    assert result.memory.terminal is Outcome.FAILED
    assert result.actions == ()
    late = run(*ended, pod(0, 1, zone="b"), memory=result.memory, now=1000.0 + FAILED_FAREWELL_S)
    assert list(deleted(late)) == ["job-p0-s1-i0"]


def test_terminal_stays_terminal() -> None:
    ended = run(training=TrainingView(outcome=Outcome.COMPLETE)).memory
    again = run(training=TrainingView(), memory=ended)
    assert again.memory.terminal is Outcome.COMPLETE
    assert created(again) == []


def test_a_finished_job_is_deleted_after_its_time() -> None:
    policy = spec(run_policy=RunPolicy(ttl_s=100))
    ended = run(spec_=policy, training=TrainingView(outcome=Outcome.COMPLETE))
    assert ended.wake_at == 1000.0 + FAREWELL_S
    late = run(spec_=policy, memory=ended.memory, now=1100.0)
    assert DeleteJob() in late.actions


def test_only_the_newest_ended_pods_stay() -> None:
    ended = [pod(0, 0, n, phase=PodPhase.FAILED, exit_code=137) for n in range(20)]
    alive = [pod(0, 0, 30), pod(0, 1, 30, zone="b")]
    result = run(*ended, *alive)
    assert set(deleted(result)) == {p.name for p in ended[:4]}


def test_failures_delay_the_next_pods() -> None:
    failed = pod(0, 0, phase=PodPhase.FAILED, exit_code=1)
    first = run(failed, pod(0, 1, zone="b"))
    assert created(first) == []
    assert first.memory.failures.total == 1
    assert first.wake_at == 1001.0
    later = run(failed, pod(0, 1, zone="b"), memory=first.memory, now=1001.0)
    assert [p.incarnation for p in created(later)] == [1]


def test_a_refusal_delays_the_next_pods() -> None:
    refused = Memory(not_before=1001.0, refused_until=1010.0)
    first = run(pod(0, 1, zone="b"), memory=refused)
    assert (created(first), first.wake_at) == ([], 1010.0)
    assert len(created(run(pod(0, 1, zone="b"), memory=first.memory, now=1010.0))) == 1


def test_new_pods_avoid_a_node_that_fails_twice_until_it_comes_back() -> None:
    failed = [pod(0, 0, n, phase=PodPhase.FAILED, exit_code=1) for n in range(2)]
    neighbour = pod(0, 1, zone="b")
    once = run(failed[0], neighbour)
    (new,) = created(run(failed[0], neighbour, memory=once.memory, now=1001.0))
    assert new.avoids == ()
    twice = run(*failed, neighbour, memory=once.memory, now=1001.0)
    assert twice.wake_at == 1003.0
    (new,) = created(run(*failed, neighbour, memory=twice.memory, now=1003.0))
    assert (new.zone, new.avoids) == ("c", ("node-a",))
    back = 1001.0 + AVOID_S
    alive = (pod(0, 0, 5, zone="c"), neighbour)
    assert run(*failed, *alive, memory=twice.memory, now=1003.0).wake_at == back
    (new,) = created(run(neighbour, memory=twice.memory, now=back))
    assert (new.zone, new.avoids) == ("a", ())


def test_another_machine_of_the_same_name_is_not_avoided() -> None:
    failed = [pod(0, 0, n, phase=PodPhase.FAILED, exit_code=1) for n in range(2)]
    bad = run(*failed, pod(0, 1, zone="b")).memory
    fresh = (replace(NODES[0], machine="repaired"), *NODES[1:])
    (new,) = created(run(*failed, pod(0, 1, zone="b"), memory=bad, nodes_=fresh, now=1002.0))
    assert new.avoids == ()


def test_a_pod_that_waits_though_its_node_has_come_back_is_made_again() -> None:
    waiting = pod(0, 1, zone="b", node="", phase=PodPhase.PENDING, avoids=frozenset({"node-b"}))
    assert deleted(run(pod(0, 0), waiting, now=MOVE_AFTER_S - 1)) == {}
    late = run(pod(0, 0), waiting, now=MOVE_AFTER_S)
    assert deleted(late)[waiting.name].reason == "node node-b need not be avoided any more"
    gone = replace(waiting, avoids=frozenset({"node-x"}))
    assert deleted(run(pod(0, 0), gone, now=MOVE_AFTER_S)) == {}


def test_a_pod_that_waits_in_a_full_zone_moves_to_another() -> None:
    waiting = pod(0, 1, zone="b", node="", phase=PodPhase.PENDING)
    both = (pod(0, 0), waiting)
    room = nodes(a=8, b=0, c=1)
    assert run(*both, nodes_=room, now=MOVE_AFTER_S - 1).actions == ()
    assert run(*both, nodes_=room, now=MOVE_AFTER_S - 1).wake_at == MOVE_AFTER_S
    late = run(*both, nodes_=room, now=MOVE_AFTER_S)
    assert deleted(late)[waiting.name].reason == "zone b has no room, c has"
    (new,) = created(run(both[0], nodes_=room))
    assert new.zone == "c"


def test_a_pod_without_a_zone_is_apart_from_the_neighbours_that_are_there() -> None:
    """Those that replace them later may have its zone, if the plan gives them other seats."""
    (new,) = created(run(pod(0, 0, 3, zone="a"), nodes_=nodes(a=8)))
    assert (new.zone, new.apart) == ("", (3,))
    assert [new.apart for new in created(run(nodes_=()))] == [(), ()]
    assert [new.apart for new in created(run(pod(0, 0, 3, zone="a")))] == [()], "it has a zone"


def test_a_pod_waits_where_it_is_if_no_other_zone_is_better() -> None:
    waiting = pod(0, 1, zone="b", node="", phase=PodPhase.PENDING)
    late = 10 * MOVE_AFTER_S
    assert run(pod(0, 0), waiting, nodes_=nodes(a=8, b=0, c=0), now=late).actions == ()
    assert run(pod(0, 0), waiting, nodes_=nodes(a=8, b=1, c=1), now=late).actions == ()
    alone = pod(0, 1, zone="b", node="", phase=PodPhase.PENDING)
    assert deleted(run(alone, nodes_=nodes(a=8, b=0), now=late)) == {}


def test_no_pods_for_a_job_that_is_being_deleted() -> None:
    leaving = replace(JOB, deleting=True)
    view = ClusterView(NODES, ())
    assert step(spec(), view, TrainingView(), Memory(), job=leaving, now=0.0).actions == ()


def test_neighbours_never_share_a_zone_even_if_that_means_waiting() -> None:
    result = run(nodes_=nodes(a=8))
    assert [p.zone for p in created(result)] == ["a", ""]
    named = spec(zones=("a",))
    assert created(run(nodes_=nodes(a=8), spec_=named)) == []
    assert created(run(nodes_=nodes(a=8), spec_=spec(adjacency=Adjacency.CLUSTER)))


_PHASES = st.sampled_from(list(PodPhase))
_PODS = st.builds(
    lambda d, s, i, phase, zone, deleting, code: pod(
        d, s, i, phase=phase, zone=zone, deleting_at=deleting, exit_code=code
    ),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(0, 3),
    _PHASES,
    st.sampled_from("abuz"),
    st.none() | st.just(990.0),
    st.none() | st.sampled_from([0, 1, 2, 3, 137, 143]),
)


@given(
    st.lists(_PODS, max_size=9, unique_by=lambda p: p.name),
    st.builds(
        TrainingView,
        planned=st.booleans(),
        outcome=st.none() | st.sampled_from(Outcome),
        dismissed=st.just(frozenset({AgentId("job-p0-s0-i0")})),
    ),
    st.booleans(),
)
def test_any_view(pods: list[PodView], training: TrainingView, suspend: bool) -> None:
    """Names are new, each pod gets one action, ended jobs get no pods, seats are not overfilled."""
    wanted = spec(count=2, stages=2, suspend=suspend)
    result = run(*pods, spec_=wanted, training=training)
    new = created(result)
    names = [a.name for a in result.actions if not isinstance(a, DeleteJob)]
    assert len(set(names)) == len(names)
    assert {p.name for p in new}.isdisjoint(p.name for p in pods)
    usable = [p for p in pods if p.is_alive and p.agent not in training.dismissed]
    assert len(new) + len(usable) <= max(4, len(usable))
    assert not (new and (suspend or result.memory.terminal))
    again = run(*pods, spec_=wanted, training=training, memory=result.memory)
    assert again.memory.failures == result.memory.failures


@given(
    st.lists(_PODS, max_size=9, unique_by=lambda p: p.name),
    st.sets(st.integers(0, 8)),
    st.sampled_from([0, 3]),
)
def test_nobody_waits_for_an_agent_without_state_on_a_dead_node(
    pods: list[PodView], heard: set[int], epoch: int
) -> None:
    """Wherever its start was interrupted. Who is heard, or may hold something, stays."""
    dead = NodeView("node-u", "m", "u", ready=False, unready_since=1000.0 - UNREADY_S)
    known = frozenset(pods[n].agent for n in heard if n < len(pods))
    result = run(
        *pods,
        spec_=spec(count=9, stages=2),
        training=TrainingView(connected=known, epoch=epoch),
        nodes_=(*NODES, dead),
    )
    there = {p.name for p in pods if p.zone == "u" and p.is_alive}
    empty = {p.name for p in pods if p.phase is PodPhase.PENDING or epoch == 0}
    gone = (there & empty) - known if not result.memory.terminal else set()
    assert there & deleted(result).keys() == gone
