"""How agents end: which ends are failures or failed starts, and counting them."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace

from bamboo_core.api.events import EventFact, EventReason, Severity
from bamboo_core.api.reasons import FailureCause, Reason, failure_cause
from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter_state.events import Record
from bamboo_core.controller import failures, pod_zones
from bamboo_core.controller import turn as turns
from bamboo_core.controller.ends import awaited_pods, causes, end_words
from bamboo_core.controller.failures import FailedStarts, Failure, Failures
from bamboo_core.controller.view import (
    Awaited,
    ClusterView,
    LastWords,
    Memory,
    NodeView,
    TrainingView,
)
from bamboo_core.model.ids import AgentId

KEPT = 16
"""Number of ended pods that are kept for their logs while the job goes on."""


def settle(
    spec: JobSpec, view: ClusterView, training: TrainingView, memory: Memory, *, now: float
) -> Memory:
    """Count each agent that has failed since the last call, by its words or by its pod's end."""
    policy, committed = spec.run_policy, training.progress.committed + 1
    told = {words.agent for words in training.failed}
    seen = {pod.agent for pod in view.pods}
    ended = {pod.agent for pod in view.pods if causes.is_judged(pod, training, now)}
    # What agents say of their nodes is left out: it would excuse all others there.
    memory = replace(memory, failing=view.fleet.failing(memory.failing, now))
    taken = [] if spec.suspend else list(_taken(view, training, memory, now=now))
    before = memory.settled
    is_ordered = spec.suspend  # the arbiter releases agents
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
    fresh = _fresh(view, training, memory, before, is_ordered=is_ordered, now=now)
    for end in [*taken, *fresh]:
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
            is_heard, template = words.agent in training.heard, turns.template(spec)
            known = failures.add_start(
                known, slot, number, text, template, step=committed, is_heard=is_heard, now=now
            )
    known = _without_old_starts(spec, view, training, known, now)
    return replace(memory, failures=known, not_before=max(until, known.paused_until))


def _without_old_starts(
    spec: JobSpec, view: ClusterView, training: TrainingView, known: Failures, now: float
) -> Failures:
    """A suspension is the chance to mend the cause. If the pods are others after it, the job begins
    anew, also if nobody has seen that it was suspended; else its pauses could be avoided.

    Where agents that were heard have been killed, only time proves those that come after them.
    After the pause, a pod without a node lacks room, and not a start.
    """
    starts = known.starts
    if not starts.rounds or starts.template not in ("", turns.template(spec)):
        return replace(known, starts=FailedStarts())
    alive = [pod for pod in view.pods if pod.is_alive]
    proven = [p for p in alive if not starts.were_heard or causes.ran_s(p, now) >= causes.PROVEN_S]
    staying = training.connected & {pod.agent for pod in view.staying(training)}
    heard = {pod.slot for pod in proven if pod.agent in staying}
    if now >= starts.until:
        heard.update(pod.slot for pod in alive if not pod.node)
    newest = max((p.incarnation for p in proven if p.agent in training.members), default=-1)
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
    view: ClusterView,
    training: TrainingView,
    memory: Memory,
    settled: Set[str],
    *,
    is_ordered: bool,
    now: float,
) -> list[end_words.End]:
    """Failures that are not counted yet; errors of the user's code last, and before them those that
    count towards the limit.

    What an agent has said counts even if its pod was deleted before its exit code could be seen.
    Only the first that it has said counts: what follows may be a consequence.
    """
    first: dict[AgentId, LastWords] = {}
    for words in training.failed:
        first.setdefault(words.agent, words)
    found = [end_words.End(words) for agent, words in first.items() if agent not in settled]
    known = {*settled, *first}
    ended = [p for p in view.pods if causes.is_judged(p, training, now) and p.agent not in known]
    ended.sort(key=lambda pod: (pod.incarnation, pod.name))
    for pod in ended:
        if causes.is_renewed(pod, view.fleet.by_name.get(pod.node), training, memory):
            continue
        if pod.agent in training.heard:
            if pod.has_failed:
                found.append(end_words.End(end_words.words_of(pod)))
            elif not is_ordered and causes.is_unordered(pod, view, training, memory):
                found += end_words.cut_short(pod, now)
        elif not causes.is_excused(pod, view, training, memory):
            found.append(end_words.failed_start(pod))
    return sorted(found, key=lambda end: (end.words.is_user_error, end.counts))


def _taken(
    view: ClusterView, training: TrainingView, memory: Memory, *, now: float
) -> Iterator[end_words.End]:
    """Pods that somebody else has deleted before their agents were heard, and those that wait for
    nodes that were not ready when they were made."""
    for pod, at in view.stranded_at(training):
        is_lost = causes.has_lost_node(pod.node, pod.created_at, view, memory)
        if at <= now and not is_lost and pod.agent not in memory.settled | training.heard.keys():
            text = f"agent {pod.name} was never heard: node {pod.node} is not ready"
            words = LastWords(pod.agent, FailureCause.START_FAILED, text, node=pod.node)
            seat, remedy = Awaited(pod.slot, pod.incarnation), "let pods not tolerate such nodes"
            yield end_words.End(words, seat, counts=False, remedy=remedy)
    for agent, seat, is_there in awaited_pods.missed(view, training, memory):
        if is_there or 0 < seat.gone_since <= now - awaited_pods.GONE_S:
            text = f"agent {agent} was never heard: somebody has deleted its pod"
            words = LastWords(agent, FailureCause.START_FAILED, text)
            yield end_words.End(
                words, seat, counts=False, remedy="find out who deletes pods of the job"
            )


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
