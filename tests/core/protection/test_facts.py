"""Facts from spec and costs: the planner's own schedule, and what is scaled from it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.protection.job import layers, spec

from bamboo_core.api.spec import RecoveryPolicy, RedundancyMode, TransportSpec
from bamboo_core.model.numerics import choose
from bamboo_core.planning.step_shape import StepShape
from bamboo_core.protection import interrupted
from bamboo_core.protection.choice import Facts
from bamboo_core.protection.facts import Assumptions, Seen, even_costs, gather
from bamboo_core.protection.figures import Shape, figures
from bamboo_core.scheduling.costs import Costs


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 4), (2, 4), (4, 8), (4, 20)])
def test_an_undisturbed_step_is_as_long_as_1f1b(stages: int, microbatches: int) -> None:
    found = figures(Shape(1, stages, microbatches))
    assert found.length == 3 * (microbatches + stages - 1)
    assert 0 <= found.idle <= 3 * (stages - 1)


def test_a_large_grid_is_scaled_from_a_small_one() -> None:
    wide, narrow = figures(Shape(1, 12, 60)), figures(Shape(1, 8, 40))
    assert wide.length == 3 * (60 + 11)
    assert wide.idle == pytest.approx(narrow.idle * 11 / 7)


def test_lost_work_is_shared_by_more_agents_in_a_larger_grid() -> None:
    few, many = figures(Shape(2, 4, 8)), figures(Shape(6, 4, 8))
    assert few.bare
    assert many.bare
    assert few.copied
    assert many.copied
    assert many.bare.degraded - 1 == pytest.approx((few.bare.degraded - 1) / 5)
    assert many.copied.degraded - 1 == pytest.approx((few.copied.degraded - 1) * 7 / 23)
    assert few.copied.degraded < few.bare.degraded


def test_the_scaled_step_is_near_the_planned_one() -> None:
    """A middle seat of 4 x 4 is empty: planned, and scaled from 2 x 4."""
    costs = Costs.even(4, latency=1 / 64)
    batch = choose(microbatches=32, pipelines=4, stages=4, pipelines_max=4)
    whole = StepShape(4, 4, batch, costs=costs, mode=RedundancyMode.NONE)
    lost = replace(whole, lost=((0, 2),), extra=8)
    lengths = [x.dry_run(x.build().programs).length for x in (whole, lost)]
    bare = figures(Shape(4, 4, 8, latency=1 / 64)).bare
    assert bare
    assert bare.degraded == pytest.approx(lengths[1] / lengths[0], abs=0.15)


def test_lost_work_grows_with_the_microbatches() -> None:
    few, many = (figures(Shape(1, 4, m)).copied for m in (8, 24))
    assert few
    assert many
    assert many.redone == pytest.approx(3 * few.redone)
    assert few.redone > 0


def test_the_costliest_stage_sets_the_pace() -> None:
    costs = (*layers(3), *layers(1, forward_s=0.2, backward_s=0.3))
    found = gather(spec(1, 2), costs, Seen(0.05), pipelines=1)
    assert (found.forward_s, found.backward_s) == (0.2, 0.3)


def test_slices_take_longer_if_what_they_keep_goes_to_host_memory() -> None:
    """Without split backwards, as with a device of unknown size."""
    costs = layers(can_split=False, activation_bytes=60_000_000)
    taken = 12 * 100_000_000 + 5 * 120_000_000 + 16 * 1_000_000

    def found(memory_bytes: int, host_bytes_per_s: float) -> Facts:
        assumed = Assumptions(host_bytes_per_s=host_bytes_per_s)
        seen = Seen(0.1, memory_bytes=memory_bytes)
        return gather(spec(), costs, seen, pipelines=2, assumptions=assumed)

    short = int((taken + 10_000_000) / 0.8)  # has room for the outputs of forwards ahead only
    roomy, fast, slow = found(0, 1e9), found(short, 1e12), found(short, 1e9)
    assert roomy == replace(fast, memory_bytes=0, host_bytes_per_s=1e9, measured=())
    assert slow.delay_s > fast.delay_s  # a forward of 0.1 s needs 0.12 s more
    shape = Shape(2, 4, 8, latency=1 / 64, slices=2)
    assert slow.delay_s == pytest.approx(0.1 * figures(replace(shape, copied=1.25)).delay)
    assert fast.delay_s == pytest.approx(0.1 * figures(shape).delay)
    assert slow.step_s == fast.step_s


def test_who_shares_follows_the_policy() -> None:
    shadow, diffuse = (
        figures(Shape(2, 4, 8, policy=policy)).copied
        for policy in (RecoveryPolicy.SHADOW, RecoveryPolicy.DIFFUSE)
    )
    assert shadow
    assert diffuse
    assert shadow.degraded > diffuse.degraded


def test_the_policy_of_the_job_counts() -> None:
    alone = gather(spec(recovery=RecoveryPolicy.SHADOW), layers(), Seen(0.1), pipelines=2)
    shared = gather(spec(recovery=RecoveryPolicy.DIFFUSE), layers(), Seen(0.1), pipelines=2)
    assert alone.copied
    assert shared.copied
    assert alone.copied.degraded > shared.copied.degraded


def test_smaller_slices_delay_less() -> None:
    delays = [figures(Shape(1, 4, 16, latency=1 / 64, slices=n)).delay for n in (1, 2, 4, 8)]
    assert delays == sorted(delays, reverse=True)
    assert delays[-1] < delays[0] / 4


def test_a_latency_of_just_one_slice_delays_like_one_that_is_a_little_longer() -> None:
    """A message that comes just when a slice ends delays nobody; real ones come at any moment."""
    same, longer = (figures(Shape(1, 8, 32, latency=x, slices=4)).delay for x in (0.25, 0.3))
    assert same > longer / 4


def test_what_cannot_be_recovered_has_no_figures() -> None:
    assert figures(Shape(1, 4, 8)).bare is None
    assert figures(Shape(2, 1, 8)).copied is None


def test_an_interrupted_step_repeats_what_was_lost() -> None:
    batch = choose(microbatches=8, pipelines=1, stages=2, pipelines_max=1)
    before = StepShape(1, 2, batch, mode=RedundancyMode.REPLICA)
    after = replace(before, lost=((0, 1),))
    whole = before.dry_run(before.build().programs).length
    degraded = after.dry_run(after.build().programs).length
    found = interrupted.length(before, after, at=whole / 2)
    assert found > (whole + degraded) / 2
    # nobody is lost: a stop only lets the running instructions end
    assert interrupted.length(before, before, at=whole / 2) == pytest.approx(whole, abs=2)


def test_facts_of_a_job() -> None:
    found = gather(spec(), layers(), Seen(0.1), pipelines=2)
    assert (found.agents, found.microbatches) == (8, 8)
    assert found.forward_s == pytest.approx(0.1)
    assert found.parameter_bytes == 100_000_000
    length = figures(Shape(2, 4, 8, latency=1 / 64, slices=2)).length
    reduction_s = 100_000_000 / 1.25e9  # of two pipelines: 2 (D - 1) / D times the stage
    assert found.step_s == pytest.approx(0.1 * length + reduction_s)
    assert found.checkpoint_s == pytest.approx(100 * found.step_s)
    assert found.host_memory_bytes == 8 << 30
    assert found.bare is not None


def test_a_measured_step_counts_more_than_the_estimate() -> None:
    found = gather(spec(), layers(), Seen(0.1, step_s=7.0), pipelines=2)
    assert found.step_s == 7.0
    assert found.checkpoint_s == 700.0


def test_a_step_that_was_measured_in_another_grid_is_scaled() -> None:
    """M + P - 1 slots: 16 + 3 in one pipeline, 8 + 3 in each of two."""
    seen = Seen(0.1, step_s=7.0, step_pipelines=1)
    assert gather(spec(), layers(), seen, pipelines=1).step_s == 7.0
    assert gather(spec(), layers(), seen, pipelines=2).step_s == pytest.approx(7.0 * 11 / 19)


def test_without_checkpoints_the_whole_job_is_at_risk() -> None:
    found = gather(spec(checkpoint=None), layers(), Seen(0.1), pipelines=2)
    assert found.checkpoint_s == pytest.approx(1000 * found.step_s)


def test_fewer_pipelines_have_more_micro_batches() -> None:
    assert gather(spec(), layers(), Seen(0.1), pipelines=1).microbatches == 16


def test_costs_that_are_not_measured_are_even_and_have_no_bytes() -> None:
    found = gather(spec(), even_costs(8), Seen(0.1), pipelines=2)
    assert found.parameter_bytes == 0
    assert found.step_s > 0


def test_a_slow_network_lengthens_the_step() -> None:
    fast, slow = (
        gather(spec(transport=network), layers(), Seen(0.1), pipelines=2)
        for network in (TransportSpec(bandwidth_gbps=80.0), TransportSpec(bandwidth_gbps=0.16))
    )
    assert slow.step_s > fast.step_s


def test_a_message_takes_no_longer_than_a_forward() -> None:
    """Longer ones are not told apart, so that few dry runs answer for all networks."""
    slow = TransportSpec(bandwidth_gbps=0.008)  # 1 s for each output, 0.1 s for each forward
    found = gather(spec(transport=slow), layers(), Seen(0.1), pipelines=2)
    assert found.idle_s == pytest.approx(0.1 * figures(Shape(2, 4, 8, latency=1.0, slices=2)).idle)


def test_a_slice_is_as_long_as_the_longest_layer() -> None:
    uneven = (*layers(1, forward_s=0.08), *layers(1, forward_s=0.02)) * 4
    found = gather(spec(), uneven, Seen(0.1), pipelines=2)
    known = figures(Shape(2, 4, 8, backward=found.backward_s / 0.1, latency=1 / 64, slices=1))
    assert found.delay_s == pytest.approx(0.1 * known.delay)


def test_fewer_layers_than_stages_are_refused() -> None:
    with pytest.raises(ValueError, match=r"pipelines\.stages to 1\.\.3"):
        gather(spec(), layers(3), Seen(0.1), pipelines=2)
