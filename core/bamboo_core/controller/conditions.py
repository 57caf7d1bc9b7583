"""The conditions of an accepted job, in words: each answers one question of its user.

Every condition is written each time. Terminal conditions stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.progress import Unwritten
from bamboo_core.api.reasons import ConditionType as Type
from bamboo_core.api.reasons import Reason
from bamboo_core.api.spec import Adjacency, JobSpec
from bamboo_core.controller import ends, on_demand, pod_zones, shortage
from bamboo_core.controller import turn as turns
from bamboo_core.controller.turn import Turn, Word
from bamboo_core.controller.view import (
    ClusterView,
    Condition,
    JobView,
    Memory,
    PodView,
    TrainingView,
)
from bamboo_core.evidence import pod_troubles
from bamboo_core.model.counts import counted, runs
from bamboo_core.validation import overridden

_NOT_SO = "the job has not ended in this way"
_MAX_LISTED = 3
_MAX_COUNTS = 8


@dataclass(frozen=True)
class Seen:
    """All from which a job's status is computed. turn: what its competitors leave to it."""

    spec: JobSpec
    view: ClusterView
    training: TrainingView
    memory: Memory
    job: JobView
    now: float
    turn: Turn | None

    @property
    def alive(self) -> list[PodView]:
        """Pods that run or may still run."""
        return [pod for pod in self.view.pods if pod.is_alive]

    @property
    def unplaced(self) -> list[PodView]:
        """Live pods without a node."""
        return [pod for pod in self.alive if not pod.node]

    @property
    def is_resting(self) -> bool:
        """The job is suspended or has ended."""
        return self.spec.suspend or self.memory.terminal is not None

    @property
    def wanted(self) -> int:
        """Number of agents that the job asks for."""
        if self.training.unwritten is not None and not self.is_resting:
            return len(self.training.members) + self.training.unwritten.successors
        return 0 if self.is_resting else self.spec.pipelines.count * self.spec.pipelines.stages

    @property
    def is_paused_by_misfits(self) -> bool:
        """Whether the operator makes no pods because agents on other processors were refused."""
        until = self.memory.pauses_until
        return self.now < until == self.memory.failures.misfits.until

    @property
    def is_training(self) -> bool:
        """Whether a plan is in force and durable. Until then no agent has been told of it."""
        is_over = self.memory.terminal is not None or self.training.outcome is not None
        return self.training.planned and self.training.has_state and not is_over


def of_job(seen: Seen) -> Iterator[Condition]:
    """All conditions of an accepted job, without their instants."""
    for make in (_accepted, _capacity, _zone_spread, _running, _degraded, _recovering, _stalled,
                 _checkpointed, _suspended, _complete, _failed):  # fmt: skip
        yield make(seen)


def layers_by_copies(copies: Sequence[int]) -> tuple[tuple[int, str], ...]:
    """Fewest copies first. Only the lowest few numbers are listed."""
    counts = sorted(set(copies))[:_MAX_COUNTS]
    return tuple(
        (count, runs({layer for layer, x in enumerate(copies) if x == count})) for count in counts
    )


def _accepted(seen: Seen) -> Condition:
    if seen.job.refused_steps:
        return Condition(Type.ACCEPTED, False, Reason.SPEC_CHANGED, seen.job.refused_steps)
    text = "the spec is usable"
    if unused := overridden.problems(seen.spec):  # of a new job they are refused
        text += f", but {'; '.join(map(str, unused))}"
    return Condition(Type.ACCEPTED, True, Reason.SPEC_RESOLVED, text)


