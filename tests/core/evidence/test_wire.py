"""What members measure of the network: when plans count with it, and what users see."""

from __future__ import annotations

from math import inf, nan
from random import Random

import pytest

from bamboo_core.api.progress import Goodput, Network, PeerRate, SlowPair
from bamboo_core.evidence.wire import CLEAR, HOLD_S, Wire, has_changed
from bamboo_core.model.ids import AgentId

A, B, C = AgentId("a"), AgentId("b"), AgentId("c")
GB = 1e9
MOST = 1.25 * GB  # 10 Gb/s


def made(*members: AgentId) -> Wire:
    """With a plan in force."""
    wire = Wire()
    wire.begin(members or (A, B, C))
    return wire


def tell(wire: Wire, rate: float, since: float, seconds: float, most: float = MOST) -> float:
    """A figure each second, the same of every member. The time afterwards."""
    for n in range(round(seconds)):
        for agent in (A, B, C):
            wire.learn(agent, Goodput(rate, rate), since + n, most)
    return since + round(seconds)


def test_nothing_is_measured_at_first() -> None:
    wire = made()
    wire.learn(A, None, 0.0, MOST)  # an agent of an older version
    assert (wire.settled, wire.measured()) == (inf, 0.0)
    assert wire.network() == Network(MOST, 0.0, None)
    assert Wire().network() == Network(0.0, 0.0, None)


def test_a_slower_network_counts_once_it_has_lasted() -> None:
    wire = made()
    now = tell(wire, 0.3 * GB, 0.0, HOLD_S + 1)  # at the first look only one has told
    assert wire.settled == inf
    tell(wire, 0.3 * GB, now, 1.0)
    assert wire.settled == 0.3 * GB
    assert wire.network() == Network(0.3 * GB, 0.3 * GB, None)


def test_a_short_jam_changes_nothing() -> None:
    wire, now = made(), 0.0
    for _ in range(20):
        now = tell(wire, 0.3 * GB, now, HOLD_S - 1)
        now = tell(wire, 1.2 * GB, now, 2.0)
    assert wire.settled == inf


@pytest.mark.parametrize("seed", range(5))
def test_noise_below_the_factor_never_changes_the_figure(seed: int) -> None:
    rng, wire = Random(seed), made()
    now = tell(wire, 0.5 * GB, 0.0, HOLD_S + 2)
    assert wire.settled == 0.5 * GB
    for _ in range(300):
        now = tell(wire, 0.5 * GB * rng.uniform(1 / 1.24, 1.24), now, 1.0)
        assert wire.settled == 0.5 * GB


def test_a_figure_that_crosses_over_begins_anew() -> None:
    """It is clearly less and then clearly more, each for less than the time that counts."""
    wire = made()
    now = tell(wire, 0.5 * GB, 0.0, HOLD_S + 2)
    for _ in range(5):
        now = tell(wire, 0.3 * GB, now, HOLD_S - 2)
        now = tell(wire, 0.9 * GB, now, HOLD_S - 2)
    assert wire.settled == 0.5 * GB


def test_the_figure_rises_again_and_the_spec_stays_the_bound() -> None:
    wire = made()
    now = tell(wire, 0.3 * GB, 0.0, HOLD_S + 2)
    now = tell(wire, 5 * GB, now, HOLD_S + 2)
    assert wire.settled == 5 * GB
    assert wire.network() == Network(MOST, 5 * GB, None)
    tell(wire, 9 * GB, now, 3 * HOLD_S)  # above the bound nothing changes
    assert wire.settled == 5 * GB


def test_what_is_hardly_below_the_spec_is_the_spec() -> None:
    """TCP passes a little less than the line."""
    wire = made()
    tell(wire, MOST / 1.2, 0.0, 10 * HOLD_S)
    assert wire.settled == inf


def test_the_spec_may_change_meanwhile() -> None:
    wire = made()
    now = tell(wire, 3 * GB, 0.0, 2 * HOLD_S, most=MOST)
    assert wire.settled == inf
    tell(wire, 3 * GB, now, HOLD_S + 2, most=12.5 * GB)
    assert wire.settled == 3 * GB


def test_the_figure_is_the_median_and_the_slower_direction() -> None:
    wire = made()
    for agent, (sending, receiving) in {A: (4, 9), B: (5, 8), C: (0.1, 0)}.items():
        wire.learn(agent, Goodput(sending * GB, receiving * GB), 0.0, MOST)
    assert wire.measured() == 4 * GB
    wire.begin([A, B])
    assert wire.measured() == 4.5 * GB
    wire.begin([])
    assert wire.measured() == 0.0


