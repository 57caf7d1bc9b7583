"""A round, from the STOP to the request for a plan: the one mechanism for every change.

STOP -> reports -> request to the planner. :mod:`bamboo_core.arbiter.plans` handles the answer.
Why a round begins is decided elsewhere: an agent is lost (losses), the plan must change (changes),
a checkpoint is bad (training).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from enum import Enum, auto
from math import inf
from typing import NamedTuple

from bamboo_core.api.events import EventReason, RestoreCause, Severity
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import Reason
from bamboo_core.api.spec import batch_shape
from bamboo_core.arbiter import last_write, redundancy, refusals, saving
from bamboo_core.arbiter.changes import is_short, leavers, take_move, without_vote
from bamboo_core.arbiter.endings import end, end_failing, rebase, restore, unsaved
from bamboo_core.arbiter_state import network, origin
from bamboo_core.arbiter_state.durable import eligible, would_repeat
from bamboo_core.arbiter_state.events import ComputePlan, Effect, Send
from bamboo_core.arbiter_state.state import (
    Collecting,
    Holding,
    Planning,
    State,
    Stopped,
    Waiting,
)
from bamboo_core.arbiter_state.waits import ASKS, MOST_WAITS
from bamboo_core.model.counts import counted
from bamboo_core.model.ids import AgentId
from bamboo_core.model.numerics import BatchShape
from bamboo_core.placement.capacity import pipelines_for
from bamboo_core.placement.plan import layers_of
from bamboo_core.planning.requests import PlanRequest
from bamboo_core.protocol.messages import (
    AgentMessage,
    AgentReport,
    Continuation,
    Directive,
    Stop,
)

_MOST_LEARNER_PLANS = 3  # in a row; then all members wait until the newcomers have their copies
_MOST_LISTS = 8  # members that list the checkpoints: the first answer counts
_LOADING_FLOOR_S = 30.0  # INIT and LOAD are instructions that no agent has measured yet


# ---------------------------------------------------------------- stop


def begin(state: State, why: str, *, cause: Iterable[AgentId] = (), ask_all: bool = False) -> None:
    """Stop every agent that may be part of the next plan.

    cause: agents because of which training stops; ask_all: also agents that will not stay, since
    they may hold what is missing.
    """
    membership = state.membership
    state.evidence.begin_epoch()
    state.stalls.activities.clear()
    state.epoch += 1
    if state.stopped_at is None:
        state.stopped_at = state.real_s
    if isinstance(state.phase, Waiting):
        redundancy.begun(state)
    state.out.withdraw(
        lambda e: isinstance(e, Send) and isinstance(e.message, Stop | Directive | Continuation)
    )
    newcomers: Set[AgentId] = frozenset()
    if ask_all or isinstance(state.phase, Holding):
        newcomers = membership.reachable() - membership.members
    elif _are_newcomers_wanted(state):
        newcomers = membership.standby()
    membership.members |= refusals.fitting(state, newcomers)
    state.phase = Collecting(why)
    state.record(
        EventReason.STOPPED,
        f"epoch {state.epoch}: {why}",
        epoch=state.epoch,
        agents=",".join(sorted(cause)),
    )
    stop = state.stop()
    for agent in sorted(membership.members):
        state.out.after_facts(Send(agent, stop))


def _are_newcomers_wanted(state: State) -> bool:
    """Whether seats are empty. Members that only help with the present step fill none."""
    assert state.desired is not None
    membership, plan = state.membership, state.in_force.plan if state.in_force else None
    staying = membership.members & membership.usable() - state.questioned
    stages, wanted = state.job.spec.pipelines.stages, state.desired.pipelines
    if plan is not None:
        staying &= {*plan.live, *plan.learners}
        both = len(staying | membership.standby())
        wanted = pipelines_for(both, stages=stages, wanted=wanted)
    return len(staying) < wanted * stages


def sent(state: State, effects: Iterable[Effect], now: float) -> None:
    """Effects that leave now. A deadline begins when the message that causes it leaves."""
    phase, in_force = state.phase, state.in_force
    patience_s: float | None = None  # of all agents, and it takes a look at each of them
    for effect in effects:
        if not isinstance(effect, Send):
            continue
        message, agent = effect.message, effect.agent
        if isinstance(message, Stop) and message.want_manifests:
            state.listing.left(agent, now)
        if isinstance(message, Stop) and message.fence == state.fence:
            state.incident.asked[agent] = now
        if isinstance(message, Stop) and isinstance(phase, Collecting):
            is_asked = message.fence == state.fence and state.membership.is_connected(agent)
            if is_asked and agent not in phase.reports:
                if patience_s is None:
                    patience_s = _report_patience_s(state)
                phase.report_by[agent] = now + patience_s
                phase.asked_at.setdefault(agent, now)
        elif isinstance(message, Directive) and in_force is not None:
            in_force.sent_at.setdefault(agent, now)
            if in_force.plan.learners and in_force.catch_up_by == inf:
                in_force.catch_up_by = now + state.job.timing.catch_up_s
        elif isinstance(message, Continuation) and in_force is not None:
            in_force.continued_at.setdefault(agent, now)


def _report_patience_s(state: State) -> float:
    if state.is_loading:
        return _LOADING_FLOOR_S
    timing, membership = state.job.timing, state.membership
    queue_s = timing.report_each_s * len(membership.members)
    return max(timing.report_floor_s, 3 * membership.longest_instruction_s()) + queue_s


def reported(state: State, agent: AgentId, report: AgentReport) -> None:
    """A member's facts, if they answer the newest STOP."""
    if not isinstance(state.phase, Collecting) or report.fence != state.fence:
        return
    state.phase.reports[agent] = report
    state.phase.report_by.pop(agent, None)


