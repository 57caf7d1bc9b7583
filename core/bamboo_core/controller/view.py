"""What the operator sees of a job, frozen: nodes, pods, and the arbiter's status.

The operator's observe module and the simulator make it; reconcile and lifecycle read it.
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

    It determines only name and zone. The plan decides which agent computes which stage.
    """

    pipeline: int
    stage: int


_POD_NAME = re.compile(r"p(\d+)-s(\d+)-i(\d+)")


def pod_name(job: str, slot: Slot, incarnation: int) -> str:
    """Name of an agent and its pod, unique within the life of the job."""
    return f"{job}-p{slot.pipeline}-s{slot.stage}-i{incarnation}"


def parse_pod_name(job: str, name: str) -> tuple[Slot, int] | None:
    """Inverse of :func:`pod_name`; None if the name does not belong to an agent of this job."""
    match = _POD_NAME.fullmatch(name.removeprefix(job + "-"))
    if match is None or not name.startswith(job + "-"):
        return None
    return Slot(int(match[1]), int(match[2])), int(match[3])


@dataclass(frozen=True)
class NodeView:
    """A node."""

    name: str
    machine: str  # node UID and boot ID
    zone: str
    ready: bool = True
    schedulable: bool = True
    spot: bool = False
    departing: bool = False  # its cloud has announced that it is about to go
    agents: int = 1  # how many of the job's agents fit on it


class PodPhase(StrEnum):
    """The phases of Kubernetes."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True)
class PodView:
    """An agent's pod. Instants are in seconds since 1970."""

    name: str
    uid: str
    slot: Slot
    incarnation: int
    phase: PodPhase
    created_at: float
    zone: str = ""  # where it must run
    node: str = ""
    started_at: float | None = None
    deleting_at: float | None = None
    exit_code: int | None = None  # of its container, once it has ended
    exit_reason: str = ""
    waiting: str = ""  # why its container cannot start, such as ImagePullBackOff
    trouble: str = ""  # the message of the end or of the wait

    @property
    def agent(self) -> AgentId:
        """An agent has the name of its pod."""
        return AgentId(self.name)

    @property
    def has_ended(self) -> bool:
        """None of its containers runs any more."""
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)

    @property
    def is_alive(self) -> bool:
        """It runs or may still start."""
        return not self.has_ended and self.deleting_at is None


@dataclass(frozen=True)
class ClusterView:
    """Nodes of the cluster, and pods that the job owns by UID."""

    nodes: tuple[NodeView, ...] = ()
    pods: tuple[PodView, ...] = ()


@dataclass(frozen=True)
class JobView:
    """A BambooJob without its spec."""

    namespace: str
    name: str
    uid: str
    generation: int
    created_at: float
    deleting: bool = False


@dataclass(frozen=True)
class Losses:
    """Agents lost since the job began."""

    total: int = 0
    noticed: int = 0  # with a notice


@dataclass(frozen=True)
class TrainingView:
    """What the arbiter knows of the training."""

    epoch: int = 0
    attempt: int = 0
    planned: bool = False  # a plan is in force
    recovering: bool = False  # agents are stopped or get a new plan; ``detail`` says why
    detail: str = ""
    pipelines: int = 0
    connected: frozenset[AgentId] = frozenset()
    members: frozenset[AgentId] = frozenset()
    dismissed: frozenset[AgentId] = frozenset()  # not needed any more, for ever
    departing: frozenset[AgentId] = frozenset()  # have announced that they will leave
    copies: tuple[int, ...] = ()  # for each layer: live agents that hold it by plan
    progress: TrainingProgress = TrainingProgress()  # noqa: RUF009 - frozen
    checkpoint_step: int = -1  # of the newest complete one; -1: none
    checkpoint_path: str = ""
    checkpoint_error: str = ""  # why no newer one can be written, with the agent
    losses: Losses = Losses()
    outcome: Outcome | None = None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class Condition:
    """A condition in the sense of Kubernetes."""

    type: str
    status: bool | None  # None: unknown
    reason: str
    message: str = ""
    since: float = 0.0  # last transition, in seconds since 1970


@dataclass(frozen=True)
class Memory:
    """What reconcile remembers from call to call. Status keeps it across restarts."""

    incarnation: int = -1  # highest number ever given to a pod
    failures: int = 0  # failed agents that count towards the limit
    losses: Losses = Losses()
    settled: frozenset[str] = frozenset()  # ended pods that were counted and still exist
    terminal: Outcome | None = None  # once the job has ended, with reason and message
    started_at: float | None = None  # seconds since 1970
    finished_at: float | None = None
    reason: str = ""
    message: str = ""
    trained: bool = False  # a plan was in force since the job was started
    not_before: float = 0.0  # no new pods before this instant
    conditions: tuple[Condition, ...] = field(default=())
