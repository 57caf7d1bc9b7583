"""Status, phase and end of a job, with its limits and deadlines, computed from the same view.

It has the conditions of :mod:`bamboo_core.controller.conditions`. A job that cannot be led, since
its spec is refused or the operator fails, gets its conditions here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bamboo_core.api import texts
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.progress import BestCheckpoint, Network, TrainingProgress
from bamboo_core.api.reasons import ConditionType as Type
from bamboo_core.api.reasons import JobPhase, Reason, user_reason
from bamboo_core.api.records import Problem
from bamboo_core.api.spec import JobSpec, RedundancyMode
from bamboo_core.api.totals import Times, TimeState, Totals
from bamboo_core.controller import conditions, pod_zones, shortage
from bamboo_core.controller import turn as turns
from bamboo_core.controller.conditions import Seen
from bamboo_core.controller.failures import Failures
from bamboo_core.controller.turn import Turn
from bamboo_core.controller.view import (
    ClusterView,
    Condition,
    JobView,
    Losses,
    Memory,
    PodPhase,
    PodView,
    TrainingView,
)
from bamboo_core.model.counts import counted
from bamboo_core.model.ids import AgentId
from bamboo_core.model.processors import Kinds
from bamboo_core.planning.requests import Comparison
from bamboo_core.protection.choice import Verdict
from bamboo_core.protocol.channels import Route
from bamboo_core.protocol.exit_codes import ExitCode

_USERS_ERRORS = 2
"""Agents in which the user's code must fail before it is at fault for certain."""
_TIME_STATES = {
    JobPhase.PENDING: TimeState.WAITING,
    JobPhase.STARTING: TimeState.STARTING,
    JobPhase.RUNNING: TimeState.TRAINING,
    JobPhase.SUSPENDING: TimeState.SUSPENDED,
    JobPhase.SUSPENDED: TimeState.SUSPENDED,
    JobPhase.COMPLETE: TimeState.ENDED,
    JobPhase.FAILED: TimeState.ENDED,
}


@dataclass(frozen=True)
class ZoneCount:
    """Numbers of agents in one zone."""

    zone: str
    wanted: int = 0
    running: int = 0
    connected: int = 0
    spot: int = 0


@dataclass(frozen=True)
class JobStatus:
    """The BambooJob's status without the arbiter's part."""

    phase: JobPhase
    conditions: tuple[Condition, ...]
    pipelines: int = 0
    pipelines_wanted: int = 0
    feasible_pipelines: int = 0
    agents_connected: int = 0
    agents_wanted: int = 0
    zones: tuple[ZoneCount, ...] = ()
    epoch: int = 0
    attempt: int = 0
    rollbacks: int = 0  # restores because of wrong bits that were committed
    processors: Kinds = ()  # that have computed the present state, oldest first
    steps: int = 0
    progress: TrainingProgress = TrainingProgress()  # noqa: RUF009 - frozen
    samples_per_s: float = 0.0
    checkpoint_step: int = -1
    checkpoint_path: str = ""
    checkpoint_error: str = ""
    checkpoint_caveat: str = ""
    best: BestCheckpoint | None = None
    # (number of live copies, layers that have as many), fewest first; empty while not training.
    copies: tuple[tuple[int, str], ...] = ()
    route: Route | None = None  # of items between agents; None: not known
    network: Network = Network()  # noqa: RUF009 - frozen; between agents
    mode: RedundancyMode | None = None  # that Auto has put in force
    verdict: Verdict | None = None  # why
    sharing: Comparison | None = None  # how lost work is shared
    losses: Losses = Losses()  # noqa: RUF009 - frozen
    stalls: tuple[tuple[str, int], ...] = ()  # (cause, number since this operator leads the job)
    failures: Failures = Failures()  # noqa: RUF009 - frozen
    totals: Totals = Totals()  # noqa: RUF009 - frozen
    times: Times = Times()  # noqa: RUF009 - frozen
    # Agents with a pod that were heard and are no members: the durable facts do not name them.
    heard: frozenset[AgentId] = frozenset()


