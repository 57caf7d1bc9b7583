"""From the planner's answer to a plan in force: durable facts first, then the directives.

An answer may also say that there is no plan, or the planner may fail; then the job is held, a
checkpoint is restored, or the planner is asked again. What is asked, and when, is in
:mod:`bamboo_core.arbiter.rounds`.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from bamboo_core.api.events import EventReason, Severity
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import Reason
from bamboo_core.arbiter import files, last_write, redundancy, rounds
from bamboo_core.arbiter.endings import end
from bamboo_core.arbiter_state import network
from bamboo_core.arbiter_state.durable import Durable, computed_on
from bamboo_core.arbiter_state.events import Send
from bamboo_core.arbiter_state.state import (
    InForce,
    Listing,
    Planning,
    Running,
    State,
)
from bamboo_core.arbiter_state.waits import Incident
from bamboo_core.model.counts import counted
from bamboo_core.model.ids import AgentId
from bamboo_core.model.processors import Kinds, ProcessorKind
from bamboo_core.planning.requests import (
    Continuations,
    Decision,
    Fatal,
    PlannerFault,
    PlanResult,
    Relocation,
    Unplaceable,
)
from bamboo_core.protocol.admission import ONE_KIND
from bamboo_core.protocol.messages import Directive, Mark

_MOST_FAULTS = 8  # of the planner in a row: about five minutes
_FAULT_PAUSE_S, _LONGEST_FAULT_PAUSE_S = 5.0, 60.0


def planned(state: State, request: int, result: PlanResult, now: float) -> None:
    """An answer of the planner, if it answers the newest request."""
    if request != state.requests:
        return
    if isinstance(result, Continuations):
        if isinstance(state.phase, Running):
            _continue(state, result)
        return
    if isinstance(result, Relocation):
        if isinstance(state.phase, Running) and state.in_force is not None:
            state.in_force.relocation = result
        return
    if isinstance(result, PlannerFault):
        if isinstance(state.phase, Planning | Running):
            why = f"the planner failed: {result.message}" if result.is_defect else result.message
            _plan_again(state, why, now, is_defect=result.is_defect)
        return
    if not isinstance(state.phase, Planning):
        return
    state.evidence.begin_epoch()
    match result:
        case Decision():
            if why := redundancy.refusal(state, result):
                state.membership.without_seat = set(state.membership.members)
                rounds.hold(state, why, now)
            elif not files.looks_first(state, result, now):
                _direct(state, result, now)
        case Fatal(layers, committed):
            state.out.save(committed=max(committed, state.durable.committed))
            text = f"no live copy of layers {', '.join(map(str, layers))}"
            rounds.handle_layer_loss(state, text, now, layers)
        case Unplaceable(message):
            state.membership.without_seat = set(state.membership.members)
            if state.durable.failing and not last_write.staying(state):  # nothing can be written
                rounds.handle_layer_loss(state, message, now)
            else:
                rounds.hold(state, message, now)


def await_plan(state: State, now: float) -> None:
    """While the planner works: it must answer some day."""
    if isinstance(state.phase, Planning) and now >= state.phase.answer_by:
        _plan_again(state, "the planner has not answered in time", now)


def await_continuations(state: State, now: float) -> None:
    """While the plan runs: its second part must come some day."""
    if state.in_force is not None and now >= state.in_force.continuations_by:
        _plan_again(state, "the programs of later steps did not come in time", now)


def _plan_again(state: State, why: str, now: float, *, is_defect: bool = True) -> None:
    """A defect: trying again may help, but not for ever. Without one, the job waits."""
    state.faults = min(state.faults + 1, _MOST_FAULTS - (not is_defect))
    if state.faults >= _MOST_FAULTS:
        end(state, Outcome.FAILED, Reason.PLANNING_FAILED, why)
    elif isinstance(state.phase, Running):
        rounds.begin(state, why)
    else:
        pause_s = min(_FAULT_PAUSE_S * 2 ** (state.faults - 1), _LONGEST_FAULT_PAUSE_S)
        rounds.hold(state, f"{why}; it is asked again", now, plan_by=now + pause_s)


def _direct(state: State, decision: Decision, now: float) -> None:
    """Durable first, then every member's directive."""
    plan, membership, durable = decision.plan, state.membership, state.durable
    repeated = max(0, state.ledger.newest(durable) - decision.committed)
    redone = state.redone(decision)
    if repeated:  # only dead agents knew that these steps were committed
        state.ledger.forget_commit()
    idle, before = membership.members - set(plan.members), set(durable.members)
    # an agent that only hands over has had its chance, too, and is no newcomer afterwards
    membership.without_seat = membership.members - {*plan.live, *plan.learners}
    membership.members = set(plan.members)
    is_suspending = plan.last < state.job.spec.training.steps
    assert isinstance(state.phase, Planning)
    speeds, bytes_per_s = state.phase.speeds, state.phase.network
    redundancy.warn(state, state.in_force.shortage if state.in_force else "", decision.shortage)
    look_s = last_write.look_s(state, now)
    directives = _with_facts(decision.directives, durable, look_s)
    state.in_force = InForce(
        plan,
        directives,
        is_suspending,
        shortage=decision.shortage,
        speeds=speeds,
        network=bytes_per_s,
        begun_at=now,
        redone=redone.parts,
    )
    state.wire.begin(plan.members)
    state.is_loading, state.listing = decision.loads > 0, Listing()
    state.learner_plans = state.learner_plans + 1 if plan.learners else 0
    if decision.copies or state.copied_at == inf:
        state.copied_at = plan.target
    state.phase = Running()
    if any(d.has_continuation for d in decision.directives.values()):
        state.phase.detail = "the programs of later steps are being computed"
        state.in_force.continuations_by = now + state.job.timing.continuation_s
    else:
        state.faults = 0
        if durable.saving and plan.target == plan.last:
            state.phase.detail = f"the state is written first: {durable.saving}"
    state.deadlines.clear()
    state.ledger.progress_at = now
    state.out.save(
        plan=plan.fence,
        members=plan.members,
        voters=plan.live,
        departed=(),
        pipelines=plan.pipelines,
        cut=plan.cut,
        step_cut=plan.step_cut,
        target=plan.target,
        move=plan.move,
        processors=_processors(state, plan.target),
        committed=decision.committed,
    )
    last_write.release_others(state)
    mode_change = redundancy.put_in_force(state)
    for agent in plan.members:
        state.out.after_facts(Send(agent, directives[agent]))
    for agent in sorted(idle & membership.departures().keys()):
        if agent in before:
            text = f"{agent} holds nothing that is needed"
            state.record(EventReason.AGENT_LEFT, text, agents=agent)
        state.let_go(agent)
    state.fence_suspects()
    _record_plan(state, decision, repeated, redone.tasks, mode_change)


