"""Agents that end early in ways that change from pod to pod: how many pods each seat gets."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

import pytest

from bamboo_core.api.reasons import ConditionType, Reason
from bamboo_core.controller.failures import FailedStarts, Failures
from bamboo_core.controller.reconcile import CreatePod, DeletePod, step
from bamboo_core.controller.shortage import instant
from bamboo_core.controller.view import (
    ClusterView,
    Memory,
    PodPhase,
    PodView,
    Slot,
    TrainingView,
)

from .builders import JOB, nodes, pod
from .failing_starts import PATIENT, Cluster, after, condition, exited

SEATS = 2
MOST = 6
"""Pods of a seat in 10 minutes, as ADR 0049 says."""


class Fate(NamedTuple):
    """What becomes of an agent, in seconds after its pod was made."""

    code: int
    ends_at: float
    node_at: float = 0.0
    heard_at: float | None = None  # None: never
    notice_at: float | None = None  # it gets SIGTERM and says that it leaves
    is_let_go: bool = False  # the arbiter needs it no more once it has said so
    runs_on: bool = False  # a sidecar does


def any_fate(random: Random) -> Fate:
    """One of the ends that no node has caused."""
    node_at = random.choice([0.0, 0.0, 1.0, 2.0])
    began = node_at + random.uniform(0.0, 10.0)
    heard_at = began if random.random() < 0.6 else None
    notice_at = began + random.uniform(0.0, 15.0) if random.random() < 0.6 else None
    ends_at = (began if notice_at is None else notice_at) + random.uniform(0.0, 20.0)
    code = random.choice([0, 137, 143])
    is_let_go, runs_on = random.random() < 0.5, random.random() < 0.5
    return Fate(code, ends_at, node_at, heard_at, notice_at, is_let_go, runs_on)


@dataclass
class Mixed(Cluster):
    """Each pod has a fate of its own."""

    fates: Random | Fate = field(default_factory=Random)
    of: dict[str, Fate] = field(default_factory=dict)

    def _make(self, action: CreatePod) -> None:
        super()._make(action)
        drawn = self.fates if isinstance(self.fates, Fate) else any_fate(self.fates)
        self.of[action.name] = drawn
        if drawn.node_at > 0:
            self.pods[action.name] = replace(self.pods[action.name], node="")

    def _go_on(self) -> None:
        for name, seen in list(self.pods.items()):
            if seen.is_alive:
                self._live(seen, self.of[name], self.now - seen.created_at)

    def _live(self, seen: PodView, fate: Fate, age: float) -> None:
        if age < fate.node_at:
            return
        started = self.now if seen.started_at is None else seen.started_at
        seen = replace(seen, node=f"node-{seen.zone}", phase=PodPhase.RUNNING, started_at=started)
        self.pods[seen.name] = seen
        if fate.heard_at is not None and age >= fate.heard_at:
            self._hear(seen)
            known, one = self.training, frozenset({seen.agent})
            if fate.notice_at is not None and age >= fate.notice_at:
                gone = known.dismissed | one if fate.is_let_go else known.dismissed
                self.training = replace(known, departing=known.departing | one, dismissed=gone)
        if age >= fate.ends_at:
            ended = exited(fate.code, runs_on=fate.runs_on)(seen)
            assert ended is not None
            self.pods[seen.name] = replace(ended, ended_at=self.now)
            known = self.training
            lost = frozenset({seen.agent})
            self.training = replace(
                known, epoch=1, connected=known.connected - lost, members=known.members - lost
            )


def made_for(cluster: Mixed) -> Counter[Slot]:
    """Number of pods that each seat got."""
    seats = (name.removeprefix("job-p").split("-") for name in cluster.of)
    return Counter(Slot(int(p), int(s.removeprefix("s"))) for p, s, _ in seats)


@pytest.mark.parametrize("seed", range(10))
def test_no_mixture_of_early_ends_makes_more_pods(seed: int) -> None:
    cluster = Mixed(None, fates=Random(seed))
    cluster.live(600)
    assert len(made_for(cluster)) == SEATS
    assert max(made_for(cluster).values()) <= MOST, cluster.of


@pytest.mark.parametrize("code", [0, 137, 143])
@pytest.mark.parametrize("ends_s", [0.0, 2.0, 20.0])
@pytest.mark.parametrize("node_s", [0.0, 1.0])
def test_a_probe_that_ends_agents_soon_makes_no_second_pod_beside_a_live_one(
    node_s: float, ends_s: float, code: int
) -> None:
    """Agents are heard, get SIGTERM 2 s later, and take their time to end."""
    fate = Fate(code, node_s + 4.0 + ends_s, node_s, node_s + 2.0, node_s + 4.0, is_let_go=True)
    cluster = Mixed(None, fates=fate)
    cluster.live(600)
    assert min(made_for(cluster).values()) >= 3, "pods come again"
    assert max(made_for(cluster).values()) <= MOST


@pytest.mark.parametrize("code", [137, 143])
def test_agents_that_are_killed_beside_a_sidecar_make_no_more_pods(code: int) -> None:
    """Their pods run on until their ends are judged, and give their nodes back then."""
    cluster = Mixed(None, fates=Fate(code, 8.0, heard_at=2.0, runs_on=True))
    cluster.live(600)
    assert 3 <= max(made_for(cluster).values()) <= MOST
    assert all(x.is_alive or cluster.now - (x.ended_at or 0.0) < 62 for x in cluster.pods.values())


@pytest.mark.parametrize("seed", range(4))
def test_a_new_operator_does_not_make_more(seed: int) -> None:
    """It knows what the status keeps, and which agents an earlier one has heard."""
    cluster = Mixed(None, fates=Random(seed))
    for _ in range(6):
        cluster.live(100)
        known = cluster.memory
        cluster.memory = Memory(
            incarnation=known.incarnation, failures=known.failures, settled=known.settled
        )
    assert max(made_for(cluster).values()) <= MOST


# ---------------------------------------------------------------- what is said, and who waits

NOW = 1000.0


def killed(incarnation: int, *, ended_s: float, code: int = 137) -> PodView:
    """A pod of the first seat that has run for 30 s."""
    at = NOW - ended_s
    found = exited(code)(pod(0, 0, incarnation, started_at=at - 30.0, ended_at=at))
    assert found is not None
    return found


def having_heard(*pods: PodView) -> TrainingView:
    return TrainingView(epoch=3, heard={x.agent: f"machine-{x.zone}" for x in pods})


def test_an_end_that_is_being_judged_is_told_at_once_and_not_as_a_lack_of_nodes() -> None:
    both = (killed(0, ended_s=50.0), killed(1, ended_s=1.0, code=3))
    found = after(*both, pod(0, 1, zone="b"), training=having_heard(*both))
    for kind in (ConditionType.CAPACITY_AVAILABLE, ConditionType.STALLED):
        said = condition(found, kind)
        assert said.reason == Reason.STARTS_FAIL
        assert "container agent of job-p0-s0-i1 has ended 30 s after its start" in said.message
        assert "exit code 3" in said.message
        assert instant(NOW + 59.0) in said.message
        assert "add nodes" not in said.message


def test_a_seat_whose_node_goes_does_not_wait_for_others_whose_starts_fail() -> None:
    lost = pod(0, 0)
    broken = exited(1)(pod(0, 1, zone="b"))
    assert broken is not None
    gone = tuple(node for node in nodes(a=8, b=8, c=8) if node.name != "node-a")
    training, view = having_heard(lost), ClusterView(gone, (lost, broken))
    first = step(PATIENT, view, training, Memory(), job=JOB, now=NOW)
    assert any(isinstance(x, DeletePod) and x.name == lost.name for x in first.actions)
    view = ClusterView(gone, (broken,))
    found = step(PATIENT, view, training, first.memory, job=JOB, now=NOW)
    assert [x.slot for x in found.actions if isinstance(x, CreatePod)] == [(0, 0)]
    assert found.memory.failures.starts.slots == {(0, 1)}


@pytest.mark.parametrize("how", ["its node is gone", "somebody deletes it"])
def test_a_seat_that_has_failed_before_does_not_wait_if_its_next_agent_is_lost(how: str) -> None:
    starts = FailedStarts(3, NOW + 40.0, frozenset({(0, 0), (0, 1)}), 4, "no", step=0)
    memory = Memory(incarnation=6, failures=Failures(starts=starts))
    lost = pod(0, 0, 6, started_at=NOW - 50.0, created_at=NOW - 50.0)
    there = nodes(b=8, c=8)
    if how == "somebody deletes it":
        lost, there = replace(lost, deleting_at=NOW + 30.0), nodes(a=8, b=8, c=8)
    training, view = having_heard(lost), ClusterView(there, (lost,))
    first = step(PATIENT, view, training, memory, job=JOB, now=NOW)
    assert first.memory.failures.starts.rounds == 3, "the count goes on"
    found = step(PATIENT, ClusterView(there), training, first.memory, job=JOB, now=NOW)
    assert [x.slot for x in found.actions if isinstance(x, CreatePod)] == [(0, 0)]


@pytest.mark.parametrize("passed_s", [-20.0, 20.0])
def test_one_time_is_told_for_all_pauses_and_stays_told(passed_s: float) -> None:
    starts = FailedStarts(3, NOW + 10.0, frozenset({(0, 0), (0, 1)}), 4, "no")
    late = NOW + 30.0
    memory = Memory(incarnation=6, not_before=late, failures=Failures(starts=starts))
    found = step(
        PATIENT, ClusterView(nodes(a=8, b=8)), TrainingView(), memory, job=JOB,
        now=late + passed_s,
    )  # fmt: skip
    stalled = condition(found, ConditionType.STALLED).message
    assert instant(NOW + 10.0) not in stalled
    when = f"come at {instant(late)}" if passed_s < 0 else "are due now"
    assert stalled.endswith(f"; new pods for them {when}")
    if passed_s < 0:
        assert instant(late) in condition(found, ConditionType.CAPACITY_AVAILABLE).message


def test_no_condition_refers_to_another_one_that_says_nothing() -> None:
    """One exit with code 0 pauses the seat, and is not yet a start that fails."""
    soon = killed(0, ended_s=1.0, code=0)
    found = after(soon, pod(0, 1, zone="b"), training=having_heard(soon))
    said = condition(found, ConditionType.CAPACITY_AVAILABLE).message
    assert condition(found, ConditionType.STALLED).reason == Reason.PROGRESSING
    assert "see Stalled" not in said
    assert "exit code 0" in said


def test_ends_of_the_old_template_say_nothing_about_the_new_one() -> None:
    """They are judged after the user has changed it and resumed the job."""
    late = replace(killed(0, ended_s=60.0), template="old")
    starts = FailedStarts(5, NOW - 1.0, frozenset({(0, 0)}), 0, "no", template="old")
    memory = Memory(incarnation=5, failures=Failures(starts=starts))
    found = after(late, training=having_heard(late), memory=memory)
    assert found.memory.failures.starts == FailedStarts()
    assert condition(found, ConditionType.STALLED).reason == Reason.PROGRESSING
