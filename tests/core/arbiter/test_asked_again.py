"""Suspects are asked again before anything is given up that they may hold."""

from __future__ import annotations

import pytest

from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import RedundancyMode
from bamboo_core.arbiter_state import events as a
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.executor import Transmit
from bamboo_core.protocol.messages import (
    AgentReport,
    Cause,
    Heartbeat,
    Stop,
    Suspicion,
)

from .fleet import Agent, Fleet, committed, running, spec

A0, A1 = AgentId("a0"), AgentId("a1")
WAIT_S = a.Timing().voter_wait_s
EIGHTH_S = WAIT_S / 8


class Cut(Fleet):
    """Two agents whose link can be cut. Each of them is connected to the operator all the time."""

    is_cut = False
    broken_in: Fence | None = None  # the epoch in which the connection has broken
    asked: list[float]  # when a0 was told to stop

    def deliver(self, agent: Agent, message: object) -> None:
        if isinstance(message, Transmit) and self.is_cut:
            self.broken_in = self.arbiter.fence
            return
        super().deliver(agent, message)

    def perform(self, effect: a.Effect) -> None:
        if isinstance(effect, a.Send) and isinstance(effect.message, Stop) and effect.agent == A0:
            self.asked.append(self.now)
        super().perform(effect)

    def cut_for(self, seconds: float) -> None:
        self.is_cut = True
        self.live(seconds)
        self.is_cut = False

    def live(self, seconds: float) -> None:
        """Time passes."""
        for _ in range(round(seconds / 0.25)):
            self.pass_on()
            self.run()

    def pass_on(self) -> None:
        """Time passes; a1 says that its connection to a0 is broken, as long as it is."""
        self.now += 0.25
        fence = self.arbiter.fence
        broken = (Suspicion(A0, Cause.CHANNEL_BROKEN, fence),)
        held = broken if self.broken_in == fence else ()
        for name in list(self.agents):
            self.receive(name, Heartbeat(1, 0, 0, fence, None, held if name == A1 else ()))
        self.tell(a.Tick())

    @property
    def restored(self) -> list[str]:
        return [r.message for r in self.records if r.reason is EventReason.RESTORING]


def cut_fleet(steps: int = 40) -> Cut:
    fleet = Cut(spec(stages=2, steps=steps, mode=RedundancyMode.NONE, every=10), layers=2)
    fleet.asked = []
    fleet.add_grid(1, 2)
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: committed(fleet, 5))
    return fleet


def gaps(fleet: Cut) -> list[float]:
    """Seconds between one time that a1 was asked and the next one."""
    return [later - before for before, later in zip(fleet.asked, fleet.asked[1:], strict=False)]


# ---------------------------------------------------------------- a link heals


@pytest.mark.parametrize("seconds", [20.0, 55.0, 98.0, 150.0])
def test_a_link_that_heals_costs_no_rollback(seconds: float) -> None:
    fleet = cut_fleet()
    fleet.cut_for(seconds)
    fleet.live(EIGHTH_S + 5.0)
    assert fleet.restored == []
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_a_suspect_is_asked_every_eighth_of_the_wait() -> None:
    fleet = cut_fleet()
    fleet.cut_for(100.0)
    assert len(fleet.asked) >= 8
    assert max(gaps(fleet)) <= EIGHTH_S + 3.0  # and the link breaks again in the round between


def test_a_link_that_stays_cut_is_given_up_in_the_end() -> None:
    fleet = cut_fleet()
    fleet.cut_for(3 * WAIT_S + 20.0)
    assert len(fleet.restored) == 1
    assert fleet.asked[-1] >= fleet.now - 20.0 - EIGHTH_S


def test_each_incident_begins_with_short_waits() -> None:
    """The commit of the target step shows that training goes on."""
    fleet = cut_fleet()
    fleet.cut_for(100.0)
    assert fleet.arbiter.state.incident.retry_s > WAIT_S
    done = fleet.arbiter.status().progress.committed
    while not committed(fleet, done + 1):
        if not fleet.step():
            fleet.pass_on()
    assert fleet.arbiter.state.incident.retry_s == 5.0
