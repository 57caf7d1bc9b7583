"""Agents that leave because they say so, which anybody may make them do: their end must show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.arbiter_state.events import Dismiss
from bamboo_core.controller.view import PodPhase
from bamboo_core.protocol.messages import Left, Notice

from .led import BEGUN, MEMBERS, PODS, Led

FIRST, SECOND = MEMBERS


def led_one(source: str, lead_s: float = 15.0) -> Led:
    """One of the agents has got notice, has handed over what it held, and is let go."""
    led = Led(BEGUN)
    led.observe()
    for agent in MEMBERS:
        led.connect(agent, BEGUN.plan)
    led.receive(FIRST, Notice(lead_s, "SIGTERM", source))
    led.receive(FIRST, Left(BEGUN.plan))
    assert led.leadership.view().departing == {FIRST}
    return led


@pytest.mark.parametrize(("source", "is_warned"), [("", False), ("Gce", True)])
def test_the_pod_of_an_agent_that_has_said_that_it_leaves_is_not_deleted(
    source: str, *, is_warned: bool
) -> None:
    """A deletion of ours would look like one that explains its end."""
    led = led_one(source)
    view = led.leadership.view()
    assert view.warned == ({FIRST} if is_warned else set())
    assert FIRST in view.dismissed
    assert led.found(Dismiss) == []


@pytest.mark.parametrize(
    ("source", "lead_s", "until_s"), [("", 15.0, 75.0), ("Ec2", 120.0, 180.0), ("Gce", 1e6, 960.0)]
)
def test_one_that_does_not_end_is_deleted_after_a_while(
    source: str, lead_s: float, until_s: float
) -> None:
    led = led_one(source, lead_s)
    led.tick(until_s - 1.0)
    led.observe()
    assert led.leadership.view().departing == {FIRST}
    led.tick(1.0)
    led.observe()
    assert led.leadership.view().departing == set()
    assert FIRST in led.leadership.view().dismissed


@pytest.mark.parametrize("source", ["", "Gce"])
def test_its_word_is_known_as_long_as_the_ended_pod_is_there(source: str) -> None:
    led = led_one(source)
    led.pods = (replace(PODS[0], phase=PodPhase.FAILED, exit_code=143), PODS[1])
    led.observe()
    led.tick(500.0)
    led.observe()
    assert led.leadership.view().departing == {FIRST}
