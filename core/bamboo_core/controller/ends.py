"""Why agents have ended: by order, with their node, or neither; which are awaited, and which seats
get no pods because of that, in words, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set

from bamboo_core.api import texts
from bamboo_core.api.spec import JobSpec
from bamboo_core.controller import failures, pod_zones, shortage
from bamboo_core.controller.view import (
    REASON_S,
    Awaited,
    ClusterView,
    Memory,
    NodeView,
    PodPhase,
    PodView,
    Slot,
    TrainingView,
    place_of,
)
from bamboo_core.evidence import pod_troubles
from bamboo_core.model.counts import counted
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.exit_codes import ExitCode

NODE_STAYS_S = 60.0
"""An agent that somebody has killed is judged so long after its end: if its machine has gone, its
node is not ready by then. Kubernetes says so after 40 to 50 s."""
WARNED_NODE_STAYS_S = 180.0
"""The same for one that was told of its node's end. Amazon says so 120 s before."""
STAYS_S = (NODE_STAYS_S, WARNED_NODE_STAYS_S)
PROVEN_S = 600.0
"""An agent that has run for so long has started well. If one that ends after it is replaced at
once, there are at most as many new pods as after failed starts."""


def is_renewed(pod: PodView, node: NodeView | None, training: TrainingView, memory: Memory) -> bool:
    """Whether its node was started again, or is another machine, since the agent began there."""
    if pod_troubles.is_unseen(pod.exit_reason) and not pod.beside.reason:
        return True
    before = memory.awaited.get(pod.agent)
    first = training.heard.get(pod.agent, "") or (before.machine if before is not None else "")
    return node is not None and first not in ("", node.machine)


def is_excused(pod: PodView, view: ClusterView, training: TrainingView, memory: Memory) -> bool:
    """Whether an agent that was of no use yet has ended by order or because of its node.

    A crash is none of both, even if the pod is deleted or the node about to go.
    """
    node = view.fleet.by_name.get(pod.node)
    is_lost = has_lost_node(pod.node, pod.created_at, view, memory)
    if pod.beside.ends_with_node or (is_lost and (node is None or not node.ready)):
        return True
    is_ordered = pod.deleting_at is not None or pod.agent in training.dismissed
    if is_own_fault(pod):
        return is_ordered and pod.exit_code in (ExitCode.RELEASED, ExitCode.FENCED)
    return is_ordered or is_lost


def is_judged(pod: PodView, training: TrainingView, now: float) -> bool:
    """Whether its end is known as a whole, and whether its node has gone with it."""
    is_sure = pod.agent not in training.heard or pod.has_failed or not may_be_lost(pod)
    if is_sure or pod.ended_at is None:
        return pod.is_decided(now)
    return now >= pod.ended_at + STAYS_S[pod.agent in training.warned]


def may_be_lost(pod: PodView) -> bool:
    """Whether its end looks like that of an agent whose node, or whose network, has gone."""
    return pod.is_killed or pod.exit_code == ExitCode.FENCED


def is_taken_away(pod: PodView, view: ClusterView, training: TrainingView, memory: Memory) -> bool:
    """Whether an agent that was heard goes, or has gone, with its node, or runs while somebody
    deletes its pod."""
    node = view.fleet.by_name.get(pod.node)
    is_lost = pod.beside.ends_with_node or is_renewed(pod, node, training, memory)
    is_lost = is_lost or has_lost_node(pod.node, pod.created_at, view, memory)
    return is_lost or (pod.deleting_at is not None and not pod.has_ended)


def is_unordered(pod: PodView, view: ClusterView, training: TrainingView, memory: Memory) -> bool:
    """Whether an agent has ended as if by order, or was killed, though nobody had told it to go and
    its node is as before; or will end, as it says. What it says is no order: only its node can
    confirm that. An agent that only another leader has heard may have had its order."""
    is_leaving = not pod.has_ended and pod.agent in training.departing
    if not (is_leaving or pod.is_killed or pod.exit_code in (ExitCode.RELEASED, ExitCode.FENCED)):
        return False
    if training.unwritten is not None or training.outcome is not None:
        return False
    told = training.dismissed | training.slow
    if pod.deleting_at is not None or pod.agent in told - training.departing:
        return False
    is_lost = has_lost_node(pod.node, pod.created_at, view, memory)
    is_going = pod.beside.ends_with_node or is_lost
    return bool(training.heard[pod.agent]) and not is_going


