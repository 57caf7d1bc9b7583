"""What a job has gone through since it began: counters that only grow, and how its time was spent.

They are kept in the job's status, so another operator goes on from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from bamboo_core.api.events import EventReason, StallCause
from bamboo_core.api.progress import Ahead, Hosted, Way
from bamboo_core.api.reasons import Reason


class PauseCause(StrEnum):
    """Why training is stopped. Of several causes in the first two minutes, the last one of this
    list."""

    CHANGE = "Change"
    """Agents can join, or the job is to be smaller, faster or suspended."""
    NEW_LEADER = "NewLeader"
    """Another operator leads the job."""
    NOTICE = "Notice"
    """Agents leave that have said so before."""
    LOSS = "Loss"
    """Agents were lost without notice."""
    FAILURE = "Failure"
    """Agents failed by themselves."""
    STALL = "Stall"
    """Training stood still although all agents lived."""
    USER_CODE = "UserCode"
    """The user's code failed on an agent, or a sample does not come. Either that agent tries again,
    or another one computes the same; the second time the job ends."""
    CORRUPTION = "Corruption"
    """Two agents got different bits from the same forward."""
    RESTORE = "Restore"
    """A new attempt begins from a checkpoint or from the start."""


_TOLD = {
    EventReason.CORRUPTION: PauseCause.CORRUPTION,
    EventReason.STALLED: PauseCause.STALL,
    EventReason.WORKER_FAILED: PauseCause.FAILURE,
    EventReason.RESTORING: PauseCause.RESTORE,
}
_OF_USERS = (
    (EventReason.STALLED, StallCause.DATA),
    (EventReason.WORKER_FAILED, Reason.USER_CODE_FAILED),
)


def cause_told_by(reason: str, why: str) -> PauseCause | None:
    """The cause that an event gives to the pause in which it is recorded. why: the cause that the
    event itself names."""
    if (reason, why) in _OF_USERS:
        return PauseCause.USER_CODE
    return next((cause for told, cause in _TOLD.items() if told == reason), None)


def gravest(causes: Iterable[PauseCause]) -> PauseCause:
    """The one of several causes that counts."""
    return max(causes, key=list(PauseCause).index)


class PausePhase(StrEnum):
    """The parts of a pause, from the stop to the next committed step."""

    STOP = "Stop"
    """Agents stop and report what they hold."""
    PLAN = "Plan"
    """The planner makes a plan."""
    WAIT = "Wait"
    """Agents keep their state and wait for others."""
    RESUME = "Resume"
    """Agents compute what is missing of the step."""


class TimeState(StrEnum):
    """How a job spends its time. The newest reconcile decides in which state it is."""

    WAITING = "Waiting"
    """Not started yet: agents have no running pod."""
    WAITING_IN_LINE = "WaitingInLine"
    """The job may have no agents, since jobs ahead of it need the room."""
    STARTING = "Starting"
    """Agents load their data and model, for the first time or after a suspension."""
    TRAINING = "Training"
    """A plan is in force."""
    RECOVERING = "Recovering"
    """Training is stopped for a new plan."""
    WAITING_FOR_CAPACITY = "WaitingForCapacity"
    """Training is stopped because too few agents are left."""
    SUSPENDED = "Suspended"
    """The job is suspended."""
    ENDED = "Ended"
    """The job has ended. This time is not counted."""


_INACTIVE = (None, TimeState.WAITING_IN_LINE, TimeState.SUSPENDED, TimeState.ENDED)
"""No time counts toward a deadline then, since the job may have no agents."""

Counts = Mapping[str, int]
Seconds = Mapping[str, float]


@dataclass(frozen=True)
class Pauses:
    """All pauses of one cause."""

    count: int = 0
    seconds: Seconds = field(default_factory=dict)  # by phase


@dataclass(frozen=True)
class Totals:
    """Counters and peaks. None of them ever becomes smaller."""

    steps: int = 0  # committed, repeated ones included
    repeated_steps: int = 0  # committed steps that a restore has undone
    redone_tasks: int = 0  # least number of forwards and backwards, within steps
    busy_s: float = 0.0  # computing time of all agents
    sent_bytes: int = 0  # between agents
    corruptions: int = 0  # disputes about a forward
    stalls: Counts = field(default_factory=dict)  # by cause
    attempts: Counts = field(default_factory=dict)  # after the first one, by RestoreCause
    pauses: Mapping[str, Pauses] = field(default_factory=dict)  # by cause
    sent: Mapping[Way, int] = field(default_factory=dict)  # bytes between agents
    group_bytes: int = 0  # of these, what process groups have carried
    ahead: Ahead = Ahead()  # noqa: RUF009 - frozen
    hosted: Hosted = Hosted()  # noqa: RUF009 - frozen

    @property
    def group_share(self) -> float:
        """Share of ``sent`` that process groups have carried."""
        return min(1.0, self.group_bytes / (sum(self.sent.values()) or 1))


@dataclass(frozen=True)
class Times:
    """Seconds of a job by state. The present state has lasted since ``since``."""

    state: TimeState | None = None  # None: not known yet
    since: float = 0.0  # seconds since 1970
    seconds: Seconds = field(default_factory=dict)  # of the states before, by state
    resumed_s: float = 0.0  # active time when the job was last resumed, or went on after its end

    def entered(self, state: TimeState, now: float) -> Times:
        """The job is in this state now."""
        if state is self.state:
            return self
        is_resumed = self.state in (TimeState.SUSPENDED, TimeState.ENDED)
        resumed_s = self.active_s(now) if is_resumed else self.resumed_s
        return Times(state, now, self.until(now), resumed_s)

    def active_s(self, now: float) -> float:
        """Seconds in which the job was allowed to have agents, all together."""
        return sum(s for state, s in self.until(now).items() if state not in _INACTIVE)

    def active_at(self, seconds: float) -> float | None:
        """When the active time reaches so many seconds; None: it stands still now."""
        if self.state in _INACTIVE:
            return None
        return self.since + seconds - self.active_s(self.since)

    def until(self, now: float) -> dict[str, float]:
        """Seconds by state, those of the present one included. Clocks may go back a little."""
        found = dict(self.seconds)
        if self.state is not None and self.state is not TimeState.ENDED:
            found[self.state] = found.get(self.state, 0.0) + max(0.0, now - self.since)
        return found


def with_pause(
    totals: Totals, cause: str, *, count: int = 0, phase: str = "", seconds: float = 0.0
) -> Totals:
    """More pauses of a cause, or more time in a phase of one."""
    before = totals.pauses.get(cause, Pauses())
    spent = {**before.seconds}
    if seconds:
        spent[phase] = spent.get(phase, 0.0) + seconds
    return replace(totals, pauses={**totals.pauses, cause: Pauses(before.count + count, spent)})
