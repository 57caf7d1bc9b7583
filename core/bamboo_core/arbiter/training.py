"""Reports of members while they train: committed steps, disputes, the end.

The first dispute about a step makes it void: an agent that then contradicts itself ends. The second
one is a question: the agents that differ only send copies, others compute the step, and their claim
decides. Every dispute makes the step void, so nothing that follows from it is ever committed.

Nobody contradicts itself about a reduced gradient, which comes from others, and no third agent is
asked: if it differs again, the agents that differ from the majority end, or all if there is none.

If copies of a layer differ, or the step of a dispute is committed when it becomes known, something
wrong is committed: training goes on from a verified checkpoint (:func:`_roll_back`).
"""

from __future__ import annotations

from collections.abc import Collection

from bamboo_core.api.events import EventReason, RestoreCause, Severity
from bamboo_core.api.reasons import FailureCause, Reason
from bamboo_core.api.spec import CorruptionMode
from bamboo_core.arbiter import redundancy
from bamboo_core.arbiter.changes import is_short, without_vote
from bamboo_core.arbiter.endings import fail, restore
from bamboo_core.arbiter.losses import blame, lose
from bamboo_core.arbiter.plans import resumed
from bamboo_core.arbiter.rounds import begin
from bamboo_core.arbiter_state import network
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.state import (
    Collecting,
    Over,
    Returning,
    Running,
    State,
    Waiting,
)
from bamboo_core.model.claims import can_decide, has_unknown_input, odd_copies, odd_ones
from bamboo_core.model.counts import counted
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.sampling import newest_compared
from bamboo_core.protocol.messages import (
    CommitRecord,
    Dispute,
    Disputed,
    Finished,
    HookWarning,
    Progress,
    Question,
)

_LASTS = 2
"""Disputes about one step that show that a fault lasts."""


def progressed(state: State, agent: AgentId, progress: Progress, now: float) -> None:
    """A step has been committed."""
    _warn(state, agent, progress.warnings)
    in_force, step = state.in_force, progress.commit.step
    if progress.fence.attempt != state.durable.attempt:
        return  # its attempt has ended
    if in_force is not None and agent in in_force.plan.learners:
        newest = max(in_force.plan.target, state.ledger.progress.committed)
        if step >= newest:
            in_force.caught_up.add(agent)
    if in_force is not None and step > in_force.plan.target and agent in in_force.plan.seats:
        # a step with a pause, or the first of a newcomer, which counts from its start, says nothing
        state.ledger.whole_s = progress.step_s or state.ledger.whole_s
        redundancy.stepped(state, progress.step_s)
    state.speeds.learn(agent, progress, now)
    state.wire.learn(agent, progress.goodput, now, network.most(state))
    if progress.fence >= state.durable.void:
        state.settle_dispute(step)
    if state.ledger.learn(agent, progress, now):
        state.evidence.settle()
        state.stalls.settle()
        state.findings.settle()
        if in_force is not None and step >= in_force.plan.target:
            state.is_loading = False
            resumed(state, step)
        redundancy.committed(state, step)
        if not progress.commit.finite:
            _skipped(state, progress.commit)


def _warn(state: State, agent: AgentId, warnings: Collection[HookWarning]) -> None:
    """One event for each hook. A hook that the job does not have is of no interest."""
    for warning in warnings:
        if warning.hook < len(state.job.spec.hooks) and warning.hook not in state.broken_hooks:
            state.broken_hooks.add(warning.hook)
            text = f"{agent}: {warning.text}"
            state.record(EventReason.HOOK_FAILED, text, Severity.WARNING, agents=agent)


def _skipped(state: State, commit: CommitRecord) -> None:
    """The step has changed no layer, since a number in it is not finite, or it has no targets."""
    row, most = commit.skipped_in_row, state.job.spec.training.on_non_finite.skip
    where = (
        f"the gradient of layer {commit.culprit}"
        if commit.culprit >= 0
        else "the norm of the gradients"
    )
    text = f"{where} is not finite in step {commit.step}"
    if commit.targets == 0:
        text = f"the global batch of step {commit.step} has no targets: its loss counted none"
    if row > most:
        text += (
            f"; {counted(row, 'step')} in a row changed no layer, more than"
            f" spec.training.onNonFinite.skip {most}"
        )
        fail(state, text, Reason.NOT_FINITE)
    elif row.bit_count() == 1:  # the 1st, 2nd, 4th, 8th in a row
        text += f": the step changes no layer; {row} of at most {most} in a row"
        state.record(
            EventReason.STEP_SKIPPED, text, Severity.WARNING, step=commit.step, layer=commit.culprit
        )


