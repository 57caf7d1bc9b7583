"""When a running plan must change though nobody was lost: leavers, newcomers, another goal."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf

from bamboo_core.arbiter.events import DesiredState
from bamboo_core.arbiter.progress import Ledger
from bamboo_core.model.ids import AgentId
from bamboo_core.placement.capacity import pipelines_for
from bamboo_core.placement.plan import Plan

_MARGIN_S = 2.0


def transition_s(step_s: float) -> float:
    """Lead time that an orderly hand-over needs: the rest of this step, the next, some slack."""
    return 2.5 * step_s + _MARGIN_S


def late_s(step_s: float) -> float:
    """Who has no more time than this hands over now."""
    return 2 * transition_s(step_s)


def due(
    *,
    plan: Plan,
    goal: DesiredState,
    members: Collection[AgentId],
    departures: Mapping[AgentId, float],
    standby: Collection[AgentId],
    fresh: Collection[AgentId],
    is_settled: bool,
    is_suspending: bool,
    caught_up: Collection[AgentId],
    is_overdue: bool,
    ledger: Ledger,
    now: float,
) -> str:
    """Why to stop and plan anew now; empty if there is no reason.

    departures: when agents will be gone by their own notice; standby: ready agents without a part;
    fresh: those of them that the last plan had no chance to seat; is_settled: none of them came
    just now; is_suspending: the plan suspends the job already; caught_up: those who learn and keep
    up; is_overdue: the others have had their time. Nobody else joins while some have still to
    learn, nor when all steps of the plan are committed.
    """
    if is_suspending:
        return "" if goal.suspended else "the job is to go on"
    going = [a for a in (*plan.live, *plan.learners) if a in departures or a in goal.drained]
    are_replaced = len(fresh) >= len(going)  # no seat is given up for nothing
    last = inf if are_replaced else now + late_s(ledger.step_s)
    late = [a for a in going if a in departures and departures[a] <= last]
    if late:
        return f"{', '.join(late)} will go away"
    running = ledger.committed.step + 1 if ledger.committed is not None else 0
    if goal.suspended and max(plan.target, running) + 1 < plan.last:
        return "the job is to be suspended"
    if len(plan.pipelines) > goal.pipelines:
        return f"{goal.pipelines} pipelines are wanted"
    if running >= plan.last:
        return ""
    learning = [a for a in plan.learners if a in members]
    if learning:
        behind = [a for a in learning if a not in caught_up]
        if not behind:
            return f"copies are complete on {', '.join(learning)}"
        return f"copies take too long on {', '.join(behind)}" if is_overdue else ""
    if not is_settled or not fresh:
        return ""
    if going and are_replaced:
        return f"{', '.join(going)} are replaced"
    seated = sum(a in members for p in plan.pipelines for a in p if a is not None)
    stages = len(plan.cut)
    both = seated + len(standby)
    wanted = pipelines_for(both, stages=stages, wanted=goal.pipelines)
    return f"{len(standby)} agents can join" if seated < wanted * stages else ""
