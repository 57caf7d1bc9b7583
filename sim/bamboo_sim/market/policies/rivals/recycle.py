"""ReCycle: the micro-batches of a lost stage go to the same stage of other pipelines, into their
bubbles, and losses are spread over stages (rivals.md 4.9)."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from bamboo_sim.market.policies.base.formula import Grid
from bamboo_sim.market.policies.base.job import Job, rate
from bamboo_sim.market.policies.base.restores import begun, restore_ms, restored
from bamboo_sim.market.policies.base.seats import Seats, dealt, lost_of, ordered
from bamboo_sim.market.simulation.events import READY, REMOVE, RESUME, News
from bamboo_sim.market.simulation.policy import Change, Fleet, Pace, extended


class Rules(NamedTuple):
    """The parameters; parameters.json says what each is."""

    reroute_ms: int
    redone: float
    gain: float
    fewest_pipelines: int


class ReCycle:
    """The policy. ``regrids``: it may change its depth; else that is the common one."""

    def __init__(self, job: Job, rules: Rules, *, regrids: bool) -> None:
        self._job, self._rules = job, rules
        self._depths = job.depths if regrids else range(job.common.stages, job.common.stages + 1)
        self._known: dict[int, Seats | None] = {}

    def start(self) -> Seats:
        """Nothing runs."""
        return Seats()

    def rate(self, state: Seats) -> Pace | None:
        """The stage with the most losses; bubbles are free, as far as there are any."""
        if not state.holders:
            return None
        pipelines, most = state.grid.pipelines, max(state.empty)
        work = ceil(self._job.formula.share(pipelines) * pipelines / (pipelines - most))
        return self._job.pace(state.grid, self._job.formula.routed_ms(state.grid, work))

    def on_change(self, state: Seats, fleet: Fleet, news: News) -> Change | None:
        """Nodes that come fill empty seats; another grid must be worth it."""
        if news.kind is REMOVE and (lost := lost_of(state.serving, news)):
            return self._lose(state, lost, fleet, news.at_ms)
        if news.kind is RESUME or (news.kind is READY and fleet.resume_ms is None):
            return self._join(state, fleet, news.at_ms)
        return None

    def _join(self, state: Seats, fleet: Fleet, now_ms: int) -> Change | None:
        if not state.holders:
            seats = self._planned(fleet, now_ms)
            return seats and begun(self._job, seats, seats.grid.stages, fleet, now_ms)
        free = [node for node in self._ordered(fleet) if node not in state.serving]
        seats = normalised(state.filled(free))
        pause_ms = self._rules.reroute_ms
        if (better := self._better(seats, fleet)) is not None:
            seats, pause_ms = better, pause_ms + self._job.copy_ms(better.grid.stages)
        return None if seats == state else Change(seats, now_ms + pause_ms, "join")

    def _lose(self, state: Seats, lost: frozenset[int], fleet: Fleet, now_ms: int) -> Change:
        left, pause_ms = state.without(lost), self._rules.reroute_ms
        is_told = self._job.is_told(pause_ms + self._job.copy_ms(left.grid.stages))
        if max(left.empty) == left.grid.pipelines and not is_told:
            return self._restore(state, fleet, now_ms)
        seats = normalised(left)  # a stage that nobody has is copied within the notice
        if max(seats.empty) == seats.grid.pipelines:
            return self._restore(state, fleet, now_ms)
        if (better := self._better(seats, fleet)) is not None:
            seats = better
        if seats != left:
            pause_ms += self._job.copy_ms(seats.grid.stages)
        if is_told:
            return Change(seats, extended(fleet, now_ms, pause_ms), "notice")
        end = extended(fleet, now_ms, self._job.common.detect_ms + pause_ms)
        done = 0.0 if fleet.resume_ms else fleet.step_part * self._job.times.samples
        return Change(seats, end, "loss", self._rules.redone * done)

    def _restore(self, state: Seats, fleet: Fleet, now_ms: int) -> Change:
        after = self._planned(fleet, 0) or Seats()
        pause_ms = self._job.common.detect_ms + restore_ms(self._job, after.grid.stages)
        pace = self.rate(state)
        return restored(self._job, pace, state.since_ms, after, fleet, now_ms, pause_ms)

    def _ordered(self, fleet: Fleet) -> list[int]:
        return ordered(fleet, self._job.common.seats_seed)

    def _better(self, seats: Seats, fleet: Fleet) -> Seats | None:
        planned = self._planned(fleet, seats.since_ms)
        gain = 1 + self._rules.gain
        is_better = planned and rate(self.rate(planned)) > rate(self.rate(seats)) * gain
        return planned if is_better else None

    def _planned(self, fleet: Fleet, since_ms: int) -> Seats | None:
        """The fastest grid for the ready nodes, whole or with empty seats."""
        nodes, fewest = self._ordered(fleet), self._rules.fewest_pipelines
        if len(nodes) < fewest * min(self._depths):
            fewest = 1
        found = [
            dealt(Grid(pipelines, stages), nodes, since_ms)
            for stages in self._depths
            for pipelines in range(fewest, ceil(len(nodes) / stages) + 1)
        ]
        usable = [seats for seats in found if max(seats.empty) < seats.grid.pipelines]
        return max(usable, key=lambda seats: rate(self.rate(seats)), default=None)


def normalised(seats: Seats) -> Seats:
    """The seats after nodes have moved until no stage has two more empty ones than another."""
    holders, (pipelines, stages) = list(seats.holders), seats.grid
    while max(empty := seats.empty) - min(empty) > 1:
        fullest, emptiest = empty.index(min(empty)), empty.index(max(empty))
        of = {
            stage: [d * stages + stage for d in range(pipelines)] for stage in (fullest, emptiest)
        }
        source = next(seat for seat in reversed(of[fullest]) if holders[seat] is not None)
        target = next(seat for seat in of[emptiest] if holders[seat] is None)
        holders[target], holders[source] = holders[source], None
        seats = seats._replace(holders=tuple(holders))
    return seats