def finished(state: State, agent: AgentId, message: Finished) -> None:
    """The agent's last program has run and its files are safe."""
    if isinstance(state.phase, Running) and message.fence == state.fence:
        state.phase.finished.add(agent)


def disputed(state: State, message: Disputed, now: float) -> None:
    """Voters do not agree about a forward. A fact, whoever says it, until the step is void."""
    durable = state.durable
    if _is_settled(state, message) or isinstance(state.phase, Over | Waiting):
        return
    first, question = message.disputes[0], durable.question
    _record(state, message.step, first)
    if first.is_of_copies or message.step <= state.ledger.newest(durable):
        why = f"{_where(first, message.step)}, and what is wrong is committed"
        _roll_back(state, message.step, message.disputes, why, now)
        return
    if _is_maker_gone(durable, message):
        why = f"{_where(first, message.step)}, and who has made the input may be gone"
        _roll_back(state, message.step, (), f"{why}: nobody knows whose layers are right", now)
        return
    where = durable.attempt, message.step  # what a restore has left behind says nothing
    before, count = state.disputes
    count = count + 1 if before == where else 1
    state.disputes = where, count
    void = Fence(durable.attempt, state.term, state.epoch + 1)
    voided = (*(step for step in durable.voided if step != message.step), message.step)
    is_tried = question is not None and question.step == message.step
    odd = frozenset[AgentId]().union(*map(odd_ones, message.disputes))
    gradients = [d for d in message.disputes if d.is_of_gradients and count >= _LASTS]
    odd = odd.union(*(odd_copies(d) or _agents(d) for d in gradients))
    if odd:
        state.out.save(void=void, voided=voided, disputants=(), question=None)
        _convict(state, message.step, first, odd)
    elif is_tried or (count >= _LASTS and not can_decide(first)):
        why = f"{_text(first)} again, and nobody knows who is right"
        _give_up(state, {*_agents(first), *state.questioned}, why, now)
    else:
        asked = Question(message.step, first) if count >= _LASTS else None
        differing = () if asked else _differing(message)  # the second time all copies were equal
        state.out.save(void=void, voided=voided, disputants=differing, question=asked)
        _begin(state, f"step {message.step} is void: {_text(first)}", _agents(first))


def _is_maker_gone(durable: Durable, message: Disputed) -> bool:
    """Whether an input may come from an agent that has no vote any more: the step was interrupted,
    and what the voters say of the stage before is another result. An agent that alone knew the
    commit of the plan's first step may have begun the next one, too."""
    is_whole = message.fence == durable.plan and message.step > durable.target + 1
    return not is_whole and has_unknown_input(message.disputes)


def _differing(message: Disputed) -> tuple[AgentId, ...]:
    """The agents that differ about a forward. The layers of one of them may be wrong."""
    forwards = [d for d in message.disputes if not d.is_of_gradients]
    return tuple(sorted({agent for dispute in forwards for agent in _agents(dispute)}))


def _is_settled(state: State, message: Disputed) -> bool:
    """Whether the dispute says nothing new. Only an agent that has been left out repeats one that
    is older than the newest void; if its own step was not void then, nobody has heard it before."""
    durable = state.durable
    if message.fence.attempt != durable.attempt or not message.disputes:
        return True
    is_void = message.step in durable.voided or message.step > state.ledger.newest(durable)
    return message.fence < durable.void and is_void


def settle(state: State, now: float) -> None:
    """All members have reported: a void step may turn out to be committed; those that differ about
    it may not be able to compute it again; a question is over if its step is committed, or if too
    few agents are left to compute the step."""
    phase, durable = state.phase, state.durable
    members, question = state.membership.members, durable.question
    if not isinstance(phase, Collecting) or members - phase.reports.keys():
        return
    known = [record.step for report in phase.reports.values() for record in report.commits]
    newest = max(known, default=-1)
    if durable.voided and durable.plan < durable.void and newest >= durable.voided[-1]:
        why = f"step {durable.voided[-1]} was in dispute, and what is wrong is committed"
        _roll_back(state, durable.voided[-1], (), why, now)  # not computed again since then
        return
    state.settle_dispute(newest)
    if state.durable.disputants:
        _compare_again(state, now)
    elif question is not None and state.questioned and members and is_short(state):
        why = f"{_text(question.dispute)} again, and too few other agents are left to decide"
        _give_up(state, state.questioned, why, now)


