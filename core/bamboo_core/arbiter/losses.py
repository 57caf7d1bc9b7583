"""Which agents are lost, from which evidence, and what follows for the current round."""

from __future__ import annotations

from bamboo_core.api.events import EventReason, Severity
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import user_reason
from bamboo_core.arbiter.endings import end
from bamboo_core.arbiter.evidence import expel
from bamboo_core.arbiter.rounds import begin
from bamboo_core.arbiter.state import Collecting, Over, Returning, Running, State
from bamboo_core.model.ids import AgentId
from bamboo_core.model.program import Op
from bamboo_core.placement.plan import layers_of
from bamboo_core.protocol.messages import Failure, Notice

# ---------------------------------------------------------------- evidence


def disconnected(state: State, agent: AgentId, now: float) -> None:
    """The agent's session has ended; it may begin another one."""
    if state.membership.disconnect(agent):
        state.evidence.disconnect(agent, now)
        look(state, now)


def noticed(state: State, agent: AgentId, notice: Notice, now: float) -> None:
    """The agent will leave."""
    membership = state.membership
    is_news = not membership.is_departing(agent)
    membership.agents[agent].will_leave(now + notice.lead_s)
    if is_news and agent in membership.members:
        text = f"{agent} will go away in {notice.lead_s:g} s ({notice.reason})"
        state.record(EventReason.AGENT_LEAVING, text, agents=agent, lead_s=notice.lead_s)


def failed(state: State, agent: AgentId, failure: Failure, now: float) -> None:
    """The worker's process has ended for certain, and its state is gone."""
    text = f"{agent}: {failure.reason}: {failure.message}"
    if failure.user_error:
        end(state, Outcome.FAILED, user_reason(failure.reason), text)
        return
    state.record(EventReason.WORKER_FAILED, text, Severity.WARNING, agents=agent)
    lose(state, agent, f"worker ended: {failure.reason}", confirmed=True, now=now)


def left(state: State, agent: AgentId) -> None:
    """EXIT has run. A STOP that came too late for the agent does without its report."""
    if state.in_force is not None and agent in state.in_force.plan.live:
        return
    state.remove(agent)
    text = f"{agent} has handed over what it held"
    state.record(EventReason.AGENT_LEFT, text, agents=agent)
    if state.membership.is_departing(agent):
        state.let_go(agent)
        state.evidence.forget(agent)


def look(state: State, now: float) -> None:
    """Draw conclusions from silence."""
    state.evidence.look(now)
    if isinstance(state.phase, Over | Returning):
        return
    membership = state.membership
    known = membership.members | membership.agents.keys()
    for agent, why in state.evidence.lost(known, now):
        lose(state, agent, why, confirmed=False, now=now)
    if isinstance(state.phase, Running):
        _mend_links(state, now)


def overdue(state: State, now: float) -> None:
    """Members that have not reported in time are lost."""
    phase = state.phase
    if isinstance(phase, Collecting) and now >= phase.report_by:
        for agent in sorted(state.membership.members - phase.reports.keys()):
            lose(state, agent, "no report in time", confirmed=False, now=now)


# ---------------------------------------------------------------- consequences


def lose(state: State, agent: AgentId, why: str, *, confirmed: bool, now: float) -> None:
    """An agent does not count any more.

    confirmed: its end has been seen. Else it is a suspect, which only the next plan fences: until
    then it may come back, as a newcomer whose holdings are facts.
    """
    membership = state.membership
    was_member = agent in membership.members
    if confirmed:
        if agent in membership.suspected:
            state.reconsider()
        membership.dead.add(agent)
        if not isinstance(state.phase, Over):  # its log is all that is left of the job
            state.dismiss(agent, why)
    elif agent in membership.agents or was_member:
        membership.suspect(agent, why)
    state.evidence.forget(agent)
    if not was_member:
        return
    state.remove(agent)
    state.record(EventReason.AGENT_LOST, f"{agent}: {why}", Severity.WARNING, agents=agent)
    if not isinstance(state.phase, Running):
        return
    if _is_dispensable(state, agent):
        state.fence_suspects()
    else:
        begin(state, f"{agent} is lost", now, cause=[agent])


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
        patience_s=2 * state.ledger.progress.step_s,
        now=now,
    )
    if not links:
        return
    again = [link for link in links if link in state.evidence.tried]
    state.evidence.tried.update(links)
    for agent in expel(again, lambda a: _is_sole_holder(state, a)):
        lose(state, agent, "cut off from other members", confirmed=False, now=now)
    if isinstance(state.phase, Running):
        pairs = ", ".join(f"{a}-{b}" for a, b in links)
        ends = {agent for link in links for agent in link}
        begin(state, f"connections are broken: {pairs}", now, cause=ends)


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
