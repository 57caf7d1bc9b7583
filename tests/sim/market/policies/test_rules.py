"""The rules of each system, one by one."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from tests.core.protection.job import layers, spec
from tests.sim.market.fleets import fleet
from tests.sim.market.policies.systems import Watched, small, systems, terms, trained

from bamboo_core.api.spec import RedundancyMode
from bamboo_sim.market.policies.base.formula import Grid
from bamboo_sim.market.policies.base.job import formula_job, rate
from bamboo_sim.market.policies.base.seats import Seats, age_ms, dealt
from bamboo_sim.market.policies.ours.auto import Record
from bamboo_sim.market.policies.ours.choosing import product
from bamboo_sim.market.policies.rivals.recycle import normalised
from bamboo_sim.market.policies.rivals.templates import NOTHING, instantiated
from bamboo_sim.market.policies.rows import ours
from bamboo_sim.market.simulation.engine import run
from bamboo_sim.market.simulation.outcome import Outcome, Pause
from bamboo_sim.market.simulation.policy import Change

LOST_MS = 33_300
FULL = [(0, None)] * 8


def lose(name: str, *numbers: int, nodes: int = 8, **changed: Any) -> tuple[Change, Outcome]:
    """The answer to the loss of these nodes at one instant, and all of the run."""
    policy = Watched(systems(small(**changed))[name], systems(small(**changed))[name])
    lives = [(0, LOST_MS if number in numbers else None) for number in range(nodes)]
    found = trained(policy, lives, 100_000, **changed)
    (answer,) = [told.change for told in policy.told if told.news.at_ms == LOST_MS]
    return answer, found


@pytest.mark.parametrize(
    ("trained_ms", "age"),
    [(0, 0), (11_999, 11_999), (12_000, 2000), (21_999, 11_999), (22_000, 2000), (-5, 0)],
)
def test_what_no_checkpoint_has_is_at_most_an_interval_and_its_writing(
    trained_ms: int, age: int
) -> None:
    assert age_ms(5 + trained_ms, 5, 10_000, 2000) == age


def test_a_restart_repeats_what_no_checkpoint_has() -> None:
    job = small()
    answer, found = lose("checkpoint", 0)
    age = age_ms(LOST_MS, 0, job.saving_ms, job.common.persist_ms)
    pace = 8 / job.formula.step_ms(Grid(4, 2)) * (1 - 100 / job.saving_ms)
    assert answer.lost_samples == pytest.approx(pace * age)
    pause_ms = 500 + 4000 + job.copy_ms(2)
    assert found.pauses == (Pause(LOST_MS, pause_ms, "loss"),)
    assert len(answer.state.serving) == 6  # whole pipelines only


def test_a_notice_leaves_time_for_a_checkpoint() -> None:
    answer, _ = lose("checkpoint", 0, notice_ms=2100)
    assert answer.lost_samples == 0
    assert lose("checkpoint", 0, notice_ms=2099)[0].lost_samples > 0


def test_varuna_looks_for_nodes_each_five_minutes() -> None:
    policy = systems(small())["varuna"]
    lives = [*[(0, None)] * 4, *[(1000, None)] * 4]
    found = trained(policy, lives, 400_000)
    assert [(pause.at_ms, pause.cause) for pause in found.pauses] == [(300_000, "morph")]


def test_torchft_merges_survivors_or_waits() -> None:
    merged, _ = lose("torchft", 0, 2)
    fixed, _ = lose("torchft, fixed groups", 0, 2)
    assert (len(merged.state.serving), len(fixed.state.serving)) == (6, 4)
    assert merged.drops_step
    pace = systems(small())["torchft"].rate(merged.state)
    assert pace is not None
    assert pace.samples == 6  # of 8: the group that is missing is not trained for


def test_dropped_samples_are_those_of_one_pipeline_and_no_step() -> None:
    answer, found = lose("sample dropping", 0)
    assert (answer.drops_step, answer.lost_samples) == (False, 0)
    assert len(answer.state.serving) == 6
    assert found.fatal == 0


def test_without_a_whole_group_nobody_has_the_state() -> None:
    assert lose("torchft", 0, 2, 4, 6)[0].is_fatal
    assert not lose("torchft", 0, 1, 2, 4)[0].is_fatal


@pytest.mark.parametrize("nodes", range(6, 33))
def test_templates_use_all_nodes(nodes: int) -> None:
    job = formula_job(is_split=False)
    found = instantiated(job, nodes, 0)
    assert sum(found.sizes) == nodes
    assert max(found.sizes) - min(found.sizes) <= 1
    best = job.best(nodes)
    assert best is not None
    # the best equal grid leaves nodes out, and templates do not, which may be a little slower
    assert found.step_ms <= 1.02 * job.formula.step_ms(best)
    guarded = instantiated(job, nodes, 3)
    assert len(guarded.sizes) >= (4 if nodes >= 24 else 1)


def test_too_few_nodes_fill_no_template() -> None:
    assert instantiated(formula_job(is_split=False), 5, 0) == NOTHING


def test_oobleck_goes_on_as_long_as_each_layer_has_a_node() -> None:
    policy, job = systems(small())["oobleck"], small()
    seen = Watched(policy, policy)
    trained(seen, FULL, 1)
    pipelines = seen.told[-1].change.state.holders
    first = {pipeline[0] for pipeline in pipelines}
    assert lose("oobleck", *first)[0].is_fatal
    assert not lose("oobleck", *sorted(first)[1:])[0].is_fatal or len(first) == 1
    pauses = [pause.ms for pause in lose("oobleck", 7)[1].pauses[:1]]
    assert pauses[0] >= 500 + 2000 + job.copy_ms(4)


def test_losses_are_spread_over_stages() -> None:
    seats = Seats(Grid(3, 2), (None, 1, None, 3, 4, 5))
    assert normalised(seats).empty == (1, 1)
    assert normalised(seats).serving == seats.serving
    assert normalised(normalised(seats)) == normalised(seats)


def test_recycle_dies_with_all_nodes_of_a_stage_and_only_then() -> None:
    seats = dealt(Grid(4, 2), range(8), 0)
    assert seats.holders == tuple(range(8))
    for count in (1, 4):
        for lost in combinations(range(8), count):
            answer, _ = lose("recycle, fixed depth", *lost)
            is_wiped = {0, 2, 4, 6} <= set(lost) or {1, 3, 5, 7} <= set(lost)
            assert answer.is_fatal == is_wiped


@pytest.mark.parametrize(("lost", "is_fatal"), [((0,), False), ((0, 1), True), ((0, 3), False)])
def test_bamboo_dies_with_two_neighbours(lost: tuple[int, ...], is_fatal: bool) -> None:
    assert lose("bamboo, eager", *lost)[0].is_fatal == is_fatal


def test_bamboos_shadow_has_the_work_of_two() -> None:
    policy, job = systems(small())["bamboo, eager"], small()
    whole = dealt(Grid(4, 2), range(8), 0)
    before, after = policy.rate(whole), policy.rate(whole.without({3}))
    assert before is not None
    assert after is not None
    formula = job.formula
    assert before.step_ms == pytest.approx(formula.step_ms(Grid(4, 2), 2.2))
    assert after.step_ms == pytest.approx(formula.step_ms(Grid(4, 2), 4))


def test_ours_dies_only_with_the_last_copy() -> None:
    """All losses of one, two and four of eight nodes, in each mode."""
    for mode in ("None", "Replica", "Eager"):
        for count in (1, 2, 4):
            for lost in combinations(range(8), count):
                live = set(range(8)) - set(lost)
                stages = {number % 2 for number in live}
                if mode != "None":
                    stages |= {(number + 1) % 2 for number in live}
                answer, _ = lose(f"ours, {mode}, Diffuse", *lost)
                assert answer.is_fatal == (len(stages) < 2)


def test_ours_repeats_what_its_mode_says() -> None:
    lost = {
        mode: lose(f"ours, {mode}, Diffuse", 0)[0].lost_samples for mode in ("Replica", "Eager")
    }
    assert 0 < lost["Replica"] <= 4
    assert lost["Eager"] == 0
    assert lose("ours, Replica, Diffuse", 0, notice_ms=30_000)[0].lost_samples == 0


def test_live_migration_uses_nodes_that_stand_by() -> None:
    job = small(notice_ms=60_000)
    told, found = lose("live migration", 0, nodes=9, notice_ms=60_000)
    assert (told.cause, told.lost_samples) == ("migration", 0)
    assert len(told.state.serving) == 8
    assert found.pauses[0].ms < job.common.restart_ms
    assert len(lose("live migration", 0, notice_ms=60_000)[0].state.serving) == 6
    assert lose("live migration", 0, nodes=9)[0] == lose("checkpoint", 0, nodes=9)[0]


def test_parcae_thinks_of_what_a_change_costs() -> None:
    """A fifth node is worth a migration within ten minutes, and not within ten seconds."""
    lives = [*[(0, None)] * 4, *[(1000, None)] * 4]
    policy = systems(small())["parcae"]
    found = trained(policy, lives, 200_000)
    assert [(pause.at_ms, pause.cause) for pause in found.pauses] == [(60_000, "join")]
    policy._costs = policy._costs._replace(horizon_ms=5000)  # type: ignore[attr-defined]
    assert trained(policy, lives, 200_000).pauses == ()


def test_auto_knows_losses_and_empty_seats_and_changes_its_mode() -> None:
    job = small()
    records: list[tuple[Record, RedundancyMode]] = []

    def choose(record: Record, _: Seats, current: RedundancyMode) -> RedundancyMode:
        records.append((record, current))
        return RedundancyMode.REPLICA if record.hazard.losses > 0.5 else RedundancyMode.NONE

    policy = ours(job, choose=choose)["ours, Auto, Diffuse"]
    lives = [*[(0, None)] * 7, (0, 30_000), (50_000, None)]
    found = run(policy, fleet(*lives), terms(job, 100_000))
    record, current = records[-1]
    assert next(mode for _, mode in records) is RedundancyMode.NONE
    assert "mode" in {pause.cause for pause in found.pauses}
    assert current is RedundancyMode.REPLICA
    assert record.hazard.losses == pytest.approx(1, rel=0.01)
    assert record.hazard.agent_hours == pytest.approx((8 * 30 + 7 * 20 + 8 * 3) / 3600, rel=0.01)
    assert record.empty.empty_s == pytest.approx(20, rel=0.01)
    assert record.empty.refilled == pytest.approx(1, rel=0.01)
    assert rate(policy.rate(policy.start())) == 0


def test_auto_asks_the_products_own_cost_model() -> None:
    """Where losses are rare no copy is worth its time, and where they are frequent it is."""
    choose = product(spec(2, 2), layers(4, can_split=False), 2)
    seats = dealt(Grid(2, 2), range(4), 0)
    calm = Record().until(0, seats)._replace(agents=(("a", 4),)).until(10**8, seats)
    rough = calm
    for _ in range(400):
        rough = rough._replace(hazard=rough.hazard.lost("a"))
    found = [choose(record, seats, RedundancyMode.NONE) for record in (calm, rough)]
    assert found[0] is RedundancyMode.NONE
    assert found[1] in (RedundancyMode.REPLICA, RedundancyMode.EAGER)


def test_gemini_loses_a_step_or_all_of_a_group() -> None:
    answer, _ = lose("gemini", 0)
    assert (answer.drops_step, answer.lost_samples, answer.is_fatal) == (True, 0, False)
    answer, _ = lose("gemini", 0, 1)
    assert answer.is_fatal
    assert answer.lost_samples > 0
    assert not lose("gemini", 1, 2)[0].is_fatal


def test_swarm_moves_a_peer_to_the_smallest_stage() -> None:
    policy = systems(small())["swarm"]
    answer, _ = lose("swarm", 0, 2)
    assert answer.state.empty == (1, 1)
    assert rate(policy.rate(answer.state)) == pytest.approx(8 / small().formula.step_ms(Grid(3, 2)))
    assert lose("swarm", 0, 2, 4, 6)[0].is_fatal


def test_unicron_takes_the_best_grid_at_once() -> None:
    answer, found = lose("unicron", 0)
    assert answer.state.grid == small().best(7)
    assert 0 < answer.lost_samples <= 4
    assert found.pauses[0].ms == 500 + 10_000 + small().copy_ms(answer.state.grid.stages)
