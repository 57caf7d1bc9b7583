"""How agents and jobs end: counting failures, limits, deadlines, the terminal outcome."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import FailureCause, Reason, failure_cause, user_reason
from bamboo_core.api.spec import JobSpec
from bamboo_core.controller import failures
from bamboo_core.controller.failures import Failure, Failures
from bamboo_core.controller.view import (
    ClusterView,
    JobView,
    LastWords,
    Memory,
    NodeView,
    PodView,
    TrainingView,
)
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.exit_codes import ExitCode

KEPT = 16
"""Number of ended pods that are kept for their logs while the job goes on."""

_USERS_ERRORS = 2
"""Agents in which the user's code must fail before it is at fault for certain."""


def settle(
    spec: JobSpec, view: ClusterView, training: TrainingView, memory: Memory, *, now: float
) -> Memory:
    """Count each agent that has failed since the last call, by its words or by its pod's end."""
    policy, committed = spec.run_policy, training.progress.committed + 1
    told = {words.agent for words in training.failed}
    seen = {pod.agent for pod in view.pods}
    ended = {pod.agent for pod in view.pods if pod.has_ended}
    before = memory.settled
    settled = frozenset((before & seen) | ended | told)
    memory = replace(memory, settled=settled, losses=training.losses)
    if memory.terminal is not None:
        return memory
    known = failures.settle(memory.failures, committed, policy, now=now)
    nodes = view.fleet.by_name
    until = memory.not_before
    for words in _fresh(view, training, before):
        if words.is_refused and words.cause == Reason.DEVICE_DIFFERS:
            known = _with_misfit(known, words, nodes.get(words.node), spec, now)
            continue
        failure = Failure(
            words.agent,
            failure_cause(words.cause),
            committed,
            now,
            words.node,
            words.machine or (nodes[words.node].machine if words.node in nodes else ""),
            words.is_user_error,
            is_tolerated=words.is_refused and training.epoch > 0,
        )
        known = failures.add(known, failure, words.message, policy)
        until = max(until, now + _pause_s(known, failure))
    return replace(memory, failures=known, not_before=max(until, known.misfits.until))


def _with_misfit(
    known: Failures, words: LastWords, node: NodeView | None, spec: JobSpec, now: float
) -> Failures:
    """An agent of another kind of processor says nothing about the job: it is no failure."""
    machine, kind = words.machine, ""
    if node is not None and machine in ("", node.machine):
        machine, kind = node.machine, node.instance_type
    policy = spec.run_policy
    return failures.add_misfit(known, words.node, machine, kind, words.message, policy, now=now)


def _pause_s(known: Failures, failure: Failure) -> float:
    """Time without new pods after ``failure``, the newest of the known ones.

    A tolerated one says nothing about other nodes, so replacements that go there do not wait.
    """
    return failures.pause_s(1 if failure.is_tolerated else known.unforgiven)


def _fresh(view: ClusterView, training: TrainingView, settled: Set[str]) -> list[LastWords]:
    """Failures that are not counted yet; errors of the user's code last.

    What an agent has said counts even if its pod was deleted before its exit code could be seen.
    Only the first that it has said counts: what follows may be a consequence.
    """
    first: dict[AgentId, LastWords] = {}
    for words in training.failed:
        first.setdefault(words.agent, words)
    told = [words for agent, words in first.items() if agent not in settled]
    known = {*settled, *first}
    ended = [pod for pod in view.pods if pod.has_ended and pod.agent not in known]
    ended.sort(key=lambda pod: (pod.incarnation, pod.name))
    found = [*told, *(_words(pod) for pod in ended if pod.has_failed)]
    return sorted(found, key=lambda words: words.is_user_error)


def _words(pod: PodView) -> LastWords:
    """The cause and the message of a failed pod."""
    return LastWords(
        pod.agent,
        _cause(pod),
        _last_message(pod),
        is_user_error=pod.exit_code == ExitCode.USER,
        node=pod.node,
    )


def _cause(pod: PodView) -> FailureCause:
    if pod.exit_reason == FailureCause.OOM_KILLED:
        return FailureCause.OOM_KILLED
    said = failure_cause(pod.trouble)
    if said is FailureCause.AGENT_FAILED and pod.exit_code == ExitCode.USER:
        return FailureCause.USER_CODE_FAILED
    return said


