"""Which agents are lost, from which evidence, and what follows for the current round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from math import inf

from bamboo_core.api.events import EventReason, Severity, StallCause
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import FailureCause, Reason, user_reason
from bamboo_core.arbiter import last_write, redundancy, refusals, saving
from bamboo_core.arbiter.changes import is_enough_without, leavers
from bamboo_core.arbiter.endings import end, fail
from bamboo_core.arbiter.rounds import begin
from bamboo_core.arbiter_state.state import Collecting, InForce, Over, Returning, Running, State
from bamboo_core.evidence import culprits
from bamboo_core.evidence.liveness import expel
from bamboo_core.evidence.stalls import (
    SlowLink,
    find,
    several_overdue,
    slow_data,
    slow_links,
    slow_storage,
)
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Kind
from bamboo_core.model.program import Op, Program, single
from bamboo_core.placement.plan import layers_of
from bamboo_core.protocol.admission import Refusal
from bamboo_core.protocol.messages import Activity, ActivityKind, Failure, Halted, Left, Notice

_OWN = (Reason.FINGERPRINT_MISMATCH, Reason.DEVICE_DIFFERS)  # others may fit
_PROOF = 2  # failures by the user's code, so that it is not one machine's fault
_MOST_WAIT_S = 60.0  # a wait counts after so long, however long steps are
_TOGETHER_S = 2.0  # in which links that have become slow together are told
_FEW = 2  # ends of slow links that go at once, however few members there are
_SHARE = 8  # one in so many members may go at once

# ---------------------------------------------------------------- evidence


def disconnected(state: State, agent: AgentId, now: float) -> None:
    """The agent's session has ended; it may begin another one."""
    if isinstance(state.phase, Collecting):
        state.phase.report_by.pop(agent, None)  # its next session asks it again
    if state.membership.disconnect(agent):
        state.evidence.disconnect(agent, now)
        look(state, now)


def noticed(state: State, agent: AgentId, notice: Notice) -> None:
    """The agent will leave."""
    membership = state.membership
    is_news = not membership.is_departing(agent)
    membership.agents[agent].will_leave(state.real_s + notice.lead_s)
    if not notice.source:
        membership.idle.discard(agent)  # the operator deletes pods that are too many
    if is_news and agent in membership.members:
        text = f"{agent} will go away in {notice.lead_s:g} s ({notice.reason})"
        source = notice.source
        state.record(
            EventReason.AGENT_LEAVING, text, agents=agent, lead_s=notice.lead_s, source=source
        )


def failed(state: State, agent: AgentId, failure: Failure) -> None:
    """The worker's process has ended for certain, and its state is gone."""
    if agent in state.failed:
        return  # heard twice
    state.failed[agent] = failure.user_error
    code = culprits.culprit(failure.place, state.job.spec)
    message = f"{failure.message}; it runs {code}" if code else failure.message
    text = f"{agent}: {failure.reason}: {message}"
    if failure.user_error and _is_everywhere(state):
        end(state, Outcome.FAILED, user_reason(failure.reason), text)
        return
    by_code = failure.user_error or bool(failure.place)
    _crashed(state, agent, failure, message)
    if isinstance(state.phase, Over):
        return
    others = tuple(a for a in state.durable.disputants if a != agent)
    if failure.reason == FailureCause.CORRUPTION and others:
        state.out.save(disputants=others)  # it has contradicted itself, so their layers are right
    cause = str(user_reason(failure.reason)) if failure.user_error else failure.reason
    blame(state, agent, cause, message)
    lose(state, agent, f"worker ended: {failure.reason}", confirmed=True, by_code=by_code)
    if state.durable.saving:
        _write_first(state, agent)


def _crashed(state: State, agent: AgentId, failure: Failure, message: str) -> None:
    """Code of the user's may have ended the process. What a newcomer's set-up finds may be the
    fault of its machine. An instruction is a member's: that its pod has ended may be known first.
    """
    is_users = failure.user_error and failure.reason == Reason.USER_CODE_FAILED
    if failure.place:  # the texts of two crashes may differ, and an update's names its layer
        error = culprits.meeting(failure.place)
    elif is_users and agent in state.membership.members:
        error = failure.message
    else:
        return
    _meet(state, agent, error, message)
    saving.ask(state, f"the user's code has ended {agent}: {message}")


