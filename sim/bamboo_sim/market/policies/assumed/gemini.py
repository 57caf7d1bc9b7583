"""GEMINI: each step a checkpoint in the memory of two nodes, and a restart of the gang from it."""

from __future__ import annotations

from bamboo_sim.market.policies.base.job import Job
from bamboo_sim.market.policies.base.seats import Seats, lost_of
from bamboo_sim.market.policies.rivals.checkpoint_restart import CheckpointRestart
from bamboo_sim.market.simulation.events import REMOVE, News
from bamboo_sim.market.simulation.policy import Change, Fleet, Pace


class Gemini(CheckpointRestart):
    """The policy. Checkpoints to memory use idle time of the network, so they cost nothing; those
    to a store are made as by a checkpointing gang, and are read if a whole group is gone at once.
    """

    def __init__(self, job: Job, copies: int) -> None:
        super().__init__(job)
        self._copies = copies

    def rate(self, state: Seats) -> Pace | None:
        """A whole grid."""
        return self._job.pace(state.grid) if state.holders else None

    def on_change(self, state: Seats, fleet: Fleet, news: News) -> Change | None:
        """Only the step in flight is lost as long as each group has a node."""
        change = super().on_change(state, fleet, news)
        if change is None or news.kind is not REMOVE:
            return change
        common = self._job.common
        is_told = self._job.is_told(common.block_ms + common.persist_ms)
        if not is_told and self._is_gone(state, lost_of(state.serving, news)):
            return change._replace(is_fatal=True)
        drops = fleet.resume_ms is None and change.cause == "loss" and change.lost_samples > 0
        return change._replace(lost_samples=0.0, drops_step=drops)

    def _is_gone(self, state: Seats, lost: frozenset[int]) -> bool:
        size = self._copies
        groups = [set(state.holders[i : i + size]) for i in range(0, len(state.holders), size)]
        return any(group <= lost for group in groups)
