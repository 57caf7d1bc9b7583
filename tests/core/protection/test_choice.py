"""What the cost model answers, and what must hold for all of its answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.protection.job import USUAL, EachMore, usual

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.protection.choice import EAGER, MODES, NONE, REPLICA, Facts, Recovery, choose


@st.composite
def facts(draw: st.DrawFn) -> Facts:
    pipelines, stages = draw(st.integers(1, 8)), draw(st.integers(1, 12))
    forward_s = draw(st.floats(1e-4, 10))
    peers, all_ = draw(st.floats(0, 1)), draw(st.floats(0, 1))
    layer_bytes = draw(st.integers(0, 1 << 34))
    redone = sorted(draw(st.lists(st.floats(0, 1000), min_size=3, max_size=3)))
    tight_s, delay_s = sorted((draw(st.floats(0, 10)), draw(st.floats(0, 10))))
    return Facts(
        hazard_per_agent_hour=draw(st.floats(0, 50)),
        pipelines=pipelines,
        stages=stages,
        microbatches=draw(st.integers(1, 64)),
        step_s=draw(st.floats(1e-3, 1000)),
        forward_s=forward_s,
        backward_s=forward_s * draw(st.floats(0.5, 4)),
        idle_s=draw(st.floats(0, 100)),
        ahead_s=draw(st.floats(0, 100)),
        delay_s=delay_s,
        copying_s=draw(st.floats(0, 100)),
        tight_s=tight_s,
        # replicas add holders, so that a loss disturbs no more than without them
        bare=Recovery(1 + max(peers, all_), redone[2]) if pipelines > 1 else None,
        copied=Recovery(1 + min(peers, all_), redone[1]) if stages > 1 else None,
        eager=Recovery(1 + min(peers, all_), redone[0]) if stages > 1 else None,
        parameter_bytes=layer_bytes + draw(st.integers(0, 1 << 34)),
        activation_bytes=draw(st.integers(0, 1 << 32)),
        boundary_bytes=draw(st.integers(0, 1 << 26)),
        layer_bytes=layer_bytes,
        steps=EachMore(max(peers, all_), min(peers, all_), pipelines),
        device_bytes=(1, 2, 3),
        memory_bytes=draw(st.sampled_from([0, 1 << 34, 1 << 37])),
        host_memory_bytes=draw(st.sampled_from([0, 1 << 33, 1 << 38])),
        bytes_per_s=draw(st.floats(1e7, 1e11)),
        stop_s=draw(st.floats(0, 10)),
        restart_s=draw(st.floats(0, 1000)),
        checkpoint_s=draw(st.floats(0, 1e5)),
        refill_s=draw(st.floats(1, 3600)),
        current=draw(st.sampled_from([None, *MODES])),
    )


SHARES = st.floats(0, 0.99)


@given(facts(), SHARES, SHARES, st.floats(0, 0.9))
@settings(max_examples=60, deadline=None)
def test_the_expected_step_grows_with_the_share_of_empty_seats(
    known: Facts, one: float, other: float, together: float
) -> None:
    known = replace(known, empty_together=together)
    less, more = sorted((one, other))
    few, many = (choose(replace(known, empty_share=x)).estimates for x in (less, more))
    for fast, slow in zip(few, many, strict=True):
        # numbers that are rare count as their neighbours
        assert fast.step <= slow.step * 1.01 + 1e-9 or slow.step == fast.step
        assert fast.step / fast.overhead >= 1 - 1e-9 or fast.excluded


@pytest.mark.parametrize("mode", [NONE, REPLICA])
def test_without_losses_empty_seats_cost_what_steps_with_them_take(mode: RedundancyMode) -> None:
    """A grid of 1 x 2: both agents are there, or one, or none. Without copies one is no use."""
    steps = {0: 1.0, 1: math.inf if mode is NONE else 1.1}
    known = usual(pipelines=1, stages=2, copying_s=0.0, hazard_per_agent_hour=0.0, empty_share=0.25)
    speed = sum(chance / steps[f] for f, chance in ((0, 9 / 16), (1, 6 / 16)))
    found = choose(known).of(mode)
    assert found.step == pytest.approx(1 / speed)
    assert found.lost_s == pytest.approx(3600 * (1 - speed))


def test_a_grid_with_too_few_agents_makes_no_progress() -> None:
    never = choose(usual(pipelines=1, stages=2, empty_share=0.999, hazard_per_agent_hour=0.0))
    assert never.of(NONE).lost_s > 3590
    assert "the job makes hardly any progress in None" in never.reason


class OnePipeline:
    """Two pipelines send each other more than they save, and one computes alone."""

    def slower(self, mode: RedundancyMode, pipelines: int, empty: int) -> float:
        return {2: 1.0 + empty / 2, 1: 0.25 + empty}[pipelines]

    def prepare(self, is_wanted: Callable[[], bool]) -> None:
        raise AssertionError("there is nothing to prepare")


def test_a_pipeline_is_missing_only_if_its_seats_are_empty() -> None:
    """The grid of 2 x 2 has as many pipelines as seat all agents, whatever is faster."""
    known = usual(stages=2, hazard_per_agent_hour=0.0, empty_share=0.1, steps=OnePipeline())
    speed = 0.9**4 / 1.0 + 4 * 0.9**3 * 0.1 / 1.5 + 6 * 0.9**2 * 0.1**2 / 0.25
    assert choose(known).of(NONE).step == pytest.approx(1 / speed)


def test_the_reason_says_that_empty_seats_are_a_gain() -> None:
    """Most of the time one pipeline is left, which is four times as fast."""
    known = usual(stages=2, hazard_per_agent_hour=0.0, empty_share=0.5, steps=OnePipeline())
    verdict = choose(known)
    assert verdict.of(NONE).lost_s < 0
    assert f"None gains {-verdict.of(NONE).lost_s:.0f} s" in verdict.reason


@given(facts())
@settings(max_examples=30, deadline=None)
def test_what_is_chosen_fits_and_is_cheapest_but_for_the_margin(known: Facts) -> None:
    verdict = choose(known)
    best = verdict.of(verdict.mode)
    able = [e for e in verdict.estimates if not e.excluded]
    cheapest = min(able, key=lambda e: e.lost_s, default=best)
    stays, begins = known.current is verdict.mode, cheapest.mode is EAGER is not verdict.mode
    assert best.lost_s <= cheapest.lost_s + 18.0 * (stays + begins)
    assert not best.excluded or (best.mode is NONE and not able)
    assert verdict == choose(known)
    assert verdict.reason


@given(facts())
@settings(max_examples=30, deadline=None)
def test_estimates_are_ordered(known: Facts) -> None:
    none, replica, eager = choose(known).estimates
    assert none.overhead == 1 <= min(replica.overhead, eager.overhead)
    if not replica.excluded and not eager.ahead_host_bytes:
        assert eager.pause_s <= replica.pause_s
    if not (replica.replica_host_bytes or eager.replica_host_bytes):
        assert replica.overhead <= eager.overhead


@given(facts())
@settings(max_examples=20, deadline=None)
def test_too_little_memory_excludes(known: Facts) -> None:
    tiny = replace(known, memory_bytes=1, parameter_bytes=max(1, known.parameter_bytes))
    verdict = choose(tiny)
    assert verdict.mode is NONE
    assert all(e.excluded for e in verdict.estimates)
    assert "by an estimate not even None fits: it needs" in verdict.reason


def test_without_hazard_nothing_is_worth_its_price() -> None:
    assert choose(usual(hazard_per_agent_hour=0.0)).mode is NONE


def test_the_reason_says_that_neighbours_in_one_zone_may_be_lost_together() -> None:
    words = "not counted: with spec.placement.adjacency Cluster a stage and its copy share a zone"
    risky = usual(hazard_per_agent_hour=0.5, is_clustered=True)
    assert choose(risky).mode is REPLICA
    assert words in choose(risky).reason
    assert words not in choose(replace(risky, is_clustered=False)).reason
    assert words not in choose(replace(risky, hazard_per_agent_hour=0.0)).reason  # no copies


def test_one_pipeline_needs_a_copy() -> None:
    verdict = choose(usual(pipelines=1, bare=None, hazard_per_agent_hour=0.2))
    assert verdict.mode in (REPLICA, EAGER)
    assert verdict.of(NONE).fatal_per_hour == pytest.approx(
        4 * 0.2 * (1 - verdict.facts.share) ** 4  # the seats of the others are taken, too
    )
    assert verdict.of(NONE).pause_s == pytest.approx(60 + 1 + 300)


def test_several_pipelines_take_copies_and_compute_ahead_only_if_pauses_are_dear() -> None:
    assert choose(usual(hazard_per_agent_hour=0.5)).mode is REPLICA
    dear = usual(
        hazard_per_agent_hour=5.0,
        bare=Recovery(1.6, 600.0),
        copied=Recovery(1.1, 300.0),
        eager=Recovery(1.1, 200.0),
        delay_s=0.01,
    )
    assert choose(dear).mode is EAGER


def test_a_slow_network_makes_copies_dear() -> None:
    assert choose(usual(copying_s=100.0)).mode is NONE


def test_results_ahead_shorten_a_pause_by_what_need_not_be_done_again() -> None:
    verdict = choose(usual())
    replica, eager = verdict.of(REPLICA), verdict.of(EAGER)
    assert replica.redone_s - eager.redone_s == pytest.approx(0.2)
    assert replica.pause_s - eager.pause_s == pytest.approx(0.2, rel=1e-3)


TAKEN = 12 * USUAL.parameter_bytes + 5 * USUAL.activation_bytes + 16 * USUAL.boundary_bytes
"""Of the device after a loss in Eager, without what is computed ahead."""


def with_left(left_bytes: int, **changes: int) -> Facts:
    """A device that has so much left."""
    return usual(ahead_s=0.8, memory_bytes=int((TAKEN + left_bytes) / 0.8) + 2, **changes)


def test_room_for_results_ahead_limits_how_many_there_are() -> None:
    forward = USUAL.activation_bytes + USUAL.boundary_bytes
    known = with_left(8 * USUAL.activation_bytes + 4 * forward, host_memory_bytes=0)
    eager = choose(known).of(EAGER)
    assert (eager.ahead, eager.host_bytes) == (0.5, 0)
    assert choose(replace(known, activation_bytes=0)).of(EAGER).host_bytes == 0


def test_no_room_for_results_ahead_excludes_eager() -> None:
    none = with_left(USUAL.activation_bytes, host_memory_bytes=0)
    why = choose(none).of(EAGER).excluded
    assert why.endswith("or raise spec.redundancy.hostMemory to 10 MiB")
    assert not choose(none).of(REPLICA).excluded
    one = with_left(USUAL.activation_bytes + USUAL.boundary_bytes, host_memory_bytes=0)
    assert not choose(one).of(EAGER).excluded


def test_results_ahead_that_wait_in_host_memory_must_come_back() -> None:
    """A forward of 0.1 s keeps 10 MB, which take 0.04 s each way here."""
    on_device = usual(ahead_s=0.8)
    on_host = with_left(10 * USUAL.boundary_bytes, host_bytes_per_s=0.25e9)
    usual_, moved = (choose(x).of(EAGER) for x in (on_device, on_host))
    assert (usual_.ahead, moved.ahead) == (1, 1)
    assert moved.host_bytes == moved.ahead_host_bytes == 8 * USUAL.activation_bytes
    # of the 0.2 s that are saved on the device, two of five in each forward
    assert moved.pause_s - usual_.pause_s == pytest.approx(0.2 * 0.04 / 0.1, rel=1e-3)
    assert "what is computed ahead goes to host memory" in _reason_of_eager(on_host)


def _reason_of_eager(known: Facts) -> str:
    dear = replace(
        known,
        hazard_per_agent_hour=5.0,
        bare=Recovery(1.6, 600.0),
        copied=Recovery(1.1, 300.0),
        eager=Recovery(1.1, 200.0),
        delay_s=0.01,
    )
    verdict = choose(dear)
    assert verdict.mode is EAGER
    return verdict.reason


def test_each_mode_shows_what_its_step_holds() -> None:
    assert [e.device_bytes for e in choose(usual(device_bytes=(1, 2, 3))).estimates] == [1, 2, 3]


def test_less_room_for_what_is_in_flight_makes_a_mode_dearer() -> None:
    roomy, tight = (choose(usual(tight_s=x)) for x in (0.0, 0.33))
    extra = tight.of(REPLICA).overhead - roomy.of(REPLICA).overhead
    assert extra == pytest.approx(0.33 / USUAL.step_s)
    assert tight.of(EAGER) == roomy.of(EAGER)  # delay_s has its own
    assert tight.of(NONE) == roomy.of(NONE)


def test_a_copy_must_have_room_for_sums() -> None:
    size, boundaries = USUAL.parameter_bytes, 2 * 8 * USUAL.boundary_bytes
    after_loss = 12 * size + 4 * USUAL.activation_bytes + boundaries
    tight = choose(usual(memory_bytes=int(after_loss / 0.8) + 1, host_memory_bytes=0))
    assert not tight.of(REPLICA).excluded
    short = choose(usual(memory_bytes=int(after_loss / 0.8) - 1, host_memory_bytes=0))
    why = short.of(REPLICA).excluded
    assert f"{-(-after_loss // 2**20)} MiB after a loss" in why
    assert why.endswith(", or raise spec.redundancy.hostMemory to 287 MiB")
    hosted = choose(usual(memory_bytes=int(after_loss / 0.8) - 1, host_memory_bytes=287 << 20))
    assert not hosted.of(REPLICA).excluded


def test_a_copy_in_host_memory_costs_time() -> None:
    size = USUAL.parameter_bytes
    _, usual_, _ = choose(USUAL).estimates
    _, replica, eager = choose(usual(memory_bytes=1_500_000_000)).estimates
    assert not replica.excluded
    assert replica.host_bytes == replica.replica_host_bytes == 3 * size
    moved_s = 2 * 3 * size / USUAL.host_bytes_per_s
    assert replica.overhead == pytest.approx(usual_.overhead + moved_s / USUAL.step_s)
    assert eager.host_bytes == eager.replica_host_bytes + eager.ahead_host_bytes
    assert eager.replica_host_bytes == 3 * size
    eager_s = moved_s * 2 / 3 + USUAL.delay_s
    assert eager.overhead == pytest.approx(usual_.overhead + eager_s / USUAL.step_s)


def test_the_reason_says_that_copies_are_in_host_memory() -> None:
    tight = usual(hazard_per_agent_hour=0.5, memory_bytes=1_500_000_000)
    verdicts = [choose(tight), choose(replace(tight, memory_bytes=0))]
    assert [v.mode for v in verdicts] == [REPLICA, REPLICA]
    found = ["replicas are in host memory" in v.reason for v in verdicts]
    assert found == [True, False]


def test_reasons_of_exclusion_name_field_and_remedy() -> None:
    small = choose(usual(memory_bytes=1_000_000_000))
    assert small.mode is NONE
    assert "raise spec.pipelines.stages" in small.of(REPLICA).excluded
    assert "Replica cannot be used" in small.reason
    one = choose(usual(stages=1, copied=None))
    assert "spec.pipelines.stages is 1" in one.of(REPLICA).excluded


def test_a_mode_in_force_stays_unless_another_saves_enough() -> None:
    quiet = usual(hazard_per_agent_hour=0.0)
    price = choose(quiet).of(REPLICA).lost_s
    assert price > 18
    assert choose(replace(quiet, current=REPLICA)).mode is NONE
    cheap = replace(quiet, copying_s=0.001)
    stays = choose(replace(cheap, current=REPLICA))
    assert 0 < stays.of(REPLICA).lost_s < 18
    assert (choose(cheap).mode, stays.mode) == (NONE, REPLICA)
    assert stays.reason.endswith("a change would save less than 18 s")


@pytest.mark.parametrize(("current", "margin_s"), [(None, 18), (REPLICA, 36), (NONE, 18)])
def test_eager_begins_only_if_it_saves_enough_for_its_memory(
    current: RedundancyMode | None, margin_s: int
) -> None:
    """It delays no step, so it is always a little cheaper than Replica."""
    known = usual(hazard_per_agent_hour=1.0, delay_s=0.0, ahead_s=0.8, copying_s=0.001)
    verdict = choose(replace(known, current=current))
    assert 0 < verdict.of(REPLICA).lost_s - verdict.of(EAGER).lost_s < 18
    assert verdict.mode is REPLICA
    assert verdict.reason.endswith(f"a change would save less than {margin_s} s")
    slow = replace(known, current=current, copied=Recovery(1.1, 80.0))
    assert choose(slow).mode is EAGER
    assert choose(replace(known, current=EAGER)).mode is EAGER


def test_hazard_beyond_one_loss_in_a_refill_does_not_change_the_comparison() -> None:
    verdicts = [choose(usual(hazard_per_agent_hour=h)) for h in (20.0, 2000.0)]
    assert verdicts[0].estimates == verdicts[1].estimates


def test_the_reason_is_one_sentence_with_the_figures() -> None:
    text = choose(usual(hazard_per_agent_hour=0.5)).reason
    assert text.startswith(
        "with 3.9 losses an hour among 8 agents, of whose seats 2.4 % are empty, for 180 s each"
        " time, Replica costs "
    )
    assert ", None " in text
    assert ". " not in text


@pytest.mark.parametrize(
    ("field", "value"), [("pipelines", 0), ("step_s", 0.0), ("hazard_per_agent_hour", math.nan)]
)
def test_numbers_that_make_no_job_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} is {value}"):
        choose(usual(**{field: value}))


def test_of_equal_costs_the_least_redundancy_is_taken() -> None:
    free = usual(hazard_per_agent_hour=0.0, copying_s=0.0, delay_s=0.0)
    verdict = choose(free)
    assert [e.lost_s for e in verdict.estimates] == [0, 0, 0]
    assert verdict.mode is NONE


def test_an_overhead_takes_its_share_of_each_hour() -> None:
    replica = choose(usual(hazard_per_agent_hour=0.0)).of(REPLICA)
    assert replica.overhead > 1.01
    steps = 3600 / USUAL.step_s  # in an hour without redundancy
    left = 3600 / (USUAL.step_s * replica.overhead)
    assert replica.lost_s == pytest.approx((steps - left) * USUAL.step_s)


def test_a_loss_costs_no_more_than_a_restore() -> None:
    slow = usual(hazard_per_agent_hour=0.1, empty_share=0.0, copied=Recovery(2.0, 1e6))
    replica = choose(slow).of(REPLICA)
    assert replica.pause_s == 60 + 1 + 300
    in_an_hour = 1 + 8 * 0.1 * (60 + 1 + 300) / 3600
    assert replica.lost_s == pytest.approx(3600 * (1 - 1 / replica.overhead / in_an_hour))


def test_time_for_results_ahead_limits_how_many_there_are() -> None:
    assert choose(usual(ahead_s=0.2)).of(EAGER).ahead == pytest.approx(0.25)  # of 8 x 0.1 s


def test_more_host_memory_than_the_device_has_room_for_outputs_is_left_unused() -> None:
    """Each forward ahead leaves its output on the device."""
    few = choose(with_left(3 * USUAL.boundary_bytes)).of(EAGER)
    assert not few.excluded
    assert few.host_bytes == 3 * USUAL.activation_bytes


def test_no_more_than_an_hour_is_lost_in_an_hour() -> None:
    """Restores take a hundred hours, and there is a loss every half hour."""
    endless = usual(pipelines=1, bare=None, hazard_per_agent_hour=0.5, checkpoint_s=720_000.0)
    verdict = choose(endless)
    assert 3564 < verdict.of(NONE).lost_s < 3600
    assert verdict.mode is REPLICA
    assert ", the job makes hardly any progress in None and Eager " in verdict.reason
    only = choose(replace(endless, stages=1, copied=None, checkpoint_s=7.2e6))
    assert "the job makes hardly any progress in None; Replica cannot be used" in only.reason
    assert only.of(REPLICA).lost_s == math.inf  # there is no such mode


def test_of_modes_without_progress_the_least_bad_is_taken() -> None:
    slow = usual(
        hazard_per_agent_hour=20.0,
        bare=Recovery(1.6, 9e5),
        copied=Recovery(1.5, 8e5),
        restart_s=9e9,
    )
    verdict = choose(slow)
    assert all(e.lost_s > 3564 for e in verdict.estimates[:2])
    assert verdict.mode is not NONE


def test_a_job_that_fits_without_copies_has_no_warning() -> None:
    small = choose(usual(memory_bytes=1_000_000_000))
    assert small.mode is NONE
    assert not small.of(NONE).excluded
    assert "not even None" not in small.reason
