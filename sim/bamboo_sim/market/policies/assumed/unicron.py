"""Unicron: after each loss the best grid at once, with state from the nearest copies; finished
micro-batches of the broken step are used again."""

from __future__ import annotations

from typing import NamedTuple

from bamboo_sim.market.policies.base.job import Job
from bamboo_sim.market.policies.base.restores import begun, restore_ms, restored
from bamboo_sim.market.policies.base.seats import Seats, dealt, lost_of, ordered
from bamboo_sim.market.simulation.events import READY, REMOVE, RESUME, News
from bamboo_sim.market.simulation.policy import Change, Fleet, Pace, extended


class Rules(NamedTuple):
    """The parameters; parameters.json says what each is."""

    replan_ms: int
    redone: float


class Unicron:
    """The policy."""

    def __init__(self, job: Job, rules: Rules) -> None:
        self._job, self._rules = job, rules

    def start(self) -> Seats:
        """Nothing runs."""
        return Seats()

    def rate(self, state: Seats) -> Pace | None:
        """Each grid is whole."""
        return self._job.pace(state.grid) if state.holders else None

    def on_change(self, state: Seats, fleet: Fleet, news: News) -> Change | None:
        """Nodes that come are taken in if the best grid is another one."""
        if news.kind is REMOVE and (lost := lost_of(state.serving, news)):
            return self._lose(state, lost, fleet, news.at_ms)
        if fleet.resume_ms is not None or news.kind not in (READY, RESUME):
            return None
        after = self._seated(fleet, state.since_ms)
        if not after.holders or after.grid == state.grid:
            return None
        if not state.holders:
            return begun(self._job, after, after.grid.stages, fleet, news.at_ms)
        pause_ms = self._rules.replan_ms + self._job.copy_ms(after.grid.stages)
        return Change(after, news.at_ms + pause_ms, "join")

    def _seated(self, fleet: Fleet, since_ms: int) -> Seats:
        grid = self._job.best(len(fleet.ready))
        nodes = ordered(fleet, self._job.common.seats_seed)
        return dealt(grid, nodes, since_ms) if grid else Seats()

    def _lose(self, state: Seats, lost: frozenset[int], fleet: Fleet, now_ms: int) -> Change:
        common, rules, left = self._job.common, self._rules, state.without(lost)
        after = self._seated(fleet, state.since_ms)
        pause_ms = rules.replan_ms + self._job.copy_ms(after.grid.stages or common.stages)
        is_told = self._job.is_told(pause_ms)
        is_wiped = max(left.empty) == left.grid.pipelines
        if not after.holders or (is_wiped and not is_told):
            pause_ms = common.detect_ms + restore_ms(self._job, after.grid.stages)
            pace = self.rate(state)
            return restored(self._job, pace, state.since_ms, after, fleet, now_ms, pause_ms)
        if is_told:
            return Change(after, extended(fleet, now_ms, pause_ms), "notice")
        done = 0.0 if fleet.resume_ms else fleet.step_part * self._job.times.samples
        end = extended(fleet, now_ms, common.detect_ms + pause_ms)
        return Change(after, end, "loss", rules.redone * done)
