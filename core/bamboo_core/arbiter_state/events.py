"""The interface of an arbiter: events go in, effects come out, and its status can be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from bamboo_core.api.events import EventFact, EventReason, Severity, StallCause
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.progress import BestCheckpoint, Network, TrainingProgress, Unwritten
from bamboo_core.api.spec import JobSpec, RedundancyMode, RestoreSpec
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.evidence.liveness import Patience
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.placement.plan import Plan
from bamboo_core.planning.requests import Comparison, PlanRequest, PlanResult
from bamboo_core.protection.choice import Verdict
from bamboo_core.protection.facts import OpenMode
from bamboo_core.protocol.channels import Route
from bamboo_core.protocol.messages import (
    AgentMessage,
    Hello,
    Manifest,
    Notice,
    OperatorMessage,
)


@dataclass(frozen=True)
class Timing:
    """How long the arbiter waits, in seconds."""

    start_grace_s: float = 10.0  # for more agents, once enough are ready
    join_grace_s: float = 1.0  # for more newcomers, before a stop lets them join
    report_floor_s: float = 2.0  # least time for a report, else 3 x the longest instruction
    report_each_s: float = 0.01  # more for each member: all are asked, and answer, at once
    # Newcomers that lack more bytes become learners: they get their copies while the others train,
    # and join with a stop of their own, which costs about 0.2 s of a 10 Gbit/s link.
    catch_up_above_bytes: float = 256e6
    catch_up_s: float = 600.0  # for a learner, before all members wait for it
    round_s: float = 60.0  # for a report, however often the agent's session ends
    voter_wait_s: float = 60.0  # for a voter, before a restore
    listing_s: float = 60.0  # for a list of the checkpoints, before a restore
    continuation_s: float = 120.0  # for the planner's second part, before planning again
    return_s: float = 15.0  # for the members to find a new leader
    heartbeat_s: float = 0.2  # between an agent's heartbeats
    lease_s: float = 3600.0  # an agent without an operator and without progress ends after this
    instruction_floor_s: float = 30.0  # no instruction counts as stuck before
    patience: Patience = field(default_factory=Patience)

    def at_pace(self, heartbeat_s: float) -> Timing:
        """The same with rarer heartbeats. Silence is noticed as much later as they come later."""
        later_s = max(0.0, heartbeat_s - self.heartbeat_s)
        patience = self.patience.with_rarer(later_s)
        return replace(self, heartbeat_s=self.heartbeat_s + later_s, patience=patience)


@dataclass(frozen=True)
class ArbiterJob:
    """The job of an arbiter, as it was when the arbiter began."""

    name: str  # namespace/name
    uid: str
    spec: JobSpec
    spec_json: str  # as agents get it
    timing: Timing = Timing()


# ---------------------------------------------------------------- events


@dataclass(frozen=True)
class Connected:
    """An agent's session began."""

    hello: Hello
    key: bytes  # random; the agent's peers must prove that they know it


@dataclass(frozen=True)
class Received:
    """A message of a connected agent."""

    agent: AgentId
    message: AgentMessage


@dataclass(frozen=True)
class Disconnected:
    """An agent's session is closed."""

    agent: AgentId


@dataclass(frozen=True)
class Lost:
    """An agent is gone."""

    agent: AgentId
    confirmed: bool  # its process was seen to end, or its machine is gone; a time-out is not enough
    evidence: str


@dataclass(frozen=True)
class NodeLeaves:
    """The node of an agent has announced its end, which the agent itself may not know."""

    agent: AgentId
    notice: Notice


@dataclass(frozen=True)
class DesiredState:
    """The wishes of the user and of the cluster for the job. Sent again whenever they change."""

    pipelines: int
    suspended: bool = False
    drained: frozenset[AgentId] = frozenset()  # they leave as soon as others can replace them
    expected: frozenset[AgentId] = frozenset()  # their pods exist; a start may wait for them
    least: int = 1  # pipelines without which the job does not train
    bandwidth_gbps: float | None = None  # between two agents; None: as the arbiter's spec says
    last_write_s: float = 3600.0  # for the last checkpoint, if it cannot be written
    restore: RestoreSpec | None = None  # the user's order; None: there is none

    @property
    def at_least(self) -> int:
        """Pipelines without which there is no training."""
        return max(1, min(self.least, self.pipelines))


@dataclass(frozen=True)
class Persisted:
    """Everything up to that version is durable."""

    version: int


@dataclass(frozen=True)
class Planned:
    """The planner has answered a :class:`ComputePlan`."""

    id: int
    result: PlanResult
    verdict: Verdict | None = None  # of mode Auto, for this plan


