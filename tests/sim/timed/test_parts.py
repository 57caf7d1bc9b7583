"""Clock, network, memory and what a declaration must satisfy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.sim.timed.small import LAYER, job

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Instruction, Op
from bamboo_core.protocol.messages import Directive
from bamboo_core.scheduling.item_bytes import ItemBytes
from bamboo_sim.timed.clock import Clock
from bamboo_sim.timed.declared import Device, Links, TimedJob
from bamboo_sim.timed.fleet import Fleet
from bamboo_sim.timed.memory import Memory
from bamboo_sim.timed.network import Network
from bamboo_sim.timed.sizes import Times, hosted

A, B, FAR = AgentId("a"), AgentId("b"), AgentId("far")


def run(clock: Clock) -> None:
    while clock.next():
        pass


def network(clock: Clock, links: Links) -> Network:
    return Network(clock, links, lambda agent: "z1" if agent == FAR else "z0")


def test_calls_come_in_the_order_of_their_times() -> None:
    clock, seen = Clock(), list[str]()
    clock.after(2, lambda: seen.append("late"))
    clock.after(1, lambda: seen.append("last"), last=True)
    clock.after(1, lambda: seen.append("first"))
    clock.after(1, lambda: seen.append("second"))
    run(clock)
    assert seen == ["first", "second", "last", "late"]
    assert clock.now == 2


def test_a_time_that_has_passed_is_refused() -> None:
    clock = Clock()
    clock.after(1, lambda: None)
    run(clock)
    with pytest.raises(ValueError, match=r"0\.5 s has passed: it is 1\.0 s"):
        clock.at(0.5, lambda: None)


def test_an_interface_sends_one_item_after_the_other() -> None:
    clock, seen = Clock(), list[tuple[str, float]]()
    links = Links(bandwidth=100, latency_s=0.5, zone_bandwidth=50, zone_latency_s=1)
    net = network(clock, links)
    net.send(A, B, 100, lambda: seen.append(("near", clock.now)))
    net.send(A, FAR, 100, lambda: seen.append(("far", clock.now)))
    net.send(B, A, 100, lambda: seen.append(("other", clock.now)))
    run(clock)
    assert seen == [("near", 1.5), ("other", 1.5), ("far", 4.5)]
    assert net.sent_bytes == {A: 200, B: 100}


def test_an_interface_receives_one_item_after_the_other() -> None:
    clock, seen = Clock(), list[tuple[str, float]]()
    net = network(clock, Links(bandwidth=100, latency_s=0.5))
    net.send(A, B, 100, lambda: seen.append(("first", clock.now)))
    net.send(FAR, B, 200, lambda: seen.append(("second", clock.now)))
    net.send(A, FAR, 100, lambda: seen.append(("elsewhere", clock.now)))
    run(clock)
    assert seen == [("first", 1.5), ("elsewhere", 2.5), ("second", 3.5)]


def test_small_items_go_first_and_delay_what_follows() -> None:
    clock, seen = Clock(), list[tuple[str, float]]()
    net = network(clock, Links(bandwidth=100, latency_s=0.5))
    net.send(A, B, 300, lambda: seen.append(("bulk", clock.now)))
    net.send(A, B, 100, lambda: seen.append(("small", clock.now)), is_bulk=False)
    net.send(A, B, 100, lambda: seen.append(("more bulk", clock.now)))
    run(clock)
    assert seen == [("small", 1.5), ("bulk", 3.5), ("more bulk", 5.5)]


def test_what_a_slow_path_brings_does_not_wait_at_an_idle_interface() -> None:
    clock, seen = Clock(), list[float]()
    net = network(clock, Links(bandwidth=100, zone_bandwidth=50))
    net.send(A, FAR, 100, lambda: seen.append(clock.now))
    run(clock)
    assert seen == [2]


def test_what_is_not_sent_completely_is_lost_with_its_sender() -> None:
    clock, seen = Clock(), list[int]()
    net = network(clock, Links(bandwidth=100, latency_s=1))
    for number in range(3):
        net.send(A, B, 100, lambda number=number: seen.append(number))
    clock.at(2.5, lambda: net.end(A))
    run(clock)
    assert seen == [0, 1]


def test_an_agent_that_has_ended_receives_nothing() -> None:
    clock, seen = Clock(), list[int]()
    net = network(clock, Links(latency_s=1))
    net.send(A, B, 1, lambda: seen.append(0))
    net.end(B)
    run(clock)
    assert seen == []


SIZES = ItemBytes((LAYER,) * 4)


@pytest.mark.parametrize(
    ("item", "size"),
    [
        (Item.act(0, (1, 3), 0), 2000),
        (Item.prefix(0, (0, 3), 0, 2), 2000),
        (Item.out(0, 2, 0), 100),
        (Item.ingrad(0, 2, 0), 100),
        (Item.sum(0, (1, 3), (0, 1)), 2400),
        (Item.red(0, (1, 3), 0, 2), 1200),
        (Item.ver(0, 3), 3600),
        (Item.commit(0), 256),
    ],
)
def test_sizes_of_items(item: Item, size: int) -> None:
    assert SIZES.of(item) == size


@pytest.mark.parametrize(
    ("task", "seconds"),
    [
        (Instruction(Op.F, 0, 1, 3), 2.0),
        (Instruction(Op.F, 0, 1, 3, ranges=((2, 3),)), 1.0 + 1000 / 500),
        (Instruction(Op.R, 0, 1, 3, ranges=((2, 3),)), 1.0 + 1000 / 500),
        (Instruction(Op.B, 0, 1, 3), 4.0),
        (Instruction(Op.FOLD, 0, 1, 3), 3 * 2400 / 1000),
        (Instruction(Op.REDUCE, 0, 1, 3, ranges=((0, 2), (0, 4), (4, 8))), 1.5 * 2400 / 1000),
        (Instruction(Op.VOTE, ranges=((0, 4), (1, 3))), 2400 / 1000),
        (Instruction(Op.UPDATE, 0, 0, 2, ranges=((0, 2),)), 7 * 2400 / 1000),
        (Instruction(Op.UPDATE, 0, 2, 3, ranges=((2, 4),)), 7 * 1200 / 1000 + 4 * 1200 / 500),
        (Instruction(Op.END), 0.0),
    ],
)
def test_times_of_instructions_of_a_device_that_offloads(task: Instruction, seconds: float) -> None:
    assert of_hosting(RedundancyMode.EAGER, task) == pytest.approx(seconds)


ALL = Directive(
    Fence(), 0, 1, (), (), BatchShape(1, 1, 1), AgentId("a"), hosts_ahead=True, hosted=((2, 4),)
)


def of_hosting(mode: RedundancyMode, task: Instruction, order: Directive = ALL) -> float:
    device = Device(memory_bandwidth=1000, host_bandwidth=500)
    times = Times((LAYER,) * 4, SIZES, device)
    return times.of(task, own=range(2), hosted=hosted(order, mode))


def test_the_plan_says_what_is_copied() -> None:
    ahead, update = (
        Instruction(Op.R, 0, 1, 3, ranges=((2, 3),)),
        Instruction(Op.UPDATE, 0, 2, 3, ranges=((2, 4),)),
    )
    orders = [
        replace(ALL, hosts_ahead=a, hosted=h) for a in (False, True) for h in ((), ALL.hosted)
    ]
    copied = [
        [500 * (of_hosting(mode, task, x) - of_hosting(mode, task, orders[0])) for x in orders]
        for mode in (RedundancyMode.EAGER, RedundancyMode.REPLICA)
        for task in (ahead, update)
    ]
    assert [list(map(round, x)) for x in copied] == [
        [0, 0, 1000, 1000],
        [0, 4 * 1200, 0, 4 * 1200],
        [0, 0, 1000, 1000],
        [0, 6 * 1200, 0, 6 * 1200],
    ]


def test_weights_of_replicas_that_no_forward_uses_move_with_their_update() -> None:
    task = Instruction(Op.UPDATE, 0, 2, 3, ranges=((2, 4),))
    eager, replica = (
        of_hosting(mode, task) for mode in (RedundancyMode.EAGER, RedundancyMode.REPLICA)
    )
    assert replica - eager == pytest.approx(2 * 1200 / 500)


def test_memory_counts_what_is_held_and_its_peaks() -> None:
    memory = Memory(SIZES)
    memory.hosted = hosted(ALL, RedundancyMode.EAGER)
    memory.keep_layer(0, is_own=True)
    memory.keep_layer(1, is_own=False)
    memory.keep(Item.prefix(0, (1, 2), 0, 1))
    for _ in range(2):  # the same item twice
        memory.keep(Item.act(0, (0, 1), 0))
    memory.free(Item.act(0, (0, 1), 0))
    memory.free(Item.act(0, (0, 1), 5))  # never held
    memory.keep_layer(1, is_own=True)
    memory.free(Item.ver(0, 1))
    assert memory.peak == {
        "state": 7200, "replica_weights": 1200, "replica_optimizer": 2400, "ahead": 1000,
        "activations": 1000,
    }  # fmt: skip
    assert memory.device_peak == 7200
    assert memory.host_peak == 3400


def test_a_model_must_have_a_layer_for_each_stage() -> None:
    with pytest.raises(ValueError, match="1 layers cannot be cut into 2 stages"):
        TimedJob(1, 2, 4, (LAYER,))


def test_only_a_seat_with_an_agent_can_lose_it() -> None:
    fleet = Fleet(job(1, 2, 2))
    with pytest.raises(ValueError, match="seat 0,1 is empty"):
        fleet.seat(0, 1)  # there is no plan yet
