"""The fastest grid of the nodes there, without pauses: on demand, where nodes do not go. On spot
nodes it is the bound of all systems whose pipelines are equal and whole."""

from __future__ import annotations

from bamboo_sim.market.policies.base.job import Job
from bamboo_sim.market.policies.base.seats import Seats, dealt, ordered
from bamboo_sim.market.simulation.events import ADD, LOOK, RESUME, News
from bamboo_sim.market.simulation.policy import Change, Fleet, Pace


class OnDemand:
    """The policy."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def start(self) -> Seats:
        """Nothing runs."""
        return Seats()

    def rate(self, state: Seats) -> Pace | None:
        """Each grid at its best."""
        return self._job.pace(state.grid) if state.holders else None

    def on_change(self, state: Seats, fleet: Fleet, news: News) -> Change | None:
        """Every change of the fleet is answered at once."""
        if news.kind in (ADD, RESUME, LOOK):
            return None
        grid = self._job.best(len(fleet.ready))
        if grid is None:
            return Change(Seats())
        nodes = ordered(fleet, self._job.common.seats_seed)
        return Change(dealt(grid, nodes, news.at_ms))
