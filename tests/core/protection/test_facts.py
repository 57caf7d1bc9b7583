"""Facts from spec and costs: the planner's own schedule, and what is scaled from it."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from tests.core.protection.job import layers, spec

from bamboo_core.api.spec import (
    Adjacency,
    PlacementSpec,
    RecoveryPolicy,
    RedundancyMode,
    TransportSpec,
    batch_shape,
)
from bamboo_core.model.numerics import BatchShape, choose
from bamboo_core.planning.step_shape import StepShape
from bamboo_core.protection import interrupted
from bamboo_core.protection.choice import Facts, Recovery
from bamboo_core.protection.facts import Assumptions, Seen, even_costs, gather
from bamboo_core.protection.figures import figures
from bamboo_core.protection.grids import Shape, alike, smaller
from bamboo_core.protection.loss_cost import AfterLoss, usual
from bamboo_core.scheduling.costs import Costs

NONE, REPLICA, EAGER = RedundancyMode.NONE, RedundancyMode.REPLICA, RedundancyMode.EAGER


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 4), (2, 4), (4, 8), (4, 20)])
def test_an_undisturbed_step_is_as_long_as_1f1b(stages: int, microbatches: int) -> None:
    found = figures(Shape(1, stages, microbatches), NONE)
    assert found.length == 3 * (microbatches + stages - 1)
    assert 0 <= found.idle <= 3 * (stages - 1)


def test_a_large_grid_is_scaled_from_a_small_one() -> None:
    wide, narrow = (figures(Shape(1, *x), NONE) for x in ((12, 60), (8, 40)))
    assert wide.length == 3 * (60 + 11)
    assert wide.idle == pytest.approx(narrow.idle * 11 / 7)


def after(shape: Shape, mode: RedundancyMode) -> AfterLoss:
    found = figures(shape, mode).after
    assert found
    return found


def test_lost_work_is_shared_by_more_agents_in_a_larger_grid() -> None:
    few, many = (Shape(d, 4, 8, policy=RecoveryPolicy.DIFFUSE) for d in (4, 12))
    bare, copied = ([after(x, mode).degraded - 1 for x in (few, many)] for mode in (NONE, REPLICA))
    assert bare[1] < 0.7 * bare[0]
    assert [x < y for x, y in zip(copied, bare, strict=True)] == [True, True]
    # too many to be computed: the share of each follows from their number
    most, half = (after(Shape(d, 4, 8, policy=RecoveryPolicy.PEERS), NONE) for d in (257, 129))
    assert most.degraded - 1 == pytest.approx((half.degraded - 1) * 128 / 256)


def test_no_way_is_worse_than_to_leave_the_work_together() -> None:
    """A leaf of one micro-batch takes 3 slots."""
    for sums in (0.0, 1.0, 2.5, 3.0, 12.0):
        grid = Shape(1, 4, 16, sums=(sums,) * 4)
        ways = [after(replace(grid, policy=x), REPLICA) for x in RecoveryPolicy]
        auto, shadow, *_ = (x.degraded for x in ways)
        assert auto <= min(x.degraded for x in ways) + 1e-9
        assert auto < shadow or sums > 2.5


def test_sums_that_are_sent_lengthen_a_step_with_an_empty_seat() -> None:
    """Work goes to all agents, so that more sums leave the first stage, or less evenly to some."""
    found = [after(Shape(1, 4, 16, sums=(t,) * 4), REPLICA).degraded for t in (0.0, 3.0, 12.0)]
    lengths = [
        x * usual(Shape(1, 4, 16, sums=(t,) * 4), REPLICA)
        for x, t in zip(found, (0.0, 3.0, 12.0), strict=True)
    ]
    assert lengths == sorted(set(lengths))


def test_pieces_of_gradients_count_by_their_size() -> None:
    """The agent that does the work of two stages takes part in two reductions. The short ones
    pass while agents compute, and the long ones outlast that."""
    grid = Shape(2, 4, 8, policy=RecoveryPolicy.SHADOW)
    shapes = [replace(grid, sums=(t,) * 4) for t in (12.0, 24.0)]
    short, long = (after(x, REPLICA) for x in shapes)
    assert long.redone > short.redone
    beyond = [(after(x, REPLICA).degraded - 1) * usual(x, REPLICA) for x in shapes]
    assert beyond[1] > 1.25 * beyond[0]


def test_a_short_stage_costs_less_to_lose() -> None:
    even = after(Shape(1, 4, 16), REPLICA)
    long = after(Shape(1, 4, 16, loads=(0.5, 0.5, 0.5, 1.0)), REPLICA)
    assert long.redone < even.redone
    assert long.degraded < even.degraded
    assert after(Shape(1, 4, 16, loads=(1.0,) * 4), REPLICA) == even


def test_forwards_ahead_save_as_much_as_there_is_room_for() -> None:
    """All but one of the stages wait for it, so that they compute nearly all forwards ahead."""
    grid = Shape(1, 4, 16, loads=(0.5, 0.5, 0.5, 1.0), latency=1 / 64, slices=2)
    lazy = after(grid, REPLICA).redone
    none, few, all_ = (after(replace(grid, room=n), EAGER).redone for n in (0, 2, 16))
    assert all_ < few < none <= lazy
    assert after(replace(grid, room=0), REPLICA) == after(grid, REPLICA)


def test_a_small_grid_has_stages_and_sums_of_the_whole_one() -> None:
    loads = tuple((s + 1) / 12 for s in range(12))
    sums = tuple(float(s) for s in range(12))
    found = smaller(Shape(1, 12, 48, loads=loads, sums=(0.0,) * 12), 2)
    assert (found.stages, found.microbatches) == (8, 16)
    assert [round(12 * x) for x in found.loads] == [1, 3, 4, 6, 7, 9, 10, 12]
    assert found.sums == (0.0,) * 8
    # where work is shared, as many pipelines and leaves, and fewer stages
    wide = alike(Shape(6, 12, 20, sums=sums))
    assert (wide.pipelines, wide.stages, wide.microbatches) == (6, 4, 20)
    assert wide.sums == (0.0, 4.0, 7.0, 11.0)
    assert [alike(Shape(6, 12, 20, room=x)).room for x in (3, 40)] == [3, 20]


def test_the_scaled_step_is_near_the_planned_one() -> None:
    """A middle seat of 4 x 4 is empty: planned, and scaled from 2 x 4."""
    costs = Costs.even(4, latency=1 / 64)
    batch = choose(microbatches=32, pipelines_max=4)
    whole = StepShape(4, 4, batch, costs=costs, mode=NONE)
    lost = replace(whole, lost=((0, 2),), extra=8)
    lengths = [x.dry_run(x.build().programs).length for x in (whole, lost)]
    excess, found = lengths[1] / lengths[0] - 1, after(Shape(4, 4, 8, latency=1 / 64), NONE)
    assert found.degraded - 1 == pytest.approx(excess, rel=0.4)


def test_what_a_loss_costs_grows_with_the_microbatches() -> None:
    """Half of the step has an empty seat, and what was lost is done again."""
    shapes = [Shape(1, 8, m) for m in (32, 96)]
    few, many = (
        found.redone + (found.degraded - 1) / 2 * usual(x, REPLICA)
        for x in shapes
        for found in [after(x, REPLICA)]
    )
    assert many == pytest.approx(3 * few, rel=0.02)
    assert few > 0


def test_the_costliest_stage_sets_the_pace() -> None:
    costs = (*layers(3), *layers(1, forward_s=0.2, backward_s=0.3))
    found = gather(spec(1, 2), costs, Seen(0.05), pipelines=1)
    assert (found.forward_s, found.backward_s) == (0.2, 0.3)


def test_slices_take_longer_if_what_they_keep_goes_to_host_memory() -> None:
    """Without split backwards, as with a device of unknown size."""
    costs = layers(can_split=False, activation_bytes=60_000_000)
    taken = 16 * 100_000_000 + 5 * 120_000_000 + 16 * 1_000_000

    def found(memory_bytes: int, host_bytes_per_s: float) -> Facts:
        assumed = Assumptions(host_bytes_per_s=host_bytes_per_s)
        seen = Seen(0.1, memory_bytes=memory_bytes)
        return gather(spec(), costs, seen, pipelines=2, assumptions=assumed)

    short = int((taken + 10_000_000) / 0.8)  # has room for the outputs of forwards ahead only
    roomy, fast, slow = found(0, 1e9), found(short, 1e12), found(short, 1e9)
    assert roomy.ahead_s == fast.ahead_s
    shape = Shape(2, 4, 8, latency=1 / 64, slices=2)
    longer = replace(shape, copied=1.25)  # a forward of 0.1 s needs 0.12 s more
    assert slow.ahead_s == pytest.approx(0.1 * figures(longer, EAGER).ahead)
    assert fast.ahead_s == pytest.approx(0.1 * figures(shape, EAGER).ahead)
    assert roomy.delay_s == fast.delay_s == slow.delay_s == 0
    assert slow.step_s == fast.step_s


def test_who_shares_follows_the_policy() -> None:
    shadow, diffuse = (
        after(Shape(2, 4, 8, policy=policy), REPLICA)
        for policy in (RecoveryPolicy.SHADOW, RecoveryPolicy.DIFFUSE)
    )
    assert shadow.degraded > diffuse.degraded


def test_the_policy_of_the_job_counts() -> None:
    alone = gather(spec(recovery=RecoveryPolicy.SHADOW), layers(), Seen(0.1), pipelines=2)
    shared = gather(spec(recovery=RecoveryPolicy.DIFFUSE), layers(), Seen(0.1), pipelines=2)
    assert alone.copied
    assert shared.copied
    assert alone.copied.degraded > shared.copied.degraded


def delay(shape: Shape) -> float:
    """By which a step in Eager is longer."""
    return figures(shape, EAGER).length - figures(shape, NONE).length


def test_slices_delay_nobody_and_smaller_ones_fill_more_of_the_waits() -> None:
    shapes = [Shape(1, 4, 16, latency=1 / 4, slices=n) for n in (1, 2, 4, 8)]
    assert [delay(shape) for shape in shapes] == [0, 0, 0, 0]
    ahead = [figures(shape, EAGER).ahead for shape in shapes]
    assert ahead == sorted(ahead)
    assert 0 < ahead[0] < ahead[-1]


def test_what_cannot_be_recovered_has_no_figures() -> None:
    assert figures(Shape(1, 4, 8), NONE).after is None
    assert figures(Shape(2, 1, 8), REPLICA).after is None
    assert figures(Shape(2, 1, 8), EAGER).after is None


def test_an_interrupted_step_repeats_what_was_lost() -> None:
    batch = choose(microbatches=8, pipelines_max=1)
    before = StepShape(1, 2, batch, mode=RedundancyMode.REPLICA)
    after = replace(before, lost=((0, 1),))
    whole = before.dry_run(before.build().programs).length
    degraded = after.dry_run(after.build().programs).length
    found = interrupted.resumed(interrupted.stop(before, at=whole / 2), after)
    assert found > (whole + degraded) / 2
    # nobody is lost: a stop only lets the running instructions end
    assert interrupted.resumed(interrupted.stop(before, at=whole / 2), before) == pytest.approx(
        whole, abs=2
    )


SPLIT = Shape(2, 4, 8, latency=1 / 64, slices=2, can_split=True)
"""Of the usual job on devices of unknown size."""


def test_facts_of_a_job() -> None:
    found = gather(spec(), layers(), Seen(0.1), pipelines=2)
    assert (found.agents, found.microbatches) == (8, 8)
    assert found.forward_s == pytest.approx(0.1)
    assert found.parameter_bytes == 100_000_000
    length = figures(SPLIT, NONE).length
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


@pytest.mark.parametrize(("adjacency", "is_it"), [("Cluster", True), ("Alternate", False)])
def test_neighbours_in_one_zone_are_a_fact(adjacency: str, is_it: bool) -> None:
    job = spec(placement=PlacementSpec(adjacency=Adjacency(adjacency)))
    assert gather(job, layers(), Seen(0.1), pipelines=2).is_clustered is is_it


def test_without_checkpoints_the_whole_job_is_at_risk() -> None:
    found = gather(spec(checkpoint=None), layers(), Seen(0.1), pipelines=2)
    assert found.checkpoint_s == pytest.approx(1000 * found.step_s)


def test_fewer_pipelines_have_more_micro_batches() -> None:
    assert gather(spec(), layers(), Seen(0.1), pipelines=1).microbatches == 16


def test_a_job_of_an_earlier_version_is_counted_with_its_own_sums() -> None:
    """Also one whose pipelines.max would be refused today, since a new job has fewer leaves."""
    old = BatchShape(16, 8, 2)
    assert gather(spec(), layers(), Seen(0.1), pipelines=2).sums == 4
    assert gather(spec(), layers(), Seen(0.1), pipelines=2, batch=old).sums == 2
    asked, many = spec(), BatchShape(256, 1, 2)
    training = replace(asked.training, global_batch_size=256, micro_batch_size=1)
    asked = replace(asked, training=training, pipelines=replace(asked.pipelines, max=200))
    assert gather(asked, layers(), Seen(0.1), pipelines=2, batch=many).microbatches == 128


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


def test_a_network_that_was_measured_counts_as_if_the_spec_said_so() -> None:
    slow, fast = TransportSpec(bandwidth_gbps=0.16), TransportSpec(bandwidth_gbps=80.0)
    by_spec = gather(spec(transport=slow), layers(), Seen(0.1), pipelines=2)
    seen = Seen(0.1, goodput=slow.bytes_per_s)
    measured = gather(spec(transport=fast), layers(), seen, pipelines=2)
    assert measured == replace(by_spec, measured=("bytes_per_s",))
    assert gather(spec(transport=slow), layers(), Seen(0.1, goodput=1e12), pipelines=2) == by_spec


def test_a_slow_network_lengthens_what_a_loss_costs() -> None:
    fast, slow = (
        gather(spec(transport=TransportSpec(bandwidth_gbps=x)), layers(), Seen(0.1), pipelines=2)
        for x in (1000.0, 1.0)
    )
    assert fast.copied
    assert slow.copied
    assert slow.copied.degraded > 1.2 * fast.copied.degraded
    assert slow.copied.redone_s > fast.copied.redone_s


def test_layers_without_times_count_as_equal_stages() -> None:
    found = gather(spec(), layers(forward_s=0.0, backward_s=0.0), Seen(0.1), pipelines=2)
    assert found.copied == Recovery(found.copied.degraded, 0.0)  # type: ignore[union-attr]


def test_a_message_takes_no_longer_than_a_forward() -> None:
    """Longer ones are not told apart, so that few dry runs answer for all networks."""
    slow = TransportSpec(bandwidth_gbps=0.008)  # 1 s for each output, 0.1 s for each forward
    found = gather(spec(transport=slow), layers(), Seen(0.1), pipelines=2)
    known = figures(replace(SPLIT, latency=1.0), NONE)
    assert found.idle_s == pytest.approx(0.1 * known.idle)


def test_a_slice_is_as_long_as_the_longest_layer() -> None:
    uneven = (*layers(1, forward_s=0.08), *layers(1, forward_s=0.02)) * 4
    found = gather(spec(), uneven, Seen(0.1), pipelines=2)
    known = delay(replace(SPLIT, slices=1))
    assert found.delay_s == pytest.approx(0.1 * known)


def test_fewer_layers_than_stages_are_refused() -> None:
    with pytest.raises(ValueError, match=r"pipelines\.stages to 1\.\.3"):
        gather(spec(), layers(3), Seen(0.1), pipelines=2)


def test_each_mode_has_the_schedule_for_which_the_device_has_room() -> None:
    """A replica takes as much of the device as an activation here, and so does a slice: three,
    two and one activations beyond P fit in None, in Replica and in Eager. In Replica there is room
    for the four sums of each of two stages, and for one more."""
    costs = layers(activation_bytes=300_000_000)
    own = 8 * 100_000_000 + 4 * 600_000_000 + 16 * 1_000_000
    memory = int((own + 3.5 * 600_000_000) / 0.8)
    job = spec(transport=TransportSpec(bandwidth_gbps=16.0))  # 0.05 s for a stage's gradient
    found = gather(job, costs, Seen(0.1, memory_bytes=memory), pipelines=2)
    loss = replace(SPLIT, loads=(1.0,) * 4, sums=(0.5,) * 4, boundaries=(0.0,) * 4)
    loss = replace(loss, leaf_size=batch_shape(job).leaf_size)
    none, replica = (
        figures(replace(loss, spare=x, most_sums=sums), mode)
        for x, sums, mode in ((3, inf, NONE), (2, 9, REPLICA))
    )
    eager = figures(replace(loss, spare=1, copied=0.5), EAGER)  # 600 MB to host memory: 0.05 s
    assert none.length < replica.length < eager.length
    assert replica.after
    assert found.tight_s == pytest.approx(0.1 * (replica.length - none.length))
    assert found.delay_s == pytest.approx(0.1 * (eager.length - none.length))
    assert found.step_s == pytest.approx(0.1 * none.length + 0.05)
    assert found.copied == Recovery(replica.after.degraded, 0.1 * replica.after.redone)


def test_a_step_is_split_on_a_device_of_unknown_size_but_has_no_more_in_flight() -> None:
    unknown, fused, roomy = (
        figures(shape, NONE)
        for shape in (SPLIT, replace(SPLIT, can_split=False), replace(SPLIT, spare=8))
    )
    assert roomy.length < unknown.length < fused.length
    assert unknown.in_flight == fused.in_flight == (4, 3, 2, 1)
    assert max(roomy.in_flight) == 8  # all forwards of a pipeline


def test_halves_that_cost_much_more_than_the_whole_are_not_taken() -> None:
    """In a loss, too. But a weight gradient alone takes its half, and not the whole backward."""
    shape = replace(SPLIT, halves=1.5)
    dear, whole = (figures(x, NONE) for x in (shape, replace(shape, can_split=False)))
    assert dear.after is not None
    assert whole.after is not None
    assert dear.after.redone < whole.after.redone
    assert dear == replace(whole, after=replace(whole.after, redone=dear.after.redone))


def test_large_grids_are_not_split() -> None:
    """As in the planner, beyond 64 agents."""
    lengths = [figures(replace(SPLIT, pipelines=x, spare=8), NONE).length for x in (16, 17)]
    fused = figures(replace(SPLIT, can_split=False), NONE).length
    assert lengths[0] < lengths[1] == fused


def test_halves_are_those_of_the_layers() -> None:
    costs = layers(input_gradient_s=0.06, weight_gradient_s=0.055)
    found = gather(spec(1), costs, Seen(0.1, memory_bytes=1 << 40), pipelines=1)
    known = figures(replace(SPLIT, pipelines=1, microbatches=8, spare=8, halves=1.125), NONE)
    assert found.microbatches == 8
    assert found.step_s == pytest.approx(0.1 * known.length)  # 1.15 in sixteenths


def test_memory_is_that_of_the_agent_that_holds_most() -> None:
    """The second at its last micro-batch: four sums and one activation of 10 MB, eight outputs and
    input gradients of 1 MB."""
    found = gather(spec(), layers(), Seen(0.1, memory_bytes=1 << 40), pipelines=2)
    none, replica, eager = found.device_bytes
    assert none == (4 + 4) * 100_000_000 + 10_000_000 + 16 * 1_000_000
    assert replica == none + 4 * 100_000_000
    assert eager > replica + 10_000_000


def test_a_step_with_an_empty_seat_is_slower_without_room_for_more_in_flight() -> None:
    """On a device of unknown size the planner takes eight more; undisturbed steps are equal."""
    unknown, none = SPLIT, replace(SPLIT, spare=0)
    assert figures(unknown, NONE).length == figures(none, NONE).length
    assert after(unknown, NONE).degraded < after(none, NONE).degraded
