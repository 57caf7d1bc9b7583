"""When replicas go to host memory, and what the device holds then."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protocol.messages import LayerCost
from bamboo_core.scheduling.device_memory import (
    Need,
    Sizes,
    fits,
    held_bytes,
    need,
    shortage,
)
from bamboo_core.scheduling.sharing.orders import sums_at_once

NONE, REPLICA, EAGER = RedundancyMode.NONE, RedundancyMode.REPLICA, RedundancyMode.EAGER
SIZES = Sizes(
    stages=4,
    microbatches=8,
    parameter_bytes=1000,
    layer_bytes=250,
    activation_bytes=100,
    boundary_bytes=10,
)
OWN = 6 * 1000 + 4 * 100 + 2 * 8 * 10
SLICE = 100  # what the slice that runs keeps
PLENTY = 1 << 30


def memory_of(needed: int) -> int:
    """A device of which this can just be used."""
    return -(-needed * 10 // 8)


def test_sizes_are_the_largest_of_the_cut() -> None:
    costs = [LayerCost(1.0, 2.0, size, size // 10, activation_bytes=size) for size in (10, 30, 20)]
    assert Sizes.of(((0, 2), (2, 3)), costs, microbatches=8) == Sizes(2, 8, 40, 30, 40, 3)


@pytest.mark.parametrize(
    ("mode", "on_device", "hosted"),
    [(REPLICA, 6000, 4000 + 2 * 250), (EAGER, 6000 + SLICE, 4000 + 2 * 250 + SLICE)],
)
def test_replicas_go_to_host_memory_if_the_device_is_short_after_a_loss(
    mode: RedundancyMode, on_device: int, hosted: int
) -> None:
    """In Eager, what is computed ahead goes first, and one output must have room. Without replicas
    the device holds six forwards ahead, of 110 bytes each, beside eight activations."""
    one, six = (10, 6 * 110) if mode is EAGER else (0, 0)
    enough = memory_of(OWN + on_device + one)
    usual = need(SIZES, mode, memory_bytes=enough, host_memory_bytes=PLENTY)
    assert usual.after_loss_bytes == OWN + on_device + one
    assert usual.host_bytes == usual.ahead_bytes == (100 if mode is EAGER else 0)
    short = need(SIZES, mode, memory_bytes=enough - 2, host_memory_bytes=PLENTY)
    assert short.after_loss_bytes == OWN + hosted + six
    assert short.host_bytes == short.replica_bytes == 3000
    assert fits(short, enough - 2)
    assert not fits(usual, enough - 2)


def layer(parameters: int, output: int, activation: int) -> LayerCost:
    return LayerCost(1.0, 2.0, parameters, output, activation_bytes=activation)


STAGES = [[layer(1000, 1, 100), layer(2000, 2, 100)], [layer(100, 3, 1000)]]
"""The first holds most parameters, the second most of what forwards keep."""


@pytest.mark.parametrize(
    ("mode", "found", "ahead", "held"),
    [
        # own: 6 x 3000, 3 activations of 200, 8 outputs of 2
        (NONE, Need(0), 0, 18_616),
        # the replica: 4 x 100
        (REPLICA, Need(0), 0, 18_616 + 400),
        # in host memory: a gradient, and three of a layer
        (REPLICA, Need(0, replica_bytes=1), 0, 18_616 + 400),
        # the slice that runs, and 2.5 forwards with their outputs
        (EAGER, Need(0), 2.5, 18_616 + 400 + 1000 + 2507),
        (EAGER, Need(0, ahead_bytes=1), 2.5, 18_616 + 400 + 1000 + 7),
        (EAGER, Need(0, ahead_bytes=1, replica_bytes=1), 2.5, 18_616 + 400 + 1000 + 7),
    ],
)
def test_the_fullest_agent_is_found_among_unequal_stages(
    mode: RedundancyMode, found: Need, ahead: float, held: int
) -> None:
    kept = {"leaf_size": 2, "sums": [[2] * 4], "in_flight": (3, 1), "ahead": (ahead, 0.0)}
    assert held_bytes(STAGES, mode, found, **kept) == held


def test_the_last_agent_has_the_replica_of_the_first_stage() -> None:
    """16 activations of 1000, 16 outputs of 3 and 16 input gradients of 2."""
    own = 600 + 16_000 + 16 * (3 + 2)
    kept = {"leaf_size": 1, "sums": [[2] * 16], "in_flight": (1, 16), "ahead": (0.0, 0.0)}
    assert held_bytes(STAGES, REPLICA, Need(0), **kept) == own + 4 * 3000
    hosted = held_bytes(STAGES, REPLICA, Need(0, replica_bytes=1), **kept)
    assert hosted == max(18_000 + 200 + 32 + 400, own + 3000 + 3 * 2000)
    both = held_bytes(STAGES, EAGER, Need(0, replica_bytes=1), **kept)
    assert both == own + 2 * 3000 + 2 * 2000 + 200


@pytest.mark.parametrize(
    ("activation", "sums", "most"),
    [
        (999, [[1, 2, 3]], 3 * 1000 + 1 * 999),  # at the last leaf
        (1001, [[1, 2, 3]], 1 * 1000 + 3 * 1001),  # at the first one
        (1001, [[1, 2, 3], [1, 1, 1, 1]], 1 * 1000 + 4 * 1001),  # in the second pipeline
    ],
)
def test_most_sums_wait_when_hardly_an_activation_is_left(
    activation: int, sums: list[list[int]], most: int
) -> None:
    stage = [layer(1000, 0, activation)]
    found = held_bytes([stage], NONE, Need(0), leaf_size=1, sums=sums, in_flight=[4], ahead=[0.0])
    assert found == 4 * 1000 + most


@pytest.mark.parametrize(
    ("left", "host", "ahead", "in_host", "spare"),
    [
        # a forward takes 110 bytes on the device, or its output's 10 there and 100 in host memory
        (109, 0, 0, 0, 1),
        (110, 0, 1, 0, 0),
        (110, PLENTY, 8, 800, 0),
        (110, 200, 1, 0, 0),
        (180, PLENTY, 8, 800, 1),
        (109, 99, 0, 0, 1),
        (109, 100, 1, 100, 0),
        (30, PLENTY, 3, 300, 0),
        (30, 200, 2, 200, 0),
        (80, PLENTY, 8, 800, 0),
        # activations in flight come first; twice as many in host memory are not worth the copies
        (430, 0, 1, 0, 3),
        (990, PLENTY, 8, 800, 8),
        (990, 299, 1, 0, 8),
        (1239, PLENTY, 8, 800, 8),
        (1240, PLENTY, 4, 0, 8),
        (1680, PLENTY, 8, 0, 8),
    ],
)
def test_what_is_computed_ahead_stays_on_the_device_as_long_as_it_has_room(
    left: int, host: int, ahead: int, in_host: int, spare: int
) -> None:
    memory = memory_of(OWN + 6000 + SLICE + left)
    found = need(SIZES, EAGER, memory_bytes=memory, host_memory_bytes=host)
    assert (found.ahead, found.ahead_bytes, found.spare) == (ahead, in_host, spare)
    assert fits(found, memory) is (ahead > 0)
    assert found.replica_bytes == 0


def test_host_memory_is_not_used_for_a_device_of_unknown_size() -> None:
    for host in (0, PLENTY):
        found = need(SIZES, EAGER, memory_bytes=0, host_memory_bytes=host)
        assert (found.ahead, found.host_bytes) == (8, 0)


def test_forwards_whose_bytes_are_not_known_have_room() -> None:
    sizes = replace(SIZES, activation_bytes=0, boundary_bytes=0)
    assert need(sizes, EAGER, memory_bytes=PLENTY, host_memory_bytes=0).ahead == 8


@given(st.integers(8000, 40_000), st.integers(0, 10_000), st.integers(0, 10_000))
def test_more_host_memory_takes_no_mode_away(memory: int, some: int, more: int) -> None:
    def is_able(host: int) -> bool:
        found = need(SIZES, EAGER, memory_bytes=memory, host_memory_bytes=host)
        assert fits(found, memory) is (found.ahead > 0)
        return found.ahead > 0

    assert is_able(some + more) or not is_able(some)


@pytest.mark.parametrize("mode", [REPLICA, EAGER])
def test_without_room_in_host_memory_replicas_stay(mode: RedundancyMode) -> None:
    found = [need(SIZES, mode, memory_bytes=1, host_memory_bytes=b) for b in (2999, 3000)]
    assert [x.replica_bytes for x in found] == [0, 3000]


@pytest.mark.parametrize(
    ("mode", "left", "host", "least"),
    [
        (REPLICA, -1, 0, 3000),
        (EAGER, 109, 0, 100),
        (EAGER, 9, 0, 3000),
        (EAGER, 9, 100, 3000),
        (EAGER, -1490, 0, 3100),
        (EAGER, -1500, 0, None),
    ],
)
def test_a_shortage_names_its_remedies(
    mode: RedundancyMode, left: int, host: int, least: int | None
) -> None:
    sizes = Sizes(*(x * (1 if i in (0, 1, 6) else 1 << 20) for i, x in enumerate(astuple(SIZES))))
    lane = SLICE if mode is EAGER else 0
    memory = memory_of(OWN + 6000 + lane + left << 20)
    found = shortage(sizes, mode, memory_bytes=memory, host_memory_bytes=host << 20)
    one = (10 if host else 110) if mode is EAGER else 0
    assert found.startswith(f"it needs {OWN + 6000 + lane + one} MiB after a loss, and 80% of")
    remedy = "lower spec.training.microBatchSize, "
    if least is None:
        remedy += "or use larger devices"
    else:
        remedy += f"use larger devices, or raise spec.redundancy.hostMemory to {least} MiB"
    assert found.endswith(remedy)
    if least is not None:
        enough = {"memory_bytes": memory, "host_memory_bytes": least << 20}
        assert shortage(sizes, mode, **enough) == ""
        assert fits(need(sizes, mode, **enough), memory)


def test_without_copies_a_shortage_has_nothing_to_do_with_losses() -> None:
    short, enough = (
        shortage(SIZES, NONE, memory_bytes=size, host_memory_bytes=PLENTY)
        for size in (memory_of(OWN) - 2, memory_of(OWN))
    )
    assert short.startswith("it needs 1 MiB, and 80% of the device's 0 MiB can be used: raise")
    assert "hostMemory" not in short
    assert enough == ""


def test_a_stage_of_one_layer_gains_nothing() -> None:
    sizes = replace(SIZES, layer_bytes=SIZES.parameter_bytes)
    assert need(sizes, REPLICA, memory_bytes=1, host_memory_bytes=PLENTY).replica_bytes == 0


def test_without_replicas_there_is_nothing_to_move() -> None:
    found = need(SIZES, NONE, memory_bytes=1, host_memory_bytes=PLENTY)
    assert (found.after_loss_bytes, found.host_bytes) == (OWN, 0)


@given(
    st.sampled_from([REPLICA, EAGER]),
    st.integers(0, 40_000),
    st.integers(0, 10_000),
    st.integers(0, 1000),
)
def test_they_move_only_where_it_helps_and_host_memory_suffices(
    mode: RedundancyMode, memory: int, host: int, layer: int
) -> None:
    sizes = replace(SIZES, layer_bytes=layer)

    def found_with(host: int) -> Need:
        return need(sizes, mode, memory_bytes=memory, host_memory_bytes=host)

    found, staying, alone = found_with(host), found_with(min(host, 2999)), found_with(0)
    assert found.host_bytes <= host
    if found.replica_bytes:
        assert not fits(staying, memory)
        assert found.after_loss_bytes < staying.after_loss_bytes
    elif found.ahead_bytes:
        assert not fits(alone, memory) or 2 * alone.ahead < found.ahead
    if memory and fits(found, memory):
        assert found.after_loss_bytes + found.spare * 100 <= 0.8 * memory


@pytest.mark.parametrize(
    ("batch", "pipelines", "sums"),
    [
        (BatchShape(128, 1, 16), 4, 4),  # four chunks: a leaf, a chunk, and two levels of the tree
        (BatchShape(128, 1, 32), 4, 5),
        (BatchShape(128, 1, 32), 1, 7),
        (BatchShape(128, 2, 4), 4, 3),  # as an earlier version chose: leaf, its next one, chunk
        (BatchShape(8, 1, 8), 8, 1),
    ],
)
def test_an_agent_holds_a_sum_for_each_level_that_waits(
    batch: BatchShape, pipelines: int, sums: int
) -> None:
    assert sums_at_once(batch, pipelines) == sums
    more = replace(SIZES, sums=sums)
    usual = need(SIZES, NONE, memory_bytes=0, host_memory_bytes=0).after_loss_bytes
    found = need(more, NONE, memory_bytes=0, host_memory_bytes=0).after_loss_bytes
    assert found == usual + (sums - 2) * 1000
