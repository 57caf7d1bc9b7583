"""The paper's table: its market, the policy behind it, and how near both are to what is known."""

from __future__ import annotations

from itertools import islice, pairwise
from random import Random

import pytest
from tests.sim.market.fleets import fleet

from bamboo_sim.market.__main__ import main
from bamboo_sim.market.paper import assumptions, authors
from bamboo_sim.market.paper.table import WITHIN, table
from bamboo_sim.market.policies.authors_simulator import AuthorsSimulator
from bamboo_sim.market.policies.bamboo_published import BambooPublished
from bamboo_sim.market.policies.published import Published
from bamboo_sim.market.simulation.engine import Terms, run
from bamboo_sim.market.simulation.events import FleetEvent, Kind
from bamboo_sim.market.simulation.hourly import HourlyMarket
from bamboo_sim.market.simulation.outcome import HOUR_MS, Outcome, Pause

SMALL = Published(
    samples=10, stages=3, step_ms={1: 1000, 2: 600}, slowdown=1.5, planned_ms=5000, fatal_ms=3000,
    risk=0.9,
)  # fmt: skip
TERMS = {"prices": {("a", "spot"): 1.0}, "best_per_node": 10 / 3}


def drawn(market: HourlyMarket, seed: int, hours: int) -> list[FleetEvent]:
    found = []
    for event in market.events(seed):
        if event.at_ms >= hours * HOUR_MS:
            return found
        found.append(event)
    raise AssertionError("the market has ended")


def test_every_cell_is_near_the_slide() -> None:
    rows = table(seeds=40)
    offs = {row.loss_chance: row.off for row in rows}
    assert list(offs) == [0.01, 0.05, 0.1, 0.25, 0.5]
    assert not {chance: off for chance, off in offs.items() if max(map(abs, off)) > WITHIN}


def test_the_table_is_the_same_for_any_number_of_processes() -> None:
    told: list[tuple[int, int]] = []
    first = table(30, 1, lambda done, total: told.append((done, total)))
    assert first == table(30, 2)
    assert told[-1] == (150, 150)
    assert all(before < after for (before, _), (after, _) in pairwise(told))


def test_what_the_authors_simulator_printed_seed_by_seed() -> None:
    path = authors.rows_file()
    if path is None:
        pytest.skip(f"no {authors.ROWS} beside this checkout: nothing to compare with")
    pairs = authors.pairs(path)
    assert len(pairs) == 60
    assert sum(pair.worst <= 1e-3 for pair in pairs) >= 59
    assert max(pair.worst for pair in pairs) <= 0.002


def test_the_table_shows_progress_to_people_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert main(["paper-table", "--seeds", "1", "--processes", "1"]) == 0
    shown = capsys.readouterr()
    assert shown.err.endswith("\r5 of 5 runs\n")
    assert "of 15 cells are within 3% of the slide" in shown.out


def test_every_assumption_has_a_source_and_two_are_fitted() -> None:
    found = assumptions.assumptions()
    assert all(entry.source and entry.unit for entry in found)
    assert [entry.name for entry in found if entry.fitted] == ["step_ms", "planned_ms"]
    assert all("fitted" in entry.source for entry in found if entry.fitted)


@pytest.mark.parametrize("chance", [0.05, 0.3, 0.9])
def test_the_fleet_is_in_order_within_its_slots_and_of_its_seed(chance: float) -> None:
    market = HourlyMarket(chance, slots=9, boot_ms=45_000)
    events = drawn(market, 3, hours=30)
    assert events == sorted(events) == drawn(market, 3, hours=30) != drawn(market, 4, hours=30)
    live: set[int] = set()
    ready: set[int] = set()
    for event in events:
        number = event.node.number
        match event.kind:
            case Kind.ADD:
                live.add(number)
            case Kind.READY:
                assert number in live - ready
                ready.add(number)
            case Kind.REMOVE:
                live.remove(number)
        assert len(live) <= 9
    assert {event.kind for event in events} == {Kind.ADD, Kind.REMOVE, Kind.READY}


@pytest.mark.parametrize("chance", [0.0, -0.1, 1.1])
def test_a_market_without_losses_is_refused(chance: float) -> None:
    with pytest.raises(ValueError, match="is not above 0 and at most 1; nodes that are never lost"):
        HourlyMarket(chance, 48, 45_000)