def status_of(
    spec: JobSpec,
    view: ClusterView,
    training: TrainingView,
    memory: Memory,
    *,
    job: JobView,
    now: float,
    turn: Turn | None = None,
) -> JobStatus:
    """The status of an accepted job. turn: what its competitors leave to it; None: it has none."""
    seen = Seen(spec, view, training, memory, job, now, turn)
    phase = _phase(seen)
    return JobStatus(
        phase=phase,
        conditions=dated(_with_untold(conditions.of_job(seen), seen), memory.conditions, now),
        pipelines=training.pipelines if seen.is_training else 0,
        pipelines_wanted=0 if seen.is_resting else spec.pipelines.count,
        feasible_pipelines=pod_zones.feasible_pipelines(spec, view.fleet, seen.alive),
        agents_connected=len(training.connected),
        agents_wanted=seen.wanted,
        zones=_zone_counts(seen),
        epoch=training.epoch,
        attempt=training.attempt,
        rollbacks=training.rollbacks,
        processors=training.processors,
        steps=spec.training.steps,
        progress=training.progress,
        samples_per_s=_samples_per_s(seen),
        checkpoint_step=training.checkpoint_step,
        checkpoint_path=training.checkpoint_path,
        checkpoint_error=training.checkpoint_error,
        checkpoint_caveat=training.checkpoint_caveat,
        best=training.best,
        copies=conditions.layers_by_copies(training.copies) if seen.is_training else (),
        route=training.route,
        network=training.network,
        mode=training.mode,
        verdict=training.verdict,
        sharing=training.sharing if seen.is_training else None,
        losses=memory.losses,
        failures=memory.failures,
        stalls=training.stalls,
        totals=training.totals if memory.terminal is None else training.final_totals,
        times=memory.times.entered(_time_state(phase, seen), now),
        heard=frozenset(p.agent for p in view.pods if p.agent in training.heard) - training.members,
    )


def refuse(
    problems: Iterable[Problem],
    before: Iterable[Condition],
    *,
    now: float,
    reason: Reason,
    is_unled: bool = False,
) -> tuple[Condition, ...]:
    """Conditions of a job with a refused spec. The other conditions stay as they were.

    is_unled: agents may train, but without a leader, so how they are is not known.
    """
    text = "; ".join(str(problem) for problem in problems)
    refused = Condition(Type.ACCEPTED, False, reason, text)
    kept = [c for c in before if c.type != Type.ACCEPTED and c.reason != Reason.RECONCILE_ERROR]
    if is_unled:
        unknown = (None, Reason.NOT_ACCEPTED, "the job is not led; see condition Accepted")
        kept = [c for c in kept if c.type not in (Type.RUNNING, Type.DEGRADED)]
        kept += [Condition(type_, *unknown) for type_ in (Type.RUNNING, Type.DEGRADED)]
    if not kept:
        kept = [Condition(Type.RUNNING, False, Reason.NOT_ACCEPTED, "see condition Accepted")]
    return dated([refused, *kept], before, now)


def rejected(
    before: Iterable[Condition], message: str, *, has_state: bool, now: float
) -> tuple[Condition, ...]:
    """Conditions of a job whose pods the API server rejects, with its message. has_state: agents
    may hold the job's state."""
    remedy = shortage.admitting(message, has_state=has_state)
    text = f"the API server rejects them: {message}: {remedy}"
    problem = Problem("pods", text)
    return refuse([problem], before, now=now, reason=Reason.POD_REJECTED)


def stalled(before: Iterable[Condition], error: str, *, now: float) -> tuple[Condition, ...]:
    """Conditions of a job that the operator cannot reconcile, perhaps from the beginning."""
    before = tuple(before)
    text = f"the operator cannot reconcile the job: {error}"
    fault = Condition(Type.STALLED, True, Reason.RECONCILE_ERROR, text)
    kept = [c for c in before if c.type != Type.STALLED]
    if not kept:
        unknown = Condition(Type.ACCEPTED, None, Reason.RECONCILE_ERROR, text)
        kept = [unknown, Condition(Type.RUNNING, False, Reason.NOT_ACCEPTED, "see Accepted")]
    return dated([*kept, fault], before, now)


def dated(
    conditions: Iterable[Condition], before: Iterable[Condition], now: float
) -> tuple[Condition, ...]:
    """With the instant of the last transition, which is a change of status, not of reason."""
    old = {condition.type: condition for condition in before}

    def since(condition: Condition) -> float:
        previous = old.get(condition.type)
        return previous.since if previous and previous.status == condition.status else now

    return tuple(replace(condition, since=since(condition)) for condition in conditions)


def _phase(seen: Seen) -> JobPhase:
    memory, training = seen.memory, seen.training
    if memory.terminal is not None:
        return JobPhase.COMPLETE if memory.terminal is Outcome.COMPLETE else JobPhase.FAILED
    if seen.spec.suspend:
        return (
            JobPhase.SUSPENDING if turns.is_held(seen.view, seen.training) else JobPhase.SUSPENDED
        )
    if seen.is_training:
        return JobPhase.RECOVERING if training.recovering else JobPhase.RUNNING
    if memory.trained:
        return JobPhase.RECOVERING
    started = any(pod.phase is PodPhase.RUNNING for pod in seen.alive)
    return JobPhase.STARTING if started else JobPhase.PENDING