def _compare_again(state: State, now: float) -> None:
    """A plan follows in which all that differ compute the void step, and all of it. Without the
    votes of them all their layers would not be compared, and one of them may be wrong."""
    durable, step = state.durable, state.durable.voided[-1]
    gone = {*durable.disputants} - (state.membership.members - without_vote(state))
    if gone:
        who = f"{' and '.join(durable.disputants)} differ in step {step}"
        why = f"{who}, and {' and '.join(sorted(gone))} cannot compute it again"
        _roll_back(state, step, (), f"{why}: nobody knows whose layers are right", now)
    elif _is_begun(durable):
        state.out.save(void=state.fence._replace(epoch=state.epoch + 1))
        begin(state, f"step {step} is void: it is computed again as a whole")


def _is_begun(durable: Durable) -> bool:
    """Whether a plan has begun to compute the void step again. Not all that is left is compared."""
    return durable.plan >= durable.void


def _convict(state: State, step: int, dispute: Dispute, odd: Collection[AgentId]) -> None:
    """Leave out the agents that are wrong. The others take part again in the next plan."""
    epoch, is_known = state.epoch, odd != {*_agents(dispute)}
    for agent in sorted(odd):
        verdict = f"{agent} is wrong: the others agree" if is_known else "nobody knows who is right"
        why = f"{_where(dispute, step)}, and {verdict}"
        blame(state, agent, FailureCause.CORRUPTION, why)
        lose(state, agent, why, confirmed=False)
        if agent in state.membership.suspected:
            state.fence_suspect(agent)
    if state.epoch == epoch:
        _begin(state, f"step {step} is void: {_text(dispute)}", odd)


def _begin(state: State, why: str, agents: Collection[AgentId]) -> None:
    if not isinstance(state.phase, Returning):  # its first STOP says that the step is void, too
        begin(state, why, cause=agents)


def _give_up(state: State, agents: Collection[AgentId], why: str, now: float) -> None:
    """Training goes on from a checkpoint without these agents. None is blamed."""
    for agent in sorted(agents):
        lose(state, agent, why, confirmed=False)
    restore(state, RestoreCause.CORRUPTION, why, now)


def _roll_back(
    state: State, step: int, disputes: Collection[Dispute], why: str, now: float
) -> None:
    """Something wrong is, or may be, committed: begin anew from a checkpoint that was verified
    before it.

    An agent whose copy differs from the majority's is blamed, unless layers have been copied since
    all were equal, perhaps from the wrong one. Where nobody knows, the agents stay, since the
    checkpoint replaces their layers, but one that differs a second time is blamed, too.
    """
    durable, spec = state.durable, state.job.spec
    committed = min(state.ledger.newest(durable), step - 1)
    copies = [d for d in disputes if d.is_of_copies]
    forwards = [d for d in disputes if not d.is_of_copies]
    odd = frozenset[AgentId]().union(*map(odd_ones, forwards))
    if state.copied_at < newest_compared(committed, spec.save_every):
        odd = odd.union(*map(odd_copies, copies))
    if not odd:
        differing = sorted({agent for dispute in disputes for agent in _agents(dispute)})
        odd = frozenset(differing).intersection(durable.suspects)
        kept = [a for a in durable.suspects if a not in differing]
        state.out.save(suspects=(*kept, *(a for a in differing if a not in odd)))
    state.out.save(rollbacks=durable.rollbacks + 1)
    for agent in sorted(odd):
        blame(state, agent, FailureCause.CORRUPTION, f"{why}; {agent} is to be replaced")
        lose(state, agent, why, confirmed=False)
    restore(state, RestoreCause.CORRUPTION, why, now, wrong_step=step)


def _agents(dispute: Dispute) -> list[AgentId]:
    return sorted(claim.agent for claim in dispute.claims)


def _text(dispute: Dispute) -> str:
    if dispute.is_of_copies:
        return f"{' and '.join(_agents(dispute))} hold different copies of layer {dispute.lo}"
    if dispute.is_of_gradients:
        who = " and ".join(_agents(dispute))
        return f"{who} vote with different gradients or losses of layer {dispute.lo}"
    return (
        f"{' and '.join(_agents(dispute))} differ in the forward of layers {dispute.lo} to"
        f" {dispute.hi - 1} for micro-batch {dispute.microbatch}"
    )


def _where(dispute: Dispute, step: int) -> str:
    return f"{_text(dispute)} {'of' if dispute.microbatch >= 0 else 'in'} step {step}"


def _record(state: State, step: int, dispute: Dispute) -> None:
    text = f"{_where(dispute, step)}: look for a faulty device or memory"
    if state.job.spec.corruption.mode is CorruptionMode.OFF:
        text += "; with spec.corruption.mode Detect agents check their own work"
    state.record(
        EventReason.CORRUPTION,
        text,
        Severity.WARNING,
        agents=",".join(_agents(dispute)),
        step=step,
        layer=dispute.lo,
        microbatch=dispute.microbatch,
    )
