"""The messages between operator and agents. bamboo_wire maps them to proto, field by field.

Reports carry facts, not phases: the planner does not need to know where an agent was interrupted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from bamboo_core.api.progress import Ahead, Goodput, Hosted, Metrics, Sent
from bamboo_core.model.claims import Claim as Claim
from bamboo_core.model.claims import Dispute as Dispute
from bamboo_core.model.claims import Question as Question
from bamboo_core.model.ids import AgentId, Fence, Range
from bamboo_core.model.items import Item
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Program

LANGUAGE = 1
"""Number of the language of programs, items and messages. It grows with each change that an agent
of the version before would not understand. 0: an agent from before it had a number."""

# ---------------------------------------------------------------- agent -> operator


@dataclass(frozen=True)
class Fingerprint:
    """Properties that must be equal on all agents of a job.

    The last four are empty on agents of a version that does not compute them.
    """

    code: str = ""  # hash of the user's source files
    data: str = ""  # hash of the data set's length and some samples
    torch: str = ""  # version
    device: str = ""  # kind, as "cpu:AVX2"
    threads: int = 1
    spec: str = ""  # hash of the part of the spec that decides the result
    weights: str = ""  # digest of the layers' first states
    outputs: str = ""  # digest of the outputs and gradients of the layers' first run
    products: str = ""  # digest of a few products of the processor and its libraries
    samples: str = ""  # hash of more samples than ``data`` covers


@dataclass(frozen=True)
class Hello:
    """First message of a session."""

    agent: AgentId
    pod_uid: str
    node: str
    zone: str
    machine: str  # node UID + boot ID
    data_address: str  # host:port for frames between workers
    liveness_address: str  # host:port for liveness sockets between supervisors
    fence: Fence = Fence()  # newest adopted
    has_state: bool = False  # holds items of fence.attempt
    language: int = LANGUAGE  # that the agent speaks


@dataclass(frozen=True)
class LayerCost:
    """Measured profile of one layer. Seconds are per micro-batch."""

    forward_s: float
    backward_s: float
    parameter_bytes: int
    output_bytes: int  # boundary tensor of one micro-batch
    input_gradient_s: float = 0.0  # the halves of a split backward
    weight_gradient_s: float = 0.0
    can_split: bool = False  # the halves give the same bits as the whole backward
    activation_bytes: int = 0  # kept from a forward to its backward


@dataclass(frozen=True)
class Tie:
    """Layers that have a parameter in common."""

    layers: tuple[int, ...]  # at least two, in order


@dataclass(frozen=True)
class Ready:
    """The worker has built model and data set."""

    fingerprint: Fingerprint
    layers: int
    training_samples: int
    validation_samples: int
    costs: tuple[LayerCost, ...] = ()  # empty: not measured
    storage_error: str = (
        ""  # why the checkpoint folder is not writable; empty: it is, or there is none
    )
    memory_bytes: int = 0  # free on the device before the model is built; 0: unlimited
    nccl: str = ""  # the version that torch has, used or not; empty: none
    ties: tuple[Tie, ...] = ()


@dataclass(frozen=True)
class CommitRecord:
    """The global scalars of a committed step."""

    step: int
    loss: float = 0.0
    grad_norm: float = 0.0
    finite: bool = True  # False: the step changed no layer
    validation_loss: float | None = None
    culprit: int = -1  # first layer whose gradient is not finite; -1: none
    skipped: int = 0  # steps of this attempt, up to this one, that changed no layer
    skipped_in_row: int = 0  # such steps without another one in between
    targets: int | None = None  # that the loss is a mean over; None: it does not count them
    metrics: Metrics = field(default_factory=dict, hash=False)  # beside the loss
    validation_metrics: Metrics = field(default_factory=dict, hash=False)
    group_norms: tuple[float, ...] = ()  # of groups of parameters that are clipped by themselves

    def __post_init__(self) -> None:
        object.__setattr__(self, "group_norms", tuple(self.group_norms))  # JSON has lists only

    def validated(self, metric: str) -> float | None:
        """The value of this metric, or of the loss, in the step's validation. None: there was no
        validation, or it is no finite number."""
        is_loss = metric == "loss"
        found = self.validation_loss if is_loss else self.validation_metrics.get(metric)
        return found if found is not None and math.isfinite(found) else None


@dataclass(frozen=True)
class Manifest:
    """A complete checkpoint: every layer at version ``step``, written in ``attempt``."""

    attempt: int
    step: int
    path: str
    digest: str
    value: float | None = None  # of the metric of spec.checkpoint.best; None: it was not computed


@dataclass(frozen=True)
class Fork:
    """Attempt ``attempt`` began with version ``step``; later files of older attempts are void."""

    attempt: int
    step: int


@dataclass(frozen=True)
class Mark:
    """Names a checkpoint."""

    attempt: int
    step: int


@dataclass(frozen=True)
class AgentReport:
    """All that a stopped agent holds."""

    fence: Fence  # of the STOP that it answers
    installed: Fence  # newest plan whose programs it has installed
    versions: dict[int, int]  # layer -> the step that it can compute next
    items: frozenset[Item]  # all others; no votes, since a STOP drops them
    commits: tuple[CommitRecord, ...] = ()
    ended: int = -1  # last step whose END has run; -1: none


@dataclass(frozen=True)
class HookWarning:
    """A hook does not work; training goes on."""

    hook: int  # index in spec.hooks
    text: str


@dataclass(frozen=True)
class Progress:
    """A step has been committed."""

    commit: CommitRecord
    fence: Fence = Fence()  # of the plan in which it was committed
    step_s: float = 0.0
    busy_s: float = 0.0  # computing time within step_s
    sent_bytes: int = 0
    ahead: Ahead = Ahead()  # noqa: RUF009 - frozen; since the worker's start
    hosted: Hosted = Hosted()  # noqa: RUF009 - as ahead
    sent: tuple[Sent, ...] = ()  # by zone, as ahead
    goodput: Goodput | None = None  # None: nothing is measured
    warnings: tuple[HookWarning, ...] = ()  # one of each hook that has failed on this agent


class Cause(StrEnum):
    """Why an agent suspects another."""

    LIVENESS_CLOSED = "LivenessClosed"
    LIVENESS_SILENT = "LivenessSilent"
    CHANNEL_BROKEN = "ChannelBroken"


@dataclass(frozen=True)
class Suspicion:
    """Evidence against ``agent``. It counts only in its own epoch."""

    agent: AgentId
    cause: Cause
    fence: Fence


class ActivityKind(StrEnum):
    """The activity of a worker."""

    STARTING = "Starting"  # builds the model and the data set
    IDLE = "Idle"  # has no program, or its program has ended
    RUNNING = "Running"  # an instruction
    LOADING = "Loading"  # waits for storage (no limit), or an instruction reads data
    WAITING = "Waiting"  # for an item of another agent


@dataclass(frozen=True)
class Activity:
    """The activity of a worker, unchanged for ``age_s``."""

    kind: ActivityKind
    age_s: float
    limit_s: float = 0.0  # RUNNING, LOADING: longer is too long; 0: no limit
    instruction: str = ""  # that runs or waits
    peer: AgentId | None = None  # WAITING: whose item it needs
    still_s: float = 0.0  # WAITING: the item comes, but has been too slow for so long; 0: it is not
    rate: float = 0.0  # bytes per second in that time


@dataclass(frozen=True)
class Heartbeat:
    """Sign of life, and all that an agent knows and that may change: each replaces the one before.

    It is sent at once when a suspicion begins, else at every interval.
    """

    sequence: int
    step: int
    progress_word: int  # instructions finished
    fence: Fence = Fence()  # newest adopted
    activity: Activity | None = None  # None: it has changed within the last second
    suspicions: tuple[Suspicion, ...] = ()  # all that hold


@dataclass(frozen=True)
class Notice:
    """This agent will leave; or, as a hint, it is more likely to have to leave than others."""

    lead_s: float  # seconds left; 0: unknown
    reason: str
    source: str = ""  # which watcher has heard it; empty: SIGTERM
    is_hint: bool = False  # nothing is decided: the agent stays as long as it is needed


@dataclass(frozen=True)
class Failure:
    """The worker has failed."""

    reason: str  # CamelCase, for the condition
    message: str  # the essential line
    user_error: bool  # another attempt cannot succeed
    exit_code: int
    place: str = ""  # the instruction, and the layer, that ended the process; empty: unknown


@dataclass(frozen=True)
class Halted:
    """The user's code has failed: the agent keeps its state, and waits for a STOP."""

    fence: Fence
    message: str  # the essential line, the same for whoever computes the same