def is_waiting_for_reports(state: State) -> bool:
    """Whether members have not answered the newest STOP. Those that have are members."""
    phase = state.phase
    return isinstance(phase, Collecting) and len(phase.reports) < len(state.membership.members)


# ---------------------------------------------------------------- decide


class Next(Enum):
    """What follows from the reports."""

    COLLECT = auto()  # they are not all there
    ASK = auto()  # agents that are no members, before all is given up
    GIVE_UP = auto()  # nobody holds anything
    AWAIT_VOTER = auto()
    WRITE = auto()  # the last checkpoint, again
    AWAIT_AGENTS = auto()
    LIST = auto()  # the checkpoints
    FAIL = auto()  # there is nothing to begin with
    PLAN = auto()


class Verdict(NamedTuple):
    next: Next
    why: str


def decide(state: State, now: float) -> Verdict:
    """Judge the reports of members: the next action, and why. It changes nothing."""
    phase, membership = state.phase, state.membership
    if not isinstance(phase, Collecting):
        return Verdict(Next.COLLECT, "no STOP is to be answered")
    if membership.members - phase.reports.keys():
        return Verdict(Next.COLLECT, "some members have not reported")
    voters = set(state.durable.voters)
    are_dead = voters <= membership.dead
    if not membership.members and are_dead:
        if state.unasked():  # an agent that has just handed over is no member any more
            return Verdict(Next.ASK, "the remaining agents are asked")
        return Verdict(Next.GIVE_UP, "all agents are lost")
    if voters and not voters & phase.reports.keys() and not are_dead:
        text = "no voter of the newest plan has reported: it may still be running elsewhere"
        return Verdict(Next.AWAIT_VOTER, text)
    if state.durable.failing or state.durable.last_write is not None:
        return Verdict(Next.WRITE, "only the last checkpoint is left to write")
    if is_short(state):
        staying = len(membership.members - leavers(state))
        agents = f"{counted(staying, 'agent')} {'is' if staying == 1 else 'are'}"
        return Verdict(Next.AWAIT_AGENTS, f"{agents} too few to go on; the state is kept")
    if _lists_first(state, now):
        return Verdict(Next.LIST, "the checkpoints are being listed")
    if origin.lacks_origin(state):
        if origin.is_hopeless(state):
            return Verdict(Next.FAIL, origin.failure(state))
        return Verdict(Next.LIST, "the checkpoint with which the job begins is awaited")
    return Verdict(Next.PLAN, "all members have reported")


