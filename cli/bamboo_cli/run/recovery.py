"""How training recovered from the loss of agents, read from the job's events. Pure.

``Stopped`` names the agents that caused the stop, ``Planned`` describes the plan that follows, and
``Resumed`` marks the first commit under that plan. Agents that are lost while training is already
stopped cause no stop; only ``AgentLost`` or ``AgentLeft`` names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from bamboo_cli.job.events import GONE, JobEvent, read_events
from bamboo_cli.job.state import Manifest
from bamboo_cli.run.faults import Fault, Hit
from bamboo_core.api.events import EventFact, EventReason
from bamboo_core.model.counts import counted


@dataclass(frozen=True)
class PlanSummary:
    """The plan with which training continued."""

    step: int
    pipelines: int
    stages: int
    agents: int
    empty_seats: int = 0
    leaving: int = 0
    learners: int = 0
    copied_layers: int = 0
    loaded_layers: int = 0
    repeated_steps: int = 0


@dataclass(frozen=True)
class Recovery:
    """A stop and what followed. Times are Unix times in seconds."""

    plan: PlanSummary | None  # None: no plan was made
    stopped_at: float  # may be before the loss, if training was already stopped
    resumed_at: float | None  # the first commit after the stop; None: there was none


@dataclass(frozen=True)
class FaultPause:
    """How long training stood still because of a fault. Unix times in seconds."""

    stopped_at: float
    began_at: float
    ended_at: float | None  # None: training did not resume

    @property
    def seconds(self) -> float | None:
        return None if self.ended_at is None else self.ended_at - self.began_at


def recovery(
    pods: Sequence[str], events: Iterable[Manifest], *, lost_at: float = -inf
) -> Recovery | None:
    """How training recovered from the loss of these agents; None if no event names one of them.

    A stop that ended before ``lost_at`` (Unix time in seconds) had another cause; it counts only if
    no later stop names these agents.
    """
    known = sorted(read_events(events), key=lambda event: event.epoch)
    stops = [e for e in _only(known, EventReason.STOPPED) if e.agents & set(pods)]
    later = (stop for stop in stops if not _is_over(stop, known, lost_at))
    stop = next(later, None) or _stop_during_loss(pods, known) or next(iter(stops), None)
    if stop is None:
        return None
    resumed = _first(known, EventReason.RESUMED, stop.epoch)
    plan = _first(known, EventReason.PLANNED, resumed.epoch if resumed else stop.epoch)
    return Recovery(
        plan=_plan_summary(plan) if plan else None,
        stopped_at=stop.at,
        resumed_at=resumed.at if resumed else None,
    )


def pause_of(hit: Hit, events: Sequence[Manifest]) -> FaultPause | None:
    """The pause that a fault caused; None if nothing waited for its agents, or no event names them.

    A fault may hit agents while training is already stopped; then its pause begins with it.
    """
    found = recovery(hit.pods, events, lost_at=hit.at_s)
    if found is None or (found.resumed_at is not None and found.resumed_at <= hit.at_s):
        return None
    stopped_at = max(found.stopped_at, hit.at_s)
    began_at = stopped_at if hit.fault is Fault.NOTICED else hit.at_s
    return FaultPause(stopped_at, began_at, found.resumed_at)


def plan_text(plan: PlanSummary | None) -> str:
    """The grid, and what is unusual about the plan."""
    if plan is None:
        return ""
    made = "loaded" if plan.step else "built"
    unusual = (
        (plan.empty_seats, f"{counted(plan.empty_seats, 'seat')} empty"),
        (plan.leaving, f"{plan.leaving} leaving"),
        (plan.learners, f"{plan.learners} catching up"),
        (plan.copied_layers, f"{counted(plan.copied_layers, 'layer')} copied"),
        (plan.loaded_layers, f"{counted(plan.loaded_layers, 'layer')} {made}"),
        (plan.repeated_steps, f"{counted(plan.repeated_steps, 'step')} repeated"),
    )
    grid = f"{plan.pipelines} x {plan.stages} from step {plan.step}"
    parts = [grid, counted(plan.agents, "agent")]
    return ", ".join(parts + [text for count, text in unusual if count])


def _is_over(stop: JobEvent, known: Sequence[JobEvent], at: float) -> bool:
    resumed = _first(known, EventReason.RESUMED, stop.epoch)
    return resumed is not None and resumed.at <= at


def _stop_during_loss(pods: Sequence[str], known: Sequence[JobEvent]) -> JobEvent | None:
    """The stop that was in force when the first of the pods was reported lost."""
    lost = [event.at for event in _only(known, *GONE) if event.agents & set(pods)]
    stops = _only(known, EventReason.STOPPED)
    before = [stop for stop in stops if lost and stop.at <= min(lost)]
    return max(before, key=lambda stop: stop.epoch, default=None)


def _only(known: Sequence[JobEvent], *reasons: EventReason) -> list[JobEvent]:
    return [event for event in known if event.reason in reasons]


def _first(known: Sequence[JobEvent], reason: EventReason, epoch: int) -> JobEvent | None:
    """A further loss may begin a new epoch before training continues; then its plan counts."""
    return next((e for e in _only(known, reason) if e.epoch >= epoch), None)


def _plan_summary(event: JobEvent) -> PlanSummary:
    return PlanSummary(
        step=event.number(EventFact.STEP),
        pipelines=event.number(EventFact.PIPELINES),
        stages=event.number(EventFact.STAGES),
        agents=len(event.agents),
        empty_seats=event.number(EventFact.EMPTY_SEATS),
        leaving=event.number(EventFact.LEAVING),
        learners=event.number(EventFact.LEARNERS),
        copied_layers=event.number(EventFact.COPIED_LAYERS),
        loaded_layers=event.number(EventFact.LOADED_LAYERS),
        repeated_steps=event.number(EventFact.REPEATED_STEPS),
    )
