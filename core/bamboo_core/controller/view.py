"""What the operator sees of a job, frozen: nodes, pods, and what the arbiter knows.

Made by the operator's observe module (and by the simulator); read by reconcile and lifecycle.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.progress import TrainingProgress
from bamboo_core.model.ids import AgentId


class Slot(NamedTuple):
    """A place in the job's set of pods: stage ``stage`` of pipeline ``pipeline`` at creation.

    It decides name and zone only; who computes which stage is the plan's business.
    """

    pipeline: int
    stage: int


_POD_NAME = re.compile(r"p(\d+)-s(\d+)-i(\d+)")


def pod_name(job: str, slot: Slot, incarnation: int) -> str:
    """Name of an agent and of its pod, unique for the life of the job."""
    return f"{job}-p{slot.pipeline}-s{slot.stage}-i{incarnation}"


def parse_pod_name(job: str, name: str) -> tuple[Slot, int] | None:
    """Inverse of :func:`pod_name`; None if the name is no agent's of this job."""
    match = _POD_NAME.fullmatch(name.removeprefix(job + "-"))
    if match is None or not name.startswith(job + "-"):
        return None
    return Slot(int(match[1]), int(match[2])), int(match[3])


@dataclass(frozen=True)
class NodeView:
    """A node. ``machine``: node UID + boot ID; ``agents``: how many of the job's fit on it;
    ``departing``: its cloud has said that it is about to go."""

    name: str
    machine: str
    zone: str
    ready: bool = True
    schedulable: bool = True
    spot: bool = False
    departing: bool = False
    agents: int = 1


class PodPhase(StrEnum):
    """As Kubernetes says."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True)
class PodView:
    """An agent's pod. Instants in seconds since 1970.

    zone: where it was sent; exit_code: of its container, once it has ended; waiting: why its
    container cannot start (``ImagePullBackOff``); trouble: message that goes with it.
    """

    name: str
    uid: str
    slot: Slot
    incarnation: int
    phase: PodPhase
    created_at: float
    zone: str = ""
    node: str = ""
    started_at: float | None = None
    deleting_at: float | None = None
    exit_code: int | None = None
    exit_reason: str = ""
    waiting: str = ""
    trouble: str = ""

    @property
    def agent(self) -> AgentId:
        """Agents are named like their pods."""
        return AgentId(self.name)

    @property
    def has_ended(self) -> bool:
        """No container of it runs any more."""
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)

    @property
    def is_alive(self) -> bool:
        """It runs or may come to run."""
        return not self.has_ended and self.deleting_at is None


@dataclass(frozen=True)
class ClusterView:
    """Nodes of the cluster, pods of the job (owned by it, by UID)."""

    nodes: tuple[NodeView, ...] = ()
    pods: tuple[PodView, ...] = ()


@dataclass(frozen=True)
class JobView:
    """The BambooJob beside its spec."""

    namespace: str
    name: str
    uid: str
    generation: int
    created_at: float
    deleting: bool = False


@dataclass(frozen=True)
class Losses:
    """Agents lost since the job began; noticed: announced ones among them."""

    total: int = 0
    noticed: int = 0


@dataclass(frozen=True)
class TrainingView:
    """What the arbiter knows of the training.

    planned: a plan is in force; recovering: agents are stopped or being rewired, with ``detail``;
    dismissed: agents that the plan has left out for ever; departing: those that have said that they
    will go away; copies: for each layer, how many live
    agents hold it by plan; committed: newest committed step, -1 for none, with its loss, if that
    is known; checkpoint_step: -1 for none; checkpoint_error: why no newer one can be written, with
    the agent.
    """

    epoch: int = 0
    attempt: int = 0
    planned: bool = False
    recovering: bool = False
    detail: str = ""
    pipelines: int = 0
    connected: frozenset[AgentId] = frozenset()
    members: frozenset[AgentId] = frozenset()
    dismissed: frozenset[AgentId] = frozenset()
    departing: frozenset[AgentId] = frozenset()
    copies: tuple[int, ...] = ()
    progress: TrainingProgress = TrainingProgress()  # noqa: RUF009 - frozen
    checkpoint_step: int = -1
    checkpoint_path: str = ""
    checkpoint_error: str = ""
    losses: Losses = Losses()
    outcome: Outcome | None = None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class Condition:
    """As Kubernetes means it; status None: unknown; since: last transition, seconds since 1970."""

    type: str
    status: bool | None
    reason: str
    message: str = ""
    since: float = 0.0


@dataclass(frozen=True)
class Memory:
    """What reconcile must remember from call to call; kept in status, so a restart loses nothing.

    incarnation: highest number ever given to a pod; failures: ends of user code that count towards
    the limit; settled: ended pods that have been counted and still exist; terminal: outcome, once
    the job has ended, with its reason and message; started_at/finished_at: seconds since 1970;
    trained: a plan has been in force since it was started.
    """

    incarnation: int = -1
    failures: int = 0
    losses: Losses = Losses()
    settled: frozenset[str] = frozenset()
    terminal: Outcome | None = None
    started_at: float | None = None
    finished_at: float | None = None
    reason: str = ""
    message: str = ""
    trained: bool = False
    not_before: float = 0.0
    conditions: tuple[Condition, ...] = field(default=())