def _capacity(seen: Seen) -> Condition:
    if seen.is_resting:
        text = "no agents are wanted: the job " + ("has ended" if seen.memory.terminal else "rests")
        return Condition(Type.CAPACITY_AVAILABLE, True, Reason.ALL_PLACED, text)
    turn = seen.turn
    if turn is not None and turns.waits(turn, seen.view):
        text = f"waits without pods: {turns.explain(seen.spec, turn, seen.job)}"
        text += f"; {absent}" if (absent := _absent(seen)) else ""
        return Condition(Type.CAPACITY_AVAILABLE, False, Reason.WAITS_IN_LINE, text)
    waiting = Counter(pod.zone or "any zone" for pod in seen.unplaced)
    missing = seen.wanted - len(seen.alive)
    avoided = shortage.avoided(seen.view.fleet) + _misfits(seen)
    if not waiting and missing <= 0:
        text = f"every agent has a node{avoided}"
        return Condition(Type.CAPACITY_AVAILABLE, True, Reason.ALL_PLACED, text)
    listed = ", ".join(f"{n} in {zone}" for zone, n in sorted(waiting.items())[:_MAX_LISTED])
    all_agents, nodes = counted(seen.wanted, "agent"), seen.view.fleet
    text = f"no node yet for {waiting.total()} of {all_agents} ({listed})" if waiting else ""
    if missing > 0:
        text += (
            f", no pod yet for {missing}" if text else f"no pod yet for {missing} of {all_agents}"
        )
        text += _why_unmade(seen)
    if absent := _absent(seen):
        return Condition(Type.CAPACITY_AVAILABLE, False, Reason.OBJECT_MISSING, f"{text}; {absent}")
    if missing > 0 and not waiting and _is_paused_by_ends(seen):
        return Condition(Type.CAPACITY_AVAILABLE, False, Reason.STARTS_FAIL, text + avoided)
    if missing > 0 and seen.is_paused_by_misfits:
        return Condition(Type.CAPACITY_AVAILABLE, False, Reason.DEVICE_DIFFERS, text + avoided)
    if misfits := shortage.misfits(seen.spec, nodes):
        text = shortage.with_suspend(f"{text}; {misfits}", seen.training)
        return Condition(Type.CAPACITY_AVAILABLE, False, Reason.NO_NODE_SUITS, text)
    if too_small := shortage.too_small(seen.spec, nodes):
        text = shortage.with_suspend(f"{text}; {too_small}", seen.training)
        return Condition(Type.CAPACITY_AVAILABLE, False, Reason.NODES_TOO_SMALL, text)
    is_lined_up = turn is not None and turn.word in (Word.ASKS, Word.KEEPS)
    line = turns.explain(seen.spec, turn, seen.job) if turn is not None and is_lined_up else ""
    may = on_demand.explain(seen.spec, seen.memory.short, now=seen.now)
    problem = pod_zones.problem(seen.spec, nodes, seen.alive)
    reasons = [
        *((cause, "") for cause in shortage.explain(seen.spec, nodes, seen.unplaced)),
        (problem, "" if seen.training.grid else Type.ZONE_SPREAD_SATISFIED),
        (may, ""),
        (line, ""),
        (avoided.removeprefix("; "), "status.failures.avoided"),
    ]
    text = shortage.with_suspend(text + shortage.few(reasons), seen.training)
    return Condition(Type.CAPACITY_AVAILABLE, False, Reason.WAITING_FOR_NODES, text)


def _absent(seen: Seen) -> str:
    """The object that the scheduler misses for pods without a node; empty: none."""
    found = next((pod.missing for pod in seen.unplaced if pod.missing is not None), None)
    return shortage.absent(found, seen.job.namespace, seen.training) if found is not None else ""


def _why_unmade(seen: Seen) -> str:
    """Why the operator makes no pods for agents; empty: it makes them now, or the rest of the
    message tells."""
    until, starts = seen.memory.pauses_until, seen.memory.failures.starts
    if judged := ends.judged(seen.view, seen.training, seen.memory, now=seen.now):
        return f" (none is made for some seats yet: {judged})"
    if starts.held(seen.now) and starts.until > until:
        at = shortage.instant(starts.until)
        return f" (none is made for some seats before {at}, since pods end; {_last_end(seen)})"
    if seen.now < until:
        why = ", since agents have failed"
        if seen.is_paused_by_misfits:
            why = ", since agents were refused"
        if until == seen.memory.refused_until:
            why = ": the last ones were refused; see condition Accepted"
        return f" (none is made before {shortage.instant(until)}{why})"
    if ends.unproven(seen.spec, seen.view, seen.training, seen.memory, now=seen.now):
        return f" (new seats get pods one at a time, since pods end; {_last_end(seen)})"
    if not pod_zones.are_enough(seen.spec, pod_zones.room(seen.spec, seen.view.fleet)):
        return " (none is made for them while the known zones are too few)"
    return ""


