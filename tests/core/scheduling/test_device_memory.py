"""When replicas go to host memory, and what the device holds then."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.protocol.messages import LayerCost
from bamboo_core.scheduling.device_memory import Sizes, fits, need

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
    ("mode", "on_device", "hosted", "after_loss", "hosted_after_loss"),
    [
        # of a replica: weights, Adam's two and the gradient; or the gradient and one whole layer
        (REPLICA, 4000, 1000 + 3 * 250, 6000, 4000 + 2 * 250),
        (EAGER, 4000 + SLICE, 2000 + 2 * 250 + SLICE, 6000 + SLICE, 4000 + 2 * 250 + SLICE),
    ],
)
def test_replicas_go_to_host_memory_if_the_device_is_short_after_a_loss(
    mode: RedundancyMode, on_device: int, hosted: int, after_loss: int, hosted_after_loss: int
) -> None:
    """In Eager, each forward ahead leaves its output on the device; one must have room."""
    one, all_ = (10, 80) if mode is EAGER else (0, 0)
    enough = memory_of(OWN + after_loss + one)
    usual = need(SIZES, mode, memory_bytes=enough, host_memory_bytes=PLENTY)
    assert usual.device_bytes == OWN + on_device + one
    assert usual.after_loss_bytes == OWN + after_loss + one
    assert usual.replica_bytes == 0
    short = need(SIZES, mode, memory_bytes=enough - 2, host_memory_bytes=PLENTY)
    assert short.device_bytes == OWN + hosted + all_
    assert short.after_loss_bytes == OWN + hosted_after_loss + all_
    assert short.replica_bytes == 3000
    assert short.host_bytes == 3000 + (800 if mode is EAGER else 0)
    assert fits(short, enough - 2)
    assert not fits(usual, enough - 2)


def test_as_many_forwards_ahead_as_host_memory_and_the_device_have_room_for() -> None:
    def ahead(host: int, device: int = 0) -> int:
        return need(SIZES, EAGER, memory_bytes=device, host_memory_bytes=host).ahead

    assert [ahead(99), ahead(100), ahead(799), ahead(PLENTY)] == [0, 1, 7, 8]
    least = OWN + 6000 + SLICE
    assert ahead(PLENTY, memory_of(least + 30)) == 3
    assert ahead(PLENTY, memory_of(least + 80)) == 8
    assert ahead(200, memory_of(least + 30)) == 2


def test_forwards_whose_bytes_are_not_known_have_room() -> None:
    sizes = replace(SIZES, activation_bytes=0, boundary_bytes=0)
    assert need(sizes, EAGER, memory_bytes=PLENTY, host_memory_bytes=0).ahead == 8


@given(st.integers(8000, 40_000), st.integers(0, 10_000), st.integers(0, 10_000))
def test_more_host_memory_takes_no_mode_away(memory: int, some: int, more: int) -> None:
    def is_able(host: int) -> bool:
        found = need(SIZES, EAGER, memory_bytes=memory, host_memory_bytes=host)
        return fits(found, memory) and found.ahead > 0

    assert is_able(some + more) or not is_able(some)


@pytest.mark.parametrize(("mode", "least"), [(REPLICA, 3000), (EAGER, 3100)])
def test_without_room_in_host_memory_replicas_stay(mode: RedundancyMode, least: int) -> None:
    found = [need(SIZES, mode, memory_bytes=1, host_memory_bytes=b) for b in (least - 1, least)]
    assert [x.replica_bytes for x in found] == [0, 3000]
    assert found[1].ahead == (1 if mode is EAGER else 0)


def test_a_stage_of_one_layer_gains_nothing() -> None:
    sizes = replace(SIZES, layer_bytes=SIZES.parameter_bytes)
    assert need(sizes, REPLICA, memory_bytes=1, host_memory_bytes=PLENTY).replica_bytes == 0


def test_without_replicas_there_is_nothing_to_move() -> None:
    found = need(SIZES, NONE, memory_bytes=1, host_memory_bytes=PLENTY)
    assert (found.device_bytes, found.host_bytes) == (OWN, 0)


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
    usual = need(sizes, mode, memory_bytes=0, host_memory_bytes=host)
    found = need(sizes, mode, memory_bytes=memory, host_memory_bytes=host)
    assert found.host_bytes <= host
    if found.replica_bytes:
        assert not fits(usual, memory)
        assert found.after_loss_bytes < usual.after_loss_bytes
        assert found.device_bytes < usual.device_bytes
    else:
        outputs = (usual.ahead - found.ahead) * sizes.boundary_bytes
        assert found.device_bytes == usual.device_bytes - outputs
        assert found.after_loss_bytes == usual.after_loss_bytes - outputs
