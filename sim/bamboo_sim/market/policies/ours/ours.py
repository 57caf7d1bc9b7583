"""Ours: an empty seat's work goes to agents that hold its stage or a copy, and seats are filled
again as nodes come. How, the step times say: one mode and one way to share work each."""

from __future__ import annotations

from math import ceil

from bamboo_sim.market.policies.base.formula import Grid
from bamboo_sim.market.policies.base.job import Job, rate
from bamboo_sim.market.policies.base.seats import Seats, age_ms, dealt, lost_of, ordered
from bamboo_sim.market.simulation.events import READY, REMOVE, RESUME, News
from bamboo_sim.market.simulation.policy import Change, Fleet, Pace, extended
from bamboo_sim.market.simulation.step_times import Hole, Pauses, StepTimes


class Ours:
    """The policy. ``times`` and ``pauses``: of the job in this mode; ``redone``: the share of
    what is done of a step that a loss without notice repeats beyond its pause, 0 where the pause
    has it; ``gain``: how
    much faster another grid must be."""

    def __init__(
        self, job: Job, times: StepTimes, pauses: Pauses, *, redone: float, gain: float
    ) -> None:
        self.pauses = pauses
        self._job, self._times = job, times
        self._redone, self._gain = redone, gain
        self._known: dict[tuple[Grid, frozenset[Hole]], float | None] = {}

    def start(self) -> Seats:
        """Nothing runs."""
        return Seats()

    def step_ms(self, seats: Seats) -> float | None:
        """A step with these seats. None: no copy of some layer is left, or nothing fits."""
        key = seats.grid, seats.holes
        if key not in self._known:
            (pipelines, stages), holes = key
            self._known[key] = (
                self._times.degraded_ms(pipelines, stages, holes)
                if holes
                else self._times.whole_ms(pipelines, stages)
            )
        return self._known[key]

    def rate(self, state: Seats) -> Pace | None:
        """The dry run of the seats as they are."""
        step_ms = self.step_ms(state) if state.holders else None
        return Pace(step_ms, self._times.samples) if step_ms else None

    def on_change(self, state: Seats, fleet: Fleet, news: News) -> Change | None:
        """Nodes that stand by take seats once no pause holds."""
        if news.kind is REMOVE and (lost := lost_of(state.serving, news)):
            return self._lose(state, lost, fleet, news.at_ms)
        if news.kind is RESUME or (news.kind is READY and fleet.resume_ms is None):
            return self._grow(state, fleet, news.at_ms)
        return None

    def _lose(self, state: Seats, lost: frozenset[int], fleet: Fleet, now_ms: int) -> Change:
        seats, pauses = state.without(lost), self.pauses
        is_told = self._job.is_told(pauses.drain_ms + pauses.join_ms)
        if self.step_ms(seats) is None:  # those that were told can hand over the last copy
            planned = self._planned(fleet, state.since_ms, ()) if is_told else None
            if planned is None:
                return self._restore(state, fleet, now_ms)
            end = extended(fleet, now_ms, ceil(pauses.drain_ms + pauses.join_ms))
            return Change(planned, end, "notice")
        pause_ms = pauses.drain_ms if is_told else pauses.loss_ms
        redone = 0.0 if is_told else self._redone * fleet.step_part * self._times.samples
        if (better := self._better(seats, fleet, state.since_ms)) is not None:
            seats, pause_ms = better, pause_ms + pauses.join_ms
        end = extended(fleet, now_ms, ceil(pause_ms))
        # while a pause holds, no step is in flight
        cause = "notice" if is_told else "loss"
        return Change(seats, end, cause, 0.0 if fleet.resume_ms else redone)

    def _restore(self, state: Seats, fleet: Fleet, now_ms: int) -> Change:
        common = self._job.common
        age = age_ms(now_ms, state.since_ms, common.interval_ms, common.persist_ms)
        end = extended(fleet, now_ms, ceil(self.pauses.restore_ms))
        seats = self._planned(fleet, end, ()) or Seats()
        lost = rate(self.rate(state)) * age
        return Change(seats, end if seats.holders else None, "restore", lost, is_fatal=True)

    def _grow(self, state: Seats, fleet: Fleet, now_ms: int) -> Change | None:
        if not state.holders:
            seats = self._planned(fleet, now_ms, ())
            if seats is None or not fleet.samples:
                return seats and Change(seats)  # the start is free for all
            end = now_ms + ceil(self.pauses.restore_ms)
            return Change(seats._replace(since_ms=end), end, "restore")
        free = [node for node in self._ordered(fleet, ()) if node not in state.serving]
        seats = state.filled(free)
        seats = self._better(seats, fleet, state.since_ms) or seats
        if seats == state:
            return None
        return Change(seats, now_ms + ceil(self.pauses.join_ms), "join")

    def _ordered(self, fleet: Fleet, first: tuple[int, ...]) -> list[int]:
        return ordered(fleet, self._job.common.seats_seed, first)

    def _better(self, seats: Seats, fleet: Fleet, since_ms: int) -> Seats | None:
        """Other seats for the same nodes that are faster by the gain."""
        first = tuple(node for node in seats.holders if node is not None)
        planned = self._planned(fleet, since_ms, first)
        before, after = self.step_ms(seats), planned and self.step_ms(planned)
        is_better = before and after and after * (1 + self._gain) < before
        return planned if is_better else None

    def _planned(self, fleet: Fleet, since_ms: int, first: tuple[int, ...]) -> Seats | None:
        """The fastest number of pipelines for the ready nodes, empty seats spread."""
        common, nodes = self._job.common, self._ordered(fleet, first)
        most = min(common.nodes // common.stages, ceil(len(nodes) / common.stages))
        grids = [Grid(pipelines, common.stages) for pipelines in range(1, most + 1)]
        timed = [
            (step_ms, seats)
            for grid in grids
            if (step_ms := self.step_ms(seats := dealt(grid, nodes, since_ms))) is not None
        ]
        return min(timed, key=lambda found: found[0])[1] if timed else None
