"""Varuna: checkpoints that any grid can read, and a restart with the best grid after each loss; it
looks for new nodes each five minutes (rivals.md 4.5)."""

from __future__ import annotations

from typing import NamedTuple

from bamboo_sim.market.policies.base.formula import Grid
from bamboo_sim.market.policies.base.job import Job, rate
from bamboo_sim.market.policies.base.seats import Seats, age_ms, dealt, lost_of, ordered
from bamboo_sim.market.simulation.events import LOOK, READY, REMOVE, RESUME, News
from bamboo_sim.market.simulation.policy import Change, Fleet, Pace, extended


class Rules(NamedTuple):
    """The parameters; parameters.json says what each is."""

    wait_ms: int
    told_wait_ms: int
    probe_ms: int
    gain: float
    block_ms: int | None
    saving_steps: int | None


class Varuna:
    """The policy."""

    def __init__(self, job: Job, rules: Rules) -> None:
        self._job, self._rules = job, rules
        self._block_ms = rules.block_ms or job.common.block_ms

    def start(self) -> Seats:
        """Nothing runs."""
        return Seats()

    def rate(self, state: Seats) -> Pace | None:
        """The grid, and after each interval a checkpoint."""
        pace = self._job.pace(state.grid) if state.holders else None
        if pace is None:
            return None
        return pace._replace(step_ms=pace.step_ms * (1 + self._block_ms / self._saving_ms(state)))

    def _saving_ms(self, state: Seats) -> int:
        if self._rules.saving_steps is None:
            return self._job.saving_ms
        return round(self._rules.saving_steps * (self._job.whole_ms(state.grid) or 0))

    def on_change(self, state: Seats, fleet: Fleet, news: News) -> Change | None:
        """A morph of the grid is a restart. One that is under way takes in whoever is there."""
        if news.kind is REMOVE and lost_of(state.serving, news):
            return self._lose(state, fleet, news.at_ms)
        if news.kind is RESUME:
            return self._probing(self._seated(fleet, news.at_ms), news.at_ms)
        if news.kind is READY and not state.holders and fleet.resume_ms is None:
            if self._job.best(len(fleet.ready)) is None:
                return None
            if not fleet.samples:
                return self._probing(self._seated(fleet, news.at_ms), news.at_ms)
            return self._restart(fleet, news.at_ms, 0, "restart")
        if news.kind is LOOK and fleet.resume_ms is None:
            if self._is_worth_it(state.grid, self._job.best(len(fleet.ready))):
                return self._restart(fleet, news.at_ms, self._block_ms, "morph")
            return self._probing(state, news.at_ms)
        return None

    def _probing(self, state: Seats, now_ms: int) -> Change:
        """New nodes are looked for when the next probe is due."""
        return Change(state, look_ms=now_ms + self._rules.probe_ms)

    def _is_worth_it(self, before: Grid, after: Grid | None) -> bool:
        if after is None:
            return False
        old, new = self._job.whole_ms(before), self._job.whole_ms(after)
        return old is None or (new is not None and new * (1 + self._rules.gain) < old)

    def _seated(self, fleet: Fleet, since_ms: int) -> Seats:
        grid = self._job.best(len(fleet.ready))
        nodes = ordered(fleet, self._job.common.seats_seed)
        return Seats() if grid is None else dealt(grid, nodes, since_ms)

    def _lose(self, state: Seats, fleet: Fleet, now_ms: int) -> Change:
        common = self._job.common
        saving_ms = self._saving_ms(state)
        lost_ms = age_ms(now_ms, state.since_ms, saving_ms, common.persist_ms)
        pause_ms = common.detect_ms + self._rules.wait_ms
        if self._job.is_told(self._block_ms + common.persist_ms):
            lost_ms, pause_ms = 0, self._rules.told_wait_ms
        change = self._restart(fleet, now_ms, pause_ms, "loss")
        return change._replace(lost_samples=rate(self.rate(state)) * lost_ms)

    def _restart(self, fleet: Fleet, now_ms: int, ms: int, cause: str) -> Change:
        common = self._job.common
        load_ms = self._job.copy_ms(common.stages)
        end = extended(fleet, now_ms, ms + common.restart_ms + load_ms)
        seats = self._seated(fleet, end)
        return Change(seats, end if seats.holders else None, cause)
