"""How agents end: which ends are failures or failed starts, and counting them."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace
from typing import NamedTuple

from bamboo_core.api import texts
from bamboo_core.api.events import EventFact, EventReason, Severity
from bamboo_core.api.reasons import FailureCause, Reason, failure_cause
from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter_state.events import Record
from bamboo_core.controller import ends, failures, pod_zones
from bamboo_core.controller import turn as turns
from bamboo_core.controller.failures import Failure, Failures
from bamboo_core.controller.view import (
    Awaited,
    ClusterView,
    LastWords,
    Memory,
    NodeView,
    PodView,
    Slot,
    TrainingView,
)
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.exit_codes import ExitCode

KEPT = 16
"""Number of ended pods that are kept for their logs while the job goes on."""


_CONFIGURATION = "bamboo-agent: "
"""The agent's last words begin so if its own configuration is wrong: see its ``__main__``."""
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
    ended = {pod.agent for pod in view.pods if ends.is_judged(pod, training, now)}
    # What agents say of their nodes is left out: it would excuse all others there.
    memory = replace(memory, failing=view.fleet.failing(memory.failing, now))
    taken = [] if spec.suspend else list(_taken(view, training, memory, now=now))
    before = memory.settled
    # The arbiter releases agents. A new leader may never have heard those that end then.
    is_ordered = spec.suspend or training.outcome is not None
    gone = {end.words.agent for end in taken}
    # The last state of a deleted pod may come later than a list without it.
    started = (f for f in memory.failures.recent if f.cause is FailureCause.START_FAILED)
    shown = seen.union(failure.agent for failure in started)
    settled = frozenset((before & shown) | ended | told | gone)
    memory = replace(memory, settled=settled, losses=training.losses)
    if memory.terminal is not None:
        return memory
    known = failures.settle(memory.failures, committed, policy, now=now)
    # A suspension is the chance to mend the cause. If the pods are others after it, the job begins
    # anew, also if nobody has seen that it was suspended; else its pauses could be avoided.
    if known.recent or known.avoided or known.starts.rounds:
        known = failures.of_template(known, turns.template(spec))
    old = _outdated(spec, view)
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
        if end.start is not None:
            known = _with_start(spec, known, end, end.start, failure, training, old)
        else:
            known = failures.add(known, failure, words.message, policy)
            until = max(until, now + _pause_s(known, failure))
        if failure.is_tolerated and words.is_refused:
            known = failures.add_refusal(known, now=now)
    left = _left(view, training, memory, before)
    known = _without_old_starts(spec, view, training, known, left, now)
    return replace(memory, failures=known, not_before=max(until, known.paused_until))


def _with_start(
    spec: JobSpec,
    known: Failures,
    end: _End,
    seat: Awaited,
    failure: Failure,
    training: TrainingView,
    old: Set[AgentId],
) -> Failures:
    """Add a failed start. Its pause is that of its seat, and others do not wait. One of another
    template says nothing about new pods, nor about its node. old: agents of such pods."""
    words, policy, now = end.words, spec.run_policy, failure.at
    if failure.agent in old:
        failure = replace(failure, machine="", is_tolerated=True)
        return failures.add(known, failure, words.message, policy)
    is_heard = failure.agent in training.heard and not words.is_refused
    template = turns.template(spec)
    is_another = not is_heard and known.starts.is_counted_at(now)
    is_tolerated = failure.is_tolerated or is_another
    failure = replace(failure, is_tolerated=is_tolerated, template=template)
    known = failures.add(known, failure, words.message, policy)
    text = f"{words.message}; {end.remedy}" if end.remedy else words.message
    return failures.add_start(
        known, seat.slot, seat.incarnation, text, template, step=failure.step, is_heard=is_heard,
        is_counted=not is_heard and not is_tolerated, now=now,
    )  # fmt: skip


def _outdated(spec: JobSpec, view: ClusterView) -> set[AgentId]:
    """Agents whose pods were made from another template: they say nothing about new ones."""
    ended = [pod for pod in view.pods if pod.has_ended and pod.template]
    template = turns.template(spec) if ended else ""
    return {pod.agent for pod in ended if pod.template != template}


