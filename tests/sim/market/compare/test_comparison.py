"""All systems on one fleet: what is equal for all, who is ranked how, and work that nobody did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.sim.market.fleets import PRICES, AllServe, Flat, fleet, terms
from tests.sim.market.step_times.small import model

from bamboo_core.api.spec import RedundancyMode
from bamboo_sim.market.compare import comparison, setting
from bamboo_sim.market.compare.comparison import (
    BOUND,
    DEFAULT,
    FIXED_BOUND,
    ON_DEMAND_ROW,
    UNRANKED,
    Comparison,
    Row,
    Table,
    compared,
)
from bamboo_sim.market.compare.setting import Fleets, Setting
from bamboo_sim.market.compare.times import MeanTimes
from bamboo_sim.market.policies.rivals.on_demand import OnDemand
from bamboo_sim.market.simulation.audit import Audited
from bamboo_sim.market.simulation.engine import run
from bamboo_sim.market.simulation.events import News
from bamboo_sim.market.simulation.outcome import Activity
from bamboo_sim.market.simulation.policy import Change, InventedWorkError
from bamboo_sim.market.simulation.policy import Fleet as Now
from bamboo_sim.market.step_times.dry import Job
from bamboo_sim.market.step_times.networks import HUNDRED, TEN
from bamboo_sim.market.step_times.table import State, StepTable

UNTIL_MS = 1_800_000
LIVES = [(0, None)] * 5 + [(0, 300_000), (0, 300_000), (0, 900_000), (600_000, None)]
PROFILE = model(layers=4, microbatches=12, pipelines=4)


def small(**changed: Any) -> Setting:
    """Eight nodes, of which three go and one comes."""
    events = tuple(fleet(*LIVES))
    found = Fleets("made", (events,), UNTIL_MS, {("a", "spot"): 1.0}, are_prices_recorded=False)
    return replace(Setting(found, PROFILE, TEN, fewest_stages=2, stages=2), **changed)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("step-times")


@pytest.fixture(scope="module")
def found(place: Path) -> Comparison:
    return compared(small(), place, 1)


def test_all_have_the_same_fleet_and_pay_the_same(found: Comparison) -> None:
    spot = [row for row in found.rows if row.name != ON_DEMAND_ROW]
    assert len({row.dollars for row in spot}) == 1
    assert {row.hours for row in found.rows} == {0.5}
    assert all(sum(row.share.values()) == pytest.approx(1) for row in found.rows)
    steady = found.row(ON_DEMAND_ROW)
    assert steady.dollars == pytest.approx(8 * 3.06 * 0.5)
    assert steady.share[Activity.TRAINING] == pytest.approx(1 - 45 / 1800)


def test_nobody_who_pauses_is_above_the_bound_of_whole_grids(found: Comparison) -> None:
    bound = found.row(BOUND)
    assert bound.share[Activity.PAUSED] == 0
    assert 0 < found.row(FIXED_BOUND).samples_per_s <= bound.samples_per_s
    whole = ("checkpoint", "varuna", "parcae", "live migration")
    assert all(found.row(name).samples_per_s < bound.samples_per_s for name in whole)


def test_rows_are_ranked_by_samples_per_dollar(found: Comparison) -> None:
    first = [row for row in found.rows if row.table is Table.COMMON and row.rank]
    assert {row.name for row in found.rows if not row.rank} == {*UNRANKED}
    by_rank = sorted(first, key=lambda row: row.rank)
    values = [row.samples_per_dollar for row in by_rank]
    assert values == sorted(values, reverse=True)
    assert by_rank[0].rank == 1


def test_a_row_of_another_table_is_ranked_instead_of_its_common_one(found: Comparison) -> None:
    first = [row for row in found.rows if row.table is Table.COMMON and row.rank]
    for row in found.rows:
        if row.table is Table.COMMON:
            continue
        others = [x for x in first if x.name != row.name]
        ahead = [x for x in others if x.samples_per_dollar > row.samples_per_dollar]
        assert row.rank == 1 + len(ahead)


def test_each_table_has_its_systems(found: Comparison) -> None:
    own = {row.name.partition(",")[0] for row in found.rows if row.table is Table.OWN}
    assert own == {"varuna", "torchft", "bamboo", "oobleck"}
    assumed = {row.name for row in found.rows if row.table is Table.ASSUMED}
    assert assumed == {"gemini", "swarm", "unicron"}
    ours = {row.name for row in found.rows if row.name.startswith("ours")}
    assert ours == {"ours, None", "ours, Replica", "ours, Eager", "ours, Auto"}
    with pytest.raises(KeyError, match="no row 'ours, Lazy'"):
        found.row("ours, Lazy")


def test_the_step_of_the_bound_is_the_planners(found: Comparison, place: Path) -> None:
    """A fleet that stays: samples are those of the dry run of its fastest grid."""
    steady = found.row(ON_DEMAND_ROW)
    table = StepTable(Job(small().model, RedundancyMode.NONE, TEN), place)
    times = [table.whole_ms(8 // stages, stages) for stages in (2, 4)]
    times += [table.whole_ms(2, 3)]
    least = min(ms for ms in times if ms is not None)
    trained_s = 1800 - 45
    assert steady.samples_per_s * 1800 == pytest.approx(
        table.samples / least * 1000 * trained_s, rel=1e-6
    )


def test_what_is_kept_changes_nothing(found: Comparison, place: Path) -> None:
    told: list[str] = []
    again = compared(small(), place, 1, lambda what, done, total: told.append(what))
    assert again.rows == found.rows
    assert [what for what in told if what.startswith("steps")] == []
    assert told.count("fleets run") == 2  # once to see that nothing is asked for, and then to count


def test_nodes_may_be_no_multiple_of_the_stages(place: Path) -> None:
    """ReCycle then asks for a grid that has more seats than there are nodes."""
    events = tuple(fleet(*LIVES[1:-1]))
    seven = replace(small().fleets, events=(events,))
    odd = compared(small(fleets=seven, fewest_stages=3, stages=3), place, 1)
    assert odd.setting.model.pipelines == 3
    assert odd.row("recycle").samples_per_s > 0


def test_without_a_depth_it_is_that_of_the_fastest_grid(place: Path) -> None:
    deep = compared(small(stages=0), place, 1)
    assert deep.setting.stages in (2, 3, 4)
    job = deep.setting.job(StepTable(Job(small().model, RedundancyMode.NONE, TEN), place))
    best = job.best(8)
    assert best is not None
    assert best.stages == deep.setting.stages


def test_the_network_is_everyones(found: Comparison) -> None:
    assert small().common.bytes_per_s == 1.25e9
    assert small(network=HUNDRED).common.bytes_per_s == 1.25e10
    assert small(network=HUNDRED).formula.bytes_per_s == 1.25e10
    assert found.pauses.restore_ms == pytest.approx(
        small().common.detect_ms + 83_000 + 1000 * small().common.state_bytes / 2 / 1.25e9, abs=1
    )


def test_what_is_not_computed_yet_is_guessed_and_kept_in_mind(tmp_path: Path) -> None:
    table = StepTable(Job(PROFILE, RedundancyMode.NONE, TEN), tmp_path, 1)
    times = MeanTimes(table, most=2, count=2)
    guess = times.whole_ms(2, 2)
    assert guess is not None
    assert guess > 0
    assert list(times.guessed) == [State(2, 2)]
    table.prepare(times.guessed)
    times.guessed = {}
    assert times.whole_ms(2, 2) == table.whole_ms(2, 2) != guess
    assert times.degraded_ms(1, 2, frozenset({(0, 1)})) is None  # nobody has that stage
    assert not times.guessed


def test_a_step_with_empty_seats_is_the_mean_over_patterns(tmp_path: Path) -> None:
    table = StepTable(Job(PROFILE, RedundancyMode.REPLICA, TEN), tmp_path, 1)
    times = MeanTimes(table, most=2, count=2)
    times.degraded_ms(2, 4, frozenset({(0, 0)}))
    table.prepare(times.guessed)
    drawn = [table.degraded_ms(*state) for state in times.guessed]
    assert len(drawn) == 2
    known = [ms for ms in drawn if ms is not None]
    assert times.degraded_ms(2, 4, frozenset({(1, 3)})) == pytest.approx(sum(known) / 2)


def test_a_grid_that_gives_up_a_pipeline_is_slower_than_any_that_follows(tmp_path: Path) -> None:
    """And nothing is computed for it."""
    table = StepTable(Job(PROFILE, RedundancyMode.REPLICA, TEN), tmp_path, 1)
    times = MeanTimes(table, most=2, count=2)
    slow = times.degraded_ms(2, 4, frozenset({(0, 0), (0, 2), (1, 1), (1, 3)}))
    assert not times.guessed
    after = table.whole_ms(1, 4)
    assert slow is not None
    assert after is not None
    assert slow > 1.5 * after


class Inventor(AllServe):
    """It adds samples that nobody has trained, at a pace that its nodes can have."""

    def on_change(self, state: Flat, fleet: Now, news: News) -> Change | None:
        fleet.samples += 20
        return super().on_change(state, fleet, news)


def test_samples_that_nobody_trained_are_caught_at_their_instant() -> None:
    """The engine compares paces: these it does not see."""
    events = fleet(*[(0, None)] * 3, (0, 20_000))
    assert run(Inventor(), events, terms(until_ms=60_000)).samples > 0
    with pytest.raises(InventedWorkError, match=r"samples at \d+ ms, but the nodes"):
        run(Audited(Inventor(), 10.0), events, terms(until_ms=60_000))
    honest = Audited(AllServe(), 10.0)
    assert honest.ended(run(honest, events, terms(until_ms=60_000))).samples > 0


def test_an_end_with_too_many_samples_is_caught() -> None:
    events = fleet(*[(0, None)] * 3)
    audited = Audited(AllServe(), 10.0)
    outcome = run(audited, events, terms(until_ms=60_000))
    with pytest.raises(InventedWorkError, match=r"at 60000 ms"):
        audited.ended(replace(outcome, samples=outcome.samples * 1.01))


def test_a_planted_inventor_is_caught_in_a_comparison(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Twice(OnDemand):
        def on_change(self, state: Any, fleet: Now, news: News) -> Change | None:
            fleet.samples *= 2
            return super().on_change(state, fleet, news)

    rows = comparison.assumed
    monkeypatch.setattr(comparison, "assumed", lambda job: rows(job) | {"twice": Twice(job)})
    with pytest.raises(InventedWorkError, match="can have trained"):
        compared(small(), place, 1)


def test_at_every_event_samples_are_within_live_nodes_times_the_best_rate(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another count than the audit's: from the fleet's own times."""
    seen: list[tuple[int, float]] = []

    class Noting(Audited):
        def on_change(self, state: Any, fleet: Now, news: News) -> Change | None:
            seen.append((news.at_ms, fleet.samples))
            return super().on_change(state, fleet, news)

    monkeypatch.setattr(comparison, "Audited", Noting)
    found = compared(small(), place, 1)
    best = found.setting.best_per_node
    lives = [*LIVES, *[(45_000, None)] * 8]  # those of the fleet on demand, too
    assert len(seen) > 100
    for at_ms, samples in seen:
        ends = [(begin, at_ms if end is None else min(end, at_ms)) for begin, end in lives]
        node_s = sum(max(0, end - begin) for begin, end in ends) / 1000
        assert samples <= node_s * best * (1 + 1e-6)


def test_prices_are_dated_and_models_have_sources() -> None:
    read = setting.assumptions()
    assert all(entry["source"] and entry["unit"] for of in read.values() for entry in of.values())
    assert all(entry["date"] for entry in read["prices"].values())
    assert set(setting.models()) == set(read["models"])
    assert PRICES["a", "spot"] == 1.0


def test_rows_say_where_they_stand(found: Comparison) -> None:
    assert isinstance(found.row(DEFAULT), Row)
    assert found.row("oobleck", Table.OWN).table is Table.OWN
