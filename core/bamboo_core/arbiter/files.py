"""Checkpoints: what agents say of their files, and what the arbiter concludes.

No silence and no absence says that a checkpoint is bad: a folder may be away for a while. A
checkpoint that was read and is wrong counts as bad once that is confirmed; see
:mod:`bamboo_core.arbiter_state.findings`. Until then the job waits.
"""

from __future__ import annotations

from bamboo_core.api.events import EventReason, RestoreCause, Severity
from bamboo_core.api.reasons import FailureCause
from bamboo_core.api.spec import RestoreSpec
from bamboo_core.arbiter import last_write
from bamboo_core.arbiter.endings import restore
from bamboo_core.arbiter.losses import blame, lose
from bamboo_core.arbiter.rounds import begin, hold
from bamboo_core.arbiter_state.durable import (
    Restored,
    eligible,
    is_sealed,
    orderable,
    with_listed,
    with_manifest,
    with_newer,
)
from bamboo_core.arbiter_state.events import DesiredState, Send
from bamboo_core.arbiter_state.findings import AGAIN_S
from bamboo_core.arbiter_state.origin import begins_elsewhere
from bamboo_core.arbiter_state.state import Holding, InForce, Over, Returning, Running, State
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.program import Op, single
from bamboo_core.model.pruning import LEAST_KEPT, removable, worth_keeping
from bamboo_core.planning.requests import Decision
from bamboo_core.protocol.messages import BadCheckpoint, Directive, Listed, Manifest, Sealed

_MOST_LOOKS = 8  # agents that read a suspect checkpoint


# ---------------------------------------------------------------- what agents say


def sealed(state: State, message: Sealed) -> None:
    """A checkpoint is complete. One of an earlier attempt counts until this one has a plan."""
    manifest, durable = message.manifest, state.durable
    is_last = manifest.attempt < durable.attempt and not durable.voters
    if manifest.attempt != durable.attempt and not is_last:
        return
    how = state.job.spec.best
    known, bad = with_manifest(durable, manifest, how), durable.bad
    if is_last:
        known = with_listed(durable, (manifest,), state.ledger.newest(durable), how)
    if state.in_force is not None and _writes_again(state.in_force, manifest.step):
        bad = tuple(mark for mark in bad if mark != (manifest.attempt, manifest.step))
        state.findings.found.pop((manifest.attempt, manifest.step), None)
    known = _still_there(state, manifest, known)
    is_news = (known, bad) != (durable.manifests, durable.bad)
    if is_news or is_sealed(durable, (manifest.attempt, manifest.step)):
        last_write.sealed(state, manifest)
    if is_news:
        state.out.save(manifests=known, bad=bad)
        text = f"checkpoint of step {manifest.step} is complete: {manifest.path}"
        severity = Severity.WARNING if message.unseen else Severity.NORMAL
        if message.unseen:
            text += f"; {message.caveat}"
        state.record(EventReason.CHECKPOINT_SEALED, text, severity, step=manifest.step)


def _still_there(
    state: State, newest: Manifest, known: tuple[Manifest, ...]
) -> tuple[Manifest, ...]:
    """Without those that the agent deletes now that it has sealed the newest one."""
    durable, checkpoint = state.durable, state.job.spec.checkpoint
    if checkpoint is None or newest.attempt != durable.attempt:
        return known
    values = {(m.attempt, m.step): m.value for m in known}
    forks = [(f.attempt, f.step) for f in durable.forks]
    how, kept = checkpoint.best, set[tuple[int, int]]()
    if how is not None:
        kept = worth_keeping(values, durable.bad, forks, is_max=how.is_max)
    gone = removable(
        values,
        newest=(newest.attempt, newest.step),
        keep=max(LEAST_KEPT, checkpoint.keep),
        sealed=values.keys() - set(durable.bad),
        forks=forks,
        best=kept,
    )
    return tuple(m for m in known if (m.attempt, m.step) not in gone)


def listed(state: State, agent: AgentId, message: Listed, now: float) -> None:
    """Checkpoints that an agent has found. If the job waits for them, all agents report anew: they
    do not name files any more that have turned out to be wrong.

    A list that was begun before the job asked may lack the newest ones. An agent of an earlier
    version does not say when it began. One that lacks what the facts name is of an agent that
    does not see the folder.
    """
    _note_unreachable(state, agent, message)
    if message.right is not None and agent in state.membership.agents:
        mark = message.right.attempt, message.right.step
        state.findings.hear_right(state.membership.node_of(agent), mark)
        _convict(state, mark)
    durable, listing = state.durable, state.listing
    newest, how = state.ledger.newest(durable), state.job.spec.best
    known = with_listed(durable, _possible(state, message), newest, how)
    if known != durable.manifests:
        state.out.save(manifests=known)
    if message.error and isinstance(state.phase, Running) and _is_passed(state):
        why = "the checkpoint of this attempt cannot be read, and there is a newer one"
        restore(state, RestoreCause.LAYER_LOST, why, now)
        return
    is_asked = listing.since is not None and message.fence >= listing.since
    is_of_old_agent = listing.since is not None and message.fence == Fence()
    is_whole = not message.is_partial and _sees_folder(state, message)
    is_answer = (is_asked or is_of_old_agent) and is_whole
    is_news = is_answer and not listing.is_here
    listing.is_here |= is_answer
    if is_news and isinstance(state.phase, Holding):
        begin(state, "the checkpoints are listed")