@dataclass(frozen=True)
class Sealed:
    """A checkpoint has become complete.

    Two nodes have seen all its files, or nobody knows, if neither of the last two is set.
    """

    manifest: Manifest
    is_seen_once: bool = False  # all agents live on one node, so no other has looked
    unseen: str = ""  # which file which node does not see

    @property
    def caveat(self) -> str:
        """Why only one node may have its files, for users; empty: there is no reason."""
        if self.unseen:
            return f"{self.unseen}: mount the same volume for spec.checkpoint.uri on every node"
        return "seen from one node only" if self.is_seen_once else ""


@dataclass(frozen=True)
class BadCheckpoint:
    """A checkpoint was read and is wrong, or could not be written."""

    attempt: int
    step: int
    message: str
    cause: str = ""  # why it was not written, the same text for every step; empty: it is wrong
    fence: Fence | None = None  # of the plan or the STOP for which it was read; None: not known


@dataclass(frozen=True)
class Listed:
    """The complete checkpoints that the agent sees: answers ``Stop.want_manifests``, later.

    A partial one also comes when a plan cannot be begun because of ``error``, or can again.
    """

    manifests: tuple[Manifest, ...] = ()
    fence: Fence = Fence()  # of a STOP that asked for it, before the listing began
    is_partial: bool = False  # something could not be reached
    error: str = ""  # why a file that the agent needs cannot be reached, with its path
    right: Mark | None = None  # the STOP's suspect, if all of it was read and is right


