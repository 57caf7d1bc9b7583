"""On which kinds of processor the job is computed. Agents of one plan are alike, and compare
themselves with each other; a later plan may have others, and then the job says so."""

from __future__ import annotations

from dataclasses import replace

from bamboo_core.api.events import EventReason, Severity
from bamboo_core.arbiter_state.state import State
from bamboo_core.model.processors import Kinds, ProcessorKind, until, with_newest
from bamboo_core.protocol.admission import ONE_KIND


def note(state: State, target: int) -> Kinds:
    """The job's kinds of processor with that of the members, who compute from step ``target`` on.

    Once for each change, an event tells of it. Training goes on: no work is lost for it.
    """
    durable, found = state.durable, state.membership.processor()
    known, base = durable.processors, durable.manifest
    begun = base.step if base is not None else 0
    if not known:  # a new job, or one of a version that did not remember: its agents were alike
        return (replace(found, step=begun, attempt=durable.attempt),)
    newest, found = known[-1], replace(found, step=target, attempt=durable.attempt)
    if durable.plan.attempt != durable.attempt:
        known = until(known, base.attempt, begun) if base is not None else ()
    if newest.is_like(found):
        return with_newest(known, found.filled(newest))
    known = with_newest(known, found)
    _tell(state, newest, found, is_mixed=len(known) > 1)
    return known


def _tell(state: State, before: ProcessorKind, found: ProcessorKind, *, is_mixed: bool) -> None:
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
