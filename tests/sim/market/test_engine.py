"""The engine: the order of events, what is counted, and what no policy may do."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sim.market.fleets import BEST, HOUR, AllServe, Flat, fleet, terms

from bamboo_sim.market.simulation.engine import run
from bamboo_sim.market.simulation.events import FleetEvent, Kind, News, Node
from bamboo_sim.market.simulation.outcome import Activity, Pause, Spend, Use
from bamboo_sim.market.simulation.policy import Change, Fleet, InventedWorkError, Pace, extended


def test_the_order_of_kinds_at_one_instant() -> None:
    assert list(Kind) == sorted(Kind)
    assert [kind.name for kind in Kind] == ["ADD", "REMOVE", "READY", "RESUME", "LOOK"]


class Pausing(AllServe):
    """Pauses one second at each READY, and looks at the end of each pause's instant."""

    def on_change(self, state: Flat, fleet: Fleet, news: News) -> Change | None:
        self.told.append(news)
        serving = Flat(frozenset(fleet.ready))
        if news.kind is Kind.READY:
            return Change(serving, news.at_ms + 1000, "join", look_ms=news.at_ms + 1000)
        return Change(serving, fleet.resume_ms, "join", look_ms=None)


def test_events_of_one_instant_come_by_kind_and_together() -> None:
    policy = Pausing()
    lives = [(0, None), (1000, None), (1000, None), (0, 1000)]
    events = fleet(*lives)
    events = sorted([*events, FleetEvent(2000, Kind.ADD, 99, Node(9, "a", "spot"))])
    run(policy, events, terms(until_ms=3000))
    assert [(news.at_ms, news.kind.name, len(news.nodes)) for news in policy.told] == [
        *((0, "ADD", 2), (0, "READY", 2)),
        *((1000, "ADD", 2), (1000, "REMOVE", 1), (1000, "READY", 2)),
        *((2000, "ADD", 1), (2000, "RESUME", 0)),
    ]


def test_samples_hours_and_shares() -> None:
    found = run(AllServe(), fleet((0, None), (HOUR, 2 * HOUR)), terms(until_ms=4 * HOUR))
    assert found.samples == pytest.approx(3600 * BEST * 5)
    assert (found.hours, found.removals, found.fatal) == (4, 1, 0)
    assert found.share(Activity.TRAINING) == 1
    assert sum(found.activity_ms.values()) == found.end_ms


def test_a_run_ends_with_its_last_sample() -> None:
    found = run(AllServe(), fleet((500, None)), terms(samples=25))
    assert (found.samples, found.first_ms, found.end_ms) == (25, 500, 3000)
    assert found.samples_per_second == 10


