"""What happens over time: bins add up to what the engine counts."""

from __future__ import annotations

import pytest
from tests.sim.market.fleets import BEST, HOUR, PRICES, AllServe, Flat, fleet, terms

from bamboo_sim.market.compare.timeline import Timeline, nodes
from bamboo_sim.market.simulation.engine import run
from bamboo_sim.market.simulation.events import Kind, News, Node
from bamboo_sim.market.simulation.outcome import Activity, Span
from bamboo_sim.market.simulation.policy import Change
from bamboo_sim.market.simulation.policy import Fleet as Now

LIVES = [(0, None), (0, 1_000_000), (400_000, 2_500_000), (3_000_000, None)]


class Careful(AllServe):
    """It pauses for 90 s and loses 300 samples with each loss of a node."""

    def on_change(self, state: Flat, fleet: Now, news: News) -> Change | None:
        serving = Flat(frozenset(fleet.ready))
        if news.kind is Kind.REMOVE:
            return Change(serving, news.at_ms + 90_000, "loss", lost_samples=300.0)
        return Change(serving, fleet.resume_ms if news.kind is not Kind.RESUME else None, "on")


def test_bins_add_up_to_the_outcome() -> None:
    spans: list[Span] = []
    timeline = Timeline(HOUR)

    def watch(span: Span) -> None:
        spans.append(span)
        timeline(span)

    found = run(Careful(), fleet(*LIVES, boot_ms=45_000), terms(until_ms=HOUR), watch)
    assert found.activity_ms[Activity.REPEATING] > 0
    assert sum(timeline.net) == pytest.approx(found.samples)
    assert sum(timeline.dollars) == pytest.approx(sum(found.dollars.values()))
    for activity, ms in found.activity_ms.items():
        assert sum(timeline.activity_ms[activity]) == pytest.approx(ms)
    assert [span.begin_ms for span in spans[1:]] == [span.end_ms for span in spans[:-1]]
    assert (spans[0].begin_ms, spans[-1].end_ms) == (0, HOUR)
    bins = zip(*timeline.shares().values(), strict=True)
    assert all(sum(each) == pytest.approx(1) for each in bins)


def test_watching_changes_nothing() -> None:
    events = fleet(*LIVES, boot_ms=45_000)
    assert run(Careful(), events, terms(until_ms=HOUR), Timeline(HOUR)) == run(
        Careful(), events, terms(until_ms=HOUR)
    )


def test_what_is_repeated_is_no_throughput() -> None:
    timeline = Timeline(HOUR)
    found = run(Careful(), fleet(*LIVES), terms(until_ms=HOUR), timeline)
    assert max(timeline.samples_per_s()) <= 3 * BEST + 1e-9
    assert sum(timeline.fresh) == pytest.approx(found.samples)  # all was made up for at the end
    before = 1_000_000 / HOUR * len(timeline.fresh)
    after = timeline.samples_per_s()[int(before) + 1]
    assert after == 0  # a pause of 90 s is three bins long


def test_value_and_cost_are_of_each_bin() -> None:
    timeline = Timeline(HOUR, bins=30)
    run(AllServe(), fleet((0, None), (1_800_000, None)), terms(until_ms=HOUR), timeline)
    price = PRICES["a", "spot"]
    assert timeline.dollars_per_h() == pytest.approx([price] * 15 + [2 * price] * 15)
    assert timeline.samples_per_dollar() == pytest.approx([3600 * BEST / price] * 30)
    nobody = Timeline(HOUR, bins=30)
    run(AllServe(), [], terms(until_ms=HOUR), nobody)
    assert nobody.samples_per_dollar() == [0.0] * 30


def test_nodes_are_counted_by_zone_from_their_rent_to_their_end() -> None:
    lives = [(0, None), (900_000, 2_700_000), (0, 1_800_000)]
    of = [Node(1, "b", "spot"), Node(2, "a", "spot"), Node(3, "b", "spot")]
    events = fleet(*lives, boot_ms=45_000, nodes=of)
    found = nodes(events, HOUR, bins=4)
    assert list(found) == ["a", "b"]
    assert found["a"] == pytest.approx([0, 1, 1, 0])
    assert found["b"] == pytest.approx([2, 2, 1, 1])
    assert nodes(events, HOUR, bins=2)["a"] == pytest.approx([0.5, 0.5])