def conclude(
    spec: JobSpec,
    training: TrainingView,
    memory: Memory,
    *,
    job: JobView,
    now: float,
) -> Memory:
    """Adopt the arbiter's outcome, check limits and deadlines, keep the clocks."""
    if training.outcome is Outcome.FAILED and memory.terminal in (None, Outcome.FAILED):
        # Even after our own verdict: the arbiter has the important line of the traceback.
        at = memory.finished_at or now
        reason = training.reason or Reason.USER_CODE_FAILED
        return _fail(replace(memory, terminal=None), reason, training.message, at)
    if memory.terminal is not None:
        return memory
    if training.outcome is Outcome.COMPLETE:
        words = training.message or f"all {spec.training.steps} steps are committed"
        return replace(
            memory,
            terminal=Outcome.COMPLETE,
            finished_at=now,
            reason=Reason.STEPS_REACHED,
            message=words,
        )
    memory = _keep_clocks(spec, training, memory, job=job, now=now)
    memory = _check_failures(spec, training, memory, now=now)
    return _check_deadlines(spec, training, memory, now=now)


def _check_failures(spec: JobSpec, training: TrainingView, memory: Memory, *, now: float) -> Memory:
    """An error of the user's code ends the job at once if it is everywhere: in two agents, before
    any agent was ready. Else it may be the fault of one machine, and counts as other failures do.
    """
    known, policy = memory.failures, spec.run_policy
    is_exceeded = known.is_exceeded(policy)
    last = known.last
    if last is not None and last.is_user_error and not training.has_begun:
        users = {failure.agent for failure in known.recent if failure.is_user_error}
        if is_exceeded or len(users) >= _USERS_ERRORS:
            return _fail(memory, user_reason(last.cause), known.message, now)
    if is_exceeded:
        text = (
            f"agents have failed {known.unforgiven} times, more than spec.runPolicy.backoffLimit"
            f" {policy.backoff_limit}; the last: {known.message}"
        )
        return _fail(memory, Reason.BACKOFF_LIMIT_EXCEEDED, text, now)
    return memory


def _keep_clocks(
    spec: JobSpec, training: TrainingView, memory: Memory, *, job: JobView, now: float
) -> Memory:
    """The job is started now, unless it was before, or is suspended."""
    if spec.suspend:
        return replace(memory, started_at=None, trained=False)
    started_at = now if memory.started_at is None else memory.started_at
    return replace(memory, started_at=started_at, trained=memory.trained or training.planned)


def _check_deadlines(
    spec: JobSpec, training: TrainingView, memory: Memory, *, now: float
) -> Memory:
    """Both count the time in which the job may have agents: not while it is suspended or waits in a
    line. The one for its beginning counts anew after a suspension."""
    if spec.suspend:
        return memory
    policy, active_s = spec.run_policy, memory.times.active_s(now)
    limit_s = _active_limit_s(spec, training)
    if limit_s is not None and active_s >= limit_s:
        text = (
            f"the job has run for spec.runPolicy.activeDeadlineSeconds {policy.active_deadline_s}"
        )
        return _fail(memory, Reason.ACTIVE_DEADLINE_EXCEEDED, text, now)
    limit_s = _pending_limit_s(spec, memory)
    if limit_s is not None and active_s >= limit_s:
        text = (
            f"no step began within spec.runPolicy.pendingDeadlineSeconds"
            f" {policy.pending_deadline_s}; {training.detail or 'agents were missing'}"
        )
        return _fail(memory, Reason.PENDING_DEADLINE_EXCEEDED, text, now)
    return memory


def _active_limit_s(spec: JobSpec, training: TrainingView) -> float | None:
    """It limits training. Once all steps are committed, it gives the last checkpoint its time, and
    once a write of that has failed, only the arbiter, which tries again, knows when to give up."""
    policy, last, steps = spec.run_policy, training.unwritten, spec.training.steps
    if not policy.active_deadline_s or (last is not None and last.step >= steps):
        return None
    is_computed = training.progress.committed + 1 >= steps
    more_s = policy.last_write_deadline_s if is_computed and spec.checkpoint is not None else 0
    return policy.active_deadline_s + more_s


def _pending_limit_s(spec: JobSpec, memory: Memory) -> float | None:
    limit_s = spec.run_policy.pending_deadline_s
    return memory.times.resumed_s + limit_s if limit_s and not memory.trained else None


def deadlines(
    spec: JobSpec, training: TrainingView, memory: Memory, *, job: JobView
) -> Iterable[float]:
    """Instants of the deadlines that may be reached."""
    if memory.terminal is not None or spec.suspend:
        return
    for limit_s in (_active_limit_s(spec, training), _pending_limit_s(spec, memory)):
        at = None if limit_s is None else memory.times.active_at(limit_s)
        if at is not None:
            yield at


def _fail(memory: Memory, reason: str, message: str, now: float) -> Memory:
    if memory.terminal is not None:
        return memory
    return replace(
        memory, terminal=Outcome.FAILED, finished_at=now, reason=str(reason), message=message
    )


def _last_message(pod: PodView) -> str:
    words = pod.trouble or "see its log"
    if pod.exit_reason not in ("", "Error"):  # an OOMKilled container leaves no message
        words = f"{pod.exit_reason}: {words}"
    return f"agent {pod.name} ended with exit code {pod.exit_code}: {words}"