def ran_s(pod: PodView, now: float) -> float:
    """For how long its agent has run, or had run when it ended."""
    begun = pod.created_at if pod.started_at is None else pod.started_at
    return max(0.0, (now if pod.ended_at is None else pod.ended_at) - begun)


def has_lost_node(name: str, created_at: float, view: ClusterView, memory: Memory) -> bool:
    """Whether the node of a pod that was made then is gone, or began to fail later. A pod that
    tolerates a failing node would come back to it for ever. One without a node has lost none."""
    node = view.fleet.by_name.get(name)
    if node is None:
        return bool(name)
    return memory.failing.get(node.machine, 0.0) > created_at


def is_own_fault(pod: PodView) -> bool:
    """Whether neither the node nor the cluster can be the cause. A code of 0 is a fault, too: the
    agent was never told to end."""
    if pod.beside.reason:
        return pod.beside.is_of_pod
    return not pod.is_killed if pod.exit_code is not None else pod.beside.is_of_container


GONE_S = 2.0
"""The last state of a deleted pod, which says how it ended, may come so much later than a list."""
SILENT_S = 60.0
"""An agent connects within seconds after its start."""
FIRST_WORD_S = 12.0
"""After so long the status says what may be wrong. An agent that imports its code may need more."""
_MOST_WORDS = 300
"""Bytes of an agent's last words, so that the rest has room."""
COMMON_ROUNDS = 2
"""Rounds of pods that have all failed, so that other seats most likely fail by the same cause."""