def _left(
    view: ClusterView, training: TrainingView, memory: Memory, settled: Set[str]
) -> set[Slot]:
    """Seats whose last agent was heard, and goes with its node or since somebody deletes its pod.
    Nothing is known against the next one, which does not wait."""
    if not memory.failures.starts.slots:
        return set()
    newest = {pod.slot: pod for pod in sorted(view.pods, key=lambda pod: pod.incarnation)}
    return {
        slot
        for slot, pod in newest.items()
        if pod.agent in training.heard
        and pod.agent not in settled
        and not pod.has_failed
        and ends.is_taken_away(pod, view, training, memory)
    }


def _without_old_starts(
    spec: JobSpec,
    view: ClusterView,
    training: TrainingView,
    known: Failures,
    left: Set[Slot],
    now: float,
) -> Failures:
    """Forget what is proven to be over. Only time proves an agent: probes end those that were
    heard, too, in turn with others that were not. left: seats that nothing is known against."""
    starts = known.starts
    if not starts.rounds:
        return known
    alive = [pod for pod in view.pods if pod.is_alive]
    proven = [pod for pod in alive if ends.ran_s(pod, now) >= ends.PROVEN_S]
    staying = training.connected & {pod.agent for pod in view.staying(training)}
    seats = {*left, *(pod.slot for pod in proven if pod.agent in staying)}
    if now >= starts.until + failures.FORGET_STARTS_S:
        seats.update(pod.slot for pod in alive if not pod.node)
    newest = max((p.incarnation for p in proven if p.agent in training.members), default=-1)
    wanted = frozenset(pod_zones.slots(spec))
    return failures.settle_starts(known, seats, wanted, newest, now=now)


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
) -> list[_End]:
    """Failures that are not counted yet; errors of the user's code last, and before them those that
    count towards the limit.

    What an agent has said counts even if its pod was deleted before its exit code could be seen.
    Only the first that it has said counts: what follows may be a consequence.
    """
    first: dict[AgentId, LastWords] = {}
    for words in training.failed:
        first.setdefault(words.agent, words)
    seats = {pod.agent: Awaited(pod.slot, pod.incarnation) for pod in view.pods}
    found = [_said(x, seats.get(agent)) for agent, x in first.items() if agent not in settled]
    known = {*settled, *first}
    ended = [p for p in view.pods if ends.is_judged(p, training, now) and p.agent not in known]
    ended.sort(key=lambda pod: (pod.incarnation, pod.name))
    for pod in ended:
        if ends.is_renewed(pod, view.fleet.by_name.get(pod.node), training, memory):
            continue
        if pod.agent in training.heard:
            if pod.has_failed:
                found.append(_End(_words_of(pod)))
            elif not is_ordered and ends.is_unordered(pod, view, training, memory):
                found += _cut_short(pod, now)
        elif is_ordered and pod.exit_code in (ExitCode.RELEASED, ExitCode.FENCED):
            continue
        elif not ends.is_excused(pod, view, training, memory):
            found.append(_failed_start(pod))
    return sorted(found, key=lambda end: (end.words.is_user_error, end.counts))


def _said(words: LastWords, seat: Awaited | None) -> _End:
    """An agent's own word. The image of one of another version is wrong, and not its node."""
    if words.is_refused and words.cause == FailureCause.VERSION_DIFFERS:
        return _End(replace(words, node="", machine=""), seat, counts=False)
    return _End(words)


def _taken(
    view: ClusterView, training: TrainingView, memory: Memory, *, now: float
) -> Iterator[_End]:
    """Pods that somebody else has deleted before their agents were heard, and those that wait for
    nodes that were not ready when they were made."""
    for pod, at in view.stranded_at(training):
        is_lost = ends.has_lost_node(pod.node, pod.created_at, view, memory)
        if at <= now and not is_lost and pod.agent not in memory.settled | training.heard.keys():
            text = f"agent {pod.name} was never heard: node {pod.node} is not ready"
            words = LastWords(pod.agent, FailureCause.START_FAILED, text, node=pod.node)
            seat, remedy = Awaited(pod.slot, pod.incarnation), "let pods not tolerate such nodes"
            yield _End(words, seat, counts=False, remedy=remedy)
    for agent, seat, is_there in ends.missed(view, training, memory):
        if is_there or 0 < seat.gone_since <= now - ends.GONE_S:
            text = f"agent {agent} was never heard: somebody has deleted its pod"
            words = LastWords(agent, FailureCause.START_FAILED, text)
            yield _End(words, seat, counts=False, remedy="find out who deletes pods of the job")