def _is_paused_by_ends(seen: Seen) -> bool:
    given = (seen.view, seen.training, seen.memory)
    if seen.memory.failures.starts.held(seen.now) or ends.judged(*given, now=seen.now):
        return True
    return bool(ends.unproven(seen.spec, *given, now=seen.now))


def _last_end(seen: Seen) -> str:
    """Where the last end is told: in Stalled if that says so, else here."""
    is_told = _stalled(seen).reason == Reason.STARTS_FAIL
    return "see Stalled" if is_told else f"the last: {seen.memory.failures.starts.message}"


def _misfits(seen: Seen) -> str:
    """Agents that were refused because of their processor; empty: none was, lately."""
    misfits = seen.memory.failures.misfits
    if not misfits.rounds:
        return ""
    where = ""
    if not any(node.is_misfit for node in seen.view.fleet.avoided):
        where = "; no node is avoided for it, since the others have no room"
    times = counted(misfits.rounds, "round")
    return f"; in {times} of new pods an agent was refused, the last: {misfits.message}{where}"


def _zone_spread(seen: Seen) -> Condition:
    kind, spec = Type.ZONE_SPREAD_SATISFIED, seen.spec
    if spec.placement.adjacency is Adjacency.CLUSTER:
        return Condition(kind, True, Reason.NOT_WANTED, "spec.placement.adjacency is Cluster")
    if spec.pipelines.stages == 1:
        return Condition(kind, True, Reason.NEIGHBOURS_SEPARATED, "a stage has no neighbours")
    fleet, is_whole = seen.view.fleet, len(seen.alive) >= seen.wanted and not seen.unplaced
    problem = "" if is_whole else pod_zones.problem(spec, fleet, seen.alive)
    room = pod_zones.room(spec, fleet)
    if problem and (len(fleet) or not room) and not any(node.suits for node in fleet.alike):
        text = "not known before a node can take an agent; see CapacityAvailable"
        return Condition(kind, None, Reason.WAITING_FOR_NODES, text)
    are_enough = pod_zones.are_enough(spec, room)
    if problem and not are_enough:
        text = shortage.with_suspend(problem, seen.training)
        return Condition(kind, False, Reason.PLACEMENT_INFEASIBLE, text)
    if pairs := pod_zones.shared_neighbours(seen.training.grid, seen.alive):
        listed = ", ".join(f"{a} and {b}" for a, b in pairs[:_MAX_LISTED])
        text = f"neighbours that share a zone: {counted(len(pairs), 'pair')}, {listed}"
        return Condition(kind, False, Reason.NEIGHBOURS_SHARE_ZONE, text)
    if seen.wanted and is_whole and (crowd := pod_zones.unseatable(spec, seen.alive)):
        reason = Reason.NEIGHBOURS_SHARE_ZONE if are_enough else Reason.PLACEMENT_INFEASIBLE
        return Condition(kind, False, reason, crowd)
    if problem and not seen.training.grid:
        text = f"not known before there is room for every agent: {problem}"
        text = shortage.with_suspend(text, seen.training)
        return Condition(kind, None, Reason.WAITING_FOR_NODES, text)
    text = "ring neighbours lie in different zones"
    if not seen.training.grid:
        text = "the zones allow ring neighbours to be apart; no plan is in force"
    return Condition(kind, True, Reason.NEIGHBOURS_SEPARATED, text)