def go_on(state: State, now: float) -> None:
    """Do what follows from the reports."""
    verdict, limits = decide(state, now), state.deadlines
    if verdict.next in (Next.WRITE, Next.AWAIT_AGENTS, Next.LIST, Next.PLAN):
        limits.voter_by = inf
    match verdict.next:
        case Next.ASK:
            begin(state, verdict.why, ask_all=True)
        case Next.GIVE_UP:
            handle_layer_loss(state, verdict.why, now)
        case Next.AWAIT_VOTER:
            limits.voter_by = min(limits.voter_by, _due_by(state, now))
            hold(state, verdict.why, now, limits.voter_by, RestoreCause.NO_VOTER)
        case Next.WRITE:
            _write_again(state, now)
        case Next.AWAIT_AGENTS:
            hold(state, verdict.why, now)
        case Next.LIST:
            due_at = _ask_for_lists(state, now)
            if due_at <= now:
                due_at = now + state.job.timing.listing_s
            cause = RestoreCause.LAYER_LOST
            state.phase = Holding(verdict.why, state.reports(), cause=cause, plan_by=due_at)
            state.record(EventReason.WAITING, verdict.why)
        case Next.FAIL:
            end(state, Outcome.FAILED, Reason.CHECKPOINT_FAILED, verdict.why)
        case Next.PLAN:
            _ask_planner(state, now)


def _write_again(state: State, now: float) -> None:
    if last_write.aim(state):
        end_failing(state)
    elif found := last_write.pause(state, now):
        why, until = found
        hold(state, why, now, plan_by=until)
    elif state.durable.last_write is None:  # the job is to train on
        go_on(state, now)
    else:
        _ask_planner(state, now)


def _ask_planner(state: State, now: float) -> None:
    if origin.is_unplanned_attempt(state):
        rebase(state)
    saving.settle(state, now)
    reports = state.reports()
    state.requests += 1
    request, mode = _make_request(state, reports), redundancy.open_mode(state)
    answer_by = now + state.job.timing.continuation_s
    state.phase = Planning(
        state.requests, reports, request.speeds, request.bytes_per_s, answer_by=answer_by
    )
    state.out.at_once(ComputePlan(state.requests, request, mode))


# ---------------------------------------------------------------- hold


def hold(
    state: State,
    why: str,
    now: float,
    restore_by: float = inf,
    cause: RestoreCause = RestoreCause.LAYER_LOST,
    plan_by: float = inf,
) -> None:
    """Keep the state of all members and wait for other agents. If none has helped until
    ``restore_by``, restore because of ``cause``; at ``plan_by`` ask the planner again.

    A job that is to be suspended gets no new agents. It waits only for suspects, or where the wait
    has an end."""
    assert state.desired is not None
    limits, incident = state.deadlines, state.incident
    is_resting = state.desired.suspended and restore_by == plan_by == inf
    limits.rest_by = min(limits.rest_by, _due_by(state, now)) if is_resting else inf
    if is_resting and not _may_come_back(state, now):
        end(state, Outcome.SUSPENDED, Reason.USER_REQUESTED, f"{why}; {unsaved(state)}")
        return
    if is_resting:
        away = counted(len(state.unasked() | state.membership.suspected.keys()), "agent")
        why += f"; before the job rests, {away} that may live can come back"
    state.phase = Holding(why, state.reports(), restore_by, cause, plan_by, limits.rest_by)
    state.protection.hold()
    is_due = state.phase.due_by < inf
    wait_s = min(incident.retry_s, _eighth_s(state)) if is_due else incident.retry_s
    limits.retry_at = min(limits.retry_at, now + wait_s)  # newcomers do not put it off
    if restore_by == inf:  # the next loss of a layer has a deadline of its own
        limits.copy_by = inf
    if not is_due:
        incident.since = None
    state.record(EventReason.WAITING, why, Severity.WARNING)


def _due_by(state: State, now: float) -> float:
    """When something is given up for which agents are awaited from now on. Plans with a suspect
    that cannot reach another agent put it off, but not for ever."""
    incident, wait_s = state.incident, state.job.timing.voter_wait_s
    if incident.since is None:
        incident.since = now
    return min(now + wait_s, incident.since + MOST_WAITS * wait_s)


