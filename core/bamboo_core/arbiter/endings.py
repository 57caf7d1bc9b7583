"""How a job ends, is suspended and resumed, or begins a new attempt from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from bamboo_core.api import texts
from bamboo_core.api.events import EventReason, RestoreCause, Severity
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import Reason
from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter_state.durable import Durable, Fork, eligible, shrunk, verified, with_newer
from bamboo_core.arbiter_state.events import DesiredState, Over, Send
from bamboo_core.arbiter_state.last_write import Rewriting
from bamboo_core.arbiter_state.outbox import Outbox
from bamboo_core.arbiter_state.state import Over as OverPhase
from bamboo_core.arbiter_state.state import Running, State, Waiting
from bamboo_core.arbiter_state.waits import Incident
from bamboo_core.model.counts import counted
from bamboo_core.model.ids import Fence
from bamboo_core.protocol.messages import Manifest, Release

_NONE = "spec.checkpoint.everySteps writes checkpoints while training goes on"
_FEWER = "with a smaller spec.checkpoint.everySteps they would be fewer"
_ON_PURPOSE = (RestoreCause.CORRUPTION, RestoreCause.USER_REQUESTED)
"""Newer checkpoints are left behind for good."""


def restore(
    state: State,
    cause: RestoreCause,
    why: str,
    now: float,
    *,
    wrong_step: float = inf,
    ordered: tuple[Manifest | None] | None = None,
) -> None:
    """A new attempt from the newest good checkpoint: the only action that loses work. ordered: the
    one that the user wants; None in it is the start.

    Because of wrong bits only a verified checkpoint is good, and only if it is older than
    ``wrong_step``. No later plan uses a newer one, since the attempt forks before it.

    A job that ends by an error of the user's code would meet it again, so it ends here.
    """
    if state.durable.failing:
        end_failing(state, f"{why}; ", is_layer_lost=True)
        return
    durable, newest = state.durable, state.ledger.newest(state.durable)
    if cause is not RestoreCause.CORRUPTION:  # else only what this attempt was made from is good
        durable = with_newer(durable, newest)
    known = good = eligible(durable)
    if cause is RestoreCause.CORRUPTION:
        good = verified(durable, min(newest, wrong_step - 1), state.job.spec.save_every)
    manifest = next(reversed(good), None) if ordered is None else ordered[0]
    step = manifest.step if manifest is not None else 0
    repeated = max(0, newest + 1 - step)
    source = _source(manifest)
    if cause is RestoreCause.CORRUPTION:
        source += _skipped(m.step for m in known if m.step > step)
    attempt = durable.attempt + 1
    state.record(
        EventReason.RESTORING,
        f"{why}; attempt {attempt} from {source}: {counted(repeated, 'committed step')} repeated",
        Severity.WARNING if repeated else Severity.NORMAL,
        cause=cause,
        attempt=attempt,
        step=step,
        repeated_steps=repeated,
    )
    state.out.save(
        attempt=attempt,
        manifest=manifest,
        forks=(*shrunk(durable), Fork(attempt, step)),
        members=(),
        voters=(),
        departed=(),
        pipelines=(),
        committed=step - 1,
        disputants=(),
        question=None,
        voided=(),
        undone=max(durable.undone, newest + 1),
        last_write=None,
        saving="",
        rolled_back=attempt if cause in _ON_PURPOSE else durable.rolled_back,
    )
    _begin_anew(state, why, now)


def _begin_anew(state: State, why: str, now: float) -> None:
    """No agent has a part any more, and nothing is waited for but agents."""
    state.membership.idle |= state.membership.members
    state.membership.members.clear()
    state.membership.without_seat.clear()
    state.membership.slow.clear()  # slow agents are better than none
    state.membership.ready_at = now
    state.in_force, state.copied_at = None, inf
    state.protection.hold()
    state.ledger.forget_commit()
    state.phase = Waiting(why)
    state.rewriting = Rewriting()
    state.deadlines.clear()
    state.incident = Incident()
    state.listing.give_time()
    state.fence_suspects()


def _skipped(later: Iterable[int]) -> str:
    steps = ", ".join(map(str, later))
    return f" (no checkpoint of a later step is verified, so not used: {steps})" if steps else ""


def unsaved(state: State) -> str:
    """Say how many steps a job repeats that ends now and goes on later. Those count, too, that the
    newest restore has undone, unless they are committed again."""
    steps, manifest = _unsaved(state)
    return f"{counted(steps, 'committed step')} since {_source(manifest)} will be repeated"


def _unsaved(state: State) -> tuple[int, Manifest | None]:
    """How many committed steps would be repeated, and from where."""
    newest = state.ledger.newest(state.durable)
    manifest = next(reversed(eligible(with_newer(state.durable, newest))), None)
    step = manifest.step if manifest is not None else 0
    return max(0, max(newest + 1, state.durable.undone) - step), manifest


def beginning(state: State) -> str:
    """Say why agents stop that have no plan yet. A later attempt is a restored or resumed job."""
    attempt = state.durable.attempt
    if not attempt:
        return "the job starts"
    return f"the job goes on with attempt {attempt}, from {_source(state.durable.manifest)}"


def _source(manifest: Manifest | None) -> str:
    """From where an attempt begins."""
    return f"the checkpoint of step {manifest.step}" if manifest is not None else "the start"


def rebase(state: State) -> None:
    """An attempt that is about to get its first plan begins from a newer checkpoint, if one has
    been found since. The first attempt begins from one of another job, which the spec names."""
    durable = with_newer(state.durable, state.ledger.newest(state.durable))
    newest = next(reversed(eligible(durable)), None)
    base = state.durable.manifest.step if state.durable.manifest is not None else 0
    is_first = durable.attempt == 0
    if newest is None or newest.step <= base or (durable is state.durable and not is_first):
        return
    attempt, step = durable.attempt, newest.step
    text = f"attempt {attempt} begins from the checkpoint of step {step}, which was not known"
    if is_first:
        text = f"the job begins with the checkpoint of step {step} that spec.checkpoint.from names"
        text += _accepted(state.job.spec)
    state.record(EventReason.CHECKPOINT_FOUND, text, attempt=attempt, step=step)
    forks = () if is_first else (*durable.forks, Fork(attempt, step))
    state.out.save(manifest=newest, forks=forks, committed=step - 1)


def _accepted(spec: JobSpec) -> str:
    assert spec.checkpoint is not None
    assert spec.checkpoint.from_ is not None
    names = " and ".join(x.value.lower() for x in spec.checkpoint.from_.accept)
    return f"; its accept takes other {names} than it was written with" if names else ""


def end(state: State, outcome: Outcome, reason: str, message: str) -> None:
    """Durable first, then reported to the shell, then every agent may go."""
    if isinstance(state.phase, OverPhase):
        return
    membership = state.membership
    state.protection.end()
    state.out.save(
        outcome=outcome,
        reason=str(reason),
        message=message,
        members=(),
        voters=(),
        departed=(),
        committed=state.ledger.newest(state.durable),
    )
    state.deadlines.clear()
    state.out.withdraw(lambda e: isinstance(e, Send))
    state.phase = OverPhase(message)
    if outcome is Outcome.SUSPENDED:
        state.record(EventReason.SUSPENDED, message)
    state.out.after_facts(Over(outcome, str(reason), message))
    for agent in sorted(membership.agents):
        state.out.after_facts(Send(agent, Release(0, str(reason))))
    membership.members.clear()
    membership.agents.clear()
    membership.idle.clear()


def fail(state: State, text: str, reason: Reason = Reason.USER_CODE_FAILED) -> None:
    """The user's code fails wherever it runs: the job ends, after a last checkpoint if it keeps
    any and has committed a step. Nothing else changes that."""
    if isinstance(state.phase, OverPhase) or state.durable.failing:
        return
    line = texts.cut(text, texts.MOST_LINE_BYTES)
    state.out.save(failing=line, failing_by=str(reason), saving="")
    if state.job.spec.checkpoint is None or state.durable.plan == Fence():
        end_failing(state)


def end_failing(state: State, why: str = "", *, is_layer_lost: bool = False) -> None:
    """Say which work the failed job leaves. why: there is no newer checkpoint."""
    found = state.durable.failing
    if state.job.spec.checkpoint is not None and state.durable.plan != Fence():
        steps, manifest = _unsaved(state)
        lost = f"{counted(steps, 'committed step')} since {_source(manifest)} are lost"
        if is_layer_lost:
            lost += f" ({_FEWER if state.job.spec.save_every else _NONE})"
        left = lost if steps else "no step was committed"
        if manifest is not None:
            done = counted(manifest.step, "committed step")
            left = f"{lost}; " * bool(steps) + (
                f"{done} in {_source(manifest)}: spec.checkpoint.from begins a job with it, and"
                " accept: [Code, Data] there, or one of them, takes what you have repaired"
            )
        found += f"; {why}{left}"
    end(state, Outcome.FAILED, state.durable.failing_by, found)


def has_finished(state: State) -> bool:
    """Whether all live members have run their last program, and the job is not to go on."""
    phase, in_force, desired = state.phase, state.in_force, state.desired
    assert isinstance(phase, Running)
    assert in_force is not None
    assert desired is not None
    live = state.membership.members.intersection(in_force.plan.live)
    is_resumed = in_force.is_suspending and not (desired.suspended or state.durable.failing)
    is_to_go_on = is_resumed or bool(state.durable.saving)
    return bool(phase.finished) and phase.finished >= live and not is_to_go_on


def complete(state: State) -> None:
    """End a job whose members have finished."""
    spec, in_force = state.job.spec, state.in_force
    assert in_force is not None
    if _is_unsaved(state, in_force.plan.last):
        give_up_last_write(state)
    elif state.durable.failing and in_force.plan.last < spec.training.steps:
        end_failing(state)
    elif in_force.is_suspending:
        text = _suspended_after(state, in_force.plan.last)
        if spec.checkpoint is None:
            text += "; without spec.checkpoint nothing was saved: it will begin from the start"
        end(state, Outcome.SUSPENDED, Reason.USER_REQUESTED, text)
    else:
        text = f"all {spec.training.steps} steps are committed"
        end(state, Outcome.COMPLETE, Reason.STEPS_REACHED, text)


def give_up_last_write(state: State) -> None:
    """End a job whose last checkpoint is not written. What is in a suspended job's older ones is
    not lost: it can go on from there, and repeats the rest."""
    durable, spec = state.durable, state.job.spec
    known, newest = durable.last_write, state.ledger.newest(durable)
    assert state.desired is not None
    assert spec.checkpoint is not None
    cannot = f"spec.checkpoint.uri {spec.checkpoint.uri} could not be written"
    if known is not None:
        cannot += f" for {known.waited_s:.0f} s: {known.why}"
    if durable.failing:
        end_failing(state, f"{cannot}; ")
        return
    if not state.desired.suspended:
        text = f"the trained weights are not saved: {cannot}"
        end(state, Outcome.FAILED, Reason.CHECKPOINT_FAILED, text)
        return
    text = f"{_suspended_after(state, newest + 1)}; {cannot}; {unsaved(state)}"
    end(state, Outcome.SUSPENDED, Reason.USER_REQUESTED, text)


def _suspended_after(state: State, step: int) -> str:
    return f"suspended after {step} of {counted(state.job.spec.training.steps, 'step')}"


def _is_unsaved(state: State, step: int) -> bool:
    """Whether this attempt's checkpoint of the step could not be written, or is torn."""
    durable = state.durable
    is_last = durable.last_write is not None and durable.last_write.step == step
    return is_last or (durable.attempt, step) in durable.bad


