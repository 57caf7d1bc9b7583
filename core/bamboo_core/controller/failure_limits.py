"""How agents and jobs end: counting failures, limits, deadlines, the terminal outcome."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import replace
from typing import NamedTuple

from bamboo_core.api import texts
from bamboo_core.api.events import EventFact, EventReason, Severity
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import FailureCause, Reason, failure_cause, user_reason
from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter_state.events import Record
from bamboo_core.controller import failures, pod_zones
from bamboo_core.controller import turn as turns
from bamboo_core.controller.failures import FailedStarts, Failure, Failures
from bamboo_core.controller.view import (
    Awaited,
    ClusterView,
    JobView,
    LastWords,
    Memory,
    NodeView,
    PodPhase,
    PodView,
    Slot,
    TrainingView,
)
from bamboo_core.evidence import pod_troubles
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.exit_codes import ExitCode

KEPT = 16
"""Number of ended pods that are kept for their logs while the job goes on."""

GONE_S = 2.0
"""The last state of a deleted pod, which says how it ended, may come so much later than a list."""
SILENT_S = 60.0
"""An agent connects within seconds after its start."""
_USERS_ERRORS = 2
"""Agents in which the user's code must fail before it is at fault for certain."""
_MOST_WORDS = 300
"""Bytes of what a pod's status says, so that a remedy can follow."""


class _End(NamedTuple):
    """The end of an agent. start: of a failed start, else None."""

    words: LastWords
    start: Awaited | None = None
    counts: bool = True  # towards spec.runPolicy.backoffLimit
    remedy: str = ""


def settle(
    spec: JobSpec, view: ClusterView, training: TrainingView, memory: Memory, *, now: float
) -> Memory:
    """Count each agent that has failed since the last call, by its words or by its pod's end."""
    policy, committed = spec.run_policy, training.progress.committed + 1
    told = {words.agent for words in training.failed}
    seen = {pod.agent for pod in view.pods}
    ended = {pod.agent for pod in view.pods if pod.is_decided(now)}
    # What agents say of their nodes is left out: it would excuse all others there.
    memory = replace(memory, failing=view.fleet.failing(memory.failing, now))
    taken = [] if spec.suspend else list(_taken(view, training, memory, now=now))
    before = memory.settled
    gone = {end.words.agent for end in taken}
    # The last state of a deleted pod may come later than a list without it.
    started = (f for f in memory.failures.recent if f.cause is FailureCause.START_FAILED)
    shown = seen.union(failure.agent for failure in started)
    settled = frozenset((before & shown) | ended | told | gone)
    memory = replace(memory, settled=settled, losses=training.losses)
    if memory.terminal is not None:
        return memory
    known = failures.settle(memory.failures, committed, policy, now=now)
    nodes = view.fleet.by_name
    until = memory.not_before
    for end in [*taken, *_fresh(view, training, memory, before, now=now)]:
        words = end.words
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
            is_tolerated=not end.counts or (words.is_refused and training.epoch > 0),
        )
        known = failures.add(known, failure, words.message, policy)
        if failure.is_tolerated and words.is_refused:
            known = failures.add_refusal(known, now=now)
        until = max(until, now + _pause_s(known, failure))
        if end.start is not None:
            slot, number, text = end.start.slot, end.start.incarnation, words.message
            text = f"{text}; {end.remedy}"
            known = failures.add_start(known, slot, number, text, turns.template(spec), now=now)
    known = _without_old_starts(spec, view, training, known, now)
    return replace(memory, failures=known, not_before=max(until, known.paused_until))


def _without_old_starts(
    spec: JobSpec, view: ClusterView, training: TrainingView, known: Failures, now: float
) -> Failures:
    """A suspension is the chance to mend the cause. If the pods are others after it, the job begins
    anew; else its pauses could be avoided."""
    if not known.starts.rounds or (spec.suspend and known.starts.template != turns.template(spec)):
        return replace(known, starts=FailedStarts())
    alive = [pod for pod in view.pods if pod.is_alive]
    heard = {pod.slot for pod in view.staying(training) if pod.agent in training.connected}
    newest = max((p.incarnation for p in alive if p.agent in training.members), default=-1)
    wanted = frozenset(pod_zones.slots(spec))
    return failures.settle_starts(known, heard, wanted, newest, now=now)


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


def _fresh(
    view: ClusterView, training: TrainingView, memory: Memory, settled: Set[str], *, now: float
) -> list[_End]:
    """Failures that are not counted yet; errors of the user's code last, and before them those that
    count towards the limit.

    What an agent has said counts even if its pod was deleted before its exit code could be seen.
    Only the first that it has said counts: what follows may be a consequence.
    """
    first: dict[AgentId, LastWords] = {}
    for words in training.failed:
        first.setdefault(words.agent, words)
    found = [_End(words) for agent, words in first.items() if agent not in settled]
    known = {*settled, *first}
    ended = [pod for pod in view.pods if pod.is_decided(now) and pod.agent not in known]
    ended.sort(key=lambda pod: (pod.incarnation, pod.name))
    for pod in ended:
        if _is_renewed(pod, view.fleet.by_name.get(pod.node), training, memory):
            continue
        if not _is_new(pod, training):
            found += [_End(_words(pod))] if pod.has_failed else []
        elif not _is_excused(pod, view, training, memory):
            found.append(_failed_start(pod))
    return sorted(found, key=lambda end: (end.words.is_user_error, end.counts))