def _eighth_s(state: State) -> float:
    return state.job.timing.voter_wait_s / ASKS


def _may_come_back(state: State, now: float) -> bool:
    """Whether a job that is to be suspended waits: for suspects, or for agents that have come back
    and were not asked yet."""
    rest_by = state.deadlines.rest_by
    is_time = now < rest_by or _is_any_unasked(state, rest_by, now)
    return bool(state.unasked()) or (is_time and bool(state.membership.suspected))


def retry(state: State, now: float) -> None:
    """While the job is held: newcomers may help, and suspects are asked again. Before something is
    given up they are asked more often, and a last time."""
    phase = state.phase
    assert isinstance(phase, Holding)
    due_by, retry_at = phase.due_by, state.deadlines.retry_at
    is_time_to_ask = _is_any_unasked(state, due_by, now) if now >= due_by else now >= retry_at
    if is_time_to_ask and state.membership.askable():
        state.membership.reinstate_all()
        state.incident.retry_s *= 2
        state.deadlines.retry_at = inf
        begin(state, "suspected agents are asked again")
    elif state.unasked():
        begin(state, "more agents are ready")
    elif now >= phase.restore_by:
        _list_and_restore(state, phase.cause, phase.detail, now)
    elif now >= min(phase.plan_by, phase.rest_by) or last_write.is_pressed(state):
        state.reconsider()
        go_on(state, now)


def _is_any_unasked(state: State, due_by: float, now: float) -> bool:
    """Whether a suspect has not been asked shortly before something is given up, nor since then."""
    latest = min(due_by, now - _eighth_s(state))
    asked = (state.incident.asked.get(a, -inf) for a in state.membership.askable())
    return any(at < latest for at in asked)


def can_answer(state: State, agent: AgentId, message: AgentMessage) -> bool:
    """Whether it is a suspect's answer to the newest STOP, which counts however late it comes."""
    suspect = state.membership.suspected.get(agent)
    is_answer = isinstance(message, AgentReport) and message.fence == state.fence
    if suspect is None or suspect.record is None or not suspect.is_connected:
        return False
    return is_answer and isinstance(state.phase, Stopped) and suspect.record.ready is not None


def take_back(state: State, agent: AgentId) -> None:
    """A suspect answers: it is a member as before."""
    state.membership.reinstate(agent)
    state.membership.members.add(agent)
    state.reconsider()


def _make_request(state: State, reports: dict[AgentId, AgentReport]) -> PlanRequest:
    assert state.desired is not None
    durable, membership, desired = state.durable, state.membership, state.desired
    draining = frozenset(leavers(state))
    ready = membership.reference()
    may_learn = state.learner_plans < _MOST_LEARNER_PLANS
    participants = membership.participants()
    if staying := last_write.staying(state):
        after = last_write.taking_over(state, staying)
        participants = {a: participants[a] for a in (*staying, *after)}
        reports = {a: reports[a] for a in (*staying, *after)}
        is_kept = draining.issuperset(staying) and not after  # nobody takes their layers over
        draining = frozenset() if is_kept else draining.intersection(staying)
        may_learn = may_learn and not after
    return PlanRequest(
        fence=state.fence,
        spec=network.spec_of_plan(state),
        batch=_keep_batch(state),
        layers=ready.layers,
        costs=ready.costs,
        validation_samples=ready.validation_samples,
        pipelines=desired.pipelines,
        grid=durable.pipelines,
        cut=durable.cut,
        step_cut=durable.step_cut,
        target=durable.target,
        participants=participants,
        reports=dict(sorted(reports.items())),
        draining=draining,
        short_notice=draining.intersection(without_vote(state)),
        manifests=eligible(durable),
        base=durable.manifest.step - 1 if durable.manifest is not None else -1,
        has_voter=not reports.keys().isdisjoint(durable.voters),
        is_full=durable.plan.attempt != durable.attempt or not durable.pipelines,
        is_last=desired.suspended,
        least=desired.at_least,
        rewrites=saving.rewritten(state),
        catch_up_above_bytes=state.job.timing.catch_up_above_bytes if may_learn else inf,
        memory_bytes=membership.smallest_memory(),
        speeds=state.speeds.relative(),
        goodput=state.wire.settled,
        ties=tuple(tie.layers for tie in ready.ties),
        question=durable.question,
        move=take_move(state),
    )