def test_dollars_by_zone_capacity_and_use() -> None:
    nodes = [Node(0, "a", "spot"), Node(1, "b", "spot"), Node(2, "a", "on-demand")]

    class OneServes(AllServe):
        def on_change(self, state: Flat, fleet: Fleet, news: News) -> Change | None:
            return Change(Flat(frozenset(fleet.ready) - {1}))

    events = fleet((0, None), (0, HOUR), (0, None), boot_ms=HOUR // 4, nodes=nodes)
    found = run(OneServes(), events, terms(until_ms=2 * HOUR))
    assert {spend: dollars for spend, dollars in found.dollars.items() if dollars} == {
        Spend("a", "spot", Use.BOOTING): 0.25,
        Spend("a", "spot", Use.SERVING): 1.75,
        Spend("b", "spot", Use.BOOTING): 0.5,
        Spend("b", "spot", Use.STANDBY): 1.5,
        Spend("a", "on-demand", Use.BOOTING): 1.0,
        Spend("a", "on-demand", Use.SERVING): 7.0,
    }
    assert found.value == pytest.approx(found.samples / sum(found.dollars.values()) / 3600)


def test_pauses_have_causes_and_add_up() -> None:
    class Twice(AllServe):
        def on_change(self, state: Flat, fleet: Fleet, news: News) -> Change | None:
            serving = Flat(frozenset(fleet.ready))
            if news.kind is Kind.REMOVE:
                end = extended(fleet, news.at_ms, 2000)
                return Change(serving, end, f"loss at {news.at_ms}", is_fatal=True)
            return Change(serving, fleet.resume_ms)

    events = fleet((0, None), (0, 10_000), (0, 11_000))
    found = run(Twice(), events, terms(until_ms=20_000))
    assert found.pauses == (
        Pause(10_000, 1000, "loss at 10000"),
        Pause(11_000, 3000, "loss at 11000"),
    )
    assert found.activity_ms[Activity.PAUSED] == 4000
    assert found.fatal == 2


def test_a_lost_step_and_lost_samples_are_repeated() -> None:
    class Loses(AllServe):
        def on_change(self, state: Flat, fleet: Fleet, news: News) -> Change | None:
            serving = Flat(frozenset(fleet.ready))
            if news.kind is Kind.LOOK:
                return Change(serving, lost_samples=20, drops_step=True)
            return Change(serving, look_ms=5500)

    found = run(Loses(), fleet((0, None)), terms(until_ms=10_000))
    assert found.samples == pytest.approx(100 - 25)
    assert found.activity_ms[Activity.REPEATING] == 2500
    assert found.activity_ms[Activity.TRAINING] == 7500


def test_without_nodes_it_is_idle_and_with_too_few_it_stands() -> None:
    class NeedsTwo(AllServe):
        def on_change(self, state: Flat, fleet: Fleet, news: News) -> Change | None:
            return Change(Flat(frozenset(fleet.ready) if len(fleet.ready) > 1 else frozenset()))

    found = run(NeedsTwo(), fleet((1000, None), (3000, None)), terms(until_ms=4000))
    assert found.activity_ms == {
        Activity.TRAINING: 1000,
        Activity.REPEATING: 0,
        Activity.PAUSED: 0,
        Activity.STANDING: 2000,
        Activity.IDLE: 1000,
    }


@pytest.mark.parametrize(("lost_at", "looked"), [(2000, 2000), (2400, 3000), (2001, 3000)])
def test_a_step_that_ends_with_an_event_ends_after_it(lost_at: int, looked: int) -> None:
    class Looks(AllServe):
        def rate(self, state: Flat) -> Pace | None:
            return Pace(1000, 10) if state.serving else None

        def on_change(self, state: Flat, fleet: Fleet, news: News) -> Change | None:
            self.told.append(news)
            is_loss = news.kind is Kind.REMOVE
            return Change(Flat(frozenset(fleet.ready)), looks_at_step_end=is_loss)

    policy = Looks()
    run(policy, fleet((0, None), (0, lost_at)), terms(until_ms=9000))
    assert [news.at_ms for news in policy.told if news.kind is Kind.LOOK] == [looked]


def test_a_run_costs_time_for_its_events_only() -> None:
    policy = AllServe()
    found = run(policy, fleet((0, None)), terms(until_ms=10**9 * HOUR))
    assert found.samples > 1e13
    assert len(policy.told) == 2


def lives(draw: st.DrawFn) -> list[tuple[int, int | None]]:
    added = draw(st.lists(st.integers(0, 9000), min_size=1, max_size=8))
    return [(at, draw(st.one_of(st.none(), st.integers(at, 12_000)))) for at in added]


def ready_seconds(events: list[FleetEvent], until_ms: int) -> float:
    """How long nodes were ready, all together, reckoned another way than the engine does."""
    begin = {e.node.number: e.at_ms for e in events if e.kind is Kind.READY}
    end = {e.node.number: e.at_ms for e in events if e.kind is Kind.REMOVE}
    return sum(
        max(0, min(end.get(node, until_ms), until_ms) - at) / 1000 for node, at in begin.items()
    )


@given(st.composite(lives)(), st.integers(0, 2000), st.lists(st.integers(1, 15_000), max_size=4))
def test_samples_are_at_most_what_live_nodes_can_do_at_every_instant(
    lives: list[tuple[int, int | None]], boot_ms: int, instants: list[int]
) -> None:
    events = fleet(*lives, boot_ms=boot_ms)
    done = []
    for until_ms in sorted([*instants, 15_000]):
        found = run(AllServe(), events, terms(until_ms=until_ms))
        assert found.samples == pytest.approx(BEST * ready_seconds(events, until_ms), abs=1e-6)
        assert sum(found.activity_ms.values()) == found.end_ms == until_ms
        done.append(found.samples)
    assert all(before <= after for before, after in pairwise(done))


class Faster(AllServe):
    faster = 1.001


class KeepsTheLost(AllServe):
    def on_change(self, state: Flat, fleet: Fleet, news: News) -> Change | None:
        return Change(Flat(state.serving | frozenset(fleet.ready)))


class SaysNothing(AllServe):
    def on_change(self, state: Flat, fleet: Fleet, news: News) -> Change | None:
        return None if news.kind is Kind.REMOVE else super().on_change(state, fleet, news)


class KeepsItsState(AllServe):
    def on_change(self, state: Flat, fleet: Fleet, news: News) -> Change | None:
        return Change(state) if news.kind is Kind.REMOVE else super().on_change(state, fleet, news)


class CountsOn(AllServe):
    def on_change(self, state: Flat, fleet: Fleet, news: News) -> Change | None:
        return Change(Flat(frozenset(fleet.ready)), lost_samples=-1)


class EndsBefore(AllServe):
    def on_change(self, state: Flat, fleet: Fleet, news: News) -> Change | None:
        return Change(Flat(frozenset(fleet.ready)), resume_ms=news.at_ms - 1)


class ServesWhileBooting(AllServe):
    def on_change(self, state: Flat, fleet: Fleet, news: News) -> Change | None:
        return Change(Flat(frozenset(fleet.booting) | frozenset(fleet.ready)))


@pytest.mark.parametrize(
    ("cheat", "said"),
    [
        (Faster, "but 1 nodes compute 10.000"),
        (KeepsTheLost, r"nodes \[0\] serve, but are gone or not ready"),
        (SaysNothing, "a lost node serves on at 5000 ms"),
        (KeepsItsState, "a lost node serves on at 5000 ms"),
        (CountsOn, "were never computed"),
        (EndsBefore, "ends before it begins"),
        (ServesWhileBooting, r"nodes \[0\] serve, but are gone or not ready"),
    ],
)
def test_a_policy_that_invents_work_is_caught(cheat: Callable[[], AllServe], said: str) -> None:
    with pytest.raises(InventedWorkError, match=said):
        run(cheat(), fleet((0, 5000), boot_ms=100), terms(until_ms=9000))


def test_a_fleet_that_makes_no_sense_is_refused() -> None:
    node = Node(0, "a", "spot")
    for events, said in [
        ([(0, Kind.READY)], "READY of node 0 at 0 ms is out of order"),
        ([(0, Kind.REMOVE)], "REMOVE of node 0 at 0 ms is out of order"),
        ([(0, Kind.ADD), (9, Kind.ADD)], "ADD of node 0 at 9 ms is out of order"),
        ([(9, Kind.ADD), (0, Kind.READY)], "an event at 0 ms comes after one at 9 ms"),
    ]:
        made = [FleetEvent(at, kind, i, node) for i, (at, kind) in enumerate(events)]
        with pytest.raises(ValueError, match=said):
            run(AllServe(), made, terms(until_ms=99))


def test_a_node_without_a_price_is_refused() -> None:
    events = fleet((0, None), nodes=[Node(0, "c", "spot")])
    with pytest.raises(ValueError, match="no price for spot nodes in zone c; add one to prices"):
        run(AllServe(), events, terms(until_ms=99))


def test_a_run_needs_an_end_that_it_can_reach() -> None:
    with pytest.raises(ValueError, match="give samples or until_ms"):
        terms()
    with pytest.raises(ValueError, match=r"0\.00 h with 10 of 20 samples, and nothing trains"):
        run(AllServe(), fleet((0, 1000)), terms(samples=20))


def test_the_same_fleet_and_policy_give_the_same_outcome() -> None:
    random = Random(1)
    events = fleet(*((at := random.randrange(9000), at + 3000) for _ in range(20)), boot_ms=50)
    assert run(AllServe(), events, terms(until_ms=20_000)) == run(
        AllServe(), events, terms(until_ms=20_000)
    )
