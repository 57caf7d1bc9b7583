"""Sessions of several agents break and come back, together or one after the other. All live."""

from __future__ import annotations

import pytest

from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import RedundancyMode
from bamboo_core.arbiter_state import events as a
from bamboo_core.model.ids import AgentId

from .fleet import Agent, Fleet, committed, running, spec

NONE, REPLICA = RedundancyMode.NONE, RedundancyMode.REPLICA
WAIT_S = a.Timing().voter_wait_s
NAMES = ("a0", "a1", "a2", "a3")


class Blip:
    """A job of four stages without a checkpoint, and the agents whose sessions have broken."""

    def __init__(self, mode: RedundancyMode, *names: str) -> None:
        self.fleet = running(stages=4, steps=100, every=60, mode=mode)
        self.fleet.until(lambda: committed(self.fleet, 56))
        self.committed = self.fleet.arbiter.status().progress.committed
        self.away: dict[str, Agent] = {}
        for name in names:
            self.away[name] = self.fleet.agents.pop(AgentId(name))
            self.fleet.tell(a.Disconnected(AgentId(name)))
        self.fleet.idle(3.5)

    def come_back(self, *names: str) -> None:
        for name in names:
            agent = self.fleet.agents[AgentId(name)] = self.away.pop(name)
            self.fleet.connect(agent)

    def suspend(self) -> None:
        self.fleet.tell(a.DesiredState(1, suspended=True))
        self.fleet.run()

    def lose(self, *names: str) -> None:
        """Kubernetes reports the end of pods."""
        for name in names:
            self.fleet.tell(a.Lost(AgentId(name), confirmed=True, evidence="its pod has ended"))
        self.fleet.run()

    @property
    def restored(self) -> list[str]:
        return [r.message for r in self.fleet.records if r.reason is EventReason.RESTORING]

    @property
    def outcome(self) -> Outcome | None:
        return self.fleet.over.outcome if self.fleet.over is not None else None

    @property
    def said(self) -> str:
        return self.fleet.over.message if self.fleet.over is not None else ""


# ---------------------------------------------------------------- no rollback while a copy lives


@pytest.mark.parametrize("mode", [NONE, REPLICA])
@pytest.mark.parametrize("pause_s", [0.0, 0.25, 1.0, 15.0])
def test_agents_that_come_back_one_after_the_other_cost_no_step(
    mode: RedundancyMode, pause_s: float
) -> None:
    blip = Blip(mode, *NAMES)
    for name in NAMES:
        blip.come_back(name)
        blip.fleet.wait(pause_s)
    blip.fleet.wait(1.0)
    assert blip.restored == []
    assert blip.outcome is Outcome.COMPLETE


@pytest.mark.parametrize(
    ("mode", "names"),
    [(NONE, ("a0",)), (NONE, ("a1", "a3")), (REPLICA, ("a0", "a1")), (REPLICA, ("a1", "a2"))],
)
def test_a_few_agents_are_awaited_like_all(mode: RedundancyMode, names: tuple[str, ...]) -> None:
    blip = Blip(mode, *names)
    blip.fleet.wait(WAIT_S - 5.0)
    assert blip.restored == []
    blip.come_back(*names)
    blip.fleet.run()
    assert blip.restored == []
    assert blip.outcome is Outcome.COMPLETE


def test_agents_that_stay_away_are_given_up() -> None:
    blip = Blip(NONE, "a0")
    blip.fleet.wait(WAIT_S - 1.0)
    assert blip.restored == []
    blip.fleet.wait(1.5)
    assert len(blip.restored) == 1


def test_one_that_comes_back_at_the_last_moment_is_asked_before_the_restore() -> None:
    blip = Blip(NONE, "a0")
    blip.fleet.run()
    due_by = blip.fleet.arbiter.state.phase.due_by  # type: ignore[union-attr]
    blip.fleet.idle(due_by - blip.fleet.now - 0.25)
    blip.fleet.now = due_by
    blip.come_back("a0")
    blip.fleet.run()
    assert blip.restored == []
    assert blip.outcome is Outcome.COMPLETE