def _write_first(state: State, agent: AgentId) -> None:
    """Agents that compute stop, and a plan that is being made is made anew."""
    in_force = state.in_force
    if isinstance(state.phase, Running) and in_force and in_force.plan.target < in_force.plan.last:
        begin(state, f"the state is written first: {state.durable.saving}", cause=(agent,))
    state.reconsider()


def blame(state: State, agent: AgentId, cause: str, message: str) -> None:
    """A failure that counts against the agent's node."""
    text = f"{agent}: {cause}: {message}"
    state.record(EventReason.WORKER_FAILED, text, Severity.WARNING, agents=agent, cause=cause)


def _is_everywhere(state: State) -> bool:
    """Whether the user's code cannot work anywhere: no agent has ever become ready, and two have
    failed by it. Else a failure is the agent's own."""
    has_worked = state.durable.plan != Fence() or state.membership.ready_at > -inf
    return not has_worked and sum(state.failed.values()) >= _PROOF


def halted(state: State, agent: AgentId, message: Halted) -> None:
    """The user's code has failed, and the member has kept its state.

    The first time it may be the fault of one machine. The agent ends if others hold all that it
    holds, so that another one computes the same. Else it tries again itself.
    """
    _meet(state, agent, message.message, message.message, message.fence)
    if message.fence != state.fence or not isinstance(state.phase, Running):
        return
    if state.durable.failing:
        begin(state, f"the job ends: {state.durable.failing}", cause=(agent,))
        return
    blame(state, agent, Reason.USER_CODE_FAILED, message.message)
    if _can_spare(state, agent):
        why = "the user's code has failed on it"
        lose(state, agent, why, confirmed=False, by_code=True)
        state.fence_suspect(agent)
    else:
        begin(state, f"{agent} tries again, since nobody else holds its layers", cause=(agent,))


def _meet(state: State, agent: AgentId, error: str, text: str, fence: Fence = Fence()) -> None:
    """Note that a member has met an error of the user's code. The job ends if another one has met
    it before, since whoever computes the same meets it. error: which one it is; fence: of the plan;
    that of a failed agent does not matter."""
    met = state.users_errors.setdefault(error, set())
    met.add((agent, fence))
    if len(met) >= _PROOF:
        fail(state, f"{agent}: {Reason.USER_CODE_FAILED}: {text}")


def _can_spare(state: State, agent: AgentId) -> bool:
    """Whether the other members hold every layer, and are enough."""
    in_force = state.in_force
    assert in_force is not None
    plan, others = in_force.plan, state.membership.members - {agent} - leavers(state)
    held = {x for a in others for x in layers_of(plan.wants.get(a, ()))}
    is_mended = state.ledger.progress.committed >= plan.target and not plan.learners
    return is_mended and held.issuperset(range(plan.layers)) and is_enough_without(state, agent)


def refuse(state: State, agent: AgentId, refusal: Refusal) -> None:
    """The agent does not fit the job: its own fault, unless the spec fits no agent."""
    state.failed[agent] = refusal.reason not in _OWN
    if _is_everywhere(state):
        end(state, Outcome.FAILED, refusal.reason, refusal.message)
        return
    refusals.tell(state, agent, refusal)
    lose(state, agent, refusal.reason, confirmed=False)
    state.fence_suspect(agent)


def foreign(state: State, agent: AgentId, text: str) -> None:
    """The agent would not understand its programs. Others of the same image would not either, so
    the job does not end: the controller tells, and tries again."""
    cause = FailureCause.VERSION_DIFFERS
    state.record(EventReason.AGENT_REFUSED, text, Severity.WARNING, agents=agent, cause=cause)
    lose(state, agent, cause, confirmed=False)
    state.fence_suspect(agent)


def misreported(state: State, agent: AgentId, what: str) -> None:
    """The agent says that it holds what no agent of the job can hold. Nothing of it counts."""
    text = f"its report names {what}, which no agent of this job can hold"
    blame(state, agent, FailureCause.IMPOSSIBLE_REPORT, text)
    lose(state, agent, text, confirmed=False)
    state.fence_suspect(agent)


