"""A small job, all systems on it, and a policy that watches another one."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any, NamedTuple

from tests.sim.market.fleets import PRICES, fleet

from bamboo_core.api.spec import RecoveryPolicy, RedundancyMode
from bamboo_sim.market.policies.base.formula import Formula, FormulaTimes
from bamboo_sim.market.policies.base.job import Common, Job
from bamboo_sim.market.policies.base.seats import Seats
from bamboo_sim.market.policies.ours.auto import Record
from bamboo_sim.market.policies.rows import assumed, ours, rivals
from bamboo_sim.market.simulation.audit import Audited
from bamboo_sim.market.simulation.engine import Terms, run
from bamboo_sim.market.simulation.events import News
from bamboo_sim.market.simulation.outcome import Outcome
from bamboo_sim.market.simulation.policy import Change, Fleet, Pace, Policy

STAGES, NODES = 2, 8


def small(*, is_split: bool = False, **changed: Any) -> Job:
    """Four layers, 8 micro-batches, 1 to 4 stages; steps of about two seconds."""
    formula = Formula(
        layers=4, microbatches=8, layer_ms=100.0, wait_ms=50.0, gradient_bytes=1e8,
        bytes_per_s=1e9, is_split=is_split,
    )  # fmt: skip
    common = Common(
        detect_ms=500, notice_ms=0, boot_ms=0, bytes_per_s=1e9, state_bytes=4e8, block_ms=100,
        persist_ms=2000, restart_ms=4000, interval_ms=20_000, mean_gap_ms=30_000, fewest_stages=1,
        most_stages=4, stages=STAGES, nodes=NODES,
    )  # fmt: skip
    common = Common(**{**vars(common), **changed})
    depths = common.fewest_stages, common.most_stages
    return Job(FormulaTimes(formula, depths, formula.microbatches), formula, common)


def by_hazard(record: Record, seats: Seats, current: RedundancyMode) -> RedundancyMode:
    """A choice that changes often."""
    del seats, current
    modes = (RedundancyMode.NONE, RedundancyMode.REPLICA, RedundancyMode.EAGER)
    return modes[int(record.hazard.losses) % len(modes)]


def systems(job: Job) -> dict[str, Policy]:
    """All of them, and ours with every way to share lost work."""
    found = rivals(job) | assumed(job)
    found |= {f"{name}, own": policy for name, policy in rivals(job, own=True).items()}
    for way in RecoveryPolicy:
        if way is not RecoveryPolicy.AUTO:
            found |= ours(job, way, choose=by_hazard)
    return found


NAMES = tuple(systems(small()))


def terms(job: Job, until_ms: int) -> Terms:
    return Terms(prices=PRICES, best_per_node=best_of_all(job), until_ms=until_ms)


def best_of_all(job: Job) -> float:
    """A node at its best. Without split backwards, too, ours and rerouting fill bubbles."""
    return Job(
        FormulaTimes(small(is_split=True).formula, (1, 4), job.times.samples),
        job.formula, job.common,
    ).best_per_node  # fmt: skip


class Told(NamedTuple):
    """An answer of a policy, and what it knew."""

    news: News
    state: Any
    pace: Pace | None
    change: Change
    resume_ms: int | None
    samples: float
    step_part: float


class Watched:
    """Asks a policy twice, compares, and keeps the answers."""

    def __init__(self, policy: Policy, twin: Policy) -> None:
        self._policy, self._twin = policy, twin
        self.told: list[Told] = []

    def start(self) -> Any:
        assert self._policy.start() == self._twin.start()
        return self._policy.start()

    def rate(self, state: Any) -> Pace | None:
        pace = self._policy.rate(state)
        assert pace == self._twin.rate(state)
        return pace

    def on_change(self, state: Any, fleet: Fleet, news: News) -> Change | None:
        before, then = deepcopy(fleet), deepcopy(state)
        change = self._policy.on_change(state, fleet, news)
        assert (fleet, state) == (before, then)
        assert list(fleet.ready) == list(before.ready)
        again = self._twin.on_change(then, before, news)
        assert change == again
        if change is not None:
            assert again is not None
            assert hash(change.state) == hash(again.state)
            seen = fleet.resume_ms, fleet.samples, fleet.step_part
            self.told.append(Told(news, state, self._policy.rate(state), change, *seen))
        return change


def watched(name: str, **changed: Any) -> Watched:
    """Two policies that share nothing, so that what one has kept is no help to the other."""
    policy, twin = (systems(small(**changed))[name] for _ in range(2))
    return Watched(policy, twin)


def trained(
    policy: Policy, lives: Iterable[tuple[int, int | None]], until_ms: int, **changed: Any
) -> Outcome:
    """A run of the small job on nodes with these times of ADD and REMOVE. At every instant it has
    no more samples than live nodes times the best rate."""
    most = terms(small(**changed), until_ms)
    audited = Audited(policy, most.best_per_node)
    return audited.ended(run(audited, fleet(*lives), most))
