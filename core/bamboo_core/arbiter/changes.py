"""When a running plan must change without a loss: leavers, newcomers, another desired state. And
which members the next plan excludes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from math import inf

from bamboo_core.api.events import EventReason, Severity
from bamboo_core.api.spec import RecoveryPolicy
from bamboo_core.arbiter import last_write, saving
from bamboo_core.arbiter_state import network
from bamboo_core.arbiter_state.events import DesiredState
from bamboo_core.arbiter_state.state import InForce, State
from bamboo_core.model.counts import counted
from bamboo_core.model.ids import AgentId
from bamboo_core.placement.capacity import is_enough, pipelines_for
from bamboo_core.placement.plan import Move
from bamboo_core.planning.requests import Relocation

_MARGIN_S = 2.0
_RECOVERED = 0.8  # of the usual speed: an agent is not slow any more
_STRAGGLER_PAUSE_S = 600.0
_PAUSE_S = 60.0  # between two plans that differ only in the speeds of agents or in the network
_MOST_MOVES = 3  # to other stages, of the same agents


def transition_s(step_s: float) -> float:
    """Notice that an orderly hand-over needs: the rest of this step, the next, some slack."""
    return 2.5 * step_s + _MARGIN_S


def late_s(step_s: float) -> float:
    """Agents with less notice hand over immediately."""
    return 2 * transition_s(step_s)


def note_straggler(state: State, now: float) -> None:
    """A member that has been too slow for long is replaced as soon as there is somebody. One after
    the other, with pauses: if the costs of a stage are wrong, its next owner will look slow, too.
    """
    membership, speeds = state.membership, state.speeds.relative()
    membership.slow = {a for a in membership.slow if speeds.get(a, 1.0) < _RECOVERED}
    found = [a for a in state.speeds.stragglers(now) if a in membership.members - membership.slow]
    if not found or now < state.straggler_after:
        return
    state.straggler_after = now + _STRAGGLER_PAUSE_S
    membership.slow.add(found[0])
    text = f"{found[0]} computes at less than half the usual speed: it is to be replaced"
    state.record(EventReason.AGENT_SLOW, text, Severity.WARNING, agents=found[0])


def due(state: State, now: float) -> tuple[str, Set[AgentId]]:
    """Why to stop and plan again now (empty: there is no reason), and which agents are the cause.

    No other agent joins while learners catch up, nor when all steps of the plan are committed.
    """
    in_force, desired = state.in_force, state.desired
    assert in_force is not None
    assert desired is not None
    if state.durable.failing:
        return _ending(state, in_force), frozenset()
    if state.durable.saving:
        late = _late(state, in_force)
        return _saving(state, in_force, late, now), set(late)
    if in_force.is_suspending:
        if not desired.suspended:
            return "the job is to go on", frozenset()
        return last_write.due(state), frozenset()
    if state.durable.last_write is not None:
        return last_write.due(state), frozenset()
    plan, running = in_force.plan, state.ledger.progress.committed + 1
    if max(plan.target, running) >= plan.last and _is_saved(state, plan.last):
        return "", frozenset()  # agents only have to say that they have finished
    if late := _late(state, in_force):
        return f"{', '.join(late)} will go away", set(late)
    going, fresh = _going(state, in_force, state.membership.departures()), _fresh(state)
    are_replaced = len(fresh) >= len(going)
    if desired.suspended and max(plan.target, running) + 1 < plan.last:
        return "the job is to be suspended", frozenset()
    if len(plan.pipelines) > desired.pipelines:
        return f"{counted(desired.pipelines, 'pipeline')} wanted", frozenset()
    if running >= plan.last:
        return "", frozenset()
    learning = [a for a in plan.learners if a in state.membership.members]
    if learning:
        return _catching_up(in_force, learning, now), frozenset()
    if now >= in_force.begun_at + _PAUSE_S and (why := _changed(state, in_force)):
        return why, frozenset()
    if found := _due_move(state):
        return _moving(found), frozenset()
    is_settled = now >= state.membership.ready_at + state.job.timing.join_grace_s
    if not is_settled or not fresh:
        return "", frozenset()
    if going and are_replaced:
        return f"{', '.join(going)} are replaced", set(going)
    return _joining(state, in_force, desired), frozenset()


def _ending(state: State, in_force: InForce) -> str:
    """The same for a job that the user's code has failed: only its last checkpoint is wanted."""
    plan = in_force.plan
    if plan.target == plan.last:
        return last_write.due(state)
    is_mended = state.ledger.progress.committed >= plan.target
    return f"the job ends: {state.durable.failing}" if is_mended else ""


def _late(state: State, in_force: InForce) -> list[AgentId]:
    """Agents for whose notice the plan has to change now."""
    departures = state.membership.departures()
    going = _going(state, in_force, departures)
    are_replaced = len(_fresh(state)) >= len(going)  # no seat is given up for nothing
    last = inf if are_replaced else state.real_s + late_s(state.ledger.usual_s)
    late = [a for a in going if a in departures and departures[a] <= last]
    is_other_plan = bool(late) and not leavers(state).isdisjoint(late)
    return late if is_other_plan else []


def _saving(state: State, in_force: InForce, late: Collection[AgentId], now: float) -> str:
    """The same while the state is written before the user's code is tried again."""
    plan = in_force.plan
    if late:
        return f"{', '.join(late)} will go away"
    if plan.target == plan.last:
        is_over = saving.is_over(state, plan.target, now)
        return "the state is written, or cannot be: training goes on" if is_over else ""
    is_mended = state.ledger.progress.committed >= plan.target
    return f"the state is written first: {state.durable.saving}" if is_mended else ""