def left(state: State, agent: AgentId, message: Left) -> None:
    """EXIT has run. A STOP that came too late for the agent does without its report."""
    if message.fence != state.durable.plan:
        return  # of an older plan; meanwhile the agent has another program
    state.remove(agent)
    state.out.save(departed=(*state.durable.departed, agent))  # else a new leader would miss it
    text = f"{agent} has handed over what it held"
    state.record(EventReason.AGENT_LEFT, text, agents=agent)
    if state.membership.is_departing(agent) or agent in state.membership.slow:
        state.let_go(agent)
        state.evidence.forget(agent)


def look(state: State, now: float) -> None:
    """Draw conclusions from silence, and from time. What agents say of each other counts once
    everything is read that has come."""
    redundancy.look(state)
    if isinstance(state.phase, Over | Returning):
        return
    membership = state.membership
    known = membership.members | membership.agents.keys()
    for agent, why in state.evidence.lost(known, now, may_be_refuted=state.is_behind):
        lose(state, agent, why, confirmed=False)
    if state.is_behind:
        return
    if isinstance(state.phase, Collecting):  # a stop waits for it, too
        _tell(state, StallCause.DATA, slow_data(state.stalls.activities, membership.members))
    if isinstance(state.phase, Running):
        _mend_links(state, now)
    if isinstance(state.phase, Running):
        _mend_stall(state, now)


def overdue(state: State, now: float) -> None:
    """Members that have not reported in time are lost. An instruction that may still run has its
    time, but an agent whose sessions end before it reports does not get it again and again."""
    phase = state.phase
    if not isinstance(phase, Collecting) or state.is_behind:
        return
    # Every report leads here, so only those that are late are sorted.
    for agent in sorted(a for a, due in phase.report_by.items() if now >= due):
        activity = state.stalls.activities.get(agent)
        if activity is None or activity.age_s >= activity.limit_s:
            lose(state, agent, "no report in time", confirmed=False)
    round_s = state.job.timing.round_s
    for agent in sorted(a for a, asked in phase.asked_at.items() if now >= asked + round_s):
        if agent in state.membership.members and agent not in phase.reports:
            activity = state.stalls.activities.get(agent)
            if activity is None or activity.age_s >= activity.limit_s:
                text = f"it has been asked for {state.job.timing.round_s:g} s and has not reported"
                lose(state, agent, text, confirmed=False)


# ---------------------------------------------------------------- consequences


def lose(state: State, agent: AgentId, why: str, *, confirmed: bool, by_code: bool = False) -> None:
    """An agent does not count any more.

    One that took part until a restore, and waits for a new plan, is lost like a member.

    confirmed: its end has been seen. Else it is a suspect, which only the next plan fences: until
    then it may come back, as a newcomer whose holdings are facts.
    by_code: the user's code is the cause, which says nothing about how often nodes go.
    """
    membership = state.membership
    took_part = agent in membership.members or agent in membership.idle
    if took_part:
        redundancy.lost(state, agent, by_code=by_code)
    if confirmed:
        if agent in membership.suspected:
            state.reconsider()
        membership.dead.add(agent)
        is_released = isinstance(state.phase, Over) or last_write.is_released(state, agent)
        if not is_released:  # else its log is all that is left of it
            state.dismiss(agent, why)
    elif agent in membership.agents or took_part:
        membership.suspect(agent, why)
    state.evidence.forget(agent)
    state.stalls.activities.pop(agent, None)
    if not took_part:
        return
    state.remove(agent)
    membership.idle.discard(agent)
    state.record(EventReason.AGENT_LOST, f"{agent}: {why}", Severity.WARNING, agents=agent)
    if not isinstance(state.phase, Running):
        return
    if _is_dispensable(state, agent):
        state.fence_suspects()
    else:
        begin(state, f"{agent} is lost", cause=[agent])


