"""Seats whose agents are awaited, and those that get no new pods now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set

from bamboo_core.api.spec import JobSpec
from bamboo_core.controller import pod_zones
from bamboo_core.controller.ends import causes
from bamboo_core.controller.view import (
    Awaited,
    ClusterView,
    Memory,
    PodPhase,
    Slot,
    TrainingView,
    place_of,
)
from bamboo_core.model.ids import AgentId

GONE_S = 2.0
"""The last state of a deleted pod, which says how it ended, may come so much later than a list."""
SILENT_S = 60.0
"""An agent connects within seconds after its start."""
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
        if is_renewed or causes.has_lost_node(seat.node, seat.created_at, view, memory):
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


def held(
    spec: JobSpec, view: ClusterView, training: TrainingView, memory: Memory, *, now: float
) -> set[Slot]:
    """Slots for which no pods are made now, since the last ones have failed to start, or nobody
    knows yet why they have ended."""
    unheard = [pod for pod in view.pods if pod.agent not in training.heard]
    unknown = {pod.slot for pod in unheard if pod.has_ended and not pod.is_decided(now)}
    slots = {Slot(*slot) for slot in memory.failures.starts.held(now)}
    slots.update(seat.slot for _, seat, _ in missed(view, training, memory))
    again = _cut_short_again(view, training, memory, now)
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
    if starts.rounds < COMMON_ROUNDS or not starts.slots:
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


def _cut_short_again(
    view: ClusterView, training: TrainingView, memory: Memory, now: float
) -> set[Slot]:
    """Seats whose agents end early again and again, or say that they will, while the last end is
    not judged yet. The first of them is replaced at once: its node may be about to go. So are the
    first three that were told so, since their nodes may stay for minutes."""
    found = [
        pod
        for pod in view.pods
        if pod.agent in training.heard
        and not pod.has_failed
        and causes.is_unordered(pod, view, training, memory)
        and not causes.is_renewed(pod, view.fleet.by_name.get(pod.node), training, memory)
        and causes.ran_s(pod, now) < causes.PROVEN_S
    ]
    known = {Slot(*slot) for slot in memory.failures.starts.slots}
    times = Counter(pod.slot for pod in found)
    return {
        pod.slot
        for pod in found
        if not (pod.has_ended and causes.is_judged(pod, training, now))
        and (pod.slot in known or times[pod.slot] > (3 if pod.agent in training.warned else 1))
    }