def test_the_chance_of_a_loss_is_that_of_an_hour() -> None:
    """A node that lives when an hour begins is gone at its end with the market's chance."""
    market = HourlyMarket(0.2, slots=50, boot_ms=0)
    lived = lost = 0
    live: dict[int, int] = {}
    for event in drawn(market, 1, hours=400):
        hour = event.at_ms // HOUR_MS
        if event.kind is Kind.ADD:
            live[event.node.number] = hour
        elif event.kind is Kind.REMOVE and (born := live.pop(event.node.number)) < hour:
            lived += hour - born
            lost += 1
    assert lost > 2000
    assert lost / lived == pytest.approx(0.2, abs=0.02)


def test_the_first_draws_are_those_of_the_authors() -> None:
    random = Random(7)
    chances = [random.random() for _ in range(24)]
    at_start = sum(chances[0] > random.random() for _ in range(48))
    events = list(islice(HourlyMarket(0.01, 48, 45_000).events(7), at_start))
    assert {(event.at_ms, event.kind) for event in events} == {(0, Kind.ADD)}


def trained(*lives: tuple[int, int | None], until_ms: int = 60_000) -> Outcome:
    return run(BambooPublished(SMALL), fleet(*lives), Terms(**TERMS, until_ms=until_ms))


def test_it_starts_with_a_rendezvous_and_grows_at_the_end_of_a_step() -> None:
    three, three_later = [(0, None)] * 3, [(9500, None)] * 3
    found = trained(*three, *three_later, until_ms=15_000 + 6000)
    assert found.pauses == (Pause(0, 3000, "start"), Pause(10_000, 5000, "planned"))
    assert found.samples == pytest.approx(7 * 10 + 10 * 10)


def test_a_loss_is_taken_over_by_the_node_before_and_makes_steps_slower() -> None:
    found = trained((0, None), (0, 5250), (0, None), until_ms=5250 + 1125)
    # two steps; a quarter of the third, whose rest takes 1.5 times as long
    assert found.samples == pytest.approx(30)
    assert found.fatal == 0
    assert len(found.pauses) == 1


def test_the_loss_of_two_neighbours_is_fatal_and_repeats_nothing() -> None:
    found = trained((0, None), (0, 5000), (0, 6000), *[(0, None)] * 1, until_ms=20_000)
    assert found.fatal == 1
    assert found.pauses[-1].cause == "fatal"


def test_who_leaves_a_rendezvous_lets_it_begin_again() -> None:
    found = trained(*[(0, None)] * 3, (0, 2000), until_ms=10_000)
    assert [pause.cause for pause in found.pauses] == ["start", "left in rendezvous"]
    assert found.first_ms == 6000


def test_more_nodes_than_the_grids_that_are_known_stand_by() -> None:
    found = trained(*[(0, None)] * 10, until_ms=3000 + 600)
    assert found.samples == pytest.approx(10)
    assert [pause.cause for pause in found.pauses] == ["start"]


def test_a_node_that_still_boots_leaves_no_rendezvous() -> None:
    events = fleet(*[(0, None)] * 3, (0, 2100), boot_ms=2000)
    late = [e for e in events if e.node.number != 3 or e.kind is not Kind.READY]
    found = run(BambooPublished(SMALL), late, Terms(**TERMS, until_ms=9000))
    assert [pause.cause for pause in found.pauses] == ["start"]


def test_the_authors_fault_stops_a_job_that_is_whole() -> None:
    """A fatal failure in a rendezvous: theirs ends twice, and stands; ours goes on."""
    lives = [*[(0, None)] * 3, (0, 6000), (0, 6100), *[(0, None)] * 2]
    at_risk = Published(**{**vars(SMALL), "risk": 0.0})
    outcomes = [
        run(policy(at_risk), fleet(*lives), Terms(**TERMS, until_ms=60_000))
        for policy in (BambooPublished, AuthorsSimulator)
    ]
    assert [outcome.fatal for outcome in outcomes] == [1, 1]
    assert outcomes[0].samples > 2 * outcomes[1].samples
