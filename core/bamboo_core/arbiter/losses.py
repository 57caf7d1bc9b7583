"""Which agents are lost, from which evidence, and what follows for the current round."""

from __future__ import annotations

from math import inf

from bamboo_core.api.events import EventReason, Severity
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import FailureCause, Reason, user_reason
from bamboo_core.arbiter import last_write, redundancy, refusals
from bamboo_core.arbiter.endings import end
from bamboo_core.arbiter.rounds import begin
from bamboo_core.arbiter_state.state import Collecting, InForce, Over, Returning, Running, State
from bamboo_core.evidence.liveness import expel
from bamboo_core.evidence.stalls import StallCause, find, slow_storage
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.program import Op
from bamboo_core.placement.plan import layers_of
from bamboo_core.protocol.admission import Refusal
from bamboo_core.protocol.messages import Activity, ActivityKind, Failure, Left, Notice

_OWN = (Reason.FINGERPRINT_MISMATCH, Reason.DEVICE_DIFFERS)  # others may fit
_PROOF = 2  # agents that fail by the user's code, so that it is not one machine's fault

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
    text = f"{agent}: {failure.reason}: {failure.message}"
    if failure.user_error and (_is_everywhere(state) or _is_repeated(state, agent, failure)):
        end(state, Outcome.FAILED, user_reason(failure.reason), text)
        return
    others = tuple(a for a in state.durable.disputants if a != agent)
    if failure.reason == FailureCause.CORRUPTION and others:
        state.out.save(disputants=others)  # it has contradicted itself, so their layers are right
    cause = str(user_reason(failure.reason)) if failure.user_error else failure.reason
    blame(state, agent, cause, failure.message)
    lose(state, agent, f"worker ended: {failure.reason}", confirmed=True)


def blame(state: State, agent: AgentId, cause: str, message: str) -> None:
    """A failure that counts against the agent's node."""
    text = f"{agent}: {cause}: {message}"
    state.record(EventReason.WORKER_FAILED, text, Severity.WARNING, agents=agent, cause=cause)


def _is_everywhere(state: State) -> bool:
    """Whether the user's code cannot work anywhere: no agent has ever become ready, and two have
    failed by it. Else a failure is the agent's own."""
    has_worked = state.durable.plan != Fence() or state.membership.ready_at > -inf
    return not has_worked and sum(state.failed.values()) >= _PROOF


def _is_repeated(state: State, agent: AgentId, failure: Failure) -> bool:
    """Whether another member has failed by the user's code with the same text: whoever computes
    the same fails. What a newcomer's set-up finds may be the fault of its machine."""
    if failure.reason != Reason.USER_CODE_FAILED or agent not in state.membership.members:
        return False
    is_known = failure.message in state.users_errors
    state.users_errors.add(failure.message)
    return is_known


def refuse(state: State, agent: AgentId, refusal: Refusal) -> None:
    """The agent does not fit the job: its own fault, unless the spec fits no agent."""
    state.failed[agent] = refusal.reason not in _OWN
    if _is_everywhere(state):
        end(state, Outcome.FAILED, refusal.reason, refusal.message)
        return
    refusals.tell(state, agent, refusal)
    lose(state, agent, refusal.reason, confirmed=False)
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
    text = f"{agent} has handed over what it held"
    state.record(EventReason.AGENT_LEFT, text, agents=agent)
    if state.membership.is_departing(agent) or agent in state.membership.slow:
        state.let_go(agent)
        state.evidence.forget(agent)


def look(state: State, now: float) -> None:
    """Draw conclusions from silence, and from time."""
    redundancy.look(state)
    if isinstance(state.phase, Over | Returning):
        return
    membership = state.membership
    known = membership.members | membership.agents.keys()
    for agent, why in state.evidence.lost(known, now):
        lose(state, agent, why, confirmed=False)
    if isinstance(state.phase, Running):
        _mend_links(state, now)
    if isinstance(state.phase, Running):
        _mend_stall(state, now)


def overdue(state: State, now: float) -> None:
    """Members that have not reported in time are lost. An instruction that may still run has its
    time, but an agent whose sessions end before it reports does not get it again and again."""
    phase = state.phase
    if not isinstance(phase, Collecting):
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


def lose(state: State, agent: AgentId, why: str, *, confirmed: bool) -> None:
    """An agent does not count any more.

    confirmed: its end has been seen. Else it is a suspect, which only the next plan fences: until
    then it may come back, as a newcomer whose holdings are facts.
    """
    membership = state.membership
    was_member = agent in membership.members
    if was_member:
        redundancy.lost(state, agent)
    if confirmed:
        if agent in membership.suspected:
            state.reconsider()
        membership.dead.add(agent)
        is_released = isinstance(state.phase, Over) or last_write.refuses(state, agent)
        if not is_released:  # else its log is all that is left of it
            state.dismiss(agent, why)
    elif agent in membership.agents or was_member:
        membership.suspect(agent, why)
    state.evidence.forget(agent)
    state.stalls.activities.pop(agent, None)
    if not was_member:
        return
    state.remove(agent)
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
    checkpoint, durable = state.job.spec.checkpoint, state.durable
    if checkpoint is None or not checkpoint.every_steps or step % checkpoint.every_steps:
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
    wait_s = max(patience.wait_s, 2 * state.ledger.usual_s)
    members = state.membership.members
    if state.evidence.is_channel_broken(members):
        return
    known = {
        a: x
        for a, x in stalls.activities.items()
        if now >= _answered_at(state.in_force, a, x) + wait_s
    }
    _tell_storage(state, slow_storage(known, members))
    is_complete = state.in_force.continuations_by == inf
    stall = find(known, members, wait_s=wait_s, finished=phase.finished, is_complete=is_complete)
    if stall is None:
        return
    stalls.text = stall.message
    stalls.counts[stall.cause] = stalls.counts.get(stall.cause, 0) + 1
    agents = ",".join(sorted(stall.roots))
    state.record(
        EventReason.STALLED, stall.message, Severity.WARNING, cause=stall.cause, agents=agents
    )
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


def _tell_storage(state: State, text: str) -> None:
    """Agents that wait for storage: no other plan and no other agent would help."""
    stalls = state.stalls
    if text and not stalls.storage:
        stalls.counts[StallCause.STORAGE] = stalls.counts.get(StallCause.STORAGE, 0) + 1
        state.record(
            EventReason.STALLED, text, Severity.WARNING, cause=StallCause.STORAGE, agents=""
        )
    stalls.storage = text


def _is_sole_holder(state: State, agent: AgentId) -> bool:
    if state.in_force is None:
        return False
    wants = state.in_force.plan.wants
    others = {
        x
        for a, ranges in wants.items()
        if a in state.membership.members and a != agent
        for x in layers_of(ranges)
    }
    return any(x not in others for x in layers_of(wants.get(agent, ())))
