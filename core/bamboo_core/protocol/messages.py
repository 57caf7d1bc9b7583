"""What operator and agents say to each other, as frozen types (bamboo_wire maps them to proto).

Reports carry facts, never phases: the planner never needs to know where an agent was.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bamboo_core.model.ids import AgentId, Fence, Range
from bamboo_core.model.items import Item
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Program

# ---------------------------------------------------------------- agent -> operator


@dataclass(frozen=True)
class Fingerprint:
    """What must be equal on all agents of a job."""

    code: str = ""
    data: str = ""
    torch: str = ""
    device: str = ""
    threads: int = 1


@dataclass(frozen=True)
class Hello:
    """First message of a session. ``machine`` = node UID + boot ID."""

    agent: AgentId
    pod_uid: str
    node: str
    zone: str
    machine: str
    data_address: str
    liveness_address: str
    fence: Fence = Fence()
    has_state: bool = False


@dataclass(frozen=True)
class LayerCost:
    """Measured profile of one layer: seconds per micro-batch, bytes.

    input_gradient_s, weight_gradient_s: of the halves of the backward; can_split: whether they give
    the bits of the whole one; activation_bytes: kept from a forward to its backward.
    """

    forward_s: float
    backward_s: float
    parameter_bytes: int
    output_bytes: int
    input_gradient_s: float = 0.0
    weight_gradient_s: float = 0.0
    can_split: bool = False
    activation_bytes: int = 0


@dataclass(frozen=True)
class Ready:
    """The worker has built model and data set.

    storage_error: why the folder of checkpoints cannot be written; empty: it can, or there is none;
    memory_bytes: of the device, free before the model is there; 0: nobody counts it.
    """

    fingerprint: Fingerprint
    layers: int
    training_samples: int
    validation_samples: int
    costs: tuple[LayerCost, ...] = ()
    storage_error: str = ""
    memory_bytes: int = 0


@dataclass(frozen=True)
class CommitRecord:
    """The global scalars of a committed step. ``finite`` False: no layer was changed by it."""

    step: int
    loss: float = 0.0
    grad_norm: float = 0.0
    finite: bool = True
    validation_loss: float | None = None


@dataclass(frozen=True)
class Manifest:
    """A complete checkpoint: every layer at version ``step``, written in ``attempt``."""

    attempt: int
    step: int
    path: str
    digest: str


@dataclass(frozen=True)
class AgentReport:
    """Facts of a stopped agent.

    versions: layer -> step that may be computed with it; items: all others (no votes: a STOP drops
    them); commits: records it knows; ended: last step whose END has run, -1 for none.
    """

    fence: Fence
    installed: Fence
    versions: dict[int, int]
    items: frozenset[Item]
    commits: tuple[CommitRecord, ...] = ()
    ended: int = -1
    manifests: tuple[Manifest, ...] = ()


@dataclass(frozen=True)
class Progress:
    """A step has been committed. ``busy_s``: computing time within ``step_s``."""

    commit: CommitRecord
    step_s: float = 0.0
    busy_s: float = 0.0
    sent_bytes: int = 0
    redone_tasks: int = 0


@dataclass(frozen=True)
class Heartbeat:
    """Sign of life. ``progress_word`` counts finished instructions."""

    sequence: int
    step: int
    progress_word: int


class Cause(StrEnum):
    """Why an agent suspects another."""

    LIVENESS_CLOSED = "LivenessClosed"
    LIVENESS_SILENT = "LivenessSilent"
    CHANNEL_BROKEN = "ChannelBroken"


@dataclass(frozen=True)
class Suspicion:
    """Evidence against ``agent``. A broken channel counts only in its epoch."""

    agent: AgentId
    cause: Cause
    fence: Fence


@dataclass(frozen=True)
class Notice:
    """This agent will go away in ``lead_s`` seconds (0: unknown)."""

    lead_s: float
    reason: str


@dataclass(frozen=True)
class Failure:
    """The worker has ended. ``user_error``: trying again cannot help."""

    reason: str
    message: str
    user_error: bool
    exit_code: int


@dataclass(frozen=True)
class Sealed:
    """A checkpoint has become complete."""

    manifest: Manifest


@dataclass(frozen=True)
class BadCheckpoint:
    """A checkpoint turned out torn or altered, or could not be written.

    cause: why it could not be written, in words that stay the same from step to step; empty: it is
    there, but cannot be used.
    """

    attempt: int
    step: int
    message: str
    cause: str = ""


@dataclass(frozen=True)
class Left:
    """EXIT has run: the agent has left the job on purpose."""


@dataclass(frozen=True)
class Finished:
    """The last program has run and its files are safe."""

    fence: Fence


AgentMessage = (
    Hello | Ready | Heartbeat | AgentReport | Progress | Suspicion | Notice | Failure
    | Sealed | BadCheckpoint | Left | Finished
)  # fmt: skip

# ---------------------------------------------------------------- operator -> agent


@dataclass(frozen=True)
class Welcome:
    """Answer to Hello. ``spec_json``: the job's frozen spec (see bamboo_core.api.spec)."""

    term: int
    job: str
    job_uid: str
    spec_json: str
    heartbeat_s: float = 0.2
    lease_s: float = 600.0


@dataclass(frozen=True)
class Stop:
    """Finish the running instruction, drop program and votes, adopt the fence, report."""

    fence: Fence
    want_manifests: bool = False


@dataclass(frozen=True)
class Peer:
    """Where another agent of the plan is reached; a connection must prove ``key``."""

    agent: AgentId
    data_address: str
    liveness_address: str
    key: bytes


@dataclass(frozen=True)
class Directive:
    """The urgent part of a plan as one agent sees it: what is missing of the target step.

    A :class:`Continuation` follows, unless the plan ends with its target step.
    """

    fence: Fence
    target: int  # step of ``resume``, which runs once
    last: int  # the plan's last step; if it is the target, ``resume`` is the whole program
    resume: Program
    wanted: tuple[Range, ...]  # layers to hold from step target+1 on
    batch: BatchShape
    coordinator: AgentId
    voters: tuple[AgentId, ...] = ()
    peers: tuple[Peer, ...] = ()
    key: bytes = b""  # this agent's own
    manifest: Manifest | None = None  # what LOAD reads
    plan_hash: str = ""  # equal for all agents and for both parts of one plan
    has_continuation: bool = False


@dataclass(frozen=True)
class Continuation:
    """The rest of a plan. It belongs to the Directive of the same fence and plan hash.

    An agent that has run ``resume`` without it keeps its state and waits.
    """

    fence: Fence
    plan_hash: str
    steady: Program  # for the steps target+1 .. last-1
    final: Program  # for step ``last``: validation and last checkpoint only
    peers: tuple[Peer, ...] = ()  # of all three programs: replaces the Directive's


@dataclass(frozen=True)
class Release:
    """The supervisor ends with this exit code."""

    exit_code: int
    reason: str


@dataclass(frozen=True)
class Reconnect:
    """The leader is going away; come back after so many seconds."""

    after_s: float


OperatorMessage = Welcome | Stop | Directive | Continuation | Release | Reconnect