def _is_dispensable(state: State, agent: AgentId) -> bool:
    """Whether no other agent can be waiting for it.

    All have finished; or it only had to help with a step that is committed; or it is a learner
    from which nothing is received. An agent that has finished may have died with its last
    messages unsent, and a learner may hold what no other agent has.
    """
    phase, in_force = state.phase, state.in_force
    assert isinstance(phase, Running)
    assert in_force is not None
    plan = in_force.plan
    if agent in plan.learners:
        programs = (d.resume for d in in_force.directives.values())
        return not any(x.op is Op.RECV and x.peer == agent for p in programs for x in p)
    if agent in phase.finished:
        return phase.finished >= state.membership.members.intersection(plan.live)
    is_done = state.ledger.progress.committed > plan.target
    return is_done and agent in plan.leaving and not _is_unsealed(state, plan.target)


def _is_unsealed(state: State, step: int) -> bool:
    """Whether a checkpoint of the step may still wait for files of some agent."""
    every, durable = state.job.spec.save_every, state.durable
    if not every or step % every:
        return False
    mark = (durable.attempt, step)
    sealed = {(m.attempt, m.step) for m in durable.manifests}
    return step > 0 and mark not in sealed and mark not in durable.bad


def _mend_links(state: State, now: float) -> None:
    """Links that are broken though both ends live: a new epoch first, then one end is lost."""
    links = state.evidence.broken(
        state.membership.members,
        progress_at=state.ledger.progress_at,
        patience_s=2 * state.ledger.usual_s,
        now=now,
    )
    if not links:
        return
    again = [link for link in links if link in state.evidence.tried]
    state.evidence.tried.update(links)
    for agent in expel(again, lambda a: _is_sole_holder(state, a)):
        lose(state, agent, "cut off from other members", confirmed=False)
    if isinstance(state.phase, Running):
        pairs = ", ".join(f"{a}-{b}" for a, b in links)
        ends = {agent for link in links for agent in link}
        begin(state, f"connections are broken: {pairs}", cause=ends)


def _mend_stall(state: State, now: float) -> None:
    """Agents live, but wait in vain: plan again first, then replace the agent at the root."""
    stalls, patience, phase = state.stalls, state.job.timing.patience, state.phase
    assert isinstance(phase, Running)
    assert state.in_force is not None
    wait_s = max(patience.wait_s, min(2 * state.ledger.usual_s, _MOST_WAIT_S))
    members = state.membership.members
    if state.evidence.is_channel_broken(members):
        return
    known = {
        a: x
        for a, x in stalls.activities.items()
        if now >= _answered_at(state.in_force, a, x) + wait_s
    }
    _tell(state, StallCause.STORAGE, slow_storage(known, members))
    _tell(state, StallCause.DATA, slow_data(known, members))
    _tell(state, StallCause.COMMON, several_overdue(known, members))
    if _mend_slow_links(state, slow_links(known, members), now):
        return
    is_complete = state.in_force.continuations_by == inf
    stall = find(known, members, wait_s=wait_s, finished=phase.finished, is_complete=is_complete)
    if stall is None:
        return
    _record_stall(state, stall.cause, stall.message, stall.roots)
    again = stalls.tried.intersection(stall.roots)
    stalls.tried.update(stall.roots)
    if again:
        suspects = [a for a in stall.roots if a in again]
        root = min(suspects, key=lambda a: (_is_sole_holder(state, a), suspects.index(a)))
        blame(state, root, FailureCause.STALLED, stall.message)
        lose(state, root, f"holds up the training: {stall.message}", confirmed=False)
    if isinstance(state.phase, Running):
        begin(state, stall.message, cause=stall.roots)


def _answered_at(in_force: InForce, agent: AgentId, does: Activity) -> float:
    """When the operator has sent what the agent waits for; it may be on its way."""
    if does.kind is ActivityKind.IDLE:
        return in_force.sent_at.get(agent, inf)
    if does.kind is ActivityKind.WAITING and does.peer is None:
        return in_force.continued_at.get(agent, inf)
    return -inf


def _record_stall(
    state: State, cause: StallCause, message: str, roots: Collection[AgentId]
) -> None:
    """A stall that is mended now."""
    stalls = state.stalls
    stalls.text = message
    stalls.counts[cause] = stalls.counts.get(cause, 0) + 1
    agents = ",".join(sorted(roots))
    state.record(EventReason.STALLED, message, Severity.WARNING, cause=cause, agents=agents)


