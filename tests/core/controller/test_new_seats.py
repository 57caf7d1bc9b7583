"""New seats of a job whose starts fail: how many pods are made for them, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.reasons import ConditionType
from bamboo_core.api.spec import PipelinesSpec
from bamboo_core.controller.ends import COMMON_ROUNDS
from bamboo_core.controller.view import Memory, PodPhase, TrainingView
from bamboo_core.model.ids import AgentId

from .builders import nodes
from .failing_starts import KINDS, Cluster, condition

KIND = KINDS["no healthy device"]
MOST_PIPELINES, SEATS = 20, 2


def grown(cluster: Cluster, count: int = MOST_PIPELINES) -> Cluster:
    """The user asks for more pipelines."""
    pipelines = PipelinesSpec(count=count, stages=2)
    cluster.wanted = replace(cluster.wanted, pipelines=pipelines)
    cluster.there = nodes(a=64, b=64)
    return cluster


def failing(seconds: int = 100) -> Cluster:
    """A job of one pipeline, all starts of which have failed for so long."""
    cluster = Cluster(KIND)
    cluster.live(seconds)
    assert cluster.memory.failures.starts.rounds >= COMMON_ROUNDS
    return cluster


@pytest.mark.parametrize("kind", ["a command that is not there", "no healthy device"])
def test_new_seats_are_tried_one_at_a_time_while_all_starts_fail(kind: str) -> None:
    """They were all made at once: 38 pods that could only fail."""
    cluster = failing()
    cluster.change = KINDS[kind]
    made, rounds = cluster.made, cluster.memory.failures.starts.rounds
    grown(cluster).live(600)
    more = cluster.memory.failures.starts.rounds - rounds
    assert more >= 2
    assert cluster.made - made <= SEATS * more + more * (more + 1) / 2
    cluster.now = cluster.memory.failures.starts.until
    cluster.reconcile()
    said = condition(cluster.reconcile(), ConditionType.CAPACITY_AVAILABLE)
    assert "new seats get pods one at a time, since pods end" in said.message


def test_all_new_seats_get_pods_once_an_agent_of_a_new_pod_is_heard() -> None:
    cluster = grown(failing())
    cluster.live(100)
    cluster.change = None
    cluster.live(245)
    assert cluster.heard == MOST_PIPELINES * SEATS


def test_a_job_that_starts_well_grows_at_once() -> None:
    cluster = Cluster(None)
    cluster.live(10)
    grown(cluster).live(2)
    assert cluster.made == MOST_PIPELINES * SEATS


def test_a_job_grows_at_once_after_one_round_that_failed() -> None:
    """As on nodes whose devices are not ready yet."""
    cluster = Cluster(KIND)
    cluster.live(2)
    assert cluster.memory.failures.starts.rounds == 1
    cluster.now += 2.0
    before = cluster.made
    grown(cluster).reconcile()
    assert cluster.made - before == (MOST_PIPELINES - 1) * SEATS


def test_a_job_grows_at_once_if_an_agent_of_the_round_that_failed_was_heard() -> None:
    """One node is broken, and that is not everybody's cause."""
    cluster = Cluster(KIND)
    cluster.live(1)
    first = min(cluster.pods)
    cluster._hear(cluster.pods[first])
    cluster.live(100)
    assert cluster.memory.failures.starts.rounds >= COMMON_ROUNDS
    before = cluster.made
    grown(cluster).live(3)
    assert cluster.made - before >= MOST_PIPELINES * SEATS - SEATS


def test_seats_whose_agents_were_ever_heard_are_replaced_at_once() -> None:
    """Spot nodes go while all new pods fail."""
    cluster = grown(Cluster(None), 4)
    cluster.live(5)
    assert cluster.heard == 4 * SEATS
    lost = min(cluster.pods)
    del cluster.pods[lost]
    kept = set(cluster.pods)
    for _ in range(100):
        cluster.reconcile()
        cluster.now += 1.0
        for name, seen in list(cluster.pods.items()):
            if name not in kept and seen.is_alive:
                cluster.pods[name] = KIND(seen) or seen
    assert cluster.memory.failures.starts.rounds >= COMMON_ROUNDS
    for name in kept:
        del cluster.pods[name]
    before = cluster.made
    cluster.now += 2.0
    cluster.reconcile()
    assert cluster.made - before >= len(kept)


def test_nobody_waits_while_an_older_pod_may_still_start() -> None:
    """Its image is pulled for minutes, while others fail."""
    cluster = grown(Cluster(None), 2)
    cluster.reconcile()
    slow = [name for name in cluster.pods if "p1" in name]
    for _ in range(100):
        cluster.now += 1.0
        for name, seen in list(cluster.pods.items()):
            if name not in slow and seen.is_alive:
                cluster.pods[name] = KIND(seen) or seen
        cluster.reconcile()
    assert cluster.memory.failures.starts.rounds >= COMMON_ROUNDS
    before = cluster.made
    cluster.now += 2.0
    grown(cluster, 4).reconcile()
    assert cluster.made - before >= 2 * SEATS


def test_all_are_asked_for_while_the_one_that_is_tried_lacks_a_node() -> None:
    """An autoscaler adds nodes for pods that wait."""
    cluster = grown(failing(), 4)
    cluster.change = lambda pod: pod
    while len([x for x in cluster.pods.values() if x.is_alive]) < SEATS + 1:
        cluster.live(1)
    tried = next(x for x in cluster.pods.values() if x.is_alive and x.slot.pipeline > 0)
    before = cluster.made
    cluster.reconcile()
    assert cluster.made == before
    waits = replace(tried, node="", phase=PodPhase.PENDING, refused_at=cluster.now)
    cluster.pods[tried.name] = waits
    cluster.reconcile()
    assert cluster.made - before == 3 * SEATS - 1


def test_agents_of_earlier_pods_prove_nothing() -> None:
    """They were made before the image was changed."""
    cluster = Cluster(KIND, memory=Memory(incarnation=4))
    cluster.training = TrainingView(heard={AgentId("job-p0-s0-i4"): "machine-a"})
    cluster.live(100)
    assert cluster.memory.failures.starts.first == 5
    before = cluster.made
    grown(cluster).reconcile()
    assert cluster.made == before
