"""Counts what disturbs a job's training: pauses by cause and phase, repeated work, disputes. Pure.

It hears what the arbiter records and what agents report, and goes on from the job's status.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

from bamboo_core.api.events import EventFact, EventReason
from bamboo_core.api.progress import increase
from bamboo_core.api.totals import (
    PauseCause,
    PausePhase,
    Totals,
    cause_told_by,
    gravest,
    with_pause,
)
from bamboo_core.arbiter_state.events import ArbiterPhase, Record
from bamboo_core.job.growth import Growth
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Progress

_PHASES = {
    ArbiterPhase.RETURNING: PausePhase.STOP,
    ArbiterPhase.COLLECTING: PausePhase.STOP,
    ArbiterPhase.PLANNING: PausePhase.PLAN,
    ArbiterPhase.HOLDING: PausePhase.WAIT,
    ArbiterPhase.WAITING: PausePhase.WAIT,
    ArbiterPhase.RUNNING: PausePhase.RESUME,
}
_MOST_AGENTS = 4096
SETTLED_S = 120.0
"""A pause that lasts longer keeps its cause: its time must show while it lasts, and never moves."""


class Counting:
    """The counters of one job. committed: newest step that ``totals`` includes; -1: none."""

    def __init__(self, totals: Totals, committed: int) -> None:
        self.totals = totals
        self.growth = Growth()
        self._committed = self._known = committed
        self._counted: dict[AgentId, tuple[int, int]] = {}  # newest attempt and step
        self._phase = ArbiterPhase.WAITING
        self._at: float | None = None  # time until then is counted
        self._heard = PauseCause.CHANGE  # since the last event without a pause
        self._cause: PauseCause | None = None  # of the present pause
        self._held: dict[str, float] | None = None  # its seconds, by phase; None: they are counted

    def advance(self, now: float) -> None:
        """An event is about to be handled."""
        if self._cause is not None and self._at is not None:
            self._add(max(0.0, now - self._at))
        self._at = now

    @property
    def final_totals(self) -> Totals:
        """The totals if the present pause were over now."""
        totals = self.totals
        if self._cause is not None and self._held is not None:
            totals = with_pause(totals, self._cause, count=1)
            for phase, seconds in self._held.items():
                totals = with_pause(totals, self._cause, phase=phase, seconds=seconds)
        return totals

    def hear(
        self, record: Record, leaving: AbstractSet[AgentId], *, is_failing: bool = False
    ) -> Record:
        """An event, which is told as it is returned: the end of a pause with the pause's cause.
        leaving: agents with notice, or that are drained; is_failing: the job ends by an error of
        the user's code, or its state is written before that is tried again."""
        reason, totals = record.reason, self.totals
        if reason is EventReason.CORRUPTION:
            self.totals = replace(totals, corruptions=totals.corruptions + 1)
        elif reason is EventReason.STALLED:
            cause = str(record.facts.get(EventFact.CAUSE, ""))
            stalls = {**totals.stalls, cause: totals.stalls.get(cause, 0) + 1}
            self.totals = replace(totals, stalls=stalls)
        elif reason is EventReason.RESTORING:
            cause = str(record.facts.get(EventFact.CAUSE, ""))
            attempts = {**totals.attempts, cause: totals.attempts.get(cause, 0) + 1}
            self.totals = replace(totals, attempts=attempts)
        elif reason is EventReason.PLANNED:
            tasks = int(record.facts.get(EventFact.REDONE_TASKS, 0))
            self.totals = replace(totals, redone_tasks=totals.redone_tasks + tasks)
        elif reason is EventReason.RESUMED:
            steps = int(record.facts.get(EventFact.UNDONE_STEPS, 0))
            self.totals = replace(totals, repeated_steps=totals.repeated_steps + steps)
        cause = self._cause_of(record, leaving, is_failing=is_failing)
        self._heard = gravest((self._heard, cause))
        if self._held is not None and self._cause is not None:
            self._cause = gravest((self._cause, self._heard))
        if reason is EventReason.STOPPED:
            self._stopped()
        elif reason is EventReason.RESUMED and self._cause is not None:
            record = replace(record, facts={**record.facts, EventFact.CAUSE: str(self._cause)})
            self._settle()
            self._cause = None
        return record

    def _cause_of(
        self, record: Record, leaving: AbstractSet[AgentId], *, is_failing: bool
    ) -> PauseCause:
        is_stop = record.reason is EventReason.STOPPED
        if is_failing and (is_stop or record.reason is EventReason.WORKER_FAILED):
            return PauseCause.USER_CODE
        if is_stop and self._phase is ArbiterPhase.RETURNING:
            return PauseCause.NEW_LEADER
        if record.reason is EventReason.AGENT_LOST or (is_stop and record.agents):
            is_noticed = all(agent in leaving for agent in record.agents)
            return PauseCause.NOTICE if is_noticed else PauseCause.LOSS
        why = str(record.facts.get(EventFact.CAUSE, ""))
        return cause_told_by(record.reason, why) or PauseCause.CHANGE

    def _stopped(self) -> None:
        """The first start of a job is no pause, and a second stop is part of the first."""
        is_start = self._phase is ArbiterPhase.WAITING and self._heard is PauseCause.CHANGE
        if self._cause is None and not is_start:
            self._cause, self._held = self._heard, {}

    def see(self, phase: ArbiterPhase, committed: int) -> None:
        """An event has been handled. committed: newest step; it falls when a restore begins."""
        if self._cause is None or phase is ArbiterPhase.OVER:
            self._settle()
            self._cause, self._heard = None, PauseCause.CHANGE
        self._phase = phase
        if committed > self._committed:
            steps = self.totals.steps + committed - self._committed
            self.totals = replace(self.totals, steps=steps)
        self._committed = committed

    def _add(self, seconds: float) -> None:
        """Time of the present pause. Its cause may become graver, and what is counted cannot move.
        So its beginning is counted later, with its cause."""
        assert self._cause is not None
        phase = _PHASES.get(self._phase, PausePhase.STOP)
        if self._held is None:
            self.totals = with_pause(self.totals, self._cause, phase=phase, seconds=seconds)
            return
        self._held[phase] = self._held.get(phase, 0.0) + seconds
        if sum(self._held.values()) > SETTLED_S:
            self._settle()

    def _settle(self) -> None:
        """Count the present pause, if it is not counted yet."""
        self.totals, self._held = self.final_totals, None

    def report(self, agent: AgentId, progress: Progress) -> None:
        """Count the work of an agent in a step. It may report it again in its next session."""
        where = progress.fence.attempt, progress.commit.step
        known = self._counted.get(agent)
        if known is not None and where <= known:
            return
        self.totals = self.growth.add(self.totals, agent, progress)
        if known is None and where[1] <= self._known:
            return
        self._counted[agent] = where
        while len(self._counted) > _MOST_AGENTS:
            self._counted.pop(next(iter(self._counted)))
        totals = self.totals
        self.totals = replace(
            totals,
            busy_s=totals.busy_s + increase(0.0, progress.busy_s),
            sent_bytes=totals.sent_bytes + progress.sent_bytes,
        )
