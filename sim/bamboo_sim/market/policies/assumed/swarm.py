"""SWARM: a stage is any number of peers, requests go to whichever is free, and peers move to the
stage with the fewest."""

from __future__ import annotations

from bamboo_sim.market.policies.base.formula import Grid
from bamboo_sim.market.policies.base.job import Job
from bamboo_sim.market.policies.base.restores import begun, restore_ms, restored
from bamboo_sim.market.policies.base.seats import Seats, dealt, lost_of, ordered
from bamboo_sim.market.policies.rivals.recycle import normalised
from bamboo_sim.market.simulation.events import READY, REMOVE, RESUME, News
from bamboo_sim.market.simulation.policy import Change, Fleet, Pace, extended


class Swarm:
    """The policy. The stage with the fewest peers sets the pace; others have peers to spare."""

    def __init__(self, job: Job, retry_ms: int) -> None:
        self._job, self._retry_ms = job, retry_ms

    def start(self) -> Seats:
        """Nothing runs."""
        return Seats()

    def rate(self, state: Seats) -> Pace | None:
        """As many pipelines as the smallest stage has peers."""
        if not state.holders:
            return None
        pipelines = state.grid.pipelines - max(state.empty)
        return self._job.pace(Grid(pipelines, state.grid.stages))

    def on_change(self, state: Seats, fleet: Fleet, news: News) -> Change | None:
        """Nodes that come serve the smallest stage, while the others go on."""
        if news.kind is REMOVE and (lost := lost_of(state.serving, news)):
            return self._lose(state, lost, fleet, news.at_ms)
        if fleet.resume_ms is not None or news.kind not in (READY, RESUME):
            return None
        stages = self._job.common.stages
        pipelines = len(fleet.ready) // stages
        if not state.holders:
            after = self._seated(fleet, pipelines)
            return begun(self._job, after, stages, fleet, news.at_ms) if after.holders else None
        grown = max(state.grid.pipelines, -(-len(fleet.ready) // stages))
        more = (None,) * (grown * stages - len(state.holders))
        wide = Seats(Grid(grown, stages), state.holders + more, state.since_ms)
        nodes = ordered(fleet, self._job.common.seats_seed)
        after = normalised(wide.filled(n for n in nodes if n not in state.serving))
        return None if after == state else Change(after)

    def _seated(self, fleet: Fleet, pipelines: int) -> Seats:
        nodes = ordered(fleet, self._job.common.seats_seed)
        return dealt(Grid(pipelines, self._job.common.stages), nodes, 0) if pipelines else Seats()

    def _lose(self, state: Seats, lost: frozenset[int], fleet: Fleet, now_ms: int) -> Change:
        common, left = self._job.common, state.without(lost)
        told = self._job.is_told(self._retry_ms + self._job.copy_ms(common.stages))
        moved = normalised(left)
        is_gone = max((moved if told else left).empty) == left.grid.pipelines
        if is_gone:
            pause_ms = common.detect_ms + restore_ms(self._job, common.stages)
            after = self._seated(fleet, len(fleet.ready) // common.stages)
            pace = self.rate(state)
            return restored(self._job, pace, state.since_ms, after, fleet, now_ms, pause_ms)
        pause_ms = self._retry_ms + (0 if told else common.detect_ms)
        return Change(moved, extended(fleet, now_ms, pause_ms), "notice" if told else "loss")