@pytest.mark.parametrize(("tellers", "counts"), [(1, False), (3, False), (4, True), (8, True)])
def test_a_direction_counts_once_half_of_the_members_have_told_it(
    tellers: int, counts: bool
) -> None:
    """One agent that alone has large transfers, over a slow link, is not the network."""
    members = [AgentId(f"a{n}") for n in range(8)]
    wire = made(*members)
    for n in range(round(HOLD_S) + 2):
        for agent in members:
            tells = agent in members[:tellers]
            wire.learn(agent, Goodput(1e6, 0.0) if tells else Goodput(), float(n), MOST)
    assert wire.measured() == (1e6 if counts else 0.0)
    assert wire.settled == (1e6 if counts else inf)


def test_a_direction_that_few_tell_does_not_hide_the_other() -> None:
    wire = made()
    wire.learn(A, Goodput(1e6, 2 * GB), 0.0, MOST)
    wire.learn(B, Goodput(0.0, 4 * GB), 0.0, MOST)
    assert wire.measured() == 3 * GB


def test_agents_outside_the_plan_do_not_count() -> None:
    wire = made(A)
    wire.learn(B, Goodput(1e6, 1e6), 0.0, MOST)
    assert wire.measured() == 0.0


@pytest.mark.parametrize("rate", [nan, inf, -inf, -1.0, 0.0])
def test_nonsense_of_an_agent_does_not_count(rate: float) -> None:
    wire = made()
    wire.learn(B, Goodput(0.0, 0.0, (), (PeerRate(A, rate),)), 0.0, MOST)
    for n in range(100):
        wire.learn(A, Goodput(rate, rate, (PeerRate(B, rate),)), float(n), MOST)
    assert (wire.settled, wire.measured()) == (inf, 0.0)
    assert wire.network().slowest is None


@pytest.mark.parametrize(("rate", "gbps"), [(1e-300, 0.001), (1.0, 0.001), (1.7e308, 100_000)])
def test_rates_beyond_what_a_spec_may_say_count_as_the_least_and_the_most(
    rate: float, gbps: float
) -> None:
    """Over a network of next to nothing all sums take infinitely long, so no way is the best."""
    wire, now, bound = made(), 0.0, gbps * 1e9 / 8
    about = pytest.approx(bound, rel=0.05)  # two digits
    from_a = (PeerRate(A, rate),)
    for x in (GB, rate):
        for _ in range(round(HOLD_S) + 3):
            for agent in (A, B, C):
                wire.learn(agent, Goodput(x, x, (PeerRate(B, rate),), from_a), now, 1e6 * GB)
            now += 1.0
    assert wire.measured() == bound
    assert wire.settled == about
    assert wire.settled >= 0.001e9 / 8
    network = wire.network()
    assert network.planned == about
    assert network.measured == about
    assert network.slowest is not None
    assert network.slowest.rate == about


def test_the_slowest_pair_is_one_that_both_ends_name() -> None:
    """B gets from A and C at once, so A alone sees only half of what the link passes."""
    wire = made()
    wire.learn(A, Goodput(1 * GB, 0, (PeerRate(B, 0.5 * GB),)), 0.0, MOST)
    assert wire.network().slowest is None
    wire.learn(B, Goodput(0, 1 * GB, (), (PeerRate(A, 1 * GB),)), 0.0, MOST)
    assert wire.network().slowest == SlowPair(A, B, 1 * GB)
    wire.learn(C, Goodput(1 * GB, 0, (PeerRate(B, 0.2 * GB),)), 0.0, MOST)
    assert wire.network().slowest == SlowPair(A, B, 1 * GB)
    from_both = (PeerRate(C, 0.1234 * GB), PeerRate(A, 1 * GB))
    wire.learn(B, Goodput(0, 1 * GB, (), from_both), 0.0, MOST)
    assert wire.network().slowest == SlowPair(C, B, 0.2 * GB)


def test_the_same_figures_give_the_same_state() -> None:
    """Plans are functions of what was recorded."""
    rng = Random(3)
    said = [(AgentId(rng.choice("abc")), rng.uniform(0.1, 2.0) * GB) for _ in range(500)]
    wires = made(), made()
    for wire in wires:
        for n, (agent, rate) in enumerate(said):
            wire.learn(agent, Goodput(rate, rate), float(n), MOST)
    assert wires[0].settled == wires[1].settled
    assert wires[0].network() == wires[1].network()


def test_what_counts_as_a_change() -> None:
    assert has_changed(1.0, CLEAR)
    assert has_changed(CLEAR, 1.0)
    assert not has_changed(1.0, 1.24)