def _running(seen: Seen) -> Condition:
    kind, training = Type.RUNNING, seen.training
    if seen.memory.terminal is not None:
        return Condition(kind, False, Reason.FINISHED, "the job has ended")
    if seen.job.queued:
        return Condition(kind, False, Reason.QUEUED_BY_KUEUE, seen.job.queued)
    if seen.job.rests:
        return Condition(kind, False, Reason.TEMPLATE_CHANGED, seen.job.rests)
    if seen.spec.suspend:
        return Condition(kind, False, Reason.SUSPENDED_BY_USER, "spec.suspend is true")
    if seen.is_training and not turns.has_lost_all(seen.view, training):
        step = training.progress.committed + 1
        text = f"step {step} of {seen.spec.training.steps}, plan {training.epoch}{seen.job.goes_on}"
        return Condition(kind, True, Reason.TRAINING_STEP, text)
    connected = len(training.connected)
    if seen.is_training:
        text = f"no agent of plan {training.epoch} is left"
        return Condition(kind, False, Reason.WAITING_FOR_AGENTS, text)
    text = training.detail or f"{connected} of {counted(seen.wanted, 'agent')} connected"
    last = ends.newest(seen.view, training, seen.memory, now=seen.now)
    text += f"; {last}" if last else ""
    if connected < seen.wanted:
        text += shortage.unstarted(seen.spec, seen.alive) + ends.not_heard_yet(
            seen.memory, seen.now
        )
        return Condition(kind, False, Reason.WAITING_FOR_AGENTS, text)
    return Condition(kind, False, Reason.INITIALIZING, text)


def _degraded(seen: Seen) -> Condition:
    kind, training, wanted = Type.DEGRADED, seen.training, seen.spec.pipelines
    if seen.memory.terminal is not None:
        return Condition(kind, False, Reason.FINISHED, "the job has ended")
    if not seen.is_training or not training.copies:
        text = "no plan is in force, so there is nothing to protect yet"
        return Condition(kind, None, Reason.NO_PLAN, text)
    if training.unwritten is not None and min(training.copies) < 2:
        text = (
            "a loss would cost a restore: only the agents that write the last checkpoint are left"
        )
        return Condition(kind, True, Reason.LAYERS_UNPROTECTED, text)
    if min(training.copies) < 2 <= _promised_copies(seen.spec):
        return Condition(kind, True, Reason.LAYERS_UNPROTECTED, _thin(training))
    silent = ends.not_heard_yet(seen.memory, seen.now)
    if training.pipelines < wanted.count:
        text = f"{training.pipelines} of {counted(wanted.count, 'pipeline')} training{silent}"
        return Condition(kind, True, Reason.FEWER_PIPELINES, text)
    if len(training.members) < seen.wanted:
        text = f"{counted(len(training.members), 'agent')} instead of {seen.wanted}{silent}"
        return Condition(kind, True, Reason.FEWER_AGENTS, text)
    if training.shortage:
        return Condition(kind, True, Reason.MEMORY_SHORT, training.shortage)
    if min(training.copies) < 2:
        text = _unprotected(seen.spec, has_checkpoint=training.checkpoint_step >= 0)
        return Condition(kind, False, Reason.NOT_PROTECTED, text)
    text = f"every seat is taken, and each layer has at least {min(training.copies)} live copies"
    return Condition(kind, False, Reason.FULLY_PROTECTED, text)


def _thin(training: TrainingView) -> str:
    """Layers with one copy or none. Stopped agents may hold less than their plan says."""
    (least, layers), *_ = layers_by_copies(training.copies)
    if not least:
        return f"no agent that is heard holds layers {layers}"
    if training.recovering:
        return f"layers {layers} had only one live copy when training stopped"
    return f"a loss would cost a restore: only one live copy of layers {layers}"


def _unprotected(spec: JobSpec, *, has_checkpoint: bool) -> str:
    """Message for a job whose spec keeps one copy of each layer."""
    mode = "" if spec.pipelines.stages == 1 else ", or redundancy.mode Replica,"
    source = "the newest checkpoint" if has_checkpoint else "the start"
    return (
        "every seat is taken, but each layer has only one live copy: a loss costs a restore from"
        f" {source}; spec.pipelines.count 2{mode} would keep a second one"
    )


def _promised_copies(spec: JobSpec) -> int:
    """Live copies of each layer when every seat is taken."""
    replicas = spec.redundancy.mode.keeps_copies and spec.pipelines.stages > 1
    return spec.pipelines.count * (2 if replicas else 1)