def _is_renewed(
    pod: PodView, node: NodeView | None, training: TrainingView, memory: Memory
) -> bool:
    """Whether its node was started again, or is another machine, since the agent began there."""
    if pod_troubles.is_unseen(pod.exit_reason) and not pod.beside.reason:
        return True
    before = memory.awaited.get(pod.agent)
    first = training.heard.get(pod.agent, "") or (before.machine if before is not None else "")
    return node is not None and first not in ("", node.machine)


def _is_excused(pod: PodView, view: ClusterView, training: TrainingView, memory: Memory) -> bool:
    """Whether an agent that was of no use yet has ended by order or because of its node.

    A crash is none of both, even if the pod is deleted or the node about to go.
    """
    node = view.fleet.by_name.get(pod.node)
    has_lost_node = _has_lost_node(pod.node, pod.created_at, view, memory)
    if pod.beside.ends_with_node or (has_lost_node and (node is None or not node.ready)):
        return True
    is_ordered = pod.deleting_at is not None or pod.agent in training.dismissed
    if _is_own_fault(pod):
        return is_ordered and pod.exit_code in (ExitCode.RELEASED, ExitCode.FENCED)
    return is_ordered or has_lost_node or pod.agent in training.departing


def _has_lost_node(name: str, created_at: float, view: ClusterView, memory: Memory) -> bool:
    """Whether the node of a pod that was made then is gone, or began to fail later. A pod that
    tolerates a failing node would come back to it for ever. One without a node has lost none."""
    node = view.fleet.by_name.get(name)
    if node is None:
        return bool(name)
    return memory.failing.get(node.machine, 0.0) > created_at


def _is_own_fault(pod: PodView) -> bool:
    """Whether neither the node nor the cluster can be the cause. A code of 0 is a fault, too: the
    agent was never told to end."""
    if pod.beside.reason:
        return pod.beside.is_of_pod
    return not pod.is_killed if pod.exit_code is not None else pod.beside.is_of_container


def _taken(
    view: ClusterView, training: TrainingView, memory: Memory, *, now: float
) -> Iterator[_End]:
    """Pods that somebody else has deleted before their agents were heard, and those that wait for
    nodes that were not ready when they were made."""
    for pod, at in view.stranded_at(training):
        is_lost = _has_lost_node(pod.node, pod.created_at, view, memory)
        if at <= now and not is_lost and pod.agent not in memory.settled | training.heard.keys():
            text = f"agent {pod.name} was never heard: node {pod.node} is not ready"
            words = LastWords(pod.agent, FailureCause.START_FAILED, text, node=pod.node)
            seat, remedy = Awaited(pod.slot, pod.incarnation), "let pods not tolerate such nodes"
            yield _End(words, seat, counts=False, remedy=remedy)
    for agent, seat, is_there in _missed(view, training, memory):
        if is_there or 0 < seat.gone_since <= now - GONE_S:
            text = f"agent {agent} was never heard: somebody has deleted its pod"
            words = LastWords(agent, FailureCause.START_FAILED, text)
            yield _End(words, seat, counts=False, remedy="find out who deletes pods of the job")


def _missed(
    view: ClusterView, training: TrainingView, memory: Memory
) -> Iterator[tuple[AgentId, Awaited, bool]]:
    """Awaited agents whose pods are gone or about to go although their nodes are as before, and
    whether the pods are still there."""
    pods = {pod.agent: pod for pod in view.pods} if memory.awaited else {}
    for agent, seat in sorted(memory.awaited.items()):
        pod, node = pods.get(agent), view.fleet.by_name.get(seat.node)
        if pod is not None and (pod.deleting_at is None or pod.has_ended):
            continue
        if agent in training.heard or agent in training.dismissed or agent in memory.settled:
            continue
        is_renewed = node is not None and seat.machine not in ("", node.machine)
        if is_renewed or _has_lost_node(seat.node, seat.created_at, view, memory):
            continue
        if pod is None or not pod.beside.is_disrupted:
            yield agent, seat, pod is not None


