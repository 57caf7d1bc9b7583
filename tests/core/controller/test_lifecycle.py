"""Conditions and phase."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.progress import TrainingProgress
from bamboo_core.api.reasons import ConditionType, JobPhase, Reason
from bamboo_core.api.records import Problem
from bamboo_core.api.spec import Adjacency, CheckpointSpec, PoolSpec, RedundancyMode, WorkerSpec
from bamboo_core.controller import lifecycle
from bamboo_core.controller.lifecycle import JobStatus, status_of
from bamboo_core.controller.shortage import at_present, insufficient, offers_no
from bamboo_core.controller.view import (
    ClusterView,
    Condition,
    Memory,
    NodeView,
    PodPhase,
    PodView,
    TrainingView,
)
from bamboo_core.model.ids import AgentId

from .builders import JOB, nodes, pod, spec

PODS = (pod(0, 0), pod(0, 1, zone="b"))
AGENTS = frozenset(AgentId(p.name) for p in PODS)
TRAINING = TrainingView(
    epoch=4,
    planned=True,
    has_state=True,
    pipelines=1,
    connected=AGENTS,
    members=AGENTS,
    progress=TrainingProgress(6),
    copies=(2, 2),
)


def status(
    *pods: PodView,
    training: TrainingView | None = None,
    memory: Memory | None = None,
    now: float = 50.0,
    room: dict[str, int] | None = None,
    **changes: Any,
) -> JobStatus:
    return status_of(
        spec(**changes),
        ClusterView(nodes(**(room if room is not None else {"a": 4, "b": 4})), pods),
        training if training is not None else TrainingView(),
        memory if memory is not None else Memory(),
        job=JOB,
        now=now,
    )


def condition(found: JobStatus, kind: ConditionType) -> Condition:
    return next(c for c in found.conditions if c.type == kind)


def capacity(*pods: PodView, nodes_: tuple[NodeView, ...], **changes: Any) -> Condition:
    """The condition CapacityAvailable with these nodes."""
    view = ClusterView(nodes_, pods)
    found = status_of(spec(**changes), view, TrainingView(), Memory(), job=JOB, now=50.0)
    return condition(found, ConditionType.CAPACITY_AVAILABLE)


@pytest.mark.parametrize(
    ("pods", "training", "memory", "suspend", "phase"),
    [
        ((), TrainingView(), Memory(), False, JobPhase.PENDING),
        ((pod(phase=PodPhase.PENDING),), TrainingView(), Memory(), False, JobPhase.PENDING),
        (PODS, TrainingView(), Memory(), False, JobPhase.STARTING),
        (PODS, TRAINING, Memory(), False, JobPhase.RUNNING),
        (
            PODS,
            TrainingView(planned=True, has_state=True, recovering=True),
            Memory(),
            False,
            JobPhase.RECOVERING,
        ),
        (
            PODS,
            TrainingView(progress=TrainingProgress(3)),
            Memory(trained=True),
            False,
            JobPhase.RECOVERING,
        ),
        (
            PODS,
            TrainingView(progress=TrainingProgress(3), attempt=1),
            Memory(),
            False,
            JobPhase.STARTING,
        ),
        (
            (),
            TrainingView(progress=TrainingProgress(3), attempt=1),
            Memory(),
            False,
            JobPhase.PENDING,
        ),
        (PODS, TRAINING, Memory(), True, JobPhase.SUSPENDING),
        ((), TrainingView(has_state=True), Memory(), True, JobPhase.SUSPENDING),
        ((), TrainingView(outcome=Outcome.SUSPENDED), Memory(), True, JobPhase.SUSPENDED),
        (PODS, TRAINING, Memory(terminal=Outcome.COMPLETE), False, JobPhase.COMPLETE),
        (PODS, TRAINING, Memory(terminal=Outcome.FAILED), True, JobPhase.FAILED),
    ],
)
def test_phase(
    pods: tuple[PodView, ...],
    training: TrainingView,
    memory: Memory,
    suspend: bool,
    phase: JobPhase,
) -> None:
    assert status(*pods, training=training, memory=memory, suspend=suspend).phase is phase


@pytest.mark.parametrize("has_state", [True, False])
@pytest.mark.parametrize("queued", ["", "no quota"])
def test_suspended_is_true_once_the_api_server_takes_changes(has_state: bool, queued: str) -> None:
    """All agents are gone; the facts still name them until the arbiter has put the job to rest."""
    training, job = TrainingView(has_state=has_state), replace(JOB, queued=queued)
    view, wanted = ClusterView(nodes(a=4), ()), spec(suspend=True)
    found = status_of(wanted, view, training, Memory(), job=job, now=50.0)
    assert condition(found, ConditionType.SUSPENDED).status is not has_state


def test_every_condition_is_written_every_time() -> None:
    for training in (TrainingView(), TRAINING):
        assert {c.type for c in status(*PODS, training=training).conditions} == set(ConditionType)


def test_running() -> None:
    found = condition(status(*PODS, training=TRAINING), ConditionType.RUNNING)
    assert (found.status, found.reason) == (True, Reason.TRAINING_STEP)
    assert found.message == "step 7 of 10, plan 4"
    waiting = condition(status(*PODS), ConditionType.RUNNING)
    assert (waiting.status, waiting.message) == (False, "0 of 2 agents connected")


def test_capacity_names_the_zones_where_nodes_are_missing() -> None:
    pods = (pod(0, 0), pod(0, 1, zone="b", node="", phase=PodPhase.PENDING))
    found = condition(status(*pods, room={"a": 1}), ConditionType.CAPACITY_AVAILABLE)
    assert (found.status, found.reason) == (False, Reason.WAITING_FOR_NODES)
    assert found.message.startswith("no node yet for 1 of 2 agents (1 in b)")
    assert "known zones: a: add nodes in another zone" in found.message
    assert condition(status(*PODS), ConditionType.CAPACITY_AVAILABLE).status


def test_an_agent_on_a_node_with_a_new_taint_is_not_missing() -> None:
    tainted, free = nodes(a=0, b=0)
    view = ClusterView(
        (replace(tainted, suits=False), free),
        (pod(0, 0), pod(0, 1, zone="b", node="", phase=PodPhase.PENDING)),
    )
    found = status_of(spec(), view, TrainingView(), Memory(), job=JOB, now=50.0)
    text = condition(found, ConditionType.CAPACITY_AVAILABLE).message
    assert "usable by zone: a: 1, b: 0: add 1 agent" in text


@pytest.mark.parametrize("is_placed", [True, False])
def test_avoided_nodes_are_named_with_their_time(is_placed: bool) -> None:
    until = {"a": 3600.0, "b": 0.0, "c": 60.0}
    there = tuple(replace(n, avoided_until=until[n.zone]) for n in nodes(a=4, b=4, c=4))
    pods = PODS if is_placed else PODS[:1]
    view = ClusterView(there, pods)
    found = status_of(spec(), view, TrainingView(), Memory(), job=JOB, now=50.0)
    line = condition(found, ConditionType.CAPACITY_AVAILABLE)
    assert line.status is is_placed
    assert line.message.endswith(
        "; new agents avoid node-c until 1970-01-01T00:01:00Z, node-a until 1970-01-01T01:00:00Z,"
        " since agents have failed there"
    )


def test_a_resting_job_wants_no_nodes() -> None:
    leaving = pod(0, 0, node="", phase=PodPhase.PENDING)
    found = condition(status(leaving, suspend=True), ConditionType.CAPACITY_AVAILABLE)
    assert (found.status, found.message) == (True, "no agents are wanted: the job rests")


def test_pods_without_a_node_do_not_hide_that_the_grid_does_not_fit() -> None:
    """All pods exist. An autoscaler may add nodes for them; until then the condition shows it."""
    waiting = pod(0, 1, zone="b", node="", phase=PodPhase.PENDING)
    found = status(pod(0, 0), waiting, room={"a": 4, "b": 0})
    spread = condition(found, ConditionType.ZONE_SPREAD_SATISFIED)
    assert (spread.status, spread.reason) == (None, Reason.WAITING_FOR_NODES)
    assert spread.message.startswith("not known before there is room for every agent: 1 x 2 needs")
    assert "; the next node helps most in zone b" in spread.message
    assert condition(found, ConditionType.CAPACITY_AVAILABLE).reason == Reason.WAITING_FOR_NODES
    fits = status(pod(0, 0), waiting)
    assert condition(fits, ConditionType.ZONE_SPREAD_SATISFIED).status


def test_no_node_is_big_enough() -> None:
    worker = WorkerSpec("agent:1", resources={"limits": {"nvidia.com/gpu": 9}})
    waiting = (
        pod(0, 0, node="", phase=PodPhase.PENDING),
        pod(0, 1, zone="b", node="", phase=PodPhase.PENDING),
    )
    small = tuple(
        replace(node, suits=False, lacks=insufficient("nvidia.com/gpu")) for node in nodes(a=0, b=0)
    )
    line = capacity(*waiting, nodes_=small, worker=worker)
    assert (line.status, line.reason) == (False, Reason.NODES_TOO_SMALL)
    assert (
        "no node is big enough for one agent: spec.worker.resources asks for nvidia.com/gpu 9"
    ) in line.message
    young = tuple(replace(node, lacks=offers_no("nvidia.com/gpu")) for node in small)
    assert (
        "asks for nvidia.com/gpu 9; every node offers no nvidia.com/gpu; a new node does so until"
        " its device plugin is ready"
    ) in capacity(*waiting, nodes_=young, worker=worker).message
    mixed = capacity(*waiting, nodes_=(small[0], young[1]), worker=worker)
    assert "device plugin" not in mixed.message


def test_what_is_missing_where_and_what_helps() -> None:
    waiting = [pod(0, s, zone="a", node="", phase=PodPhase.PENDING) for s in range(3)]
    gpus = replace(nodes(a=0)[0], lacks=insufficient("nvidia.com/gpu"))
    tainted = replace(gpus, name="other", suits=False, lacks="taint team=x:NoSchedule")
    away = replace(gpus, name="away", ready=False)
    line = capacity(*waiting, nodes_=(gpus, replace(gpus, name="2"), tainted, away), count=2)
    assert (
        "no node yet for 3 of 4 agents (3 in a), no pod yet for 1 (none is made for them while the"
        " known zones are too few); job-p0-s0-i0 and 2 more in zone a: insufficient nvidia.com/gpu"
        " (2 nodes), not ready (1 node), taint team=x:NoSchedule (1 node); add nodes to the pool or"
        " tolerate the taint in spec.worker.podTemplate"
    ) in line.message
    named = capacity(*waiting, nodes_=(gpus,), count=2, zones=("a", "b"))
    assert "; add nodes to the pool or add zones to spec.placement.zones" in named.message
    assert "spec.suspend" not in named.message  # one update is enough
    plain = capacity(waiting[0], nodes_=nodes(a=0, b=1))
    assert "spec.suspend" not in plain.message, "adding nodes needs no change of the job"
    under = replace(gpus, lacks=at_present("taint node.kubernetes.io/disk-pressure:NoSchedule"))
    pressed = capacity(waiting[0], nodes_=(replace(under, schedulable=False),))
    assert (
        "at present taint node.kubernetes.io/disk-pressure:NoSchedule (1 node); add nodes to the"
        " pool or wait until the taint goes;"
    ) in pressed.message
    empty = capacity(waiting[0], nodes_=nodes(b=1), zones=("a", "b"))
    assert "job-p0-s0-i0 in zone a: no nodes there; add nodes" in empty.message


def test_a_taint_in_another_zone_is_named_if_its_node_has_room() -> None:
    waiting = [pod(0, 0, zone="a", node="", phase=PodPhase.PENDING)]
    full, tainted = (replace(n, lacks=insufficient("nvidia.com/gpu")) for n in nodes(a=0, b=0))
    tainted = replace(tainted, suits=False, lacks="taint team=x:NoSchedule", is_held_back=True)
    assert (
        "in zone a: insufficient nvidia.com/gpu (1 node); in other zones: taint"
        " team=x:NoSchedule (1 node); add nodes to the pool or tolerate the taint"
    ) in capacity(*waiting, nodes_=(full, tainted)).message
    for other in ({"is_held_back": False}, {"ready": False}):
        line = capacity(*waiting, nodes_=(full, replace(tainted, **other)))
        assert "taint" not in line.message


def test_a_device_plugin_is_awaited_only_where_no_node_offers_the_device() -> None:
    waiting = [pod(0, s, zone=z, node="", phase=PodPhase.PENDING) for s, z in enumerate("ab")]
    full = tuple(replace(n, lacks=insufficient("nvidia.com/gpu")) for n in nodes(a=0, b=0))
    plain = replace(full[0], name="system", suits=False, lacks=offers_no("nvidia.com/gpu"))
    text = capacity(*waiting, nodes_=(*full, plain)).message
    assert "insufficient nvidia.com/gpu (1 node), offers no nvidia.com/gpu (1 node)" in text
    assert "device plugin" not in text, "a node for the operator gets none"
    tainted = replace(full[0], suits=False, lacks="taint team=x:NoSchedule")
    assert "device plugin" not in capacity(*waiting, nodes_=(plain, tainted)).message
    text = capacity(*waiting, nodes_=(full[1], plain)).message
    assert "; add nodes to the pool or wait for the device plugin of new nodes;" in text
    unready = replace(plain, name="new", ready=False)
    assert "wait for the device" in capacity(*waiting, nodes_=(full[1], plain, unready)).message


def test_the_schedulers_words_count_where_nodes_look_free() -> None:
    words = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    refused = pod(
        0, 0, zone="a", node="", phase=PodPhase.PENDING, refused_at=1.0, refusal=words + "x" * 900
    )
    line = capacity(refused, nodes_=nodes(a=2, b=2))
    assert f"job-p0-s0-i0 in zone a: the scheduler says: {words}xxx" in line.message
    assert len(line.message) < 600
    silent = capacity(replace(refused, refusal=""), nodes_=nodes(a=2, b=2))
    assert "job-p0-s0-i0 in zone a: no scheduler has answered since 1970-" in silent.message
    anywhere = capacity(replace(refused, zone=""), nodes_=nodes(a=2, b=2))
    assert "job-p0-s0-i0 in any zone: the scheduler says" in anywhere.message


def test_the_condition_says_why_a_pod_is_not_made() -> None:
    few = capacity(pod(0, 0), nodes_=nodes(a=8), stages=3).message
    assert (
        "no pod yet for 2 of 3 agents (none is made for them while the known zones are too few)"
        in few
    )
    later = status(pod(0, 0), memory=Memory(not_before=1000.0))
    text = condition(later, ConditionType.CAPACITY_AVAILABLE).message
    assert (
        "no pod yet for 1 of 2 agents (none is made before 1970-01-01T00:16:40Z, since agents"
        in text
    )
    refused = status(pod(0, 0), memory=Memory(not_before=60.0, refused_until=1000.0))
    text = condition(refused, ConditionType.CAPACITY_AVAILABLE).message
    assert "(none is made before 1970-01-01T00:16:40Z: the last ones were refused; see cond" in text
    assert "agents have failed" not in text
    assert "no pod yet for 1 of 2 agents" in capacity(pod(0, 0), nodes_=nodes(a=8, b=0)).message
    assert "(none" not in capacity(pod(0, 0), nodes_=nodes(a=8, b=0)).message


def test_no_node_suits() -> None:
    wrong = [replace(n, suits=False, agents=0, lacks="no label gpu=a100") for n in nodes(a=1, b=1)]
    line = capacity(nodes_=tuple(wrong))
    assert (line.status, line.reason) == (False, Reason.NO_NODE_SUITS)
    assert line.message.endswith(
        "no node can take an agent: no label gpu=a100 (2 nodes); add nodes to the pool or label the"
        " nodes or change the node selector in spec.worker.podTemplate"
    )
    pools = (PoolSpec(("a",), {"gpu": "a100"}),)
    assert (
        "change the node selector in spec.placement.pools or spec.worker.podTemplate"
        in capacity(nodes_=tuple(wrong), pools=pools).message
    )


def test_zone_spread() -> None:
    kind = ConditionType.ZONE_SPREAD_SATISFIED
    apart = condition(status(*PODS), kind)
    assert (apart.reason, "no plan is in force" in apart.message) == ("NeighboursSeparated", True)
    pods = [pod(0, s, zone=zone) for s, zone in enumerate("aabb")]
    agents = [p.agent for p in pods]
    crossed = replace(TRAINING, grid=(tuple(agents[s] for s in (0, 2, 1, 3)),))
    moved = condition(status(*pods, stages=4, training=crossed), kind)
    assert moved.message == "ring neighbours lie in different zones", "the slots do not decide"
    shared = condition(
        status(*pods, stages=4, training=replace(crossed, grid=(tuple(agents),))), kind
    )
    assert shared.reason == Reason.NEIGHBOURS_SHARE_ZONE
    assert "job-p0-s0-i0 and job-p0-s1-i0" in shared.message
    cluster = condition(status(room={"a": 9}, adjacency=Adjacency.CLUSTER), kind)
    assert (cluster.status, cluster.reason) == (True, Reason.NOT_WANTED)
    assert condition(status(stages=1), kind).status
    leaving = status(pod(0, 0), memory=Memory(terminal=Outcome.COMPLETE))
    assert condition(leaving, kind).status, "an agent that is still there wants no neighbour"


@pytest.mark.parametrize(
    ("room", "reason"),
    [({"a": 9}, Reason.PLACEMENT_INFEASIBLE), ({"a": 9, "b": 0}, Reason.NEIGHBOURS_SHARE_ZONE)],
)
def test_agents_that_are_all_in_one_zone(room: dict[str, int], reason: Reason) -> None:
    found = status(pod(0, 0), pod(0, 1), room=room)
    crowd = condition(found, ConditionType.ZONE_SPREAD_SATISFIED)
    assert (crowd.status, crowd.reason) == (False, reason)
    assert "one zone fills at most 1 seats" in crowd.message


@pytest.mark.parametrize(
    ("room", "stages", "verdict", "reason"),
    [
        ({"a": 9}, 2, False, Reason.PLACEMENT_INFEASIBLE),
        ({"a": 9, "b": 9}, 3, False, Reason.PLACEMENT_INFEASIBLE),
        ({}, 2, None, Reason.WAITING_FOR_NODES),
        ({"a": 0, "b": 0, "c": 0}, 2, None, Reason.WAITING_FOR_NODES),
        ({"a": 9, "b": 0}, 2, None, Reason.WAITING_FOR_NODES),
        ({"a": 1, "b": 1}, 2, True, Reason.NEIGHBOURS_SEPARATED),
    ],
)
def test_a_spread_is_infeasible_only_if_further_nodes_would_not_help(
    room: dict[str, int], stages: int, verdict: bool | None, reason: Reason
) -> None:
    line = condition(status(room=room, stages=stages), ConditionType.ZONE_SPREAD_SATISFIED)
    assert (line.status, line.reason) == (verdict, reason)
    is_advised = "known zones" in line.message or "Cluster" in line.message
    assert is_advised is (verdict is False or room == {"a": 9, "b": 0})


def test_a_spread_is_not_known_while_no_node_suits() -> None:
    small = tuple(replace(n, suits=False, lacks=insufficient("cpu")) for n in nodes(a=0, b=0))
    found = status_of(spec(), ClusterView(small, ()), TrainingView(), Memory(), job=JOB, now=50.0)
    line = condition(found, ConditionType.ZONE_SPREAD_SATISFIED)
    assert (line.status, line.reason) == (None, Reason.WAITING_FOR_NODES)
    assert line.message == "not known before a node can take an agent; see CapacityAvailable"


def test_a_shortage_does_not_hide_that_the_plan_keeps_neighbours_apart() -> None:
    training = replace(TRAINING, grid=(tuple(p.agent for p in PODS),))
    found = status(*PODS, training=training, count=2, room={"a": 1, "b": 1})
    line = condition(found, ConditionType.ZONE_SPREAD_SATISFIED)
    assert (line.status, line.message) == (True, "ring neighbours lie in different zones")


def test_degraded() -> None:
    kind = ConditionType.DEGRADED
    whole = condition(status(*PODS, training=TRAINING), kind)
    assert (whole.status, whole.reason) == (False, Reason.FULLY_PROTECTED)
    assert whole.message == "every seat is taken, and each layer has at least 2 live copies"
    alone = replace(TRAINING, members=frozenset({AgentId("x")}))
    assert condition(status(*PODS, training=alone), kind).reason == Reason.FEWER_AGENTS
    short = replace(TRAINING, shortage="it needs 2 MiB")
    found = condition(status(*PODS, training=short), kind)
    assert (found.status, found.reason) == (True, Reason.MEMORY_SHORT)
    assert found.message == "it needs 2 MiB"
    fewer = condition(status(*PODS, training=TRAINING, count=2), kind)
    assert (fewer.reason, fewer.message) == (
        Reason.FEWER_PIPELINES,
        "1 of 2 pipelines training",
    )


@pytest.mark.parametrize(
    ("training", "memory", "verdict", "reason"),
    [
        (TrainingView(), Memory(), None, Reason.NO_PLAN),
        (TrainingView(connected=AGENTS), Memory(), None, Reason.NO_PLAN),
        (
            TrainingView(planned=True, has_state=True, recovering=True),
            Memory(trained=True),
            None,
            Reason.NO_PLAN,
        ),
        (TrainingView(outcome=Outcome.SUSPENDED), Memory(), None, Reason.NO_PLAN),
        (TRAINING, Memory(terminal=Outcome.COMPLETE), False, Reason.FINISHED),
    ],
)
def test_protection_is_not_claimed_without_a_plan(
    training: TrainingView, memory: Memory, verdict: bool | None, reason: Reason
) -> None:
    line = condition(status(*PODS, training=training, memory=memory), ConditionType.DEGRADED)
    assert (line.status, line.reason) == (verdict, reason)


@pytest.mark.parametrize(
    ("changes", "step", "words"),
    [
        ({}, -1, "from the start; spec.pipelines.count 2, or redundancy.mode Replica, would keep"),
        ({"checkpoint": CheckpointSpec("file:///c")}, -1, "a restore from the start;"),
        ({"checkpoint": CheckpointSpec("file:///c")}, 8, "a restore from the newest checkpoint;"),
        ({"stages": 1}, -1, "spec.pipelines.count 2 would keep a second one"),
    ],
)
def test_one_copy_of_each_layer_is_no_protection(changes: Any, step: int, words: str) -> None:
    training = replace(TRAINING, copies=(1, 1), checkpoint_step=step)
    line = condition(status(*PODS, training=training, **changes), ConditionType.DEGRADED)
    assert (line.status, line.reason) == (False, Reason.NOT_PROTECTED)
    assert words in line.message


@pytest.mark.parametrize(
    ("copies", "changes", "message"),
    [
        ((2, 1, 1, 2, 1), {"redundancy": RedundancyMode.REPLICA}, "1-2, 4"),
        ((1, 1), {"count": 2}, "0-1"),
        ((2, 2), {"count": 2, "stages": 1}, ""),
        ((1, 1), {}, ""),
    ],
)
def test_layers_without_a_second_copy(
    copies: tuple[int, ...], changes: dict[str, Any], message: str
) -> None:
    """Only a job that promises copies can lack them."""
    training = replace(TRAINING, copies=copies, pipelines=changes.get("count", 1))
    found = status(*PODS, training=training, **changes)
    degraded = condition(found, ConditionType.DEGRADED)
    assert (degraded.reason == Reason.LAYERS_UNPROTECTED) == bool(message)
    assert not message or degraded.message.endswith(message)
    assert found.copies[0][0] == min(copies)


def test_layers_are_listed_by_number_of_copies() -> None:
    found = status(*PODS, training=replace(TRAINING, copies=(2, 1, 1, 3, 2, 2, 1)))
    assert found.copies == ((1, "1-2, 6"), (2, "0, 4-5"), (3, "3"))
    assert status(*PODS, training=replace(TRAINING, copies=tuple(range(99)))).copies[-1] == (7, "7")
    assert status(training=replace(TRAINING, planned=False, copies=(1,))).copies == ()


def test_recovering() -> None:
    kind = ConditionType.RECOVERING
    stopped = TrainingView(planned=True, has_state=True, recovering=True, detail="x is lost")
    assert condition(status(training=stopped), kind).message == "x is lost"
    waiting = status(
        training=TrainingView(progress=TrainingProgress(1)), memory=Memory(trained=True)
    )
    assert condition(waiting, kind).reason == Reason.WAITING_FOR_CAPACITY
    assert not condition(status(training=TRAINING), kind).status
    resumed = status(training=TrainingView(progress=TrainingProgress(1), attempt=1))
    assert condition(resumed, kind).reason == Reason.IDLE


def test_a_resting_job_wants_no_pipelines() -> None:
    done = status(training=TRAINING, memory=Memory(terminal=Outcome.COMPLETE), count=2)
    assert (done.pipelines, done.pipelines_wanted) == (0, 0)
    assert status(training=TrainingView(), suspend=True, count=2).pipelines_wanted == 0
    assert status(training=TRAINING, count=2).pipelines_wanted == 2


def test_suspend_after_the_end_says_nothing_about_the_job() -> None:
    done = status(memory=Memory(terminal=Outcome.COMPLETE), suspend=True)
    line = condition(done, ConditionType.SUSPENDED)
    assert (line.status, line.reason) == (False, Reason.FINISHED)


@pytest.mark.parametrize(
    ("waiting", "reason"),
    [
        ("ImagePullBackOff", Reason.IMAGE_PULL_FAILED),
        ("CreateContainerConfigError", Reason.CONTAINER_CANNOT_START),
    ],
)
def test_a_container_that_cannot_start(waiting: str, reason: Reason) -> None:
    stuck = pod(phase=PodPhase.PENDING, waiting=waiting, trouble="there is none")
    found = condition(status(stuck), ConditionType.STALLED)
    assert (found.status, found.reason) == (True, reason)
    assert found.message == f"1 agent cannot start; job-p0-s0-i0: {waiting}: there is none"


def test_agents_that_wait_in_vain() -> None:
    found = condition(status(training=TrainingView(stall="a waits for b")), ConditionType.STALLED)
    assert (found.status, found.reason) == (True, Reason.NO_PROGRESS)
    assert found.message == "a waits for b"
    suspended = status(training=TrainingView(stall="a waits for b"), suspend=True)
    assert condition(suspended, ConditionType.STALLED).status is False


def test_a_container_that_does_not_start() -> None:
    """A volume's secret does not exist: only the pod's events show it."""
    stuck = pod(phase=PodPhase.PENDING, waiting="ContainerCreating")
    found = condition(status(stuck, pod(0, 1, zone="b")), ConditionType.RUNNING)
    assert found.message == (
        "0 of 2 agents connected; 1 with a node but no running container yet: kubectl describe"
        " pod job-p0-s0-i0 shows the cause"
    )


def test_checkpointed() -> None:
    found = condition(
        status(training=TrainingView(checkpoint_step=5, checkpoint_path="/c")),
        ConditionType.CHECKPOINTED,
    )
    assert (found.status, found.message) == (True, "step 5 in /c")


def test_a_checkpoint_that_one_node_only_may_have() -> None:
    caveat = "seen from one node only"
    training = TrainingView(checkpoint_step=5, checkpoint_path="/c", checkpoint_caveat=caveat)
    found = condition(status(training=training), ConditionType.CHECKPOINTED)
    assert (found.status, found.reason) == (True, Reason.SEALED)
    assert found.message == "step 5 in /c; seen from one node only"


@pytest.mark.parametrize(
    ("step", "words"), [(5, "the newest complete one is step 5"), (-1, "none is complete yet")]
)
def test_a_checkpoint_that_cannot_be_written(step: int, words: str) -> None:
    training = replace(TRAINING, checkpoint_step=step, checkpoint_error="agent x: disk full")
    found = status(*PODS, training=training, checkpoint=CheckpointSpec("file:///c"))
    line = condition(found, ConditionType.CHECKPOINTED)
    assert (line.status, line.reason) == (False, Reason.WRITE_FAILED)
    assert line.message == (
        f"spec.checkpoint.uri file:///c cannot be written: agent x: disk full; {words}"
    )


def test_a_transition_is_dated_when_the_status_changes_not_the_reason() -> None:
    first = status(*PODS, training=TRAINING, now=10.0)
    later = status(*PODS, now=20.0, memory=Memory(conditions=first.conditions))
    assert condition(later, ConditionType.RUNNING).since == 20.0
    assert condition(later, ConditionType.STALLED).since == 10.0


def test_a_refused_spec_keeps_the_other_conditions() -> None:
    refused = lifecycle.refuse([Problem("spec.x", "bad")], (), now=1.0, reason=Reason.SPEC_INVALID)
    assert [(c.type, c.status) for c in refused] == [("Accepted", False), ("Running", False)]
    assert refused[0].message == "spec.x: bad"
    running = status(*PODS, training=TRAINING, now=0.0).conditions
    changed = lifecycle.refuse(
        [Problem("spec", "bad")], running, now=2.0, reason=Reason.SPEC_CHANGED
    )
    assert {c.type for c in changed} == set(ConditionType)
    assert next(c for c in changed if c.type == "Running").since == 0.0


def test_an_error_of_the_operator_is_reported() -> None:
    before = status(*PODS).conditions
    found = lifecycle.stalled(before, "boom", now=60.0)
    stalled = next(c for c in found if c.type == ConditionType.STALLED)
    assert (stalled.status, stalled.reason) == (True, Reason.RECONCILE_ERROR)
    assert stalled.message == "the operator cannot reconcile the job: boom"


def test_zones_are_counted() -> None:
    found = status(*PODS, training=TRAINING)
    assert [(z.zone, z.wanted, z.running, z.connected) for z in found.zones] == [
        ("a", 1, 1, 1),
        ("b", 1, 1, 1),
    ]