def _possible(state: State, message: Listed) -> list[Manifest]:
    """Without those that nobody can have written: an agent may err, and the job would wait for
    them. In this attempt no step is beyond the newest commit, if that is known."""
    durable, last = state.durable, state.job.spec.training.steps
    newest = _newest_commit(state)
    own = last if newest is None else min(last, newest + 1)
    return [
        m for m in message.manifests if m.step <= (own if m.attempt == durable.attempt else last)
    ]


def _newest_commit(state: State) -> int | None:
    """Step of the attempt's newest commit, of which only the newest plan's coordinator may know one
    more. None: agents may have come further than anybody has said. They have not while a voter has
    said how far it is, since nothing is committed without it."""
    durable, reports = state.durable, state.reports()
    is_told = not reports.keys().isdisjoint(durable.voters)
    if isinstance(state.phase, Running):
        is_told = any(state.membership.is_connected(voter) for voter in durable.voters)
    if not is_told or durable.plan.attempt != durable.attempt:
        return None
    reported = (commit.step for report in reports.values() for commit in report.commits)
    return max(state.ledger.newest(durable), durable.target - 1, *reported)


def _is_passed(state: State) -> bool:
    """Whether this attempt, which has computed nothing, could have begun from a newer checkpoint:
    that one may have replaced its own while no operator was there."""
    durable = with_newer(state.durable, state.ledger.newest(state.durable))
    newest = next(reversed(eligible(durable)), None)
    base = durable.manifest.step if durable.manifest is not None else 0
    return durable is not state.durable and newest is not None and newest.step > base


def _sees_folder(state: State, message: Listed) -> bool:
    """Whether the list has what the facts name, but for what was found wrong, or something newer:
    the newest checkpoint is never deleted before."""
    good = [m for m in eligible(state.durable) if (m.attempt, m.step) not in state.findings.found]
    return not good or any(m.step >= good[-1].step for m in message.manifests)


def _note_unreachable(state: State, agent: AgentId, message: Listed) -> None:
    if agent not in state.membership.agents:
        return
    if message.error:
        state.findings.unreachable[agent] = message.error
    else:
        state.findings.unreachable.pop(agent, None)


def bad_checkpoint(state: State, agent: AgentId, bad: BadCheckpoint, now: float) -> None:
    """A checkpoint could not be written, or was found wrong. In the first case, or once that is
    confirmed, it is not read any more. Whether a layer is lost with it is for the next plan to find
    out, since what was read before is still held.

    A sealed checkpoint that could not be written again is as good as before: its files are replaced
    one by one, by renaming, with the same bits."""
    mark = (bad.attempt, bad.step)
    if bad.cause and is_sealed(state.durable, mark):
        return
    if last_write.failed(state, agent, bad):
        return
    if not bad.cause and agent in state.findings.refuted_agents:
        return
    text = f"checkpoint of step {bad.step} cannot be used: {bad.message}"
    is_certain = False
    if mark not in state.durable.bad:
        is_certain = bad.cause != "" or _is_confirmed(state, agent, bad, now)
        if is_certain:
            state.out.save(bad=(*state.durable.bad, mark))
        else:
            text = (
                f"{agent} has found the checkpoint of step {bad.step} wrong: {bad.message}; another"
                f" agent looks at it, or the same one again after {AGAIN_S:g} s"
            )
        state.record(
            EventReason.CHECKPOINT_BAD, text, Severity.WARNING, agents=agent, step=bad.step
        )
        _convict(state, mark)
    if isinstance(state.phase, Running):
        assert state.in_force is not None
        is_written = mark == (state.durable.attempt, state.in_force.plan.target) and not bad.cause
        if is_written or mark == _loaded(state.in_force.directives):
            begin(state, text)
    elif isinstance(state.phase, Holding) and is_certain and not bad.cause:
        state.reconsider()


def _is_confirmed(state: State, agent: AgentId, bad: BadCheckpoint, now: float) -> bool:
    membership = state.membership
    node = membership.node_of(agent)
    is_alone = all(membership.node_of(other) == node for other in membership.connected())
    return state.findings.hear(agent, node, bad, now, is_alone=is_alone)