def missed(
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
        if is_renewed or has_lost_node(seat.node, seat.created_at, view, memory):
            continue
        if pod is None or not pod.beside.is_disrupted:
            yield agent, seat, pod is not None


def awaited(
    view: ClusterView, training: TrainingView, memory: Memory, deleted: Set[str], *, now: float
) -> dict[AgentId, Awaited]:
    """Pods that are wanted, of agents that are not heard yet. deleted: names of pods that are not
    wanted any more."""
    found, nodes = dict[AgentId, Awaited](), view.fleet.by_name
    for agent, seat, is_there in missed(view, training, memory):
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


def silent(memory: Memory, now: float, after_s: float = SILENT_S) -> list[AgentId]:
    """Agents whose containers have run for so long without a word."""
    seats = sorted(memory.awaited.items())
    running = [(agent, seat.runs_since) for agent, seat in seats if not seat.gone_since]
    return [agent for agent, since in running if 0 < since <= now - after_s]


def wake_times(memory: Memory) -> Iterator[float]:
    """When something is due for agents that are not heard yet."""
    for seat in memory.awaited.values():
        for after_s in (FIRST_WORD_S, SILENT_S) if seat.runs_since else ():
            yield seat.runs_since + after_s
        yield seat.gone_since + GONE_S if seat.gone_since else 0.0


def held(
    spec: JobSpec, view: ClusterView, training: TrainingView, memory: Memory, *, now: float
) -> set[Slot]:
    """Slots for which no pods are made now, since the last ones have failed to start, or nobody
    knows yet why they have ended."""
    unheard = [pod for pod in view.pods if pod.agent not in training.heard]
    unknown = {pod.slot for pod in unheard if pod.has_ended and not pod.is_decided(now)}
    slots = {Slot(*slot) for slot in memory.failures.starts.held(now)}
    slots.update(seat.slot for _, seat, _ in missed(view, training, memory))
    again = {pod.slot for pod in cut_short_again(view, training, memory, now)}
    return slots | unknown | again | unproven(spec, view, training, memory, now=now)


def unproven(
    spec: JobSpec, view: ClusterView, training: TrainingView, memory: Memory, *, now: float
) -> set[Slot]:
    """New seats that wait for a proof, while every pod fails that was made since the first failed.

    After each pause one of them gets a pod, beside those that have failed. Once an agent of any new
    pod is heard, all get theirs. Seats with an agent that was ever heard never wait here, and
    nobody does while an older pod may still start, or one lacks a node: more of them may come if
    all are asked for.
    """
    starts = memory.failures.starts
    if starts.failed_rounds < COMMON_ROUNDS or not starts.slots:
        return set()
    heard = [place for agent in training.heard if (place := place_of(agent)) is not None]
    if any(incarnation >= starts.first for _, incarnation in heard):
        return set()
    tried = {Slot(*slot) for slot in starts.slots} | {slot for slot, _ in heard}
    new = [slot for slot in pod_zones.slots(spec) if slot not in tried]
    starting = [pod for pod in view.pods if pod.is_alive and pod.slot in new]
    if any(p.refused_at or p.incarnation <= starts.incarnation for p in starting):
        return set()
    return set(new[1:] if now >= starts.until and not starting else new)


def is_cut_short(
    pod: PodView, view: ClusterView, training: TrainingView, memory: Memory, now: float
) -> bool:
    """Whether an agent that was heard ends early, or says that it will, and nothing shows yet that
    its node goes."""
    return (
        pod.agent in training.heard
        and not pod.has_failed
        and is_unordered(pod, view, training, memory)
        and not is_renewed(pod, view.fleet.by_name.get(pod.node), training, memory)
        and ran_s(pod, now) < PROVEN_S
    )


def cut_short_again(
    view: ClusterView, training: TrainingView, memory: Memory, now: float
) -> list[PodView]:
    """Pods of seats whose agents end early again and again, or say that they will, as long as that
    end is not judged yet. The first of a seat is replaced at once: its node may be about to go. So
    are the first three that were told so, since their nodes may stay for minutes."""
    found = [pod for pod in view.pods if is_cut_short(pod, view, training, memory, now)]
    known = {Slot(*slot) for slot in memory.failures.starts.slots}
    times = Counter(pod.slot for pod in found)
    return [
        pod
        for pod in found
        if not (pod.has_ended and is_judged(pod, training, now))
        and (pod.slot in known or times[pod.slot] > (3 if pod.agent in training.warned else 1))
    ]


def are_failing(view: ClusterView, training: TrainingView, memory: Memory, *, now: float) -> bool:
    """Whether seats wait for agents since starts fail. One kill may be that of a node that goes.

    Where agents that were heard have been killed, others take part and may be killed, too. Once
    they have committed a step with all of them, nothing is stuck; the count goes on. After the
    pause, a pod without a node lacks room, and not a start.
    """
    starts, at_work = memory.failures.starts, training.connected
    if not starts.slots or (starts.were_heard and starts.failed_rounds <= 1):
        return False
    if starts.were_heard:
        if training.progress.committed + 1 <= starts.step:
            return True
        at_work &= training.members
    there = {pod.slot for pod in view.staying(training) if pod.agent in at_work}
    if now >= starts.until:
        there.update(pod.slot for pod in view.pods if pod.is_alive and not pod.node)
    if not starts.were_heard:
        places = (place for agent in training.heard if (place := place_of(agent)) is not None)
        there.update(slot for slot, number in places if number > starts.incarnation)
    return not {Slot(*slot) for slot in starts.slots} <= there


def failing(view: ClusterView, training: TrainingView, memory: Memory, *, now: float) -> str:
    """Failed starts, the last one with its remedy, and when new pods come; and the end that is
    being judged. Empty: no seat waits because of any."""
    starts, judging = memory.failures.starts, judged(view, training, memory, now=now)
    if not are_failing(view, training, memory, now=now):
        return judging
    what = "agents end soon after their start" if starts.were_heard else ""
    text = (
        f"{what or 'pods end before their agents are heard'}, in"
        f" {counted(starts.failed_rounds, 'round')} of new pods"
        f" without success, for {counted(len(starts.slots), 'seat')}; the last: {starts.message}"
    )
    if judging:
        return f"{text}; now: {judging}"
    at = max(starts.until, memory.pauses_until)
    when = f"come at {shortage.instant(at)}" if now < at else "are due now"
    return f"{text}; new pods for them {when}"


def judged(view: ClusterView, training: TrainingView, memory: Memory, *, now: float) -> str:
    """The last of the ends that seats without pods wait for, until when, and what follows. Empty:
    there is none."""
    found = _being_judged(view, training, memory, now)
    if not found:
        return ""
    at, pod = found[-1]
    pause_s = failures.start_pause_s(memory.failures.starts.rounds + 1)
    at = max(at, memory.pauses_until)
    return (
        f"{_end_of(pod, now)}; until {shortage.instant(at)} the operator waits for its node to go,"
        f" too; if the node stays, new pods come after a pause of up to {pause_s:.0f} s"
    )


def newest(view: ClusterView, training: TrainingView, memory: Memory, *, now: float) -> str:
    """The newest early end of an agent that was heard, as long as it is not judged. Empty: there
    is none."""
    found = [
        pod
        for pod in view.pods
        if pod.has_ended
        and is_cut_short(pod, view, training, memory, now)
        and not is_judged(pod, training, now)
    ]
    if not found:
        return ""
    return _end_of(max(found, key=lambda pod: (pod.ended_at or 0.0, pod.name)), now)


def _end_of(pod: PodView, now: float) -> str:
    code = "" if pod.exit_code is None else f" with exit code {pod.exit_code}"
    said = f", {pod.exit_reason}" if pod.exit_reason not in ("", "Error", "Completed") else ""
    words = f": {texts.cut(pod.trouble, _MOST_WORDS)}" if pod.trouble else ""
    if pod.is_killed and not words:
        see = f"kubectl describe pod {pod.name}"
        words = f" ({see} shows who ended it: a probe, an eviction, a node)"
    return (
        f"container agent of {pod.name} has ended {ran_s(pod, now):.0f} s after its start"
        f"{code}{said}{words}"
    )


def _being_judged(
    view: ClusterView, training: TrainingView, memory: Memory, now: float
) -> list[tuple[float, PodView]]:
    """Ended pods of seats that get no others until their ends are judged, and when that is, the
    latest last."""
    there = {pod.slot for pod in view.pods if pod.is_alive}
    again = {pod.agent for pod in cut_short_again(view, training, memory, now)}
    found = []
    for pod in view.pods:
        if pod.slot in there or pod.ended_at is None:
            continue
        if pod.agent in again:
            found.append((pod.ended_at + STAYS_S[pod.agent in training.warned], pod))
        elif pod.agent not in training.heard and pod.has_ended and not pod.is_decided(now):
            found.append((pod.ended_at + REASON_S, pod))
    return sorted(found, key=lambda each: (each[0], each[1].name))


def not_heard_yet(memory: Memory, now: float) -> str:
    """Agents whose containers run, and which may only be slow. It stays the same while time passes.
    Empty: there are none."""
    found = silent(memory, now, FIRST_WORD_S)
    if not found:
        return ""
    first, *others = found
    rest = f", and those of {len(others)} more" if others else ""
    return (
        f"; the container of agent {first} has run for more than {FIRST_WORD_S:.0f} s{rest}, and"
        " the operator has not heard it yet: at its first start it may still import its code; else"
        " check the command and args in spec.worker.podTemplate, network policies between it and"
        f" the operator, and kubectl logs {first} -c agent"
    )


def not_heard(silent: Sequence[str]) -> str:
    """Agents that run and have not connected."""
    count = counted(len(silent), "agent")
    verb = "runs" if len(silent) == 1 else "run"
    return (
        f"{count} {verb} for over {SILENT_S:.0f} s and never connected, the first:"
        f" {silent[0]}; kubectl logs {silent[0]} -c agent shows why: if spec.worker.podTemplate"
        " has a command, it must start the agent, and the network must let it reach the operator"
    )
