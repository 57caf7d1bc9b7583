"""Parcae: another grid only if it trains more samples within the next minutes than the pause costs;
migrations come before the losses that are told (rivals.md 4.11, the light version)."""

from __future__ import annotations

from bamboo_sim.market.policies.base.formula import Grid
from bamboo_sim.market.policies.base.job import Job, rate
from bamboo_sim.market.policies.base.restores import begun, restore_ms, restored
from bamboo_sim.market.policies.base.seats import Seats, dealt, lost_of, ordered
from bamboo_sim.market.policies.rivals.migrations import Costs, migration_ms
from bamboo_sim.market.simulation.events import LOOK, READY, REMOVE, RESUME, News
from bamboo_sim.market.simulation.policy import Change, Fleet, Pace, extended


class Parcae:
    """The policy."""

    def __init__(self, job: Job, costs: Costs) -> None:
        self._job, self._costs = job, costs

    def start(self) -> Seats:
        """Nothing runs."""
        return Seats()

    def rate(self, state: Seats) -> Pace | None:
        """Each grid is whole."""
        return self._job.pace(state.grid) if state.holders else None

    def on_change(self, state: Seats, fleet: Fleet, news: News) -> Change | None:
        """Nodes that came are thought of each minute."""
        if news.kind is REMOVE and (lost := lost_of(state.serving, news)):
            return self._lose(state, lost, fleet, news.at_ms)
        if fleet.resume_ms is not None or news.kind not in (READY, RESUME, LOOK):
            return None
        if not state.holders:
            grid = self._job.best(len(fleet.ready))
            after = self._seated(grid, fleet, 0)
            return after and begun(self._job, after, after.grid.stages, fleet, news.at_ms)
        if news.kind is not LOOK:
            due = (news.at_ms // self._costs.every_ms + 1) * self._costs.every_ms
            return Change(state, look_ms=due)
        found = self._chosen(state, fleet, joins=True)
        if found is None or found[1].grid == state.grid:
            return None
        pause_ms, after = found
        return Change(after, news.at_ms + pause_ms, "join")

    def _lose(self, state: Seats, lost: frozenset[int], fleet: Fleet, now_ms: int) -> Change:
        common, left = self._job.common, state.without(lost)
        found = self._chosen(left, fleet, joins=False)
        is_told = found is not None and self._job.is_told(found[0])
        is_wiped = max(left.empty) == state.grid.pipelines
        if found is None or (is_wiped and not is_told):
            after = self._seated(self._job.best(len(fleet.ready)), fleet, 0) or Seats()
            pause_ms = common.detect_ms + restore_ms(self._job, after.grid.stages)
            pace = self.rate(state)
            return restored(self._job, pace, state.since_ms, after, fleet, now_ms, pause_ms)
        pause_ms, after = found
        if is_told:
            return Change(after, extended(fleet, now_ms, pause_ms), "notice")
        end = extended(fleet, now_ms, common.detect_ms + pause_ms)
        return Change(after, end, "loss", drops_step=fleet.resume_ms is None)

    def _chosen(self, left: Seats, fleet: Fleet, *, joins: bool) -> tuple[int, Seats] | None:
        """The pause and the seats with the most samples until the horizon."""
        found = []
        for stages in self._job.depths:
            for pipelines in range(1, len(fleet.ready) // stages + 1):
                grid = Grid(pipelines, stages)
                pause_ms = 0 if joins and grid == left.grid else self._pause_ms(left, grid, joins)
                trained = (self._costs.horizon_ms - pause_ms) * rate(self._job.pace(grid))
                found.append((trained, -pause_ms, grid))
        if not found:
            return None
        _, pause_ms, grid = max(found)
        after = self._seated(grid, fleet, left.since_ms)
        return after and (-pause_ms, after)

    def _pause_ms(self, left: Seats, grid: Grid, joins: bool) -> int:
        """Nothing is copied where each stage has enough nodes, which only change pipelines."""
        is_enough = (
            grid.stages == left.grid.stages
            and grid.pipelines + max(left.empty) <= left.grid.pipelines
        )
        return migration_ms(self._job, self._costs, grid, copies=not is_enough, joins=joins)

    def _seated(self, grid: Grid | None, fleet: Fleet, since_ms: int) -> Seats | None:
        nodes = ordered(fleet, self._job.common.seats_seed)
        return grid and dealt(grid, nodes, since_ms)
