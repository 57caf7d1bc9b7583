"""Mode Auto: which redundancy the next plan has, and how often agents have been lost until now.

The mode is a durable fact of the plan in force, and so is what was seen of losses and durations, so
that a new leader goes on with both. Other modes leave everything here as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from bamboo_core.api.events import EventReason, Severity
from bamboo_core.api.spec import RedundancyMode
from bamboo_core.arbiter.changes import leavers
from bamboo_core.arbiter_state.events import Planned
from bamboo_core.arbiter_state.state import Interrupted, Over, Planning, Seats, State
from bamboo_core.model.ids import AgentId
from bamboo_core.planning.requests import Decision
from bamboo_core.protection import facts
from bamboo_core.protection.measured import interrupted_s, usual

_COUNT_S = 60.0  # between two counts of the agents that may be lost
_WORTH = 1.25  # growth of the agent-hours since the last write that is worth another one
_LEAST_HOURS = 0.5


def is_auto(state: State) -> bool:
    """Whether the spec leaves the mode to the arbiter."""
    return state.job.spec.redundancy.mode is RedundancyMode.AUTO


def lost(state: State, agent: AgentId, *, by_code: bool) -> None:
    """A member is lost. Call it while the agent is still known, and before training stops. by_code:
    the user's code is the cause, and would be on any node."""
    if not is_auto(state):
        return
    count(state)
    if not by_code:
        record = state.membership.agents.get(agent)
        zone = record.hello.zone if record is not None else ""
        state.protection.hazard = state.protection.hazard.lost(zone)
    _lose_seat(state, agent)


def count(state: State) -> None:
    """Add the time since the last count: agents that were members then could be lost in it, and
    seats that were empty then were so until now."""
    if not is_auto(state):
        return
    known, membership = state.protection, state.membership
    if known.counted_at is not None:
        passed_s = state.real_s - known.counted_at
        known.hazard = known.hazard.exposed(known.zones, passed_s)
        known.empty = known.empty.passed(*known.seats, passed_s)
    known.counted_at = state.real_s
    known.zones = membership.zones(membership.members & membership.agents.keys())
    seats = _seats(state)
    if seats.wanted == known.seats.wanted:
        known.empty = known.empty.taken(max(0, known.seats.empty - seats.empty))
    known.seats = seats


def look(state: State) -> None:
    """Time has passed. What was seen is written when it has grown, and with every plan."""
    known = state.protection
    if not is_auto(state) or known.counted_at is None:
        return
    if state.real_s < known.counted_at + _COUNT_S and _seats(state) == known.seats:
        return
    count(state)
    is_more = known.hazard.agent_hours > _worth(state.durable.hazard.agent_hours)
    if is_more or known.empty.seat_s / 3600 > _worth(state.durable.empty.seat_s / 3600):
        state.out.save(hazard=known.hazard.rounded(), empty=known.empty.rounded())


def _worth(hours: float) -> float:
    return max(_LEAST_HOURS, _WORTH * hours)


def _seats(state: State) -> Seats:
    """Those of the grid that the job asks for. An attempt that waits for its first plan has as many
    as it has agents; before that nothing is known of them, nor while nobody replaces agents."""
    known, desired, membership = state.protection, state.desired, state.membership
    in_force, is_over = state.in_force, isinstance(state.phase, Over)
    if desired is None or desired.suspended or is_over:
        return Seats()
    wanted = desired.pipelines * state.job.spec.pipelines.stages
    if in_force is not None:
        taken = len(membership.members & in_force.plan.seats.keys())
    elif known.seats.wanted:
        taken = len(membership.agents)
    else:
        return Seats()
    return Seats(wanted, max(0, wanted - taken))


def open_mode(state: State) -> facts.OpenMode | None:
    """Facts for the choice of the next plan's mode; None: the spec names it."""
    if not is_auto(state):
        return None
    count(state)
    assert state.desired is not None
    membership = state.membership
    staying = membership.members - leavers(state)
    zones = membership.zones(staying & membership.agents.keys())
    return facts.OpenMode(_seen(state, zones), state.desired.pipelines)


def answered(state: State, answer: Planned) -> None:
    """The planner has answered. Call it before the answer is taken."""
    is_newest = answer.id == state.requests and isinstance(state.phase, Planning)
    if is_newest and answer.verdict is not None:
        state.protection.verdict = answer.verdict


