"""Agents that get SIGTERM, which may come from anybody: their end must show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.arbiter_state.events import Dismiss
from bamboo_core.controller.view import PodPhase
from bamboo_core.protocol.messages import Left, Notice

from .led import BEGUN, MEMBERS, PODS, Led

FIRST, SECOND = MEMBERS


def led_one(source: str) -> Led:
    """One of the agents has got notice, has handed over what it held, and is let go."""
    led = Led(BEGUN)
    led.observe()
    for agent in MEMBERS:
        led.connect(agent, BEGUN.plan)
    led.receive(FIRST, Notice(15.0, "SIGTERM", source))
    led.receive(FIRST, Left(BEGUN.plan))
    assert led.leadership.view().departing == {FIRST}
    return led


@pytest.mark.parametrize(("source", "is_signal"), [("", True), ("Gce", False)])
def test_the_pod_of_an_agent_that_a_signal_ends_is_not_deleted(
    source: str, *, is_signal: bool
) -> None:
    """A deletion of ours would look like one that explains the signal."""
    led = led_one(source)
    view = led.leadership.view()
    assert view.signalled == ({FIRST} if is_signal else set())
    assert FIRST in view.dismissed
    assert [x.agent for x in led.found(Dismiss)] == ([] if is_signal else [FIRST])


def test_one_that_does_not_end_is_deleted_after_a_while() -> None:
    led = led_one("")
    led.tick(74.0)
    led.observe()
    assert led.leadership.view().signalled == {FIRST}
    led.tick(1.0)
    led.observe()
    assert led.leadership.view().signalled == set()
    assert FIRST in led.leadership.view().dismissed


def test_the_signal_is_known_as_long_as_the_ended_pod_is_there() -> None:
    led = led_one("")
    led.pods = (replace(PODS[0], phase=PodPhase.FAILED, exit_code=143), PODS[1])
    led.observe()
    led.tick(500.0)
    led.observe()
    assert led.leadership.view().signalled == {FIRST}
    led.pods = PODS[1:]
    led.observe()
    assert led.leadership.view().signalled == set()
