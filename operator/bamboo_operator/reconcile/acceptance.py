"""The spec that a job is led with, and why a job gets no new pods."""

from __future__ import annotations

from dataclasses import replace

from bamboo_core.admission.quota import QUEUE_LABEL
from bamboo_core.api import limits
from bamboo_core.api.identity import identity_hash
from bamboo_core.api.reasons import Reason
from bamboo_core.api.records import Problem
from bamboo_core.api.spec import JobSpec
from bamboo_core.controller.view import Memory
from bamboo_core.job.raised_steps import held
from bamboo_core.validation import reading
from bamboo_core.validation.pod_rules import PodRules
from bamboo_operator.admission.kueue import misnamed, queue_of
from bamboo_operator.kube.api import Object
from bamboo_operator.reconcile.ports import Known, Refusal
from bamboo_operator.status import durable_facts, statuses


def accept(body: Object, known: Known, *, rules: PodRules, uses_kueue: bool) -> JobSpec | None:
    """The spec by which to lead the job; None: it is not led. ``known.refusal`` says why.

    A job that has had a plan is led although its spec is refused now: a rule of the chart may
    have become stricter, or a label was set. If the spec cannot be read, or has other args, the
    last one that was accepted counts, but may be suspended; after a restart of the operator
    nobody knows it. Agents that are set up with other args differ in their fingerprint.
    """
    is_started, read = has_plan(body, known.memory), reading.read(body)
    found = reading.from_manifest(body, rules=rules, is_started=is_started)
    changes = [] if isinstance(read, list) else _changes(read, body)
    more = found if isinstance(found, list) else _more(found, body, uses_kueue=uses_kueue)
    problems = [*changes, *more]
    if not problems and not isinstance(found, list):
        known.refusal, known.spec = None, found
        return found
    reason = Reason.SPEC_CHANGED if changes else Reason.SPEC_INVALID
    known.refusal = Refusal(reason, problems)
    if not is_started:
        return None
    if isinstance(read, list) or (changes and known.spec is not None):
        accepted, is_suspended = known.spec, _wants_suspension(body)
        return None if accepted is None else replace(accepted, suspend=is_suspended)
    return read


def has_plan(body: Object, memory: Memory) -> bool:
    """Whether there is something to lead: work to keep, or an outcome to tell."""
    return durable_facts.has_plan(body) or memory.terminal is not None


def _more(spec: JobSpec, body: Object, *, uses_kueue: bool) -> list[Problem]:
    """Problems that the spec alone does not show."""
    return [
        *limits.task_problems(spec),
        *_queue(body, uses_kueue=uses_kueue),
    ]


def _queue(body: Object, *, uses_kueue: bool) -> list[Problem]:
    """The job names a queue that cannot be, or one although nobody asks Kueue."""
    queue = queue_of(body)
    if not queue:
        return []
    text = misnamed(queue)
    if not uses_kueue:
        text = (
            f"names queue {queue!r}, but the operator does not use Kueue: set the chart's"
            " value kueue.enabled to true, or remove the label"
        )
    return [Problem(f"metadata.labels[{QUEUE_LABEL}]", text)] if text else []


def _wants_suspension(body: Object) -> bool:
    """Whether the spec asks for suspension; the rest of it may be unreadable."""
    spec = body.get("spec")
    return isinstance(spec, dict) and spec.get("suspend") is True


def _changes(spec: JobSpec, body: Object) -> list[Problem]:
    """Changes of args, which the API server does not check."""
    known = (body.get("status") or {}).get("identity")
    numbers = (spec.training.steps, statuses.steps_of(body), durable_facts.steps_of(body))
    if not known or any(known == identity_hash(held(spec, steps)) for steps in numbers):
        return []  # which steps hold is decided elsewhere
    text = (
        "args of model, data or optimizer have changed; they decide the result: change them back,"
        " or create a new BambooJob"
    )
    return [Problem("spec", text)]
