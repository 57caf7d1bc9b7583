"""Agents that end early in ways that change from pod to pod: how many pods each seat gets."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

import pytest

from bamboo_core.controller.reconcile import CreatePod
from bamboo_core.controller.view import Memory, PodPhase, PodView, Slot

from .failing_starts import Cluster, exited

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


def any_fate(random: Random) -> Fate:
    """One of the ends that no node has caused."""
    node_at = random.choice([0.0, 0.0, 1.0, 2.0])
    began = node_at + random.uniform(0.0, 10.0)
    heard_at = began if random.random() < 0.6 else None
    notice_at = began + random.uniform(0.0, 15.0) if random.random() < 0.6 else None
    ends_at = (began if notice_at is None else notice_at) + random.uniform(0.0, 20.0)
    code = random.choice([0, 137, 143])
    return Fate(code, ends_at, node_at, heard_at, notice_at, random.random() < 0.5)


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
            ended = exited(fate.code)(seen)
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
