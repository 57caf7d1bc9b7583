"""Bamboo by its rules, on the common job: the node before a lost one computes both stages, and all
nodes meet to make whole pipelines (rivals.md 4.7). The published table has its own file."""

from __future__ import annotations

from typing import Any, NamedTuple

from bamboo_sim.market.policies.base.formula import Grid
from bamboo_sim.market.policies.base.job import Job
from bamboo_sim.market.policies.base.restores import begun, restore_ms, restored
from bamboo_sim.market.policies.base.seats import Seats, dealt, lost_of, ordered
from bamboo_sim.market.simulation.events import READY, REMOVE, RESUME, News
from bamboo_sim.market.simulation.policy import Change, Fleet, Pace, extended


class Rules(NamedTuple):
    """The parameters of one mode; parameters.json says what each is."""

    pipelines: int | None
    depth: float
    local_ms: int
    rendezvous_ms: int
    overhead: float
    redone: float
    slowdown: float | None
    risk: float


def rules(mode: str, values: dict[str, Any]) -> Rules:
    """The parameters of the file for ``eager`` or ``lazy`` forwards."""
    chosen = {
        name: value[mode] if isinstance(value, dict) else value for name, value in values.items()
    }
    return Rules(**chosen)


class Bamboo:
    """The policy."""

    def __init__(self, job: Job, rules: Rules) -> None:
        self._job, self._rules = job, rules
        self._stages = round(job.common.stages * rules.depth)

    def start(self) -> Seats:
        """Nothing runs."""
        return Seats()

    def rate(self, state: Seats) -> Pace | None:
        """All wait for a node that has the work of two."""
        if not state.holders:
            return None
        share, grid = self._job.formula.share(state.grid.pipelines), state.grid
        undisturbed_ms = self._job.formula.step_ms(grid, share * (1 + self._rules.overhead))
        if not state.holes:
            return self._job.pace(grid, undisturbed_ms)
        if self._rules.slowdown is not None:
            return self._job.pace(grid, undisturbed_ms * self._rules.slowdown)
        return self._job.pace(grid, self._job.formula.step_ms(grid, 2 * share))

    def on_change(self, state: Seats, fleet: Fleet, news: News) -> Change | None:
        """Nodes that come wait until all meet."""
        if news.kind is REMOVE and (lost := lost_of(state.serving, news)):
            return self._lose(state, lost, fleet, news.at_ms)
        if news.kind is RESUME or (news.kind is READY and fleet.resume_ms is None):
            return self._meet(state, fleet, news.at_ms)
        return None

    def _meet(self, state: Seats, fleet: Fleet, now_ms: int) -> Change | None:
        if not self._is_worth_it(state, fleet):
            return None
        seats = self._seated(fleet, state.since_ms)
        if not seats.holders or state.holders:
            end = now_ms + self._rules.rendezvous_ms + self._job.copy_ms(self._stages)
            return Change(seats, end if seats.holders else None, "planned")
        return begun(self._job, seats, self._stages, fleet, now_ms)

    def _is_worth_it(self, state: Seats, fleet: Fleet) -> bool:
        """Enough nodes wait, or too many would be fatal to lose, or another pipeline fits."""
        holes, active = len(state.holes), len(state.serving)
        waiting = len(fleet.ready) - active
        if holes and (waiting >= holes or 2 * holes > self._rules.risk * active):
            return True
        return self._pipelines(fleet) > state.grid.pipelines

    def _pipelines(self, fleet: Fleet) -> int:
        most = self._rules.pipelines or self._job.pipelines
        return min(len(fleet.ready) // self._stages, most)

    def _seated(self, fleet: Fleet, since_ms: int) -> Seats:
        grid = Grid(self._pipelines(fleet), self._stages)
        nodes = ordered(fleet, self._job.common.seats_seed)
        return dealt(grid, nodes, since_ms) if grid.seats else Seats()

    def _lose(self, state: Seats, lost: frozenset[int], fleet: Fleet, now_ms: int) -> Change:
        left, common, rules = state.without(lost), self._job.common, self._rules
        holes = left.holes
        is_told = self._job.is_told(rules.local_ms)
        if any((pipeline, (stage - 1) % self._stages) in holes for pipeline, stage in holes):
            pause_ms = rules.rendezvous_ms + self._job.copy_ms(self._stages)
            after = self._seated(fleet, state.since_ms)
            if not self._job.is_told(pause_ms) or not after.holders:
                return self._restore(state, fleet, now_ms)
            return Change(after, extended(fleet, now_ms, pause_ms), "notice")
        if is_told:
            return Change(left, extended(fleet, now_ms, rules.local_ms), "notice")
        end = extended(fleet, now_ms, common.detect_ms + rules.local_ms)
        done = 0.0 if fleet.resume_ms else fleet.step_part * self._job.times.samples
        return Change(left, end, "loss", rules.redone * done)

    def _restore(self, state: Seats, fleet: Fleet, now_ms: int) -> Change:
        pause_ms = self._job.common.detect_ms + self._rules.rendezvous_ms
        pause_ms += restore_ms(self._job, self._stages)
        pace, after = self.rate(state), self._seated(fleet, 0)
        return restored(self._job, pace, state.since_ms, after, fleet, now_ms, pause_ms)