def awaited(
    view: ClusterView, training: TrainingView, memory: Memory, deleted: Set[str], *, now: float
) -> dict[AgentId, Awaited]:
    """Pods that are wanted, of agents that are not heard yet. deleted: names of pods that are not
    wanted any more."""
    found, nodes = dict[AgentId, Awaited](), view.fleet.by_name
    for agent, seat, is_there in _missed(view, training, memory):
        if not is_there:
            found[agent] = seat._replace(gone_since=seat.gone_since or now)
    for pod in view.pods:
        if not pod.is_alive or pod.name in deleted or pod.agent in training.heard:
            continue
        seat = memory.awaited.get(pod.agent, Awaited(pod.slot, pod.incarnation))
        if pod.node and not seat.node:
            machine = nodes[pod.node].machine if pod.node in nodes else ""
            seat = seat._replace(node=pod.node, machine=machine, created_at=pod.created_at)
        if pod.phase is PodPhase.RUNNING and not seat.runs_since:
            seat = seat._replace(runs_since=now)
        found[pod.agent] = seat
    return found


def silent(memory: Memory, now: float) -> list[AgentId]:
    """Agents whose containers have run for long without a word."""
    seats = sorted(memory.awaited.items())
    running = [(agent, seat.runs_since) for agent, seat in seats if not seat.gone_since]
    return [agent for agent, since in running if 0 < since <= now - SILENT_S]


def wake_times(memory: Memory) -> Iterator[float]:
    """When something is due for agents that are not heard yet."""
    for seat in memory.awaited.values():
        yield seat.runs_since + SILENT_S if seat.runs_since else 0.0
        yield seat.gone_since + GONE_S if seat.gone_since else 0.0


def held(view: ClusterView, training: TrainingView, memory: Memory, *, now: float) -> set[Slot]:
    """Slots for which no pods are made now, since the last ones have failed to start, or nobody
    knows yet why they have ended."""
    unknown = [pod for pod in view.pods if pod.has_ended and not pod.is_decided(now)]
    slots = {Slot(*slot) for slot in memory.failures.starts.held(now)}
    slots.update(seat.slot for _, seat, _ in _missed(view, training, memory))
    return slots.union(pod.slot for pod in unknown if _is_new(pod, training))


def _is_new(pod: PodView, training: TrainingView) -> bool:
    """Whether the agent was of no use before it ended."""
    return pod.agent not in training.heard or (pod.is_killed and training.epoch == 0)


def start_records(before: Failures, now: Failures) -> tuple[Record, ...]:
    """An event for each new round of pods that end before their agents are heard."""
    if now.starts.rounds <= before.starts.rounds or now.last is None:
        return ()
    facts: dict[EventFact, str | int | float] = {
        EventFact.AGENTS: now.last.agent,
        EventFact.CAUSE: now.last.cause,
    }
    text = now.starts.message
    return (Record(Severity.WARNING, EventReason.START_FAILED, text, facts),)


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


def _failed_start(pod: PodView) -> _End:
    """A pod that ended before its agent was heard, or was of any use. Whatever can be the node's
    fault counts for the node, and not towards the limit."""
    counts, seat = _is_own_fault(pod), Awaited(pod.slot, pod.incarnation)
    if pod.exit_code is not None and not pod.beside.reason and counts:
        return _End(_words(pod), seat, remedy=_start_remedy(pod))
    text = f"agent {pod.name} was never heard: {_how_it_ended(pod)}"
    words = LastWords(pod.agent, FailureCause.START_FAILED, text, node="" if counts else pod.node)
    return _End(words, seat, counts, _start_remedy(pod))


def _how_it_ended(pod: PodView) -> str:
    beside = pod.beside
    if beside.reason:
        where = f" on node {pod.node}" if pod.node else ""
        words = f": {texts.cut(beside.message, _MOST_WORDS)}" if beside.message else ""
        return f"its pod has ended{where} with the reason {beside.reason}{words}"
    if pod.exit_code is not None:
        return f"somebody has killed its container (exit code {pod.exit_code})"
    if beside.exit_code is not None:
        said = "" if beside.state in ("", "Error", "Completed") else f", {beside.state}"
        words = f": {texts.cut(beside.words, _MOST_WORDS)}" if beside.words else ""
        return f"container {beside.container} ended with exit code {beside.exit_code}{said}{words}"
    return "its pod has ended, and its status does not say why"


def _start_remedy(pod: PodView) -> str:
    beside, see = pod.beside, f"kubectl describe pod {pod.name}"
    if beside.is_of_pod:
        field = "spec.worker.resources and spec.worker.podTemplate"
        return f"let its containers use less, or ask for more in {field}"
    if beside.reason:
        return f"kubectl describe node {pod.node} shows what the node has and lacks"
    if pod.is_killed:
        return f"look for a failing probe with {see}"
    if pod.exit_code is not None:
        return (
            f"kubectl logs {pod.name}; if spec.worker.podTemplate has a command, it must start the"
            " agent"
        )
    if beside.container:
        return f"kubectl logs {pod.name} -c {beside.container}"
    return see


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
    if pod.beside.is_of_pod:
        return f"agent {pod.name}: {_how_it_ended(pod)}"
    words = pod.trouble or "see its log"
    if pod.exit_reason not in ("", "Error"):  # an OOMKilled container leaves no message
        words = f"{pod.exit_reason}: {words}"
    return f"agent {pod.name} ended with exit code {pod.exit_code}: {words}"