def _with_facts(
    directives: dict[AgentId, Directive], durable: Durable, look_s: float
) -> dict[AgentId, Directive]:
    """With what an agent must know to seal and prune."""
    forks, bad = durable.forks, tuple(Mark(*mark) for mark in durable.bad)
    if not (forks or bad or look_s):
        return directives
    return {
        agent: replace(told, forks=forks, bad=bad, look_s=look_s)
        for agent, told in directives.items()
    }


def _processors(state: State, target: int) -> Kinds:
    """The job's kinds of processor with that of the members, who compute from step ``target`` on.

    If the state was computed on another kind, an event tells of it. Training goes on: no work is
    lost for it.
    """
    durable, found = state.durable, state.membership.processor()
    known, left, attempt = durable.processors, computed_on(durable), durable.attempt
    if not known:  # a new job, or one of a version that did not remember: its agents were alike
        begun = durable.manifest.step if durable.manifest is not None else 0
        return (replace(found, step=begun, attempt=attempt),)
    newest = known[-1]
    if left and left[-1] == newest and newest.is_like(found):
        return (*known[:-1], newest.filled(found))
    found = replace(found, step=target, attempt=attempt)
    if newest.is_like(found):
        found = found.filled(newest)
    before = next((kind for kind in (newest, *left[-1:]) if not kind.is_like(found)), None)
    if before is not None:
        is_mixed = not all(kind.is_like(found) for kind in left)
        _tell_processors(state, before, found, is_mixed=is_mixed)
    return (*known, found)