def rest(state: State, waiting: Waiting) -> None:
    """Suspend a job that has no plan: a new one, or one whose layers were given up."""
    text = "nothing was running"
    if state.durable.plan != Fence():
        text = f"{waiting.detail or text}; {unsaved(state)}"
    end(state, Outcome.SUSPENDED, Reason.USER_REQUESTED, text)


def aimed(out: Outbox, spec: JobSpec, term: int) -> Durable:
    """The facts with which a leader begins: they say at which step training ends now. A job that
    was complete with fewer steps is suspended from here on, and goes on as a resumed one does."""
    facts, steps = out.durable, spec.training.steps
    done = facts.steps or (facts.committed + 1 if spec.checkpoint is not None else steps)
    if facts.outcome is Outcome.COMPLETE and done < steps:
        text = f"{counted(done, 'step')} of {steps} are committed"
        out.save(outcome=Outcome.SUSPENDED, message=text)
    out.save(term=max(term, facts.term), steps=steps)
    return out.durable


def resume(state: State, desired: DesiredState, now: float) -> None:
    """A suspended job is to go on."""
    if desired.suspended or state.durable.outcome is not Outcome.SUSPENDED:
        return
    is_raised = state.durable.reason == Reason.STEPS_REACHED
    state.out.save(outcome=None, reason="", message="", last_write=None)
    state.out.save(failing="", failing_by="", saving="")
    state.rewriting = Rewriting()
    if state.durable.plan == Fence():
        state.phase = Waiting()
    else:
        steps = state.job.spec.training.steps
        why = f"spec.training.steps is raised to {steps}" if is_raised else "the job is resumed"
        restore(state, RestoreCause.RESUMED, why, now)