def _tell(state: State, cause: StallCause, text: str) -> None:
    """Say what users should know, although no other plan and no other agent would help now."""
    if state.stalls.note(cause, text):
        state.record(EventReason.STALLED, text, Severity.WARNING, cause=cause, agents="")


def _mend_slow_links(state: State, links: Collection[SlowLink], now: float) -> bool:
    """Links that pass hardly anything of what is awaited: the next plan does without one end of
    each. The same connection would be as slow in another plan with both. Whether an end has gone.

    Links that are slow together are told one after the other: the first one waits for the rest. If
    layers would be lost with them, all stay: a stop would only lose what has come. Many links
    without a common end may share what is slow, and get more time.
    """
    stalls = state.stalls
    stalls.slow_since = min(stalls.slow_since, now) if links else inf
    going = _ends_to_lose(state, links)
    message = "; ".join(link.message for link in links)
    if not going or (_are_many(state, going) and not all(link.is_lasting for link in links)):
        why = "the network may be slow for all" if going else "no plan can do without it"
        _tell(state, StallCause.TRICKLE, f"{message}; {why}" if links else "")
        return False
    if now < stalls.slow_since + _TOGETHER_S:
        return False
    _tell(state, StallCause.TRICKLE, "")
    ends = {agent for link in links for agent in link.ends}
    _record_stall(state, StallCause.TRICKLE, message, ends)
    stalls.tried.update(ends)
    stalls.slow_since = inf
    for agent in going:
        lose(state, agent, f"a link of it is too slow: {message}", confirmed=False)
    return True


def _are_many(state: State, going: Collection[AgentId]) -> bool:
    """Whether so many ends would have gone since the last commit that the network may be slow for
    all. Then to replace them would not help."""
    members = state.membership.members
    gone = state.stalls.tried - members
    return len(going) + len(gone) > max(_FEW, len(members) // _SHARE)


def _ends_to_lose(state: State, links: Collection[SlowLink]) -> list[AgentId]:
    """For each link an end whose layers others hold, too: one that has held up the training before,
    that most of the links have in common, of whose layers there are most copies, or that sends.
    Nothing tells which of the two is at fault. Empty if that is not possible for all links."""
    count = Counter(agent for link in links for agent in link.ends)
    tried, going = state.stalls.tried, list[AgentId]()
    held = _held(state) if links else {}
    for link in links:
        if not set(going).isdisjoint(link.ends):
            continue
        copies = {a: _other_copies(held, a, going) for a in link.ends}
        ends = [a for a, others in copies.items() if others]
        if not ends:
            return []
        rank = {a: (a not in tried, -count[a], -copies[a], a != link.sender) for a in ends}
        going.append(min(rank, key=rank.__getitem__))
    return going


def _is_sole_holder(state: State, agent: AgentId) -> bool:
    return state.in_force is not None and not _other_copies(_held(state), agent, ())


def _other_copies(
    held: Mapping[AgentId, Collection[int]], agent: AgentId, gone: Collection[AgentId]
) -> int:
    """How many others hold each of the agent's layers: the fewest."""
    holders = Counter(x for a in held.keys() - {agent, *gone} for x in held[a])
    return min((holders[x] for x in held.get(agent, ())), default=len(held))


def _held(state: State) -> dict[AgentId, list[int]]:
    """Member -> the layers that it holds by plan. What it gets from others in the target step is
    here once that step is committed."""
    in_force = state.in_force
    if in_force is None:
        return {}
    plan, target = in_force.plan, in_force.plan.target
    is_here = state.ledger.progress.committed >= target
    held = dict[AgentId, list[int]]()
    for agent in state.membership.members:
        coming = set() if is_here else _copied(in_force.program(agent, target))
        held[agent] = [x for x in layers_of(plan.wants.get(agent, ())) if x not in coming]
    return held


def _copied(program: Program) -> set[int]:
    """Layers whose weights the program gets from others."""
    items = (x.item for x in single(program) if x.op is Op.RECV)
    return {item.lo for item in items if item is not None and item.kind is Kind.VER}
