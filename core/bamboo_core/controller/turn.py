"""Whether a job may make pods while others want the same room, and why, in words.

A job that has started is assured of some agents, whoever waits.

Jobs of other namespaces are not named: their names are not for everybody who may see this job.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum

from bamboo_core.api import quantities, records
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import JobSpec
from bamboo_core.controller import shortage
from bamboo_core.controller.view import ClusterView, JobView, Memory, TrainingView
from bamboo_core.model.counts import counted
from bamboo_core.model.ids import AgentId
from bamboo_core.placement import zones

PATIENCE_S = 600.0
"""So long the first in line asks for nodes that do not exist; then the others go first."""
ASIDE_S = 1800.0
"""For so long, or until there are more nodes."""


class Word(StrEnum):
    """The permission of a job now."""

    GROWS = "Grows"  # it has started, and may have all its agents
    # A job ahead of it waits, or is about to take its room: it may only have what is assured. One
    # that has not started keeps its pods that have nodes.
    KEEPS = "Keeps"
    STARTS = "Starts"  # there is room for its minimum
    ASKS = "Asks"  # there is no such room, but it is the first in line
    WAITS = "Waits"  # it may have no pods


@dataclass(frozen=True)
class Aside:
    """When the jobs behind a job go first, unless there are more nodes. Instants in seconds since
    1970."""

    since: float
    until: float
    is_now: bool


@dataclass(frozen=True)
class Turn:
    """The permission of a job, and the reason."""

    word: Word
    room: int = 0  # agents that there is room for, of the wanted grid
    minimum: int = 0  # agents that the smallest grid needs
    first: JobView | None = None  # who waits ahead of it; None: nobody
    is_outranked: bool = False  # that job has a higher priority; else it is older
    assured: int = 0  # agents that it may have whoever waits, once it has started
    aside: Aside | None = None  # usable nodes would be too few even if all other jobs had ended

    @property
    def is_barred(self) -> bool:
        """The job may have no pods."""
        return self.word is Word.WAITS


def waits(turn: Turn | None, view: ClusterView) -> bool:
    """Whether a job is without pods by the order of the line. It may have none, or only those that
    it is assured of, which are none."""
    if turn is None or turn.is_barred:
        return turn is not None
    is_kept_out = turn.word is Word.KEEPS and not turn.assured
    return is_kept_out and not any(pod.is_alive for pod in view.pods)


def is_set_back(training: TrainingView, memory: Memory, now: float) -> bool:
    """Whether the job goes behind all that compete with it, since it does not train, and its new
    pods end soon after their start or none is made after failures.

    Invariant: such a job is not first in line, and takes nothing that others have begun with. If
    it came back after each of its pauses, it would take the pods of others each time.
    """
    return not training.planned and (bool(memory.failures.starts.slots) or now < memory.not_before)


def explain(spec: JobSpec, turn: Turn, job: JobView) -> str:
    """For a job that waits, asks for nodes, or may not grow."""
    ahead = _ahead(turn, job)
    if turn.word is Word.KEEPS and (turn.assured or not turn.minimum):
        grid = "the smallest grid"
        if turn.assured < turn.minimum:
            grid = f"the {turn.assured} that the job has started with"
        return f"agents beyond {grid} wait, since {ahead} is first in line"
    grid = f"{spec.pipelines.min} x {spec.pipelines.stages}"
    text = f"{_free(spec, turn.room)} free, the smallest grid ({grid}) needs"
    text += f" {_needed(spec, turn.minimum)}"
    if turn.room >= turn.minimum:
        text += " in zones where ring neighbours can be apart"
    if turn.aside is not None:
        since = "" if turn.aside.is_now else f" from {shortage.instant(turn.aside.since)}"
        text += (
            "; the nodes that can be used now are too few for it even without other jobs, so the"
            f" jobs behind it go first{since} until {shortage.instant(turn.aside.until)} unless"
            " there are more of them"
        )
    return f"{text}; {ahead or 'this job'} is first in line"


def _ahead(turn: Turn, job: JobView) -> str:
    """The job that is first, as someone who may see only this one's namespace may know it."""
    first = turn.first
    if first is None:
        return ""
    name = "a job of another namespace"
    if first.namespace == job.namespace:
        name = f"job {first.namespace}/{first.name}"
    return f"{name} of higher priority" if turn.is_outranked else name


def _devices(spec: JobSpec) -> tuple[str, int]:
    """The device that an agent asks for, and how many of it; 0: none, or not a whole number."""
    for name, amount in sorted(spec.worker.asks.items()):
        if "/" in name:
            try:
                return name, int(quantities.parse(amount))
            except (ValueError, ArithmeticError):
                break
    return "", 0


