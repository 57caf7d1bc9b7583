"""What goes in and out of the arbiter: events, effects, the request for a plan, the status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from bamboo_core.api.events import EventFact, EventReason, Severity
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.progress import TrainingProgress
from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter.durable import Durable
from bamboo_core.arbiter.evidence import Patience
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.placement.plan import Plan
from bamboo_core.planning.requests import PlanRequest, PlanResult
from bamboo_core.protocol.messages import (
    AgentMessage,
    Hello,
    Manifest,
    OperatorMessage,
)


@dataclass(frozen=True)
class Timing:
    """Seconds.

    start_grace_s: how long to wait for more agents once enough are there; join_grace_s: the same
    before an entry; report_floor_s: least time for a report (else 3 x the longest instruction);
    catch_up_above_bytes: newcomers that lack more get their copies while the others train on, and
    enter with a stop of its own (0.2 s of a 10 Gbit/s link: about what such a stop costs);
    catch_up_s: how long that may take before all wait for it;
    voter_wait_s: how long to wait for a voter before a restore; return_s: how long a new leader
    waits for the members; heartbeat_s, lease_s: what agents are told.
    """

    start_grace_s: float = 10.0
    join_grace_s: float = 1.0
    report_floor_s: float = 2.0
    catch_up_above_bytes: float = 256e6
    catch_up_s: float = 600.0
    voter_wait_s: float = 60.0
    return_s: float = 15.0
    heartbeat_s: float = 0.2
    lease_s: float = 600.0
    patience: Patience = field(default_factory=Patience)


@dataclass(frozen=True)
class ArbiterJob:
    """What an arbiter knows of its job; ``name`` = namespace/name, spec_json: for the agents."""

    name: str
    uid: str
    spec: JobSpec
    spec_json: str
    timing: Timing = Timing()


# ---------------------------------------------------------------- events


@dataclass(frozen=True)
class Connected:
    """An agent's session began; ``key``: random bytes that its peers must prove to know."""

    hello: Hello
    key: bytes


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
    """An agent is gone. ``confirmed``: its process has been seen to end, or its machine to be
    gone; a time-out is no confirmation."""

    agent: AgentId
    confirmed: bool
    evidence: str


@dataclass(frozen=True)
class DesiredState:
    """What the job shall be: set again whenever it changes.

    pipelines: wanted number; least: so many there must be; drained: agents that shall leave
    without haste, when others can take their place; expected: agents that have a pod on its way,
    for whom a start may wait a while.
    """

    pipelines: int
    suspended: bool = False
    drained: frozenset[AgentId] = frozenset()
    expected: frozenset[AgentId] = frozenset()
    least: int = 1

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


@dataclass(frozen=True)
class Tick:
    """Time has passed; several times a second."""


Event = Connected | Received | Disconnected | Lost | DesiredState | Persisted | Planned | Tick

# ---------------------------------------------------------------- effects


@dataclass(frozen=True)
class Persist:
    """Make the facts durable, then say ``Persisted(version)``; a newer one replaces an older."""

    durable: Durable
    version: int


@dataclass(frozen=True)
class Send:
    """To a connected agent; dropped if it is not."""

    agent: AgentId
    message: OperatorMessage


@dataclass(frozen=True)
class ComputePlan:
    """Run the planner (it takes long: off the event loop), then say ``Planned(id, result)``."""

    id: int
    request: PlanRequest


@dataclass(frozen=True)
class Dismiss:
    """Delete the agent's pod: it was left out, refused, or is of no use any more."""

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
        """Whom the event is about."""
        names = str(self.facts.get(EventFact.AGENTS, ""))
        return tuple(AgentId(name) for name in names.split(",") if name)


@dataclass(frozen=True)
class Over:
    """The job has ended or is at rest, durably."""

    outcome: Outcome
    reason: str
    message: str


Effect = Persist | Send | ComputePlan | Dismiss | Record | Over

# ---------------------------------------------------------------- status


class ArbiterPhase(StrEnum):
    """What the arbiter is doing."""

    WAITING = "Waiting"  # no plan; for enough agents
    RETURNING = "Returning"  # a new leader; for the members to come back
    COLLECTING = "Collecting"  # agents are stopped; for their reports
    PLANNING = "Planning"  # for the planner
    HOLDING = "Holding"  # agents are stopped and keep their state; for other agents
    RUNNING = "Running"
    OVER = "Over"


@dataclass(frozen=True)
class ArbiterStatus:
    """What is known now. ``detail`` says in words what is waited for."""

    phase: ArbiterPhase
    detail: str
    fence: Fence
    plan: Plan | None
    members: tuple[AgentId, ...]
    connected: tuple[AgentId, ...]
    ready: tuple[AgentId, ...]
    standby: tuple[AgentId, ...]
    leaving: tuple[AgentId, ...]
    progress: TrainingProgress
    checkpoint: Manifest | None
    copies: dict[int, int] = field(default_factory=dict)
    outcome: Outcome | None = None
    reason: str = ""
    message: str = ""