@dataclass(frozen=True)
class Left:
    """EXIT has run: the agent has left the plan in order."""

    fence: Fence


@dataclass(frozen=True)
class Finished:
    """The last program has run and its files are written."""

    fence: Fence


@dataclass(frozen=True)
class Disputed:
    """The coordinator does not commit the step: somebody computed wrong bits."""

    fence: Fence
    step: int
    disputes: tuple[Dispute, ...]


AgentMessage = (
    Hello | Ready | Heartbeat | AgentReport | Progress | Suspicion | Notice | Failure
    | Halted | Sealed | BadCheckpoint | Listed | Disputed | Left | Finished
)  # fmt: skip

# ---------------------------------------------------------------- operator -> agent


@dataclass(frozen=True)
class Welcome:
    """Answer to Hello."""

    term: int
    job: str  # namespace/name
    job_uid: str
    spec_json: str  # the frozen JobSpec; see bamboo_core.api.spec
    heartbeat_s: float = 0.2
    lease_s: float = 3600.0  # an agent exits after so long without operator and progress
    start_s: float = 1800.0  # for the worker to build model and data set; 0: no limit
    instruction_floor_s: float = 30.0  # no instruction is too long before


@dataclass(frozen=True)
class Stop:
    """Finish the running instruction, drop program and votes, adopt the fence, send a report."""

    fence: Fence
    want_manifests: bool = False  # also list the checkpoints; the report does not wait for that
    void: Fence = Fence()  # what was made before it in steps that are not committed may be wrong
    suspect: Manifest | None = None  # another agent has found it wrong: read all of it


@dataclass(frozen=True)
class Peer:
    """Another agent of the plan."""

    agent: AgentId
    data_address: str
    liveness_address: str
    key: bytes  # a connection must prove that it knows it
    zone: str = ""  # empty: not known
    node: str = ""  # as zone


@dataclass(frozen=True)
class Directive:
    """The urgent part of a plan for one agent: what the target step still needs.

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
    lane: Program = ()  # R instructions, each run only while ``resume`` waits for an input
    lane_limit: int = 0  # most forwards computed ahead that are kept at once
    compares: bool = False  # votes carry claims, and wait for comparisons that have begun
    hosts_ahead: bool = False  # what they keep for their backwards goes to host memory
    hosted: tuple[Range, ...] = ()  # layers whose weights and optimizer state go to host memory
    question: Question | None = None  # a forward that is to be compared with these older claims
    forks: tuple[Fork, ...] = ()  # for pruning: which checkpoints are void,
    bad: tuple[Mark, ...] = ()  # and which are wrong
    node: str = ""  # this agent's own; empty: not known
    look_s: float = 0.0  # most time to look at files before SEAL; 0: as long as usual


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
    lane: Program = ()  # beside ``steady``


@dataclass(frozen=True)
class Release:
    """The supervisor exits with this code."""

    exit_code: int
    reason: str


@dataclass(frozen=True)
class Reconnect:
    """The leader is stepping down."""

    after_s: float  # reconnect after so many seconds


OperatorMessage = Welcome | Stop | Directive | Continuation | Release | Reconnect
