"""Notices of nodes and hints on their way to the arbiter, to users and to the controller."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from tests.core.controller.builders import nodes

from bamboo_core.api.events import EventFact, EventReason
from bamboo_core.arbiter_state.events import Received, Record
from bamboo_core.controller.view import ClusterView
from bamboo_core.evidence.node_notices import NodeNotice
from bamboo_core.job import leadership
from bamboo_core.job.leadership import Observed
from bamboo_core.protocol.messages import Notice

from .led import BEGUN, MEMBERS, PODS, Led, defect

FIRST, SECOND = MEMBERS
AT = 5000.0


def observe(led: Led, notice: NodeNotice | None, at: float = AT) -> None:
    """The first agent's node with this notice."""
    there = nodes(a=1, b=1)
    home = {pod.agent: pod.node for pod in PODS}[FIRST]
    is_end = notice is not None and not notice.is_hint
    seen = tuple(
        replace(node, departing=is_end, notice=notice) if node.name == home else node
        for node in there
    )
    view = ClusterView(seen, tuple(led.pods))
    led.tell(Observed(led.spec, view, has_sessions=bool(led.sessions), at=at))


def leaving(led: Led) -> list[Record]:
    return led.records(EventReason.AGENT_LEAVING)


def departs_at(led: Led) -> float:
    return led.leadership.arbiter.state.membership.agents[FIRST].departs_at


def test_an_end_at_a_known_time_reaches_the_arbiter_once() -> None:
    led = Led(BEGUN)
    led.connect(FIRST)
    notice = NodeNotice("it has the taint t", leaves_at=AT + 30)
    observe(led, notice)
    assert departs_at(led) == led.now + 30
    (record,) = leaving(led)
    assert record.facts[EventFact.SOURCE] == "Node"
    assert record.facts[EventFact.LEAD_S] == 30
    observe(led, notice, at=AT + 2)
    assert len(leaving(led)) == 1
    state = led.leadership.arbiter.state
    assert state.desired is not None
    assert state.desired.drained == {FIRST}
    assert SECOND not in state.desired.drained


def test_an_end_that_comes_sooner_counts() -> None:
    led = Led(BEGUN)
    led.connect(FIRST)
    observe(led, NodeNotice("cordoned"))
    assert departs_at(led) == inf
    observe(led, NodeNotice("taint", leaves_at=AT + 90))
    observe(led, NodeNotice("taint", lead_s=20.0))
    assert departs_at(led) == led.now + 20
    led.tick(5.0)
    observe(led, NodeNotice("taint", lead_s=20.0))
    assert departs_at(led) == led.now + 15


def test_an_end_at_an_unknown_time_is_told_to_users_once() -> None:
    led = Led(BEGUN)
    led.connect(FIRST)
    for _ in range(3):
        observe(led, NodeNotice("it is cordoned"))
    (record,) = leaving(led)
    assert record.message == f"{FIRST} is to leave its node: it is cordoned"
    assert (record.facts[EventFact.LEAD_S], record.facts[EventFact.SOURCE]) == (0, "Node")
    observe(led, None)
    assert led.leadership.arbiter.state.desired is not None
    assert led.leadership.arbiter.state.desired.drained == frozenset()
    observe(led, NodeNotice("it is cordoned"))
    assert len(leaving(led)) == 2


def test_an_agent_that_connects_later_has_the_rest_of_the_time() -> None:
    led = Led(BEGUN)
    observe(led, NodeNotice("taint", leaves_at=AT + 30))
    led.tick(10.0)
    led.connect(FIRST)
    assert departs_at(led) == led.now + 20


def test_a_new_arbiter_hears_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    led = Led(BEGUN)
    led.connect(FIRST)
    observe(led, NodeNotice("taint", leaves_at=AT + 30))
    monkeypatch.setattr(led.leadership.arbiter, "handle", defect)
    led.tick()
    led.tick(leadership.FIRST_PAUSE_S)
    led.connect(FIRST)
    assert departs_at(led) == pytest.approx(30.0)


def test_the_news_of_a_node_is_no_sign_of_life_of_its_agent() -> None:
    led = Led(BEGUN)
    led.connect(FIRST)
    heard = led.leadership.arbiter.state.evidence.heard
    before = dict(heard)
    led.now += 1.0
    observe(led, NodeNotice("taint", leaves_at=AT + 30))
    assert dict(heard) == before


# ---------------------------------------------------------------- hints


def at_risk(led: Led) -> list[Record]:
    return led.records(EventReason.AGENT_AT_RISK)


def test_a_hint_of_an_agent_is_told_once_and_decides_nothing() -> None:
    led = Led(BEGUN)
    led.observe()
    led.connect(FIRST)
    for _ in range(2):  # each session repeats it
        led.receive(FIRST, Notice(0.0, "rebalance", "AwsRebalance", is_hint=True))
    (record,) = at_risk(led)
    assert record.message == f"{FIRST} may lose its node: rebalance"
    assert record.facts == {EventFact.AGENTS: FIRST, EventFact.SOURCE: "AwsRebalance"}
    view = led.leadership.view()
    assert (view.at_risk, view.departing) == ({FIRST}, frozenset())
    assert departs_at(led) == inf
    led.pods = PODS[1:]
    led.observe()
    assert led.leadership.view().at_risk == frozenset()


def test_a_hint_of_a_node_holds_as_long_as_its_taint() -> None:
    led = Led(BEGUN)
    led.connect(FIRST)
    hint = NodeNotice("it has the taint t", is_hint=True)
    observe(led, hint)
    observe(led, hint)
    assert len(at_risk(led)) == 1
    assert led.leadership.view().at_risk == {FIRST}
    assert not leaving(led)
    observe(led, None)
    assert led.leadership.view().at_risk == frozenset()


def test_the_arbiter_itself_takes_no_hint_for_a_notice() -> None:
    led = Led(BEGUN)
    led.connect(FIRST)
    led.leadership.arbiter.handle(Received(FIRST, Notice(0.0, "x", is_hint=True)), 1.0)
    assert departs_at(led) == inf