@dataclass(frozen=True)
class Paced:
    """The operator has so many agents that heartbeats have to be rarer, or more often again."""

    timing: Timing


@dataclass(frozen=True)
class Tick:
    """Time has passed; several times a second."""


Event = (
    Connected | Received | Disconnected | Lost | NodeLeaves | DesiredState | Persisted | Planned
    | Paced | Tick
)  # fmt: skip

# ---------------------------------------------------------------- effects


@dataclass(frozen=True)
class Persist:
    """Make the facts durable, then send ``Persisted(version)``; a newer one replaces an older."""

    durable: Durable
    version: int


@dataclass(frozen=True)
class Send:
    """Send to an agent; dropped if it is not connected."""

    agent: AgentId
    message: OperatorMessage


@dataclass(frozen=True)
class ComputePlan:
    """Send what :func:`bamboo_core.job.orders.answers` yields; run it off the event loop."""

    id: int
    request: PlanRequest
    mode: OpenMode | None = None  # the spec of the request leaves the mode open; None: it names one


@dataclass(frozen=True)
class Dismiss:
    """Delete the agent's pod: it was fenced, refused, or is not needed any more."""

    agent: AgentId
    reason: str


@dataclass(frozen=True)
class Record:
    """A Kubernetes Event and a line of the log."""

    severity: Severity
    reason: EventReason
    message: str
    facts: Mapping[EventFact, str | int | float] = field(default_factory=dict)

    @property
    def agents(self) -> tuple[AgentId, ...]:
        """The agents that the event is about."""
        names = str(self.facts.get(EventFact.AGENTS, ""))
        return tuple(AgentId(name) for name in names.split(",") if name)


@dataclass(frozen=True)
class Over:
    """The job has ended or is suspended, durably."""

    outcome: Outcome
    reason: str
    message: str


Effect = Persist | Send | ComputePlan | Dismiss | Record | Over

# ---------------------------------------------------------------- status


class ArbiterPhase(StrEnum):
    """Names of the phases; :mod:`bamboo_core.arbiter_state.state` has their data."""

    WAITING = "Waiting"  # for enough agents; there is no plan
    RETURNING = "Returning"  # a new leader waits for the members
    COLLECTING = "Collecting"  # members are stopped and report
    PLANNING = "Planning"  # members are stopped; the planner works
    HOLDING = "Holding"  # members are stopped and keep their state; other agents are needed
    RUNNING = "Running"
    OVER = "Over"


@dataclass(frozen=True)
class Glance:
    """The part of :class:`ArbiterStatus` of which users hear soon; it is taken after every event.

    One loss of a large fleet is as many events as there are agents, so this holds only what costs
    no more than a copy of a set.
    """

    phase: ArbiterPhase
    detail: str
    fence: Fence
    members: frozenset[AgentId]
    connected: frozenset[AgentId]
    has_ready: bool  # some agent can be used
    progress: TrainingProgress
    checkpoint: Manifest | None
    stall: str
    unreachable: str  # why a checkpoint that is needed cannot be read; empty: none is, or it can
    slow: frozenset[AgentId]
    outcome: Outcome | None


@dataclass(frozen=True)
class ArbiterStatus:
    """A snapshot."""

    phase: ArbiterPhase
    detail: str  # what the job waits for, in words
    fence: Fence
    plan: Plan | None
    members: tuple[AgentId, ...]
    connected: tuple[AgentId, ...]
    ready: tuple[AgentId, ...]
    standby: tuple[AgentId, ...]
    leaving: tuple[AgentId, ...]
    progress: TrainingProgress
    checkpoint: Manifest | None
    best: BestCheckpoint | None  # see spec.checkpoint.best
    copies: dict[int, int]  # layer -> live agents that hold it by plan
    route: Route | None  # of items between agents; None: no agent is ready yet
    network: Network  # between agents
    stall: str  # who holds up the training, and how; empty: nobody
    unreachable: str  # why a checkpoint that is needed cannot be read; empty: none is, or it can
    stalls: dict[StallCause, int]  # how many there were
    slow: tuple[AgentId, ...]  # members that are to be replaced
    mode: RedundancyMode | None  # that Auto has put in force; None: the spec's own mode holds
    verdict: Verdict | None  # why
    shortage: str  # why the smallest device does not suffice for the mode; empty: it does
    sharing: Comparison | None  # how lost work is shared; None: none is lost, or nothing compared
    unwritten: Unwritten | None  # None: the last checkpoint is written, or not due yet
    outcome: Outcome | None
    reason: str
    message: str
