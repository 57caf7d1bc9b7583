"""What an agent measures of its network, on simulated interfaces of known rates."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from bamboo_agent.transport.goodput import LEAST_BYTES, LEAST_S, Direction, Meter
from bamboo_core.api.progress import MOST_SLOW_PEERS
from bamboo_core.model.ids import AgentId

MB = 1_000_000
TICK_S = 0.0005


@dataclass
class Transfer:
    """A message under way. starts_at: its first byte leaves then."""

    num_bytes: float
    starts_at: float


@dataclass
class Link:
    """Passes one transfer after the other. rate: what it passes at most, whatever else goes on."""

    peer: AgentId
    rate: float
    waiting: list[Transfer] = field(default_factory=list)
    total: float = 0.0

    def wants(self, now: float) -> bool:
        return bool(self.waiting) and self.waiting[0].starts_at <= now

    def take(self, num_bytes: float) -> None:
        first = self.waiting[0]
        first.num_bytes -= num_bytes
        self.total += num_bytes
        if first.num_bytes <= 0:
            self.waiting.pop(0)


def passed(capacity: float, links: list[Link], now: float) -> list[float]:
    """Bytes of each link in a tick: equal shares, and what one cannot take goes to others."""
    active = sorted((x.rate, n) for n, x in enumerate(links) if x.wants(now))
    out, left = [0.0] * len(links), capacity
    for count, (rate, n) in zip(range(len(active), 0, -1), active, strict=True):
        share = min(rate, left / count)
        out[n], left = share * TICK_S, left - share
    return out


def simulate(
    direction: Direction, capacity: float, links: list[Link], seconds: float, rng: Random
) -> None:
    """An interface with these links, of which the agent looks at each every now and then, and
    whenever a transfer begins or ends."""
    for tick in range(round(seconds / TICK_S)):
        now = tick * TICK_S
        for link, count in zip(links, passed(capacity, links, now), strict=True):
            was = link.wants(now)
            if count:
                link.take(min(count, link.waiting[0].num_bytes))
            is_busy = link.wants(now + TICK_S)
            if was != is_busy or rng.random() < 0.3:
                at = now + TICK_S
                direction.note(link.peer, link.peer, round(link.total), at, is_busy=is_busy)


def transfers(rng: Random, seconds: float, sizes: tuple[float, ...]) -> list[Transfer]:
    """Transfers of random sizes, some at once and some after a pause."""
    out, at = [], 0.0
    while at < seconds:
        out.append(Transfer(rng.choice(sizes), at))
        at += rng.choice((0.0, 0.1, 0.3))
    return out


def links_of(rng: Random, count: int, seconds: float, rate: float) -> list[Link]:
    sizes = (20_000, 1 * MB, 12 * MB, 30 * MB, 80 * MB)
    return [Link(AgentId(f"p{n}"), rate, transfers(rng, seconds, sizes)) for n in range(count)]


@pytest.mark.parametrize("peers", [1, 2, 5])
@pytest.mark.parametrize("capacity", [20 * MB, 125 * MB, 1250 * MB])
@pytest.mark.parametrize("seed", range(3))
def test_the_rate_of_an_interface_is_measured(capacity: float, peers: int, seed: int) -> None:
    """Whatever the number of transfers at once, their sizes and their pauses."""
    rng, direction = Random(seed), Direction()
    seconds = 12.0 if capacity < 100 * MB else 4.0
    simulate(direction, capacity, links_of(rng, peers, seconds, 10 * capacity), seconds, rng)
    assert direction.rate() == pytest.approx(capacity, rel=0.1)
    assert all(x.rate == pytest.approx(capacity, rel=0.1) for x in direction.slowest())


@pytest.mark.parametrize("seed", range(3))
def test_a_receiver_that_waits_does_not_make_the_network_look_slow(seed: int) -> None:
    """It takes what has come late, so the sender has no leave to send for most of the time."""
    rng, direction, capacity = Random(seed), Direction(), 125 * MB
    late = [Transfer(30 * MB, 2.0 * n) for n in range(8)]  # 0.24 s each, then 1.76 s without leave
    simulate(direction, capacity, [Link(AgentId("late"), 10 * capacity, late)], 16.0, rng)
    assert direction.rate() == pytest.approx(capacity, rel=0.1)


def test_what_is_shared_at_the_other_end_does_not_hide_the_interface() -> None:
    """Most transfers go to agents that others send to, too."""
    rng, direction, capacity = Random(1), Direction(), 125 * MB
    shared = [Transfer(12 * MB, 1.0 * n) for n in range(20)]
    alone = [Transfer(60 * MB, 1.0 * n + 0.5) for n in range(20)]
    links = [Link(AgentId("a"), capacity / 4, shared), Link(AgentId("b"), 10 * capacity, alone)]
    simulate(direction, capacity, links, 20.0, rng)
    assert direction.rate() == pytest.approx(capacity, rel=0.1)


def test_small_transfers_say_nothing() -> None:
    """Each takes as long as the network's latency, whatever the rate."""
    direction = Direction()
    for n in range(5000):
        direction.note("link", AgentId("a"), n * 100_000, 0.1 * n, is_busy=False)
        direction.note("link", AgentId("a"), n * 100_000, 0.1 * n, is_busy=True)
        direction.note("link", AgentId("a"), n * 100_000 + 1000, 0.1 * n + 0.05, is_busy=True)
    assert direction.rate() == 0.0
    assert direction.slowest() == ()


