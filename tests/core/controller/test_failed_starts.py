"""Pods that end before their agents are heard: how many are made, and what is said about them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo_core.api.reasons import ConditionType, FailureCause, Reason
from bamboo_core.api.spec import RunPolicy
from bamboo_core.controller import failures, turn
from bamboo_core.controller.ends import PROVEN_S
from bamboo_core.controller.failures import AVOID_S, FailedStarts, Failures
from bamboo_core.controller.reconcile import CreatePod, DeletePod, step
from bamboo_core.controller.view import (
    ClusterView,
    Memory,
    NodeView,
    PodPhase,
    TrainingView,
)
from bamboo_core.evidence.pod_troubles import PodTrouble

from .builders import JOB, having_heard, nodes, pod, spec
from .failing_starts import KINDS, OF_NODES, Cluster, after, condition, exited

SEATS = 2
LONGEST_S = 240


# ---------------------------------------------------------------- how many


def test_there_are_enough_kinds() -> None:
    assert len(KINDS) >= 14


@pytest.mark.parametrize("kind", KINDS)
def test_at_most_six_pods_for_each_seat_in_ten_minutes(kind: str) -> None:
    cluster = Cluster(KINDS[kind])
    cluster.live(600)
    assert SEATS < cluster.made <= 6 * SEATS
    assert not cluster.has_failed
    rounds = cluster.memory.failures.starts.rounds
    assert (cluster.records, rounds) == (cluster.made / SEATS, cluster.made / SEATS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_job_has_its_agents_soon_after_the_cause_is_mended(kind: str) -> None:
    cluster = Cluster(KINDS[kind])
    cluster.live(700)
    cluster.change = None
    cluster.live(LONGEST_S + 5)
    assert cluster.heard == SEATS
    assert condition(cluster.reconcile(), ConditionType.STALLED).reason == Reason.PROGRESSING


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "somebody deletes" not in kind])
def test_a_new_operator_goes_on_with_the_pause(kind: str) -> None:
    """It knows the failures, the numbers of pods, and which ends were counted, and no more. Nobody
    tells it of pods that were deleted before it began."""
    cluster = Cluster(KINDS[kind])
    cluster.live_with_new_operators(600)
    assert cluster.made <= 6 * SEATS


@settings(max_examples=20)
@given(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5), st.integers(1, 40))
def test_kinds_that_take_turns_make_no_more_pods(turns: list[str], every_s: int) -> None:
    cluster = Cluster(KINDS[turns[0]])
    for number in range(600 // every_s):
        cluster.change = KINDS[turns[number % len(turns)]]
        cluster.live(every_s)
    assert cluster.made <= 6 * SEATS


@pytest.mark.parametrize("kind", OF_NODES)
def test_what_ends_because_of_its_node_is_replaced_at_once(kind: str) -> None:
    cluster = Cluster(OF_NODES[kind])
    cluster.live(10)
    assert cluster.made == 10 * SEATS
    assert cluster.memory.failures == Failures()


def test_agents_that_run_on_end_the_count() -> None:
    """To be heard does not: a probe may end agents now before and now after they are heard."""
    cluster = Cluster(KINDS["no healthy device"])
    cluster.live(100)
    assert cluster.memory.failures.starts.rounds == 4
    cluster.change = None
    cluster.live(150)
    assert cluster.heard == SEATS
    assert cluster.memory.failures.starts.rounds == 4
    cluster.live(int(PROVEN_S))
    assert cluster.memory.failures.starts == FailedStarts()


def test_an_older_agent_that_takes_part_says_nothing_about_new_pods() -> None:
    """One seat of two fails for ever, and the other one trains."""
    cluster = Cluster(None)
    cluster.live(3)
    lost = next(name for name in cluster.pods if "s1" in name)
    del cluster.pods[lost]
    cluster.change = KINDS["no healthy device"]
    kept = [name for name in cluster.pods if "s0" in name]
    for _ in range(600):
        cluster.reconcile()
        cluster.now += 1.0
        for name, seen in list(cluster.pods.items()):
            if name not in kept and seen.is_alive:
                cluster.pods[name] = KINDS["no healthy device"](seen) or seen
    assert cluster.made == SEATS + 6
    assert all(name in cluster.pods for name in kept)


def test_seats_whose_agents_were_heard_do_not_wait() -> None:
    """A spot node goes while the pods of another seat fail to start."""
    starts = FailedStarts(5, 1240.0, frozenset({(0, 1)}), 7, "no", first=4)
    memory = Memory(incarnation=7, failures=Failures(starts=starts))
    view, training = ClusterView(nodes(a=8, b=8)), having_heard(TrainingView(), [pod(0, 0, 3)])
    found = step(spec(), view, training, memory, job=JOB, now=1000.0)
    assert [x.slot for x in found.actions if isinstance(x, CreatePod)] == [(0, 0)]
    assert found.wake_at == 1240.0


@pytest.mark.parametrize("is_changed", [True, False])
def test_a_job_that_is_suspended_begins_anew_if_it_makes_other_pods(is_changed: bool) -> None:
    """The pauses of one that suspends itself again and again stay."""
    template = "other" if is_changed else turn.template(spec())
    starts = FailedStarts(5, 1240.0, frozenset({(0, 1)}), 7, "no", template=template)
    memory = Memory(failures=Failures(starts=starts))
    view = ClusterView(nodes(a=8, b=8))
    found = step(spec(suspend=True), view, TrainingView(), memory, job=JOB, now=1000.0)
    assert found.memory.failures.starts == (FailedStarts() if is_changed else starts)


def test_failed_starts_of_seats_that_nobody_wants_any_more_are_forgotten() -> None:
    known = Failures(starts=FailedStarts(5, 1240.0, frozenset({(3, 1)}), 7, "no"))
    wanted = frozenset({(0, 0)})
    now = failures.settle_starts(known, frozenset(), wanted, -1, now=1239.0)
    assert now == known, "the job may want them again before the end of the pause"
    soon = failures.settle_starts(known, frozenset(), wanted, -1, now=1241.0)
    assert (soon.starts.rounds, soon.starts.slots) == (5, frozenset())
    late = failures.settle_starts(soon, frozenset(), wanted, -1, now=1841.0)
    assert late.starts == FailedStarts()


# ---------------------------------------------------------------- what counts


OWN = [
    "a command that ends at once", "a command that fails", "a start error", "too little memory",
    "an init container that fails", "an init container without memory",
    "too much disk of its own", "too much of an empty volume", "a deadline of the pod",
]  # fmt: skip
"""Kinds of which the job itself is the cause for certain."""


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_is_the_jobs_own_fault_ends_it(kind: str) -> None:
    cluster = Cluster(KINDS[kind], replace(spec(), run_policy=RunPolicy(backoff_limit=3)))
    cluster.live(600)
    is_own = kind in OWN or kind in {
        "a command that says that it was fenced", "a command that is not there",
        "an agent that ends beside a live sidecar", "too little memory beside a live sidecar",
    }  # fmt: skip
    assert cluster.has_failed is is_own
    if is_own:
        assert cluster.memory.reason == Reason.BACKOFF_LIMIT_EXCEEDED
        assert cluster.made == 4 * SEATS


@pytest.mark.parametrize(
    ("kind", "is_avoided"),
    [
        ("no healthy device", True),
        ("no processor left", True),
        ("too little disk on the node", True),
        ("a liveness probe that kills", True),
        ("an init container that fails", False),
        ("too much disk of its own", False),
        ("somebody deletes it in peace", False),
    ],
)
def test_machines_that_may_be_the_cause_are_avoided(kind: str, is_avoided: bool) -> None:
    seen = KINDS[kind](pod(phase=PodPhase.PENDING))
    assert seen is not None
    memory = after(pod(phase=PodPhase.PENDING)).memory
    found = after(seen, memory=memory).memory.failures
    assert found.avoided_until() == ({"machine-a": 1000.0 + AVOID_S} if is_avoided else {})
    assert found.last is not None
    assert found.last.cause is FailureCause.START_FAILED


def test_an_eviction_counts_for_an_agent_that_has_trained() -> None:
    """It would use up the disk of each node in turn."""
    seen = KINDS["too much disk of its own"](pod())
    assert seen is not None
    training = having_heard(TrainingView(epoch=3), [seen])
    found = after(seen, training=training).memory.failures
    assert (found.total, found.unforgiven, found.starts.rounds) == (1, 1, 0)
    assert found.message == (
        "agent job-p0-s0-i0: its pod has ended on node node-a with the reason Evicted: Pod"
        " ephemeral local storage usage exceeds the limit 1Gi"
    )


@pytest.mark.parametrize("is_heard", [True, False])
def test_the_reason_of_an_end_is_awaited(is_heard: bool) -> None:
    """A kubelet reports the ends of the containers of a pod that it evicts before it says why."""
    killed = replace(pod(), exit_code=137, exit_reason="Error", ended_at=999.0)
    training = TrainingView(epoch=1)
    training = having_heard(training, [killed]) if is_heard else training
    both = (killed, pod(0, 1, zone="b"))
    first = after(*both, training=training)
    assert first.memory.failures == Failures()
    assert first.wake_at == 1009.0
    made = [x.slot for x in first.actions if isinstance(x, CreatePod)]
    assert made == ([(0, 0)] if is_heard else [])
    told = KINDS["too much disk of its own"](killed)
    assert told is not None
    found = after(told, both[1], training=training, memory=first.memory).memory.failures
    assert (found.unforgiven, found.starts.rounds) == (1, 0 if is_heard else 1)
    silent = replace(killed, ended_at=990.0)
    late = after(silent, both[1], training=training, memory=first.memory).memory.failures
    assert late.starts.rounds == (0 if is_heard else 1)


@pytest.mark.parametrize("code", [0, 3, 137, 143])
def test_an_end_by_order_is_no_failed_start(code: int) -> None:
    """The operator let the agent go, or its pod was deleted while it started."""
    seen = exited(code)(pod())
    assert seen is not None
    heard = having_heard(TrainingView(epoch=1), [seen])
    let_go = replace(TrainingView(), dismissed=frozenset({seen.agent}), heard={seen.agent: ""})
    for training in (heard, let_go):
        assert after(seen, training=training).memory.failures == Failures()
    deleted = replace(seen, deleting_at=1010.0)
    assert after(deleted).memory.failures == Failures()
    crashed = replace(deleted, exit_code=1)
    assert after(crashed).memory.failures.starts.rounds == 1


# ---------------------------------------------------------------- nodes that go


def gone(name: str) -> tuple[NodeView, ...]:
    return tuple(node for node in nodes(a=8, b=8) if node.name != name)


def changed(**fields: object) -> tuple[NodeView, ...]:
    first, *others = nodes(a=8, b=8)
    return (replace(first, **fields), *others)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["a liveness probe that kills", "no healthy device"])
@pytest.mark.parametrize(
    "there",
    [
        gone("node-a"),
        changed(ready=False),
        changed(departing=True),
        changed(machine="another boot"),
    ],
)
def test_what_a_node_leaves_behind_is_a_lost_node(kind: str, there: tuple[NodeView, ...]) -> None:
    starting = pod(phase=PodPhase.PENDING)
    memory = after(starting).memory
    seen = KINDS[kind](starting)
    assert seen is not None
    found = after(seen, memory=memory, there=there)
    assert found.memory.failures == Failures()
    assert any(isinstance(x, CreatePod) and x.slot == (0, 0) for x in found.actions)


FAILING = {
    "cordoned": {"departing": True, "schedulable": False},
    "not ready": {"ready": False, "schedulable": False, "unready_since": 10.0},
}
"""Nodes that pods with a toleration come to nevertheless."""


@pytest.mark.parametrize("state", FAILING)
@pytest.mark.parametrize(
    "kind",
    ["a liveness probe that kills", "an init container that is killed", "no healthy device",
     "too little disk on the node", "somebody deletes it", "somebody deletes it in peace"],
)  # fmt: skip
def test_a_node_that_was_failing_before_excuses_nothing(kind: str, state: str) -> None:
    cluster = Cluster(KINDS[kind])
    cluster.there = tuple(replace(node, **FAILING[state]) for node in cluster.there)  # type: ignore[arg-type]
    cluster.live(600)
    assert SEATS < cluster.made <= 6 * SEATS


def test_pods_that_wait_for_a_node_that_is_not_ready_come_more_and_more_slowly() -> None:
    """They tolerate its taint, and the operator replaces them."""
    cluster = Cluster(lambda pod: pod)
    cluster.there = tuple(replace(n, ready=False, unready_since=10.0) for n in cluster.there)
    cluster.live(600)
    assert SEATS < cluster.made <= 6 * SEATS
    assert cluster.records == cluster.memory.failures.starts.rounds
    assert "is not ready" in cluster.memory.failures.starts.message


def test_a_pod_whose_node_fails_while_it_starts_is_replaced_without_a_pause() -> None:
    cluster = Cluster(lambda pod: pod)
    cluster.live(2)
    first, *others = cluster.there
    cluster.there = (replace(first, ready=False, unready_since=1001.0), *others)
    cluster.live(32)
    assert cluster.memory.failures == Failures()
    assert cluster.made == SEATS + 1


@pytest.mark.parametrize(
    "kind", ["a liveness probe that kills", "an init container that is killed", "no healthy device"]
)
def test_an_agent_that_says_that_its_node_goes_excuses_no_other(kind: str) -> None:
    """It says so, and stays, so that each new pod seems to be on a node that goes."""
    cluster = Cluster(None)
    cluster.live(2)
    told = frozenset(seen.agent for seen in cluster.pods.values())
    cluster.training = replace(cluster.training, departing=told)
    cluster.change = KINDS[kind]
    for _ in range(600):
        cluster.reconcile()
        cluster.now += 1.0
        for name, seen in list(cluster.pods.items()):
            if seen.is_alive and seen.agent not in told:
                cluster.pods[name] = KINDS[kind](seen) or seen
    assert 2 * SEATS < cluster.made <= SEATS + 6 * SEATS


def test_an_agent_that_ends_with_the_node_of_which_it_has_told_is_excused() -> None:
    seen = exited(137)(pod())
    assert seen is not None
    training = having_heard(TrainingView(departing=frozenset({seen.agent})), [seen])
    assert after(seen, training=training).memory.failures == Failures()


@pytest.mark.parametrize(
    "there",
    [
        gone("node-a"),
        changed(ready=False),
        changed(departing=True),
        changed(machine="another boot"),
    ],
)
def test_a_pod_that_goes_with_its_node_was_not_deleted_by_anybody(
    there: tuple[NodeView, ...],
) -> None:
    memory = after(pod(phase=PodPhase.PENDING)).memory
    assert after(memory=memory, there=there).memory.failures == Failures()


def test_a_pod_that_a_controller_takes_away_was_not_deleted_by_anybody() -> None:
    starting = pod(phase=PodPhase.PENDING)
    memory = after(starting).memory
    taken = replace(starting, deleting_at=1010.0, beside=PodTrouble(is_disrupted=True))
    assert after(taken, memory=memory).memory.failures == Failures()
    by_hand = after(replace(starting, deleting_at=1010.0), memory=memory)
    assert by_hand.memory.failures.starts.rounds == 1
    again = after(replace(starting, deleting_at=1010.0), memory=by_hand.memory)
    assert again.memory.failures.total == 1, "the same deletion was counted twice"


def test_a_pod_that_the_operator_deletes_was_not_deleted_by_anybody() -> None:
    extra = pod(0, 0, 3, phase=PodPhase.PENDING)
    both = (pod(), pod(0, 1, zone="b"))
    training = TrainingView(members=frozenset(seen.agent for seen in both))
    first = after(*both, extra, training=training)
    assert [x.name for x in first.actions if isinstance(x, DeletePod)] == [extra.name]
    assert after(*both, memory=first.memory, training=training).memory.failures == Failures()


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_crash_that_a_reboot_leaves_behind_is_no_failure(is_heard: bool) -> None:
    """The kubelet reports code 255, or what the container had left."""
    seen = exited(255)(pod())
    assert seen is not None
    if is_heard:
        training, memory = TrainingView(epoch=1, heard={seen.agent: "machine-a"}), Memory()
    else:
        training, memory = TrainingView(), after(pod()).memory
    there = changed(machine="another boot")
    found = after(seen, training=training, memory=memory, there=there)
    assert found.memory.failures == Failures()
    assert after(seen, training=training, memory=memory).memory.failures.total == 1


# ---------------------------------------------------------------- sidecars


def test_an_agent_that_has_ended_beside_a_sidecar_is_deleted_and_replaced() -> None:
    seen = exited(137, runs_on=True)(pod())
    assert seen is not None
    training = having_heard(TrainingView(epoch=1, planned=True), [seen])
    found = after(seen, pod(0, 1, zone="b"), training=training)
    (deleted,) = [x for x in found.actions if isinstance(x, DeletePod)]
    assert (deleted.name, deleted.reason) == (
        seen.name, "its agent has ended, and other containers run on",
    )  # fmt: skip
    assert [x.slot for x in found.actions if isinstance(x, CreatePod)] == [(0, 0)]
    late = after(replace(seen, deleting_at=1010.0), pod(0, 1, zone="b"), training=training)
    assert not any(isinstance(x, DeletePod) for x in late.actions)


def test_an_agent_that_has_ended_alone_keeps_its_log() -> None:
    seen = exited(1)(pod())
    assert seen is not None
    training = having_heard(TrainingView(epoch=1), [seen])
    assert not any(isinstance(x, DeletePod) for x in after(seen, training=training).actions)


def test_a_pod_that_is_over_keeps_its_logs_beside_containers_that_never_ran() -> None:
    """An init container has failed, and the remedy names its log."""
    trouble = PodTrouble(container="fetch", state="Error", exit_code=1, runs_on=True)
    seen = replace(pod(phase=PodPhase.FAILED), beside=trouble)
    found = after(seen)
    assert not any(isinstance(x, DeletePod) for x in found.actions)
    assert "kubectl logs job-p0-s0-i0 -c fetch" in found.memory.failures.starts.message


def test_memory_that_runs_out_beside_a_sidecar_counts() -> None:
    seen = exited(137, "OOMKilled", runs_on=True)(pod())
    assert seen is not None
    training = having_heard(TrainingView(epoch=1), [seen])
    found = after(seen, training=training).memory.failures
    assert dict(found.counts) == {FailureCause.OOM_KILLED: 1}


def test_a_node_with_a_live_sidecar_is_paid_for_and_its_pod_is_forced_off_a_lost_one() -> None:
    seen = exited(1, runs_on=True)(pod())
    assert seen is not None
    view = ClusterView(nodes(a=8), (seen,))
    assert view.used(TrainingView()) == {"node-a"}
    (forced, *_) = after(seen, there=gone("node-a")).actions
    assert isinstance(forced, DeletePod)
    assert forced.force