def _recovering(seen: Seen) -> Condition:
    kind, training = Type.RECOVERING, seen.training
    if seen.memory.terminal is None and not seen.spec.suspend:
        has_begun = training.has_state or seen.memory.trained
        is_unwritten = training.planned and not training.has_state  # as after a restore
        if has_begun and (training.recovering or is_unwritten):
            text = training.detail or "the agents are getting a new plan"
            return Condition(kind, True, Reason.REPLANNING, text)
        if not training.planned and seen.memory.trained:
            text = training.detail or "there are too few agents; they keep the state"
            return Condition(kind, True, Reason.WAITING_FOR_CAPACITY, text)
    return Condition(kind, False, Reason.IDLE, "no change of plan is under way")


def _stalled(seen: Seen) -> Condition:
    kind, training = Type.STALLED, seen.training
    stuck = None if seen.memory.terminal is not None else _stuck(seen)
    if stuck is not None and stuck.status:
        return stuck
    if training.unwritten is not None and seen.is_training:
        text = _unwritten(seen, training.unwritten)
        return Condition(kind, True, Reason.LAST_WRITE_WAITS, text)
    if training.unreachable and not seen.is_resting:
        return Condition(kind, True, Reason.CHECKPOINT_UNREACHABLE, training.unreachable)
    memory, now = seen.memory, seen.now
    text = "" if seen.is_resting else ends.failing(seen.view, training, memory, now=now)
    if text:
        return Condition(kind, True, Reason.STARTS_FAIL, text)
    if not seen.is_resting and (silent := ends.silent(memory, now)):
        return Condition(kind, True, Reason.NOT_HEARD, ends.not_heard(silent))
    if training.stall and not seen.is_resting:
        return Condition(kind, True, Reason.NO_PROGRESS, training.stall)
    return stuck or Condition(kind, False, Reason.PROGRESSING, "nothing is stuck")


def _stuck(seen: Seen) -> Condition | None:
    """The condition by the pods that wait for something that somebody has to mend. Its status is
    false if all their agents are there, and only containers beside them are not."""
    connected = seen.training.connected
    pods = sorted(seen.alive, key=lambda pod: (pod.agent in connected, pod.name))
    stuck = [(pod, what) for pod in pods if (what := _obstacle(pod, seen)) is not None]
    if not stuck:
        return None
    stuck.sort(key=lambda each: each[1].keeps_none)
    waiting = [pod for pod, what in stuck if pod.agent not in connected and not what.keeps_none]
    count = counted(len(waiting) or len(stuck), "agent")
    (first, what), *_ = stuck
    has = "has failed" if what.keeps_none else "cannot start"
    verb = has if waiting else f"at work beside a container that {has}"
    text = f"{count} {verb}; {first.name}: {what.text}"
    return Condition(Type.STALLED, bool(waiting), what.reason, text)


class _Obstacle(NamedTuple):
    """Why a container does not start, in words."""

    reason: Reason
    text: str

    @property
    def keeps_none(self) -> bool:
        """It keeps no agent from its start."""
        return self.reason is Reason.CONTAINER_FAILED


def _obstacle(pod: PodView, seen: Seen) -> _Obstacle | None:
    """The obstacle of a pod's containers, first of the agent's own; None: all start."""
    if pod.missing is not None:
        return _Obstacle(
            Reason.OBJECT_MISSING, shortage.absent(pod.missing, seen.job.namespace, seen.training)
        )
    beside, state, text = pod.beside, pod.waiting, f"{pod.waiting}: {pod.trouble}"
    if state not in pod_troubles.CANNOT_START:
        state = beside.state if beside.exit_code is None else ""
        text = f"container {beside.container}: {beside.state}: {beside.words}"
    at = pod_troubles.stuck_at(beside, pod.waiting, pod.started_at)
    if at is not None and at <= seen.now:
        text = pod_troubles.delay(beside, pod.name) + shortage.volumes(seen.spec)
        return _Obstacle(Reason.CONTAINER_CANNOT_START, text)
    if beside.is_over:
        return _Obstacle(Reason.CONTAINER_FAILED, text)
    if state not in pod_troubles.CANNOT_START:
        return None
    is_image = state in pod_troubles.NO_IMAGE
    reason = Reason.IMAGE_PULL_FAILED if is_image else Reason.CONTAINER_CANNOT_START
    return _Obstacle(reason, text)