def _free(spec: JobSpec, agents: int) -> str:
    name, each = _devices(spec)
    return f"{agents * each} {name} are" if each else f"room for {counted(agents, 'agent')} is"


def _needed(spec: JobSpec, agents: int) -> str:
    _, each = _devices(spec)
    return f"{agents * each}" if each else f"room for {agents}"


def is_training(view: ClusterView, training: TrainingView) -> bool:
    """Whether live agents hold the state of the training."""
    return training.planned and any(
        pod.agent in training.members for pod in view.pods if pod.is_alive
    )


def has_lost_all(view: ClusterView, training: TrainingView) -> bool:
    """Whether no agent of the plan is left, which its arbiter may not know yet."""
    left = {pod.agent for pod in view.pods if not pod.has_ended}
    return bool(training.members) and training.members.isdisjoint(left)


def is_held(view: ClusterView, training: TrainingView) -> bool:
    """Whether there are agents, or the facts name some that hold the job's state: then the API
    server takes no change of what they are made from, even if all of them are gone."""
    return training.has_state or any(pod.is_alive for pod in view.pods)


def is_at_rest(spec: JobSpec, view: ClusterView, training: TrainingView) -> bool:
    """Whether the job is suspended, and has neither pods nor anything left to do."""
    is_done = not training.planned or training.outcome is Outcome.SUSPENDED
    return spec.suspend and is_done and not any(pod.is_alive for pod in view.pods)


def assured(spec: JobSpec, view: ClusterView, training: TrainingView, memory: Memory) -> int:
    """Agents that the job gets back before others: those of ``spec.pipelines.min`` when it started,
    or of the least value since then. 0: it has not started, or has no agent on a node any more.

    It never rises, so that nobody jumps the line by a raised minimum. Nor does it go over to agents
    that ask for something else: a job may be suspended, changed and resumed before anybody has seen
    that it was suspended. view: located.
    """
    grid = spec.pipelines
    held = Counter(pod.zone for pod in view.pods if pod.is_alive and pod.node)
    if spec.suspend or memory.terminal is not None or not held:
        return 0
    if memory.assured or memory.assured_of:
        return limited(memory, spec)
    fits = zones.feasible_pipelines(
        held, stages=grid.stages, most=grid.min, adjacency=spec.placement.adjacency
    )
    if fits < grid.min and is_training(view, training):
        # Its minimum was raised before anybody saw that it had started.
        return min(held.total(), grid.min * grid.stages)
    return grid.min * grid.stages if fits == grid.min else 0


def limited(memory: Memory, spec: JobSpec) -> int:
    """The assured agents, fewer if the minimum was lowered, none if agents ask for other things."""
    if memory.assured_of not in ("", wish(spec)):
        return 0
    return min(memory.assured, spec.pipelines.min * spec.pipelines.stages)


def remembered(spec: JobSpec, view: ClusterView, training: TrainingView, memory: Memory) -> Memory:
    """The memory with what is assured now. The old wish counts until no agent has a node."""
    agents = assured(spec, view, training, memory)
    is_kept = not spec.suspend and any(pod.is_alive and pod.node for pod in view.pods)
    known = memory.assured_of if is_kept else ""
    return replace(memory, assured=agents, assured_of=known or (wish(spec) if agents else ""))


def template(spec: JobSpec) -> str:
    """Short for what the agents' pods are made from and agents are set up with: the fields that may
    change before there is a plan, but not at any time."""
    network = replace(spec.transport, bandwidth_gbps=1.0)
    fields = [spec.worker, spec.placement, spec.redundancy, network, spec.corruption]
    fields += [spec.training.on_non_finite, *([spec.checkpoint] if spec.checkpoint else [])]
    parts = [spec.recovery, *map(records.encode, fields)]
    parts += [records.encode(spec.hooks)] if spec.hooks else []  # pods of before stay as they are
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def outdated(spec: JobSpec, view: ClusterView) -> frozenset[AgentId]:
    """Agents whose pods were made before the user has changed the template. Those count that are
    about to end, too: until then they could be given work."""
    there = [pod for pod in view.pods if pod.template and not pod.has_ended]
    wanted = template(spec) if there else ""
    return frozenset(pod.agent for pod in there if pod.template != wanted)


def wish(spec: JobSpec) -> str:
    """Short for what an agent asks for, and where."""
    worker = [spec.worker.resources, spec.worker.pod_template]
    text = json.dumps([*worker, records.encode(spec.placement)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