def _tell_processors(
    state: State, before: ProcessorKind, found: ProcessorKind, *, is_mixed: bool
) -> None:
    if is_mixed:
        what = f"from step {found.step} on the bits are not those of a run on one kind"
    else:  # what the other kind has computed is undone
        what = "no step is left that was computed on another kind"
    text = (
        f"attempt {found.attempt} goes on from step {found.step} on another kind of processor:"
        f" {found}, before {before}; {what}: {ONE_KIND}, for example by its instance type"
    )
    state.record(
        EventReason.PROCESSOR_CHANGED,
        text,
        Severity.WARNING,
        attempt=found.attempt,
        step=found.step,
        processor=str(found),
        processor_before=str(before),
    )


def _continue(state: State, result: Continuations) -> None:
    """The programs after the target step; members that have ended it wait for them."""
    assert state.in_force is not None
    assert isinstance(state.phase, Running)
    state.phase.detail = ""
    state.faults = 0
    state.in_force.continuations, state.in_force.told = result.directives, result.told
    if result.expected:  # else costs are not measured, and times mean nothing to users
        state.in_force.sharing = result.sharing
    state.in_force.continuations_by = inf
    state.speeds.begin(state.in_force.plan.fence, state.in_force.plan.target, result.expected)
    for agent in sorted(state.membership.members & result.directives.keys()):
        state.out.after_facts(Send(agent, result.directives[agent]))


def _record_plan(state: State, decision: Decision, repeated: int, redone: int, mode: str) -> None:
    plan = decision.plan
    assert state.in_force is not None
    facts: dict[str, str | int | float] = {
        "epoch": plan.fence.epoch,
        "step": plan.target,
        "pipelines": len(plan.pipelines),
        "stages": len(plan.cut),
        "agents": ",".join(plan.live),
        "empty_seats": plan.holes,
        "leaving": len(plan.leaving),
        "learners": len(plan.learners),
        "copied_layers": decision.copies,
        "loaded_layers": decision.loads,
        "repeated_steps": repeated,
        "redone_tasks": redone,
        "network_gbps": _gbps(state.in_force.network),
    }
    text = (
        f"epoch {plan.fence.epoch}: {len(plan.pipelines)} x {len(plan.cut)} from step"
        f" {plan.target}, {counted(len(plan.live), 'agent')}"
    )
    made = "loaded" if plan.target else "built"
    is_slow = state.in_force.network < network.most(state)
    parts = [
        f"{counted(plan.holes, 'seat')} empty" if plan.holes else "",
        f"{len(plan.leaving)} leaving" if plan.leaving else "",
        f"{len(plan.learners)} catching up" if plan.learners else "",
        f"{counted(decision.copies, 'layer')} copied" if decision.copies else "",
        f"{counted(decision.loads, 'layer')} {made}" if decision.loads else "",
        f"{counted(repeated, 'committed step')} repeated" if repeated else "",
        f"{counted(redone, 'task')} computed again" if redone else "",
        f"network as measured: {facts['network_gbps']} Gb/s" if is_slow else "",
        mode,
    ]
    state.record(
        EventReason.PLANNED, ", ".join([text, *filter(None, parts)]), Severity.NORMAL, **facts
    )


def _gbps(bytes_per_s: float) -> float:
    return float(f"{bytes_per_s * 8 / 1e9:.3g}")


def resumed(state: State, step: int) -> None:
    """A step of the plan in force is committed: how long the change has taken. A commit that was
    on its way when the STOP left does not show that training goes on."""
    if not isinstance(state.phase, Running):
        return
    state.incident = Incident()
    if state.stopped_at is not None:
        pause_s, state.stopped_at = state.real_s - state.stopped_at, None
        text = f"epoch {state.epoch}: step {step} is committed {pause_s:.2f} s after the stop"
        durable = state.durable
        base = durable.manifest.step if durable.manifest is not None else 0
        state.record(
            EventReason.RESUMED,
            text,
            epoch=state.epoch,
            step=step,
            pause_s=round(pause_s, 3),
            undone_steps=max(0, durable.undone - base),
            cause="",  # the counting of pauses knows it
        )
        if durable.undone:
            state.out.save(undone=0)