def batch_of(state: State) -> BatchShape:
    """The sizes of leaves and chunks: those of the first plan, for ever."""
    return state.durable.batch or batch_shape(state.job.spec)


def _keep_batch(state: State) -> BatchShape:
    shape = batch_of(state)
    if state.durable.batch is None:
        state.out.save(batch=shape)
    return shape


# ---------------------------------------------------------------- restore


def handle_layer_loss(
    state: State, why: str, now: float, layers: Collection[int] | None = None
) -> None:
    """Restore, unless an agent that has not been asked may hold the layers (one that came back
    since the stop, or a suspect), or a file that is not known yet. An attempt that would begin just
    where this one began begins after a pause. layers: those that are lost (None: all)."""
    suspected, limits = state.membership.suspected, state.deadlines
    is_repeat = would_repeat(state.durable)
    if is_repeat:
        why += f"; attempt {state.durable.attempt} has not computed anything yet"
    if may_come := may_bring(state, layers):
        lost, wait_s = counted(len(suspected), "lost agent"), state.job.timing.voter_wait_s
        why += f"; {lost} may live and hold them, with {wait_s:g} s to come back"
    if may_come or state.membership.askable() or state.unasked() or is_repeat:
        limits.copy_by = min(limits.copy_by, _due_by(state, now))
        hold(state, why, now, limits.copy_by)
    else:
        _list_and_restore(state, RestoreCause.LAYER_LOST, why, now)


def may_bring(state: State, layers: Collection[int] | None) -> bool:
    """Whether suspects, which nobody has seen to end, may hold all of these layers (None: every
    layer). Until the plan's first step is committed, they may hold what the plan before gave them.
    """
    suspects, in_force = state.membership.suspected.keys(), state.in_force
    if in_force is None:
        return not suspects.isdisjoint(state.durable.members)
    plan = in_force.plan
    if plan.learners or state.ledger.progress.committed < plan.target:
        return not suspects.isdisjoint(plan.members)
    held = {x for a in suspects for x in layers_of(plan.wants.get(a, ()))}
    return held.issuperset(range(plan.layers) if layers is None else layers)


def _list_and_restore(state: State, cause: RestoreCause, why: str, now: float) -> None:
    """Restore once members have listed the checkpoints, or had the time for it: an agent may have
    sealed one and died before it could say so.

    While no operator was there, agents may even have deleted all that were known then. So a leader
    that has not seen the attempt train waits for an agent that can list.
    """
    members, listing = state.membership.members, state.listing
    is_stranger = state.in_force is None and bool(state.durable.voters)
    is_late = now >= listing.due_at(members, state.job.timing.listing_s)
    if is_late or not _may_have_unknown_files(state) or not (members or is_stranger):
        restore(state, cause, why, now)
        return
    if not members:
        hold(state, f"{why}; an agent is awaited that lists the checkpoints", now)
        return
    due_at = _ask_for_lists(state, now)
    hold(state, f"{why}; the checkpoints are being listed", now, due_at, cause)


def _lists_first(state: State, now: float) -> bool:
    """Before the first plan of a new attempt members list the checkpoints, or have the time for it:
    perhaps nobody could when it began. Whether the job waits for that."""
    listing = state.listing
    is_late = now >= listing.due_at(state.membership.members, state.job.timing.listing_s)
    return origin.is_unplanned_attempt(state) and not (listing.is_here or is_late)


def _ask_for_lists(state: State, now: float) -> float:
    """Ask a few members. Returns when one of them has had its time."""
    members, listing = state.membership.members, state.listing
    some = listing.first(members, _MOST_LISTS)
    listing.ask(some, state.fence, now)
    for agent in some:
        state.out.after_facts(Send(agent, state.stop(want_manifests=True)))
    return listing.due_at(members, state.job.timing.listing_s)


def _may_have_unknown_files(state: State) -> bool:
    return state.job.spec.checkpoint is not None and not state.listing.is_here
