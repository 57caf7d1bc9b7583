"""Checkpoint and restart of a gang with a fixed depth, as torchrun does it: any change of the nodes
that train starts all processes again (rivals.md 4.4)."""

from __future__ import annotations

from bamboo_sim.market.policies.base.formula import Grid
from bamboo_sim.market.policies.base.job import Job, rate
from bamboo_sim.market.policies.base.seats import Seats, age_ms, dealt, lost_of, ordered
from bamboo_sim.market.simulation.events import READY, REMOVE, RESUME, News
from bamboo_sim.market.simulation.policy import Change, Fleet, Pace, extended


class CheckpointRestart:
    """The policy, with the interval of Young and Daly, which is told the mean gap of losses."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def start(self) -> Seats:
        """Nothing runs."""
        return Seats()

    def rate(self, state: Seats) -> Pace | None:
        """A whole grid, of whose time checkpoints block a share."""
        if not state.holders:
            return None
        pace = self._job.pace(state.grid)
        blocked = self._job.common.block_ms / self._job.saving_ms
        return pace and pace._replace(step_ms=pace.step_ms / (1 - blocked))

    def on_change(self, state: Seats, fleet: Fleet, news: News) -> Change | None:
        """A node that does not train goes for free. Nodes that come are taken in if another
        pipeline fits, after a checkpoint, or for free by a restart that is under way."""
        if news.kind is REMOVE and lost_of(state.serving, news):
            return self._lose(state, fleet, news.at_ms)
        if news.kind is RESUME:
            return Change(self._seated(fleet, news.at_ms))
        if news.kind is READY and fleet.resume_ms is None:
            pipelines = len(fleet.ready) // self._job.common.stages
            if pipelines > state.grid.pipelines:
                common = self._job.common
                pause = common.persist_ms if state.holders else self._job.copy_ms(common.stages)
                if not fleet.samples:
                    return Change(self._seated(fleet, news.at_ms))  # the start is free for all
                return self._restart(state, fleet, news.at_ms, pause, "join")
        return None

    def _seated(self, fleet: Fleet, now_ms: int) -> Seats:
        common = self._job.common
        grid = Grid(len(fleet.ready) // common.stages, common.stages)
        return dealt(grid, ordered(fleet, common.seats_seed), now_ms) if grid.seats else Seats()

    def _lose(self, state: Seats, fleet: Fleet, now_ms: int) -> Change:
        common, job = self._job.common, self._job
        age = age_ms(now_ms, state.since_ms, job.saving_ms, common.persist_ms)
        pause = common.detect_ms + job.copy_ms(common.stages)
        if job.is_told(common.block_ms + common.persist_ms):
            age, pause = 0, job.copy_ms(common.stages)
        change = self._restart(state, fleet, now_ms, pause, "loss")
        return change._replace(lost_samples=rate(self.rate(state)) * age)

    def _restart(self, state: Seats, fleet: Fleet, now_ms: int, ms: int, cause: str) -> Change:
        end = extended(fleet, now_ms, self._job.common.restart_ms + ms)
        seats = self._seated(fleet, end)
        return Change(seats, end if seats.holders else None, cause)