def test_latency_before_the_first_byte_does_not_count() -> None:
    direction, at, total = Direction(), 0.0, 0
    for _ in range(8):
        direction.note("link", AgentId("a"), total, at, is_busy=True)
        direction.note("link", AgentId("a"), total + 1, at + 5.0, is_busy=True)
        total += LEAST_BYTES + 1
        at += 5.0 + 0.1
        direction.note("link", AgentId("a"), total, at, is_busy=False)
    assert direction.rate() == pytest.approx(LEAST_BYTES / 0.1)


@pytest.mark.parametrize("seed", range(3))
def test_a_slow_pair_is_found(seed: int) -> None:
    """Although all transfers of an exchange begin at once, and the others hide it at first."""
    rng, direction, capacity = Random(seed), Direction(), 125 * MB
    rates = {"slow": 10 * MB} | dict.fromkeys("abcd", 10 * capacity)
    links = [
        Link(AgentId(name), rate, [Transfer(40 * MB, 5.0 * n) for n in range(4)])
        for name, rate in rates.items()
    ]
    simulate(direction, capacity, links, 20.0, rng)
    worst = direction.slowest()
    assert len(worst) == MOST_SLOW_PEERS
    assert worst[0].peer == "slow"
    assert worst[0].rate == pytest.approx(10 * MB, rel=0.1)
    assert worst[1].rate == pytest.approx(capacity, rel=0.1)
    assert direction.rate() == pytest.approx(capacity, rel=0.1)


def test_the_figure_follows_the_network() -> None:
    rng, direction = Random(1), Direction()
    link = Link(AgentId("a"), 1e12, [Transfer(500 * MB, 0.0)])
    simulate(direction, 125 * MB, [link], 3.0, rng)
    before = direction.rate()
    link.waiting = [Transfer(500 * MB, 0.0)]
    link.rate = 12.5 * MB
    simulate(direction, 125 * MB, [link], 30.0, rng)
    assert before == pytest.approx(125 * MB, rel=0.1)
    assert direction.rate() == pytest.approx(12.5 * MB, rel=0.1)


def test_a_closed_link_and_a_peer_of_an_old_plan_are_forgotten() -> None:
    rng, meter = Random(1), Meter()
    link = Link(AgentId("a"), 1e12, [Transfer(100 * MB, 0.0)])
    simulate(meter.sending, 125 * MB, [link], 0.5, rng)
    assert [x.peer for x in meter.sending.slowest()] == ["a"]
    meter.expect([AgentId("a")])  # its link is closed in the middle of a transfer
    assert meter.sending.follows("a")
    meter.sending.forget("a")
    assert not meter.sending.follows("a")
    assert meter.sending.slowest()
    found = meter.figures()
    assert found is not None
    assert found.receiving == 0.0
    meter.expect([AgentId("b")])
    assert meter.sending.slowest() == ()
    assert Meter().figures() is None


def test_a_short_stretch_is_not_a_rate() -> None:
    """A burst that waited in the kernel's memory arrives at the speed of memory."""
    direction, total = Direction(), 0
    for n in range(20):
        direction.note("link", AgentId("a"), total, 1.0 * n, is_busy=True)
        direction.note("link", AgentId("a"), total + 1, 1.0 * n, is_busy=True)
        total += 2 * LEAST_BYTES
        direction.note("link", AgentId("a"), total, n + LEAST_S / 2, is_busy=False)
    assert direction.rate() == 0.0