def with_taken(
    view: ClusterView, training: TrainingView, memory: Memory, taken: Set[str], *, now: float
) -> Memory:
    """Count the ends of pods that the line takes while starts fail. Seats that have not failed wait
    with the others only if the job does not train. taken: names of the pods."""
    starts = memory.failures.starts
    pods = [pod for pod in view.pods if pod.name in taken] if starts.slots else []
    pods = [pod for pod in pods if pod.slot in starts.slots or not training.planned]
    if not pods:
        return memory
    seats: dict[tuple[int, int], int] = {pod.slot: pod.incarnation for pod in pods}
    # Somebody else who deletes the pod of an agent that was heard ends the wait of its seat. One
    # that was starting may still be heard.
    settled = memory.settled | {pod.agent for pod in pods}
    known = failures.add_taken(memory.failures, seats, now=now)
    return replace(memory, failures=known, settled=settled)


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


def _words_of(pod: PodView) -> LastWords:
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
    counts, seat = ends.is_own_fault(pod), Awaited(pod.slot, pod.incarnation)
    if pod.exit_code is not None and not pod.beside.reason and counts:
        words = _words_of(pod)
        if words.is_user_error and not _says_configuration(pod):
            text = f"agent {pod.name} was never heard: {words.message}"
            words = LastWords(pod.agent, FailureCause.START_FAILED, text, node=pod.node)
        return _End(words, seat, remedy=_start_remedy(pod))
    text = f"agent {pod.name} was never heard: {_how_it_ended(pod)}"
    words = LastWords(pod.agent, FailureCause.START_FAILED, text, node="" if counts else pod.node)
    return _End(words, seat, counts, _start_remedy(pod))


def _cut_short(pod: PodView, now: float) -> list[_End]:
    """The end of an agent that was heard and that nobody has told to end. Early it is a failed
    start. Late a kill is a loss, since nobody knows better."""
    is_early = ends.ran_s(pod, now) < ends.PROVEN_S
    seat = Awaited(pod.slot, pod.incarnation) if is_early else None
    if not ends.may_be_lost(pod):
        text = (
            f"agent {pod.name} ended with exit code {pod.exit_code}, and the operator had not"
            " released it"
        )
        words = LastWords(pod.agent, FailureCause.AGENT_FAILED, text, node=pod.node)
        remedy = f"{_start_remedy(pod)}, be the last that ends, and end with the agent's exit code"
        return [_End(words, seat, remedy=remedy)]
    if not is_early:
        return []
    text = (
        f"agent {pod.name} ended {ends.ran_s(pod, now):.0f} s after its start with exit code"
        f" {pod.exit_code}, while its node stayed: {_who_ended(pod)}"
    )
    words = LastWords(pod.agent, FailureCause.START_FAILED, text, node=pod.node)
    return [_End(words, seat, counts=False, remedy=_start_remedy(pod))]


def _who_ended(pod: PodView) -> str:
    if pod.is_killed:
        return "a liveness probe or somebody has killed it"
    return "it lost the operator, or its command says so"


def _says_configuration(pod: PodView) -> bool:
    """Whether the agent itself says with exit code 2 that its configuration is wrong. Other
    programs end with that code, too."""
    is_told = failure_cause(pod.trouble) is not FailureCause.AGENT_FAILED
    return is_told or any(x.startswith(_CONFIGURATION) for x in pod.trouble.splitlines())


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
            f"kubectl logs {pod.name} -c agent; if spec.worker.podTemplate has a command, it must"
            " start the agent"
        )
    if beside.container:
        return f"kubectl logs {pod.name} -c {beside.container}"
    return see


def _last_message(pod: PodView) -> str:
    if pod.beside.is_of_pod:
        return f"agent {pod.name}: {_how_it_ended(pod)}"
    words = pod.trouble or "see its log"
    if pod.exit_reason not in ("", "Error"):  # an OOMKilled container leaves no message
        words = f"{pod.exit_reason}: {words}"
    return f"agent {pod.name} ended with exit code {pod.exit_code}: {words}"
