"""Events and effects of the supervisor's state machine."""

from __future__ import annotations

from dataclasses import dataclass

from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import (
    ActivityKind,
    AgentMessage,
    Continuation,
    Directive,
    OperatorMessage,
    Peer,
    Stop,
    Welcome,
)

# ---------------------------------------------------------------- events


@dataclass(frozen=True)
class SessionOpened:
    """The stream to the operator is open."""


@dataclass(frozen=True)
class SessionClosed:
    """The stream to the operator has ended. The shell opens another by itself."""


@dataclass(frozen=True)
class FromOperator:
    """A message from the operator, in the newest session."""

    message: OperatorMessage


@dataclass(frozen=True)
class FromWorker:
    """A message from the worker."""

    message: AgentMessage


@dataclass(frozen=True)
class WorkerExited:
    """The worker's process has ended."""

    exit_code: int
    message: str = ""  # last line of its error output; empty: unknown
    place: str = ""  # what its code ran: the instruction and the layer, or in its set-up what of it


@dataclass(frozen=True)
class Progressed:
    """The worker's progress, from shared memory. Sent whenever it is not what it was."""

    word: int  # instructions finished
    step: int
    longest_s: float = 0.0  # the longest instruction so far
    kind: ActivityKind = ActivityKind.IDLE  # what it does now; STARTING is never written
    limit_s: float = 0.0  # see Activity
    instruction: str = ""
    peer: AgentId | None = None
    traffic: int = 0  # grows while frames or files move
    # bytes that have come from the peer so far; they may lack what is old; None: not known
    received: int | None = 0
    is_coming: bool = False  # a part of a frame of the peer is here


@dataclass(frozen=True)
class PeerHeard:
    """The peer's liveness socket has received data."""

    agent: AgentId


@dataclass(frozen=True)
class PeerClosed:
    """The peer's liveness socket was closed, reset or refused."""

    agent: AgentId


@dataclass(frozen=True)
class Departing:
    """The pod will be deleted or its node will be lost."""

    lead_s: float  # seconds left; 0: unknown
    reason: str
    is_signal: bool = True  # SIGTERM: the process must exit in time
    source: str = ""  # which watcher has heard it; empty: SIGTERM
    is_hint: bool = False  # it may be lost, but nothing is decided


@dataclass(frozen=True)
class Tick:
    """Time has passed. Sent several times per heartbeat."""


Event = (
    SessionOpened | SessionClosed | FromOperator | FromWorker | WorkerExited | Progressed
    | PeerHeard | PeerClosed | Departing | Tick
)  # fmt: skip

# ---------------------------------------------------------------- effects


@dataclass(frozen=True)
class SendOperator:
    """Send in the open session."""

    message: AgentMessage


@dataclass(frozen=True)
class CloseSession:
    """Close the stream and open another after ``after_s`` seconds."""

    after_s: float
    reason: str


@dataclass(frozen=True)
class SpawnWorker:
    """Send the Welcome to the worker's process, which builds model and data."""

    welcome: Welcome


@dataclass(frozen=True)
class ToWorker:
    """Send to the worker."""

    message: Stop | Directive | Continuation


@dataclass(frozen=True)
class KillWorker:
    """SIGKILL. A WorkerExited follows."""

    reason: str


@dataclass(frozen=True)
class ConnectLiveness:
    """Keep liveness sockets to exactly these peers."""

    peers: tuple[Peer, ...]
    key: bytes  # this agent's own


@dataclass(frozen=True)
class Exit:
    """Flush the session briefly, kill the worker, end the process with this code."""

    code: int
    reason: str


Effect = SendOperator | CloseSession | SpawnWorker | ToWorker | KillWorker | ConnectLiveness | Exit