def _unwritten(seen: Seen, last: Unwritten) -> str:
    """The checkpoint that is missing and why, the cost of the wait, and how long it lasts."""
    done = "all steps are committed" if last.step >= seen.spec.training.steps else "to be suspended"
    if last.failing:
        done = f"the job fails by {last.failing}"
    done += f" ({seen.job.queued})" if seen.job.queued else ""
    uri = seen.spec.checkpoint.uri if seen.spec.checkpoint is not None else ""
    text = f"{done}, but the checkpoint of step {last.step} in {uri} is not written"
    if last.layers:
        text += f" (missing: layers {runs(set(last.layers))})"
    staying = sorted(seen.training.members)
    names = ", ".join(staying[:_MAX_LISTED]) + (", ..." if len(staying) > _MAX_LISTED else "")
    keeps, tries = ("keeps", "tries") if len(staying) == 1 else ("keep", "try")
    text += (
        f": {last.why}; {counted(len(staying), 'agent')} ({names}) {keeps} the state and {tries}"
        f" again for {_duration(last.left_s)}, {_cost(last)}"
    )
    if last.successors:
        text += "; they will all leave, so another agent is awaited that takes the state over"
    return text


def _cost(last: Unwritten) -> str:
    """The cost of an hour of the wait, as far as prices are known."""
    if last.dollars_per_hour is None:
        return "at a cost that is not known, since the chart's value prices is not set"
    text = f"at ${last.dollars_per_hour:.2f} an hour"
    if last.unpriced:
        text += f" without {counted(last.unpriced, 'node')} that no price is known of"
    return text


def _duration(seconds: float) -> str:
    """In whole minutes, so that the text does not change all the time."""
    return counted(max(1, ceil(seconds / 60)), "minute")


def _checkpointed(seen: Seen) -> Condition:
    kind, training = Type.CHECKPOINTED, seen.training
    if training.checkpoint_error and seen.spec.checkpoint is not None:
        newest = f"the newest complete one is step {training.checkpoint_step}"
        if training.checkpoint_step < 0:
            newest = "none is complete yet"
        uri = seen.spec.checkpoint.uri
        text = f"spec.checkpoint.uri {uri} cannot be written: {training.checkpoint_error}; {newest}"
        return Condition(kind, False, Reason.WRITE_FAILED, text)
    if training.checkpoint_step < 0:
        text = "no checkpoint is complete yet"
        if seen.spec.checkpoint is None:
            text = "spec.checkpoint is not set"
        return Condition(kind, False, Reason.NONE_YET, text)
    text = f"step {training.checkpoint_step} in {training.checkpoint_path}"
    if training.checkpoint_caveat:
        text += f"; {training.checkpoint_caveat}"
    return Condition(kind, True, Reason.SEALED, text)


def _suspended(seen: Seen) -> Condition:
    if seen.memory.terminal is not None:
        return Condition(Type.SUSPENDED, False, Reason.FINISHED, "the job has ended")
    said = seen.training.message if seen.training.outcome is Outcome.SUSPENDED else ""
    if seen.job.queued and not turns.is_held(seen.view, seen.training):
        text = f"{seen.job.queued}; {said}" if said and seen.training.epoch else seen.job.queued
        return Condition(Type.SUSPENDED, True, Reason.QUEUED_BY_KUEUE, text)
    if seen.spec.suspend and not turns.is_held(seen.view, seen.training):
        text = said or "spec.suspend is true"
        return Condition(Type.SUSPENDED, True, Reason.USER_REQUESTED, text)
    text = "the agents are leaving" if seen.spec.suspend else "spec.suspend is false"
    return Condition(Type.SUSPENDED, False, Reason.RESUMED, text)


def _complete(seen: Seen) -> Condition:
    done = seen.memory.terminal is Outcome.COMPLETE
    text = seen.memory.message + seen.job.goes_on if done else _NOT_SO
    return Condition(Type.COMPLETE, done, Reason.STEPS_REACHED if done else Reason.NOT_YET, text)


def _failed(seen: Seen) -> Condition:
    failed = seen.memory.terminal is Outcome.FAILED
    reason = seen.memory.reason if failed else Reason.NOT_YET
    return Condition(Type.FAILED, failed, reason, seen.memory.message if failed else _NOT_SO)