def _time_state(phase: JobPhase, seen: Seen) -> TimeState:
    if turns.waits(seen.turn, seen.view) and not seen.is_resting:
        return TimeState.WAITING_IN_LINE
    if phase is JobPhase.RECOVERING:
        is_short = not seen.training.planned
        return TimeState.WAITING_FOR_CAPACITY if is_short else TimeState.RECOVERING
    return _TIME_STATES[phase]


def _samples_per_s(seen: Seen) -> float:
    batch = seen.spec.training.global_batch_size
    return seen.training.progress.samples_per_s(batch) if seen.is_training else 0.0


def _zone_counts(seen: Seen) -> tuple[ZoneCount, ...]:
    nodes = seen.view.fleet.by_name
    found: dict[str, ZoneCount] = {}
    for pod in seen.alive:
        old = found.get(pod.zone, ZoneCount(pod.zone))
        found[pod.zone] = ZoneCount(
            pod.zone,
            wanted=old.wanted + 1,
            running=old.running + (pod.phase is PodPhase.RUNNING),
            connected=old.connected + (pod.agent in seen.training.connected),
            spot=old.spot + (pod.node in nodes and nodes[pod.node].spot),
        )
    return tuple(found[zone] for zone in sorted(found))


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


def with_untold(view: ClusterView, memory: Memory, before: str) -> Memory:
    """The message of a job that has ended, with the hooks that were not told all steps: their
    agents say so as they end, which is later, and their pods may go. before: the message so far."""
    if memory.terminal is None:
        return memory
    return replace(memory, message=_and_untold(memory.message, view.pods, before))


def _with_untold(found: Iterable[Condition], seen: Seen) -> Iterable[Condition]:
    """The conditions of a job; if it is suspended, with the hooks that were not told all steps, as
    :func:`with_untold`. Agents that were lost before say so, too, but others have told these steps.
    """
    pods = [pod for pod in seen.view.pods if pod.exit_code == ExitCode.RELEASED]
    before = next((c.message for c in seen.memory.conditions if c.type == Type.SUSPENDED), "")
    is_resting = seen.spec.suspend and seen.memory.terminal is None
    for condition in found:
        if is_resting and condition.type == Type.SUSPENDED:
            message = _and_untold(condition.message, pods, before)
            condition = replace(condition, message=message)
        yield condition


def _and_untold(message: str, pods: Iterable[PodView], before: str) -> str:
    """The message with the hooks of these pods that were not told all steps, or those of before."""
    found = {pod.untold for pod in pods} - {""}
    words = "; ".join(sorted(found)) or before.partition(texts.UNTOLD)[2]
    message = message.partition(texts.UNTOLD)[0]
    return f"{message}{texts.UNTOLD}{words}" if words else message


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
        how = " (pods that end before their agents are heard count once in each round of new pods)"
        text = (
            f"agents have failed {known.unforgiven} times{how * known.has_starts}, more than"
            f" spec.runPolicy.backoffLimit {policy.backoff_limit}; the last: {known.message}"
            f"{_left(training)}"
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
    has_begun = training.planned and training.has_state  # a plan that is not durable may be none
    return replace(memory, started_at=started_at, trained=memory.trained or has_begun)


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
            f"{_left(training)}"
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


def _left(training: TrainingView) -> str:
    """Which work a job leaves that the operator ends; empty: it has committed no step."""
    done = max(training.progress.committed + 1, training.undone)
    saved = max(0, training.checkpoint_step)
    source = f"the checkpoint of step {saved}" if saved else "the start"
    lost = f"; {counted(done - saved, 'committed step')} since {source} are lost"
    remedy = f"; spec.checkpoint.from begins a job with {source}"
    return lost * (done > saved) + remedy * (saved > 0)


def _active_limit_s(spec: JobSpec, training: TrainingView) -> float | None:
    """It limits training. Once all steps are committed, it gives the last checkpoint its time, and
    once a write of that has failed, only the arbiter, which tries again, knows when to give up."""
    policy, last, steps = spec.run_policy, training.unwritten, spec.training.steps
    is_last = last is not None and (last.step >= steps or last.failing != "")
    if not policy.active_deadline_s or is_last:
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
