"""What holds for every policy: it invents nothing, is pure, loses what its rule says, and ends in a
steady state."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.market.fleets import PRICES, fleet
from tests.sim.market.policies.systems import (
    NAMES,
    NODES,
    STAGES,
    Watched,
    small,
    systems,
    terms,
    trained,
    watched,
)

from bamboo_sim.market.policies.base.job import formula_job, rate
from bamboo_sim.market.policies.rows import rivals
from bamboo_sim.market.simulation.engine import Terms, run
from bamboo_sim.market.simulation.events import Kind, News
from bamboo_sim.market.simulation.policy import Change, Fleet, InventedWorkError, Pace, Policy

LAST_MS = 120_000  # of an event
CALM_MS = 1_000_000  # by then, all has settled

Lives = list[tuple[int, int | None]]


@st.composite
def lives(draw: st.DrawFn) -> Lives:
    """Up to twelve nodes; some go, several at one instant among them."""
    added = draw(st.lists(st.sampled_from([0, 0, 0, 7000, 50_000]), min_size=1, max_size=12))
    gone = st.one_of(st.none(), st.sampled_from([30_000, 31_000, 60_000]), st.integers(0, LAST_MS))
    return [(at, None if (end := draw(gone)) is None else max(at, end)) for at in added]


RESTARTS = ("checkpoint", "varuna", "live migration", "gemini")


def holds(name: str, seen: Watched, **changed: Any) -> None:
    """Each answer of a run loses what a rule of its system takes, and no more."""
    job = small(**changed)
    common = job.common
    interval_ms = max(job.saving_ms, 25_000) if name.startswith(RESTARTS) else common.interval_ms
    for told in seen.told:
        if name == "varuna, own" and told.pace is not None:
            interval_ms = 10 * told.pace.step_ms  # it counts steps
        change, lost = told.change, told.change.lost_samples
        if told.news.kind is not Kind.REMOVE or change.cause in ("notice", "migration"):
            assert (lost, change.drops_step, change.is_fatal) == (0, False, False)
        elif change.is_fatal or name.startswith(RESTARTS):
            assert lost <= rate(told.pace) * (interval_ms + common.persist_ms) + 1e-6
        else:  # at most the step in flight, and there is none in a pause
            assert lost <= told.step_part * job.times.samples + 1e-6
            assert told.resume_ms is None or (lost, change.drops_step) == (0, False)


@pytest.mark.parametrize("name", NAMES)
@given(lives=lives(), notice_ms=st.sampled_from([0, 0, 5000, 60_000]), seed=st.integers(0, 2))
@settings(max_examples=15, deadline=None)
def test_it_invents_nothing_is_pure_and_settles(
    name: str, lives: Lives, notice_ms: int, seed: int
) -> None:
    """The engine compares each state with what live nodes can do, at every instant."""
    changed = {"notice_ms": notice_ms, "seats_seed": seed}
    policy = watched(name, **changed)
    before, after = (
        trained(policy, lives, until_ms, **changed) for until_ms in (CALM_MS, 2 * CALM_MS)
    )
    last = policy.told[-1] if policy.told else None
    pace = policy.rate(last.change.state) if last else None
    assert after.samples - before.samples == pytest.approx(rate(pace) * CALM_MS, rel=1e-6)
    assert after.pauses == before.pauses  # nothing goes on for ever
    holds(name, policy, **changed)


@pytest.mark.parametrize("name", NAMES)
def test_all_fleets_of_four_nodes(name: str) -> None:
    """Each node goes never, at the begin, during a pause, or later; all ways together."""
    policy = watched(name)
    for gone in product([None, 0, 20_000, 21_000], repeat=4):
        found = trained(policy, [(0, at) for at in gone], 60_000)
        assert sum(found.activity_ms.values()) == 60_000
    holds(name, policy)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("nodes", [STAGES, STAGES + 1, NODES - 1, NODES])
def test_without_losses_it_trains_from_the_start_at_its_steady_rate(name: str, nodes: int) -> None:
    policy = systems(small())[name]
    found = trained(policy, [(0, None)] * nodes, 100_000)
    if not found.samples:
        assert "bamboo" in name  # its own depth is larger
        assert nodes < 1.5 * STAGES
        return
    assert not found.pauses
    assert found.samples == pytest.approx(base_rate(name, nodes) * 100_000, rel=1e-9)


def base_rate(name: str, nodes: int) -> float:
    """The undisturbed grid of so many nodes by the formula, and what the system always pays."""
    job = small()
    best = rate(job.pace(job.best(nodes)) if job.best(nodes) else None)
    state = systems(job)[name]
    fixed = nodes // STAGES
    grid_ms = {d: job.formula.step_ms((d, STAGES)) for d in range(1, NODES // STAGES + 1)}
    if name.startswith(("bound", "parcae", "unicron")):
        return best
    if name == "varuna":
        return best / (1 + job.common.block_ms / job.saving_ms)
    if name.startswith(("checkpoint", "live migration")):
        return 8 / grid_ms[fixed] * (1 - job.common.block_ms / job.saving_ms)
    if name.startswith(("torchft", "sample dropping")):
        pipelines = min(4, fixed)
        step_ms = job.formula.step_ms((pipelines, STAGES), job.formula.share(4))
        return 8 * pipelines / 4 / step_ms
    return told_rate(state, nodes)


def told_rate(policy: Policy, nodes: int) -> float:
    """Ask for the rate of the state that the policy takes; other tests know that it is right."""
    seen = Watched(policy, policy)
    run(seen, fleet(*[(0, None)] * nodes), Terms(PRICES, 100.0, until_ms=1))
    return rate(policy.rate(seen.told[-1].change.state))


@pytest.mark.parametrize("name", ["bound", "varuna", "oobleck", "recycle", "parcae", "unicron"])
def test_more_nodes_are_never_slower_where_grids_are_free(name: str) -> None:
    policy = systems(small())[name]
    rates = [trained(policy, [(0, None)] * nodes, 100_000).samples for nodes in range(1, NODES + 1)]
    assert rates == sorted(rates)
    assert rates[-1] > 2 * rates[0]


@pytest.mark.parametrize(
    ("name", "worst"),
    [("bound", 0), ("varuna", 0), ("recycle", 0), ("parcae", 0), ("oobleck", 0.02)],
)
def test_more_nodes_of_a_large_model_too(name: str, worst: float) -> None:
    """But for Oobleck: its templates use every node, also where it would be faster to leave one
    out, as with 9 nodes, which make one pipeline of 9 stages and not of 8."""
    job = formula_job(is_split=False)
    rates = [told_rate(rivals(job)[name], nodes) for nodes in range(6, 33)]
    falls = [1 - after / before for before, after in pairwise(rates)]
    assert max(falls) <= worst + 1e-12
    assert (max(falls) > 0) == (worst > 0)


class Cheats:
    """A policy that is one percent faster than its live nodes can be, once a node is lost."""

    def __init__(self, policy: Policy, best_per_node: float) -> None:
        self._policy, self._best = policy, best_per_node
        self._is_on = False

    def start(self) -> Any:
        return self._policy.start()

    def rate(self, state: Any) -> Pace | None:
        pace = self._policy.rate(state)
        if pace is None or not self._is_on:
            return pace
        most = len(state.serving) * self._best
        return Pace(pace.samples / (1.01 * most) * 1000, pace.samples)

    def on_change(self, state: Any, fleet: Fleet, news: News) -> Change | None:
        self._is_on |= news.kind is Kind.REMOVE
        return self._policy.on_change(state, fleet, news)


@pytest.mark.parametrize("name", NAMES)
def test_a_planted_cheat_is_caught_in_every_system(name: str) -> None:
    job = small()
    events = fleet((0, 30_000), *[(0, None)] * 7)
    most = terms(job, 60_000)
    assert run(systems(job)[name], events, most).samples > 0
    with pytest.raises(InventedWorkError, match="nodes compute"):
        run(Cheats(systems(job)[name], most.best_per_node), events, most)
