"""Live migration in the grace period: what a node holds moves to a node that stands by before the
loss; without one, or without a notice, a gang restarts from a checkpoint."""

from __future__ import annotations

from bamboo_sim.market.policies.base.formula import Grid
from bamboo_sim.market.policies.base.job import Job
from bamboo_sim.market.policies.base.seats import Seats, ordered
from bamboo_sim.market.policies.rivals.checkpoint_restart import CheckpointRestart
from bamboo_sim.market.policies.rivals.migrations import Costs, migration_ms
from bamboo_sim.market.simulation.events import REMOVE, News
from bamboo_sim.market.simulation.policy import Change, Fleet, extended


class LiveMigration(CheckpointRestart):
    """The policy, with Parcae's published costs."""

    def __init__(self, job: Job, costs: Costs) -> None:
        super().__init__(job)
        self._costs = costs

    def on_change(self, state: Seats, fleet: Fleet, news: News) -> Change | None:
        """A loss that is told in time costs a migration, and the pipelines that have no node."""
        if news.kind is REMOVE and state.holders:
            left = state.without({node.number for node in news.nodes})
            if left != state and (change := self._migrate(state, left, fleet, news.at_ms)):
                return change
        return super().on_change(state, fleet, news)

    def _migrate(self, before: Seats, left: Seats, fleet: Fleet, now_ms: int) -> Change | None:
        common = self._job.common
        free = [n for n in ordered(fleet, common.seats_seed) if n not in left.serving]
        seats = left.filled(free)
        if seats.holes:  # nodes of the last pipelines take the seats of those that go
            pipelines = len(seats.serving) // common.stages
            first = Seats(
                Grid(pipelines, common.stages), seats.holders[: pipelines * common.stages]
            )
            others = [n for n in seats.holders[first.grid.seats :] if n is not None]
            seats = first.filled(others)._replace(since_ms=before.since_ms)
        if not seats.holders:
            return None
        ms = migration_ms(self._job, self._costs, seats.grid, copies=True, joins=False)
        if not self._job.is_told(ms):
            return None
        return Change(seats, extended(fleet, now_ms, ms), "migration")