def _changed(state: State, in_force: InForce) -> str:
    """Why the plan would share work in another way now. Empty: nothing has changed."""
    policy = state.job.spec.recovery
    if policy.relieves_slow and state.speeds.is_worth_a_plan(in_force.speeds):
        return "agents have become slower or faster"
    if policy is not RecoveryPolicy.SHADOW and network.is_worth_a_plan(state, in_force):
        return "the network is slower or faster than the plan expects"
    return ""


def take_move(state: State) -> Move | None:
    """The move that the next plan makes: one that has begun, under this leader or another, or one
    that is due."""
    if state.durable.move is not None:
        return state.durable.move
    if (found := _due_move(state)) is None:
        return None
    fleet, count = state.moves
    members = frozenset(state.membership.members)
    state.moves = members, count + 1 if members == fleet else 1
    return found.move


def _moving(found: Relocation) -> str:
    text = f"{found.move.agent} moves to stage {found.move.to.stage}"
    if found.then < found.now < inf:  # else it makes the job safer
        text += f", so that a step takes {1 - found.then / found.now:.0%} less time"
    return text


def _due_move(state: State) -> Relocation | None:
    """The move of an agent to another stage that is to be made now.

    Only while nothing else is about to change: a newcomer may take the seat. A fleet makes a few
    moves at most, so that no error of the costs stops it again and again.
    """
    in_force, membership = state.in_force, state.membership
    if in_force is None or in_force.relocation is None:
        return None
    plan, (fleet, count) = in_force.plan, state.moves
    is_same = membership.members == {*plan.live} and not (leavers(state) or membership.standby())
    is_mended = state.ledger.progress.committed >= plan.target
    is_worn = fleet == membership.members and count >= _MOST_MOVES
    return in_force.relocation if is_same and is_mended and not is_worn else None


def _is_saved(state: State, step: int) -> bool:
    """Whether this attempt's checkpoint of the step is complete, if there are any."""
    durable = state.durable
    known = {(m.attempt, m.step) for m in durable.manifests} - set(durable.bad)
    return state.job.spec.checkpoint is None or (durable.attempt, step) in known


def _fresh(state: State) -> set[AgentId]:
    """Agents on standby to which the last plan could not give a seat."""
    return state.membership.standby() - state.membership.without_seat


def _going(state: State, in_force: InForce, departures: Mapping[AgentId, float]) -> list[AgentId]:
    """Agents of the plan that will leave."""
    plan = in_force.plan
    leaving = state.membership.drained | state.membership.slow | departures.keys()
    return [a for a in (*plan.live, *plan.learners) if a in leaving] if leaving else []


def _catching_up(in_force: InForce, learning: list[AgentId], now: float) -> str:
    behind = [a for a in learning if a not in in_force.caught_up]
    if not behind:
        return f"copies are complete on {', '.join(learning)}"
    is_overdue = now >= in_force.catch_up_by
    return f"copies take too long on {', '.join(behind)}" if is_overdue else ""


def _joining(state: State, in_force: InForce, desired: DesiredState) -> str:
    members, standby = state.membership.members, state.membership.standby()
    pipelines, stages = in_force.plan.pipelines, len(in_force.plan.cut)
    seated = sum(a in members for p in pipelines for a in p if a is not None)
    both = seated + len(standby)
    wanted = pipelines_for(both, stages=stages, wanted=desired.pipelines)
    return f"{counted(len(standby), 'agent')} can join" if seated < wanted * stages else ""


# ---------------------------------------------------------------- leavers


def is_short(state: State) -> bool:
    """Whether too few agents are left to go on."""
    return not _is_enough(state, state.membership.members - leavers(state))


def is_enough_without(state: State, agent: AgentId) -> bool:
    """Whether the other members that stay are enough to go on."""
    return _is_enough(state, state.membership.members - leavers(state) - {agent})


def without_vote(state: State) -> set[AgentId]:
    """Members that only send what they hold: in question, or on short notice."""
    soon = state.real_s + transition_s(state.ledger.usual_s)
    leave_at, asked = state.membership.departures(), state.questioned
    return {a for a in leavers(state) if a in asked or leave_at.get(a, inf) < soon}


def leavers(state: State) -> set[AgentId]:
    """Members that the next plan excludes after its target step."""
    questioned = state.membership.members & state.questioned
    return questioned | _leaving(state, questioned)


def _leaving(state: State, questioned: Set[AgentId]) -> set[AgentId]:
    """Members that will leave.

    All that will leave, as long as the others are enough; else only those that cannot stay for the
    transition. Before a suspension every member that lives long enough helps.
    """
    assert state.desired is not None
    membership, step_s = state.membership, state.ledger.usual_s
    going = {a for a in membership.members if membership.is_departing(a)}
    seats = state.desired.pipelines * state.job.spec.pipelines.stages
    if len(membership.members & membership.usable()) >= seats:
        going |= membership.members & membership.slow  # nobody goes for being slow if it is missed
    leave_at = membership.departures()
    if state.desired.suspended and state.durable.last_write is None:
        soon = state.real_s + transition_s(step_s)
        return {a for a in going if leave_at.get(a, inf) < soon}
    if _is_enough(state, membership.members - going - questioned):
        return going
    last = state.real_s + late_s(step_s)
    return {a for a in going if leave_at.get(a, inf) <= last}


def _is_enough(state: State, agents: Set[AgentId]) -> bool:
    assert state.desired is not None
    stages = state.job.spec.pipelines.stages
    return is_enough(agents, stages=stages, least=state.desired.at_least)
