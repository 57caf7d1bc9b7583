"""Decides about a job's pods: one pure step from the observed to the desired state.

The operator's reconciler and the simulator call it whenever something may have changed. Another
call with the same view gives the same actions. The arbiter decides which agent computes what; this
module only ensures that there are as many agents as seats in the grid, in the right zones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter_state.events import Record
from bamboo_core.controller import dry_zones, ends, failure_limits, lifecycle, on_demand, pod_zones
from bamboo_core.controller import turn as turns
from bamboo_core.controller.lifecycle import JobStatus
from bamboo_core.controller.turn import Turn, Word
from bamboo_core.controller.view import (
    REASON_S,
    UNREADY_S,
    ClusterView,
    JobView,
    Memory,
    NodeView,
    NodeViews,
    PodPhase,
    PodView,
    Slot,
    TrainingView,
    pod_name,
)
from bamboo_core.evidence.pod_troubles import stuck_at

UNREACHABLE_GRACE_S = 10.0
"""A deleted pod on a node that does not answer is force-deleted after so long."""
STUCK_GRACE_S = 60.0
"""On any other node, so long after its own grace period."""
MOVE_AFTER_S = 20.0
"""A pod that waits so long in a zone without room moves to a zone with room."""
ASK_ELSEWHERE_S = 300.0
"""A pod that the scheduler refuses for so long moves to a zone where nodes may come."""
FAREWELL_S = 30.0
"""Agents of a complete job leave by themselves. After so long their pods are deleted."""
FAILED_FAREWELL_S, HOOKED_FAREWELL_S = 10.0, 130.0
"""The same for a failed job, and for any with hooks: one may not have begun."""


@dataclass(frozen=True)
class CreatePod:
    """A new agent. An empty zone means anywhere."""

    name: str
    slot: Slot
    incarnation: int
    zone: str
    avoids: tuple[str, ...] = ()  # nodes on which agents have failed too often, or do not fit
    avoids_types: tuple[str, ...] = ()  # instance types of nodes on which agents do not fit
    is_on_demand: bool = False  # it need not be a spot node although the job prefers them
    apart: tuple[int, ...] = ()  # if it may go anywhere: incarnations of its neighbours' pods


@dataclass(frozen=True)
class DeletePod:
    """force: without a grace period, and without waiting for the node."""

    name: str
    uid: str
    force: bool
    reason: str


@dataclass(frozen=True)
class DeleteJob:
    """The finished job has been kept for long enough."""


Action = CreatePod | DeletePod | DeleteJob


@dataclass(frozen=True)
class Step:
    """A decision."""

    actions: tuple[Action, ...]  # in order
    memory: Memory  # for the next call
    wake_at: float | None  # call again then, whatever happens
    status: JobStatus
    records: tuple[Record, ...] = ()  # for the job's Events


def step(
    spec: JobSpec,
    view: ClusterView,
    training: TrainingView,
    memory: Memory,
    *,
    job: JobView,
    now: float,
    turn: Turn | None = None,
) -> Step:
    """Decide about the job's pods. ``now``: seconds since 1970. turn: what the jobs that compete
    with it leave to it; None: it has no competitors."""
    view, before = view.located(), memory.failures
    memory = failure_limits.settle(spec, view, training, memory, now=now)
    view = replace(view, nodes=_with_notices(view, training))
    records = failure_limits.start_records(before, memory.failures)
    bad, good = memory.failures.avoided, _good_types(view, training)
    view = replace(view, nodes=pod_zones.avoiding(spec, view.fleet, bad, good))
    said = memory.message
    memory = lifecycle.conclude(spec, training, memory, job=job, now=now)
    memory = lifecycle.with_untold(view, memory, said)
    room = pod_zones.room(spec, view.fleet)
    memory = replace(memory, dry=dry_zones.settle(memory.dry, view.pods, room, now=now))
    memory = _keep_shortage(spec, view, training, memory, now)
    memory = turns.remembered(spec, view, training, memory)
    actions: list[Action] = [*_force_delete(view, now)]
    if memory.terminal is not None:
        actions += _after_the_end(spec, view, memory, job, now)
    elif spec.suspend:
        actions += _at_rest(view, training)
    else:
        taken = [] if turn is None else [*_given_up(view, training, turn)]
        names = {action.name for action in taken}
        memory = failure_limits.with_taken(view, training, memory, names, now=now)
        actions += taken
        if turn is None or not turn.is_barred:
            creations, memory = _fill(spec, view, training, memory, job=job, now=now, turn=turn)
            actions += [*_dismissed(view, training), *_stranded(view, training, now)]
            actions += [*_unneeded(view, training), *_outdated(spec, view, training)]
            actions += [*_surplus(spec, view, training), *creations]
            actions += _moved(spec, view, training, memory, now)
    actions += _outlived(view, training, memory, now)
    actions += [] if memory.terminal else _tidy(view, memory)
    actions = _once(actions)
    deleted = {action.name for action in actions if isinstance(action, DeletePod)}
    awaited = ends.awaited(view, training, memory, deleted, now=now)
    memory = replace(memory, awaited=awaited)
    status = lifecycle.status_of(spec, view, training, memory, job=job, now=now, turn=turn)
    memory = replace(memory, conditions=status.conditions, times=status.times)
    wake_at = min(_wake_times(spec, view, training, memory, job=job, now=now), default=None)
    return Step(tuple(actions), memory, wake_at, status, records)


def _keep_shortage(
    spec: JobSpec, view: ClusterView, training: TrainingView, memory: Memory, now: float
) -> Memory:
    """A job that waits in the line goes without nodes, too."""
    is_resting = spec.suspend or memory.terminal is not None
    staying = view.staying(training)
    short = on_demand.settle(spec, staying, memory.short, is_resting=is_resting, now=now)
    return replace(memory, short=short)


def _once(actions: Iterable[Action]) -> list[Action]:
    """One action for each pod: the first one, which is the most drastic."""
    found: dict[str, Action] = {}
    for action in actions:
        found.setdefault("" if isinstance(action, DeleteJob) else action.name, action)
    return list(found.values())


def _force_delete(view: ClusterView, now: float) -> Iterable[Action]:
    """Pods whose node cannot report on them any more."""
    nodes = view.fleet.by_name
    for pod in view.pods:
        at = _force_delete_at(pod, nodes)
        if at is not None and at <= now:
            yield DeletePod(pod.name, pod.uid, force=True, reason=f"node {pod.node} is gone")


def _force_delete_at(pod: PodView, nodes: Mapping[str, NodeView]) -> float | None:
    if pod.is_over or not pod.node:
        return None
    if pod.node not in nodes:
        return 0.0
    if pod.deleting_at is None:
        return None
    # deleting_at is the end of the grace period, not its beginning.
    grace = STUCK_GRACE_S if nodes[pod.node].ready else UNREACHABLE_GRACE_S
    return pod.deleting_at + grace


def _after_the_end(
    spec: JobSpec, view: ClusterView, memory: Memory, job: JobView, now: float
) -> Iterable[Action]:
    """A job that goes on keeps no pod for its log: new agents come once all are gone."""
    finished_at = memory.finished_at or now
    for pod in view.pods:
        is_late = pod.is_alive and now >= finished_at + _farewell_s(spec, memory)
        if is_late or (job.next_steps and pod.has_ended and pod.deleting_at is None):
            yield DeletePod(pod.name, pod.uid, force=False, reason="the job has ended")
    ttl_s = spec.run_policy.ttl_s
    if ttl_s is not None and not job.next_steps and now >= finished_at + ttl_s:
        yield DeleteJob()


def _farewell_s(spec: JobSpec, memory: Memory) -> float:
    """Agents leave by themselves. A deleted pod would lose its log."""
    usual_s = FAREWELL_S if memory.terminal is Outcome.COMPLETE else FAILED_FAREWELL_S
    return HOOKED_FAREWELL_S if spec.hooks else usual_s


def _at_rest(view: ClusterView, training: TrainingView) -> Iterable[Action]:
    """A suspended job keeps its agents until the state is in a checkpoint."""
    if training.planned and training.outcome is not Outcome.SUSPENDED:
        return
    for pod in view.pods:
        if pod.deleting_at is None:
            yield DeletePod(pod.name, pod.uid, force=False, reason="the job is suspended")


def _given_up(view: ClusterView, training: TrainingView, turn: Turn) -> Iterable[DeletePod]:
    """Pods that the line takes."""
    return _withdrawn(view) if turn.is_barred else _held_back(view, training, turn)


def _withdrawn(view: ClusterView) -> Iterable[DeletePod]:
    """The job has not started, and a job ahead of it needs the room. Pods that cannot take it, as
    an object is missing, stay, so that no new ones are made to find that again."""
    for pod in view.pods:
        if pod.is_alive and (pod.node or pod.missing is None):
            reason = "a job ahead of this one in the line needs the room"
            yield DeletePod(pod.name, pod.uid, force=False, reason=reason)


def _held_back(view: ClusterView, training: TrainingView, turn: Turn) -> Iterable[DeletePod]:
    """Pods without a node beyond what the job has started with, while a job ahead of it waits: the
    scheduler would give them the room that the other waits for."""
    if turn.word is not Word.KEEPS:
        return
    staying = view.staying(training)
    waiting = sorted((pod for pod in staying if not pod.node), key=lambda pod: pod.slot)
    beyond = len(staying) - turn.assured
    for pod in reversed(waiting[max(0, len(waiting) - beyond) :] if beyond > 0 else []):
        reason = "a job ahead of this one in the line waits for its minimum"
        yield DeletePod(pod.name, pod.uid, force=False, reason=reason)


def _outlived(
    view: ClusterView, training: TrainingView, memory: Memory, now: float
) -> Iterable[Action]:
    """Pods whose agents have ended beside containers that run on: they would keep the node's GPU
    for ever. The kubelet ends restartable init containers itself. One whose end may still be that
    of its node stays until that is known, or it would never be counted."""
    for pod in view.pods:
        is_alone = pod.is_over or not pod.beside.runs_on
        is_known = not ends.is_cut_short(pod, view, training, memory, now)
        is_known = is_known or ends.is_judged(pod, training, now)
        if pod.has_ended and not is_alone and is_known and pod.deleting_at is None:
            reason = "its agent has ended, and other containers run on"
            yield DeletePod(pod.name, pod.uid, force=False, reason=reason)


def _dismissed(view: ClusterView, training: TrainingView) -> Iterable[Action]:
    for pod in view.pods:
        # One that has said so ends by itself: if somebody else has deleted it, that must show.
        if pod.is_alive and pod.agent in training.dismissed - training.departing:
            yield DeletePod(pod.name, pod.uid, force=False, reason="the arbiter does not need it")


def _stranded(view: ClusterView, training: TrainingView, now: float) -> Iterable[Action]:
    for pod, at in view.stranded_at(training):
        if at <= now:
            reason = f"node {pod.node} has not been ready for {UNREADY_S:.0f} s"
            yield DeletePod(pod.name, pod.uid, force=False, reason=reason)


def lacks_pods(spec: JobSpec, view: ClusterView, training: TrainingView, memory: Memory) -> bool:
    """Whether the job wants a pod that it does not have. One that is suspended or has ended wants
    none."""
    if spec.suspend or memory.terminal is not None:
        return False
    if training.unwritten is not None:
        return _lacking_successors(view.staying(training), training) > 0
    return not set(pod_zones.slots(spec)) <= {pod.slot for pod in view.staying(training)}


def _lacking_successors(staying: Iterable[PodView], training: TrainingView) -> int:
    """Pods to be made so that the last state outlives its holders, which will all leave. Agents on
    their way, and those that are about to end, count as made."""
    wanted = training.unwritten.successors if training.unwritten is not None else 0
    return max(0, wanted - sum(pod.agent not in training.members for pod in staying))


def _unneeded(view: ClusterView, training: TrainingView) -> Iterable[Action]:
    """Pods that have not begun, while only the last checkpoint is left to write. The arbiter
    releases agents that run: a deleted pod would lose its log."""
    is_needed = training.unwritten is None or training.unwritten.successors > 0
    for pod in () if is_needed else view.pods:
        if pod.is_alive and pod.phase is PodPhase.PENDING:
            reason = "only the last checkpoint is left to write"
            yield DeletePod(pod.name, pod.uid, force=False, reason=reason)


def _outdated(spec: JobSpec, view: ClusterView, training: TrainingView) -> Iterable[Action]:
    """Pods made before the user has changed the template, whose agents cannot hold any state: there
    is no plan since the start, or nobody has heard them. Once there is one, only the template of a
    suspended job can change, but nobody may have seen that it was suspended. Agents of two
    templates might refuse each other for ever."""
    keeping = training.heard if training.has_state else ()
    outdated = turns.outdated(spec, view).difference(keeping)
    for pod in view.pods:
        if pod.is_alive and pod.agent in outdated:
            reason = "the spec has changed since it was made"
            yield DeletePod(pod.name, pod.uid, force=False, reason=reason)


def _surplus(spec: JobSpec, view: ClusterView, training: TrainingView) -> Iterable[Action]:
    """If there are more agents than seats, delete agents without a part in the plan, first those
    of which a hint says that they may have to leave, then those outside the grid. Not while agents
    are stopped: then it is unknown which agents take part, and a new operator does not know yet
    which ones will leave."""
    if training.recovering or training.unwritten is not None:
        return
    staying = view.staying(training)
    seats = set(pod_zones.slots(spec))
    idle = [pod for pod in staying if pod.agent not in training.members]
    risky = training.at_risk
    idle.sort(key=lambda p: (p.agent not in risky, p.slot in seats, p.slot, p.incarnation))
    surplus = idle[: max(0, len(staying) - len(seats))]
    if len(staying) - len(idle) >= len(seats):
        needed = training.members | training.dismissed | {pod.agent for pod in staying}
        surplus += [pod for pod in view.pods if pod.is_alive and pod.agent not in needed]
    for pod in surplus:
        yield DeletePod(pod.name, pod.uid, force=False, reason="it has no seat")


def _fill(
    spec: JobSpec,
    view: ClusterView,
    training: TrainingView,
    memory: Memory,
    *,
    job: JobView,
    now: float,
    turn: Turn | None,
) -> tuple[list[Action], Memory]:
    """New agents for empty seats. Each round has its own number, so names never recur.

    A replacement may have to leave before the agent that it replaces. So there are at most two pods
    for a seat.
    """
    staying = view.staying(training)
    taken = {pod.slot for pod in staying}
    seats = pod_zones.slots(spec)
    most = 2 * len(seats) - sum(pod.is_alive for pod in view.pods)
    wanted = turn.assured if turn is not None and turn.word is Word.KEEPS else len(seats)
    count = max(0, min(most, wanted - len(staying)))
    if training.unwritten is not None:
        count = min(count, _lacking_successors(staying, training))
    held = ends.held(spec, view, training, memory, now=now)
    holes = [slot for slot in seats if slot not in taken and slot not in held][:count]
    if not holes or now < memory.pauses_until or job.deleting:
        return [], memory
    seen = max((pod.incarnation for pod in view.pods), default=-1)
    number = max(memory.incarnation, seen) + 1
    dry = dry_zones.tried(memory.dry, now)
    ripe = on_demand.ripe(spec, memory.short, now=now)
    late = [slot for slot in holes if slot in ripe][: on_demand.budget(spec, staying)]
    # The zones of other holes depend on where these pods go.
    holes, is_late = late or holes, bool(late)
    zones = pod_zones.choose(spec, view.fleet, staying, holes, dry, on_demand=is_late)
    if not zones:
        return [], memory
    types = _avoided_types(view, training, memory)
    avoids = tuple(sorted(x.name for x in view.fleet.avoided if x.instance_type not in types))
    actions: list[Action] = [
        CreatePod(
            pod_name(job.name, slot, number),
            slot,
            number,
            zone,
            avoids,
            tuple(sorted(types)),
            is_late,
            () if zone else _around(spec, staying, slot),
        )
        for slot, zone in sorted(zones.items())
    ]
    return actions, replace(memory, incarnation=number)


def _around(spec: JobSpec, staying: Iterable[PodView], slot: Slot) -> tuple[int, ...]:
    around = pod_zones.neighbours(spec, slot)
    return tuple(sorted({pod.incarnation for pod in staying if pod.slot in around}))


def _moved(
    spec: JobSpec, view: ClusterView, training: TrainingView, memory: Memory, now: float
) -> Iterable[Action]:
    """Move one pod at a time: the zone for the next one depends on where this one goes."""
    staying, avoided = view.staying(training), _avoided(view)
    types = _avoided_types(view, training, memory)
    dry = dry_zones.tried(memory.dry, now)
    ripe = on_demand.ripe(spec, memory.short, now=now) if on_demand.budget(spec, staying) else ()
    for pod in staying:
        if pod.node or pod.missing or now < pod.created_at + MOVE_AFTER_S:
            continue
        free = [f"node {x}" for x in sorted(pod.avoids & view.fleet.by_name.keys() - avoided)]
        free += [f"instance type {x}" for x in sorted(pod.avoids_types - types)]
        if free:
            reason = f"{free[0]} need not be avoided any more"
            yield DeletePod(pod.name, pod.uid, force=False, reason=reason)
            return
        if pod.slot in ripe and not pod.is_on_demand:
            reason = "no spot node has come for it; an on-demand node will do"
            yield DeletePod(pod.name, pod.uid, force=False, reason=reason)
            return
        is_patient = pod.refused_at is None or now < pod.created_at + ASK_ELSEWHERE_S
        zone = pod_zones.better_zone(spec, view.fleet, staying, pod, dry, is_patient=is_patient)
        if zone is not None:
            reason = _why_moved(pod.zone, zone, dry, is_patient=is_patient)
            yield DeletePod(pod.name, pod.uid, force=False, reason=reason)
            return


def _why_moved(old: str, new: str, dry: Mapping[str, bool], *, is_patient: bool) -> str:
    if old and not dry.get(old) and is_patient:
        return f"zone {old} has no room, {new} has"
    why = f"the scheduler finds no node for it in zone {old}" if old else "it has no zone"
    return f"{why}, and zone {new} has room" if is_patient else f"{why}; zone {new} is next"


def _avoided(view: ClusterView) -> set[str]:
    return {node.name for node in view.fleet.avoided}


def _avoided_types(view: ClusterView, training: TrainingView, memory: Memory) -> frozenset[str]:
    good = _good_types(view, training)
    return pod_zones.avoided_types(view.fleet, memory.failures.avoided, good)


def _good_types(view: ClusterView, training: TrainingView) -> frozenset[str]:
    """Instance types of nodes where members run, so that their processors fit."""
    nodes = view.fleet.by_name
    members = (pod.node for pod in view.pods if pod.agent in training.members)
    return frozenset(nodes[name].instance_type for name in members if name in nodes)


def _with_notices(view: ClusterView, training: TrainingView) -> NodeViews:
    """The nodes, with the notices that agents got from the cloud without a taint on the node. A
    slow agent keeps its place until it is replaced, and its node stays."""
    alive, known = [pod for pod in view.pods if pod.is_alive], view.fleet.by_name
    leaving = {pod.node for pod in alive if pod.agent in training.departing}
    slow = Counter(pod.node for pod in alive if pod.agent in training.slow)
    found = [
        replace(
            known[name],
            departing=known[name].departing or name in leaving,
            agents=known[name].agents - slow[name],
        )
        for name in {*leaving, *slow} & known.keys()
    ]
    return view.fleet.changed(found) if found else view.fleet


def _tidy(view: ClusterView, memory: Memory) -> Iterable[Action]:
    """Ended pods are kept for their logs, but only the newest."""
    ended = [pod for pod in view.pods if pod.has_ended and pod.name in memory.settled]
    ended.sort(key=lambda pod: (pod.incarnation, pod.slot))
    for pod in ended[: max(0, len(ended) - failure_limits.KEPT)]:
        if pod.deleting_at is None:
            yield DeletePod(pod.name, pod.uid, force=False, reason="newer logs are kept")


def _wake_times(
    spec: JobSpec,
    view: ClusterView,
    training: TrainingView,
    memory: Memory,
    *,
    job: JobView,
    now: float,
) -> Iterable[float]:
    times = list(lifecycle.deadlines(spec, training, memory, job=job))
    if memory.terminal is not None and memory.finished_at is not None:
        times.append(memory.finished_at + _farewell_s(spec, memory))
        times += [now + ends.GONE_S] if job.next_steps else []  # until its pods are gone
        if spec.run_policy.ttl_s is not None:
            times.append(memory.finished_at + spec.run_policy.ttl_s)
    nodes = view.fleet.by_name
    force_deletes = (_force_delete_at(pod, nodes) for pod in view.pods)
    times += [memory.pauses_until, memory.failures.starts.until]
    ended = [pod.ended_at for pod in view.pods if pod.ended_at is not None]
    times += (at + s for at in ended for s in (REASON_S, *ends.STAYS_S))
    times += ends.wake_times(memory)
    starts = (stuck_at(pod.beside, pod.waiting, pod.started_at) for pod in view.pods)
    times += (at for at in starts if at is not None)
    times += (at for at in force_deletes if at is not None)
    times += memory.failures.avoided_until().values()
    times += (at for _, at in view.stranded_at(training))
    waiting = [pod for pod in view.pods if not pod.node]
    times += [pod.created_at + s for pod in waiting for s in (MOVE_AFTER_S, ASK_ELSEWHERE_S)]
    times += dry_zones.wake_times(memory.dry, waiting)
    times += on_demand.begins_at(spec, memory.short)
    return [at for at in times if at > now]
