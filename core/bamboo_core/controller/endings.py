"""How agents and jobs end: counting ended pods, limits, deadlines, the terminal outcome."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import Reason, user_reason
from bamboo_core.api.spec import JobSpec
from bamboo_core.controller.view import JobView, Memory, PodView, TrainingView
from bamboo_core.protocol.exit_codes import ExitCode

KEPT = 16
"""Number of ended pods that are kept for their logs while the job goes on."""

_SIGKILLED, _SIGTERMED = 137, 143
_LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True)
class Ended:
    """How an agent's pod ended, with regard to the job's limits."""

    failure: bool
    user_error: bool


def judge(pod: PodView) -> Ended:
    """Lost nodes and preemptions are no failures. The end of a container by itself may be one."""
    code = pod.exit_code
    if code is None or code in (ExitCode.RELEASED, ExitCode.FENCED, ExitCode.DRAINED):
        return Ended(failure=False, user_error=False)
    if code in (_SIGKILLED, _SIGTERMED) and pod.exit_reason != "OOMKilled":
        return Ended(failure=False, user_error=False)
    return Ended(failure=True, user_error=code == ExitCode.USER)


def settle(
    pods: Iterable[PodView], training: TrainingView, memory: Memory, *, now: float
) -> Memory:
    """Count each pod that has ended since the last call."""
    ended = {pod.name: pod for pod in pods if pod.has_ended}
    fresh = [pod for name, pod in sorted(ended.items()) if name not in memory.settled]
    settled = (memory.settled & ended.keys()) | ended.keys()
    memory = replace(memory, settled=frozenset(settled), losses=training.losses)
    if memory.terminal is not None:
        return memory
    for pod in fresh:
        verdict = judge(pod)
        if verdict.failure:
            failures = memory.failures + 1
            pause_s = min(_LONGEST_PAUSE_S, 2.0 ** min(failures - 1, 6))
            memory = replace(memory, failures=failures, not_before=now + pause_s)
        if verdict.user_error:
            memory = _fail(memory, user_reason(pod.trouble), _last_message(pod), now)
    return memory


def conclude(
    spec: JobSpec,
    training: TrainingView,
    memory: Memory,
    *,
    job: JobView,
    now: float,
    pods: Iterable[PodView] = (),
) -> Memory:
    """Adopt the arbiter's outcome, check limits and deadlines, keep the clocks.

    pods: sources of the last messages of failed agents.
    """
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
    if memory.failures > spec.run_policy.backoff_limit:
        text = (
            f"agents have failed {memory.failures} times, more than spec.runPolicy.backoffLimit"
            f" {spec.run_policy.backoff_limit}; {_last_failure(pods)}"
        )
        return _fail(memory, Reason.BACKOFF_LIMIT_EXCEEDED, text, now)
    return _check_deadlines(spec, training, memory, now=now)


def _keep_clocks(
    spec: JobSpec, training: TrainingView, memory: Memory, *, job: JobView, now: float
) -> Memory:
    """Deadlines count from the start, or from the last time that the job was resumed."""
    if spec.suspend:
        return replace(memory, started_at=None, trained=False)
    started_at = now if memory.started_at is None else memory.started_at
    return replace(memory, started_at=started_at, trained=memory.trained or training.planned)


def _check_deadlines(
    spec: JobSpec, training: TrainingView, memory: Memory, *, now: float
) -> Memory:
    policy = spec.run_policy
    started_at = memory.started_at
    if started_at is None:
        return memory
    if policy.active_deadline_s and now >= started_at + policy.active_deadline_s:
        text = (
            f"the job has run for spec.runPolicy.activeDeadlineSeconds {policy.active_deadline_s}"
        )
        return _fail(memory, Reason.ACTIVE_DEADLINE_EXCEEDED, text, now)
    waits = not memory.trained and policy.pending_deadline_s
    if waits and now >= started_at + policy.pending_deadline_s:
        text = (
            f"no step began within spec.runPolicy.pendingDeadlineSeconds"
            f" {policy.pending_deadline_s}; {training.detail or 'agents were missing'}"
        )
        return _fail(memory, Reason.PENDING_DEADLINE_EXCEEDED, text, now)
    return memory


def deadlines(
    spec: JobSpec, training: TrainingView, memory: Memory, *, job: JobView
) -> Iterable[float]:
    """Instants of the deadlines that may be reached."""
    if memory.terminal is not None or memory.started_at is None:
        return
    if spec.run_policy.active_deadline_s:
        yield memory.started_at + spec.run_policy.active_deadline_s
    if spec.run_policy.pending_deadline_s and not memory.trained:
        yield memory.started_at + spec.run_policy.pending_deadline_s


def _fail(memory: Memory, reason: str, message: str, now: float) -> Memory:
    if memory.terminal is not None:
        return memory
    return replace(
        memory, terminal=Outcome.FAILED, finished_at=now, reason=str(reason), message=message
    )


def _last_failure(pods: Iterable[PodView]) -> str:
    failed = [pod for pod in pods if pod.has_ended and judge(pod).failure]
    if not failed:
        return "see the logs of the ended pods"
    last = max(failed, key=lambda pod: (pod.incarnation, pod.name))
    return f"the last: {_last_message(last)}"


def _last_message(pod: PodView) -> str:
    words = pod.trouble or "see its log"
    if pod.exit_reason not in ("", "Error"):  # an OOMKilled container leaves no message
        words = f"{pod.exit_reason}: {words}"
    return f"agent {pod.name} ended with exit code {pod.exit_code}: {words}"