def _convict(state: State, mark: tuple[int, int]) -> None:
    """Leave out agents that find a checkpoint wrong which is right on another node."""
    for agent in state.findings.refuted(mark):
        why = (
            f"it has found the checkpoint of step {mark[1]} wrong twice, and an agent on another"
            " node has read all of it, and it is right: look for a faulty memory or disk"
        )
        blame(state, agent, FailureCause.CORRUPTION, why)
        lose(state, agent, why, confirmed=False)
        if agent in state.membership.suspected:
            state.fence_suspect(agent)
        state.reconsider()


def _loaded(directives: dict[AgentId, Directive]) -> tuple[int, int] | None:
    """The checkpoint from which some agent is told to read layers."""
    for told in directives.values():
        if told.manifest is not None and any(x.op is Op.LOAD for x in single(told.resume)):
            return told.manifest.attempt, told.manifest.step
    return None


def _writes_again(in_force: InForce, step: int) -> bool:
    """Whether the plan in force writes every layer of this step's checkpoint again."""
    if in_force.plan.target != step:
        return False
    saves = [i for d in in_force.directives.values() for i in single(d.resume) if i.op is Op.SAVE]
    layers = {x for i in saves for x in range(i.lo, i.hi)}
    return layers == set(range(in_force.plan.layers))


# ---------------------------------------------------------------- before a plan that loads


def looks_first(state: State, decision: Decision, now: float) -> bool:
    """A plan would load a checkpoint that an agent has just found wrong: others look at it first,
    and it is loaded again only after a pause. Whether the job waits for that."""
    mark = _loaded(decision.directives)
    finding = state.findings.found.get(mark) if mark is not None else None
    if finding is None or now >= finding.again_at:
        return False
    suspect = next(m for m in state.durable.manifests if (m.attempt, m.step) == mark)
    stop = state.stop(want_manifests=True, suspect=suspect)
    for agent in _lookers(state, set(finding.words)):
        state.out.after_facts(Send(agent, stop))
    text = f"the checkpoint of step {suspect.step} is read again, since it was found wrong"
    hold(state, text, now, plan_by=finding.again_at)
    return True


def _lookers(state: State, known: set[str]) -> list[AgentId]:
    """Connected members on nodes that have not said anything, one of each."""
    membership, found = state.membership, dict[str, AgentId]()
    for agent in sorted(membership.members & membership.connected()):
        node = membership.node_of(agent)
        if node not in known:
            found.setdefault(node, agent)
    return list(found.values())[:_MOST_LOOKS]


# ---------------------------------------------------------------- the user's order


def go_back(state: State, desired: DesiredState, now: float) -> None:
    """Restore what the user has asked for. Each id is carried out once. If one comes back later, or
    with another step, the user is told that nothing follows."""
    order, durable = desired.restore, state.durable
    if order is None or isinstance(state.phase, Over | Returning):
        return
    before = [each for each in durable.restored if each.id == order.id]
    same = [each for each in before if each.from_step == order.from_step]
    if same and same[-1] == durable.restored[-1]:
        return
    others = tuple(each for each in durable.restored if each not in same)
    if before:
        told = same[-1] if same else Restored(order.id, order.from_step)
        state.out.save(restored=(*others, told))
        _refuse(state, _repeated(order, before[0]))
        return
    known = orderable(durable, state.ledger.newest(durable))
    base = next((m for m in reversed(known) if m.step == order.from_step), None)
    is_refused = base is None and (order.from_step > 0 or begins_elsewhere(state))
    is_idle = durable.plan == Fence()  # nothing has been computed yet
    attempt = 0 if is_refused or is_idle else durable.attempt + 1
    state.out.save(restored=(*others, Restored(order.id, order.from_step, attempt)))
    if is_idle:
        return
    if is_refused:
        _refuse(state, _no_such_step(state, order.from_step, known))
        return
    if base is not None:
        mark = (base.attempt, base.step)
        state.out.save(bad=tuple(other for other in durable.bad if other != mark))
    why = "spec.restore asks for it"
    restore(state, RestoreCause.USER_REQUESTED, why, now, ordered=(base,))


def _refuse(state: State, text: str) -> None:
    state.record(EventReason.RESTORE_REFUSED, text, Severity.WARNING)


def _repeated(order: RestoreSpec, before: Restored) -> str:
    is_same = order.from_step == before.from_step
    step = "" if is_same else f" with fromStep {before.from_step}"
    again = "again" if is_same else f"to step {order.from_step}"
    return (
        f'spec.restore.id "{order.id}" was given before{step}, and each id is carried out once: to'
        f" go back {again}, use a new spec.restore.id"
    )


def _no_such_step(state: State, step: int, known: tuple[Manifest, ...]) -> str:
    steps = ", ".join(dict.fromkeys(str(m.step) for m in known)) or "none"
    start = "" if begins_elsewhere(state) else ", or 0 for the start"
    return (
        f"spec.restore.fromStep {step} is no step of a checkpoint that can be used: choose one of"
        f" {steps}{start}, with a new spec.restore.id"
    )
