"""How agents end: which ends are failures or failed starts, and counting them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import replace
from typing import NamedTuple

from bamboo_core.api import texts
from bamboo_core.api.events import EventFact, EventReason, Severity
from bamboo_core.api.reasons import FailureCause, Reason, failure_cause
from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter_state.events import Record
from bamboo_core.controller import failures, pod_zones
from bamboo_core.controller import turn as turns
from bamboo_core.controller.failures import FailedStarts, Failure, Failures
from bamboo_core.controller.view import (
    Awaited,
    ClusterView,
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
NODE_STAYS_S = 60.0
"""An agent that somebody has killed is judged so long after its end: if its machine has gone, its
node is not ready by then. Kubernetes says so after 40 to 50 s."""
PROVEN_S = 600.0
"""An agent that has run for so long has started well. If one that ends after it is replaced at
once, there are at most as many new pods as after failed starts."""
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
    ended = {pod.agent for pod in view.pods if _is_judged(pod, training, now)}
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
    nodes, until = view.fleet.by_name, memory.not_before
    fresh = _fresh(view, training, memory, before, is_ordered=spec.suspend, now=now)
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
            text = f"{words.message}; {end.remedy}" if end.remedy else words.message
            start = end.start.slot, end.start.incarnation, text, turns.template(spec)
            is_heard = words.agent in training.heard and not words.is_refused
            known = failures.add_start(known, *start, is_heard=is_heard, now=now)
    known = _without_old_starts(spec, view, training, known, now)
    return replace(memory, failures=known, not_before=max(until, known.paused_until))


def _without_old_starts(
    spec: JobSpec, view: ClusterView, training: TrainingView, known: Failures, now: float
) -> Failures:
    """A suspension is the chance to mend the cause. If the pods are others after it, the job begins
    anew; else its pauses could be avoided.

    Where agents that were heard have been killed, only time proves those that come after them.
    After the pause, a pod without a node lacks room, and not a start.
    """
    starts = known.starts
    if not starts.rounds or (spec.suspend and starts.template != turns.template(spec)):
        return replace(known, starts=FailedStarts())
    alive = [pod for pod in view.pods if pod.is_alive]
    proven = [p for p in alive if not starts.were_heard or _ran_s(p, now) >= PROVEN_S]
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
    ended = [p for p in view.pods if _is_judged(p, training, now) and p.agent not in known]
    ended.sort(key=lambda pod: (pod.incarnation, pod.name))
    for pod in ended:
        if _is_renewed(pod, view.fleet.by_name.get(pod.node), training, memory):
            continue
        if pod.agent in training.heard:
            if pod.has_failed:
                found.append(_End(_words(pod)))
            elif not is_ordered and _is_unordered(pod, view, training, memory):
                found += _cut_short(pod, now)
        elif not _is_excused(pod, view, training, memory):
            found.append(_failed_start(pod))
    return sorted(found, key=lambda end: (end.words.is_user_error, end.counts))


def _said(words: LastWords, seat: Awaited | None) -> _End:
    """An agent's own word. The image of one of another version is wrong, and not its node."""
    if words.is_refused and words.cause == FailureCause.VERSION_DIFFERS:
        return _End(replace(words, node="", machine=""), seat, counts=False)
    return _End(words)


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


def _is_judged(pod: PodView, training: TrainingView, now: float) -> bool:
    """Whether its end is known as a whole, and whether its node has gone with it."""
    is_sure = pod.agent not in training.heard or pod.has_failed or not _may_be_lost(pod)
    if is_sure or pod.ended_at is None:
        return pod.is_decided(now)
    return now >= pod.ended_at + NODE_STAYS_S


def _may_be_lost(pod: PodView) -> bool:
    """Whether its end looks like that of an agent whose node, or whose network, has gone."""
    return pod.is_killed or pod.exit_code == ExitCode.FENCED


def _is_unordered(pod: PodView, view: ClusterView, training: TrainingView, memory: Memory) -> bool:
    """Whether an agent has ended as if by order, or was killed, though nobody had told it to go and
    its node is as before. An agent that only another leader has heard may have had its order."""
    if not (pod.is_killed or pod.exit_code in (ExitCode.RELEASED, ExitCode.FENCED)):
        return False
    if training.unwritten is not None or training.outcome is not None:
        return False
    told = training.dismissed | training.departing | training.slow
    if pod.deleting_at is not None or pod.agent in told - training.signalled:
        return False
    has_lost_node = _has_lost_node(pod.node, pod.created_at, view, memory)
    is_going = pod.beside.ends_with_node or has_lost_node
    return bool(training.heard[pod.agent]) and not is_going


def _cut_short(pod: PodView, now: float) -> list[_End]:
    """The end of an agent that was heard and that nobody has told to end. Early it is a failed
    start. Late a kill is a loss, since nobody knows better."""
    is_early = _ran_s(pod, now) < PROVEN_S
    seat = Awaited(pod.slot, pod.incarnation) if is_early else None
    if not _may_be_lost(pod):
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
        f"agent {pod.name} ended {_ran_s(pod, now):.0f} s after its start with exit code"
        f" {pod.exit_code}, while its node stayed: {_who_ended(pod)}"
    )
    words = LastWords(pod.agent, FailureCause.START_FAILED, text, node=pod.node)
    return [_End(words, seat, counts=False, remedy=_start_remedy(pod))]


def _who_ended(pod: PodView) -> str:
    if pod.is_killed:
        return "a liveness probe or somebody has killed it"
    return "it lost the operator, or its command says so"


def _ran_s(pod: PodView, now: float) -> float:
    begun = pod.created_at if pod.started_at is None else pod.started_at
    return max(0.0, (now if pod.ended_at is None else pod.ended_at) - begun)


def _cut_short_again(
    view: ClusterView, training: TrainingView, memory: Memory, now: float
) -> set[Slot]:
    """Seats whose agents end early again and again, while the last end is not judged yet. The
    first of them is replaced at once: its node may be about to go."""
    found = [
        pod
        for pod in view.pods
        if pod.has_ended
        and pod.agent in training.heard
        and not pod.has_failed
        and _is_unordered(pod, view, training, memory)
        and not _is_renewed(pod, view.fleet.by_name.get(pod.node), training, memory)
        and _ran_s(pod, now) < PROVEN_S
    ]
    times = Counter([pod.slot for pod in found] + [Slot(*x) for x in memory.failures.starts.slots])
    return {p.slot for p in found if times[p.slot] > 1 and not _is_judged(p, training, now)}


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
    unheard = [pod for pod in view.pods if pod.agent not in training.heard]
    unknown = {pod.slot for pod in unheard if pod.has_ended and not pod.is_decided(now)}
    slots = {Slot(*slot) for slot in memory.failures.starts.held(now)}
    slots.update(seat.slot for _, seat, _ in _missed(view, training, memory))
    return slots | unknown | _cut_short_again(view, training, memory, now)


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
        words = _words(pod)
        if words.is_user_error and not _says_configuration(pod):
            text = f"agent {pod.name} was never heard: {words.message}"
            words = LastWords(pod.agent, FailureCause.START_FAILED, text, node=pod.node)
        return _End(words, seat, remedy=_start_remedy(pod))
    text = f"agent {pod.name} was never heard: {_how_it_ended(pod)}"
    words = LastWords(pod.agent, FailureCause.START_FAILED, text, node="" if counts else pod.node)
    return _End(words, seat, counts, _start_remedy(pod))


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
            f"kubectl logs {pod.name}; if spec.worker.podTemplate has a command, it must start the"
            " agent"
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