def _seen(state: State, zones: Mapping[str, int]) -> facts.Seen:
    """zones: where the next plan's members are, and how many."""
    known, membership = state.protection, state.membership
    hazard, measured = known.hazard, known.measured
    return facts.Seen(
        hazard.per_agent_hour(zones),
        is_hazard_measured=hazard.is_measured,
        are_costs_measured=bool(membership.reference().costs),
        memory_bytes=membership.smallest_memory(),
        step_s=measured.step_s,
        step_pipelines=measured.pipelines,
        stop_s=usual(measured.stops),
        restart_s=usual(measured.restarts),
        empty=known.empty,
        goodput=state.wire.settled,
        current=state.durable.mode,
    )


def put_in_force(state: State) -> str:
    """The plan is made: its mode is a fact from now on. Returns what has changed, in words."""
    verdict, before = state.protection.verdict, state.durable.mode
    if not is_auto(state) or verdict is None:
        return ""
    count(state)
    known = state.protection
    state.out.save(
        mode=verdict.mode,
        hazard=known.hazard.rounded(),
        empty=known.empty.rounded(),
        measured=known.measured,
    )
    return f"redundancy {verdict.mode.value}" if verdict.mode is not before else ""


# ---------------------------------------------------------------- durations
# What is measured replaces assumptions of the cost model, in the units of its facts. What has begun
# under another leader is not measured, nor what waits for agents or for users.


def stepped(state: State, step_s: float) -> None:
    """An agent of the plan in force says how long a step took that nothing has interrupted. With
    an empty seat, or while learners get their copies, others take longer than usual."""
    assert state.in_force is not None
    plan, known = state.in_force.plan, state.protection
    if is_auto(state) and 0 < step_s < inf and not plan.holes and not plan.learners:
        known.measured = known.measured.stepped(len(plan.pipelines), step_s)


def _lose_seat(state: State, agent: AgentId) -> None:
    in_force, known = state.in_force, state.protection
    if in_force is None or agent not in in_force.plan.seats:
        return
    if known.seats.wanted:  # from now on
        known.seats = known.seats._replace(empty=min(known.seats.wanted, known.seats.empty + 1))
    if state.stopped_at is None:
        known.interrupted = _interrupted(state)


def begun(state: State) -> None:
    """There are enough agents for a new attempt. Only one from a checkpoint tells something."""
    if is_auto(state) and state.durable.manifest is not None:
        state.protection.started_at = state.real_s


def committed(state: State, step: int) -> None:
    """A step is committed. Training goes on, unless it is stopped meanwhile."""
    if not is_auto(state):
        return
    known, now = state.protection, state.real_s
    known.committed = (step, now)
    if state.stopped_at is not None or state.in_force is None:
        return
    measured, interrupted = known.measured, known.interrupted
    if interrupted is not None and interrupted.step == step:
        measured = measured.stopped(now - interrupted.begun_at - interrupted.expected_s)
    if known.started_at is not None and measured.step_s:
        measured = measured.restarted(now - known.started_at - measured.step_s)
    known.interrupted = known.started_at = None
    if measured != known.measured:
        known.measured = measured
        state.out.save(measured=measured)


def _interrupted(state: State) -> Interrupted | None:
    """The step in which an agent of the full grid is lost; None: too little is known of it."""
    assert state.in_force is not None
    plan, known, mode = state.in_force.plan, state.protection, state.durable.mode
    step, begun_at = known.committed
    if plan.holes or known.verdict is None or mode is None:
        return None
    grids = {len(plan.pipelines), known.measured.pipelines, known.verdict.facts.pipelines}
    step_s = known.measured.step_s if len(grids) == 1 else 0.0
    expected_s = interrupted_s(known.verdict, mode, step_s)
    return Interrupted(step + 1, begun_at, expected_s) if expected_s is not None else None


def refusal(state: State, decision: Decision) -> str:
    """Why the job must not start under this plan; empty: it may.

    Memory is refused before the start only. A job that has trained goes on, and its status says
    what is short. Auto takes None if no mode fits, and nothing needs less than None: such a job may
    run, since the memory that it needs is an estimate.
    """
    is_least = is_auto(state) or not state.job.spec.redundancy.mode.keeps_copies
    return "" if is_least or state.durable.pipelines else decision.shortage


def warn(state: State, before: str, shortage: str) -> None:
    """Say what is short under the new plan, unless it was so under the plan before."""
    if shortage and shortage != before:
        state.record(EventReason.MEMORY_SHORT, shortage, Severity.WARNING)