# ---------------------------------------------------------------- real losses do not wait


@pytest.mark.parametrize(
    ("mode", "names"), [(NONE, ("a0",)), (REPLICA, ("a1", "a2")), (NONE, NAMES[:2])]
)
def test_the_end_of_all_that_are_away_ends_the_wait(
    mode: RedundancyMode, names: tuple[str, ...]
) -> None:
    blip = Blip(mode, *names)
    blip.fleet.run()
    assert blip.restored == []
    blip.lose(*names)
    assert len(blip.restored) == 1


def test_nobody_waits_for_one_that_cannot_bring_what_a_dead_one_held() -> None:
    blip = Blip(NONE, "a0", "a1")
    blip.fleet.run()
    blip.lose("a0")
    assert len(blip.restored) == 1, "a1 lives, but layer 0 is lost"


def test_nobody_waits_for_one_without_layers() -> None:
    fleet = running(stages=4, steps=100, every=60, mode=NONE)
    fleet.until(lambda: committed(fleet, 5))
    fleet.add("spare", "z0")
    fleet.tell(a.Disconnected(AgentId("spare")))
    del fleet.agents[AgentId("spare")]
    fleet.idle(3.5)
    fleet.kill("a0")
    fleet.run()
    assert [r for r in fleet.records if r.reason is EventReason.RESTORING]


# ---------------------------------------------------------------- suspending


@pytest.mark.parametrize(
    ("mode", "names"), [(NONE, ("a0",)), (NONE, ("a1", "a3")), (REPLICA, ("a0", "a1"))]
)
def test_a_job_that_is_suspended_waits_for_the_holders_of_a_layer(
    mode: RedundancyMode, names: tuple[str, ...]
) -> None:
    blip = Blip(mode, *names)
    blip.suspend()
    assert blip.outcome is None
    blip.fleet.wait(WAIT_S - 5.0)
    assert blip.outcome is None
    blip.come_back(*names)
    blip.fleet.run()
    assert blip.outcome is Outcome.SUSPENDED
    assert "suspended after" in blip.said
    assert blip.fleet.sealed[-1].step > 56


@pytest.mark.parametrize("mode", [NONE, REPLICA])
@pytest.mark.parametrize("pause_s", [0.0, 0.25, 1.0])
def test_a_job_that_is_suspended_asks_all_that_come_back(
    mode: RedundancyMode, pause_s: float
) -> None:
    """Together: all have a session before the first one is asked."""
    blip = Blip(mode, *NAMES)
    blip.suspend()
    for name in NAMES:
        blip.come_back(name)
        if pause_s:
            blip.fleet.wait(pause_s)
    blip.fleet.run()
    assert blip.outcome is Outcome.SUSPENDED
    assert "suspended after" in blip.said
    assert blip.fleet.sealed[-1].step > 56


@pytest.mark.parametrize(
    ("mode", "names"), [(NONE, NAMES), (NONE, ("a0",)), (REPLICA, ("a0", "a1")), (NONE, NAMES[:3])]
)
def test_a_job_that_rests_after_a_restore_says_what_it_will_repeat(
    mode: RedundancyMode, names: tuple[str, ...]
) -> None:
    blip = Blip(mode, *names)
    blip.suspend()
    blip.fleet.wait(WAIT_S + 0.5)
    assert blip.outcome is Outcome.SUSPENDED
    expected = f"{blip.committed + 1} committed steps since the start will be repeated"
    assert blip.said.endswith(expected)


def test_a_job_that_rests_before_its_first_plan_has_nothing_to_repeat() -> None:
    fleet = Fleet(spec(stages=4))
    fleet.tell(a.DesiredState(1, suspended=True))
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.message == "nothing was running"
