"""An agent's supervisor as a pure state machine: session, worker, liveness, notices, lease.

The shell (bamboo_agent.supervisor.shell, or the explorer) turns what it observes into events, calls
``Supervisor.handle(event, now)`` and performs the effects in order. ``now`` is a monotonic clock in
seconds, the same in all calls. The machine never sleeps: the shell sends a ``Tick`` several times
per heartbeat. Nothing follows an ``Exit``.

While the operator is away, messages that must not be lost wait here: sealed checkpoints, failures,
the outcome. Heartbeats and reports do not, since a new session asks for them again. The notice that
this agent will leave is repeated in every session: a new leader has not seen it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from enum import IntEnum

from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.program import Op
from bamboo_core.protocol.exit_codes import ExitCode
from bamboo_core.protocol.messages import (
    AgentMessage,
    AgentReport,
    BadCheckpoint,
    Cause,
    Continuation,
    Directive,
    Failure,
    Finished,
    Heartbeat,
    Hello,
    Left,
    Notice,
    OperatorMessage,
    Peer,
    Progress,
    Ready,
    Reconnect,
    Release,
    Sealed,
    Stop,
    Suspicion,
    Welcome,
)


@dataclass(frozen=True)
class Timing:
    """Seconds. A stopped worker is overdue after max(report_floor_s, 3 x longest instruction);
    loading_floor_s instead while it builds or loads layers, since nobody has measured that."""

    silence_s: float = 1.0
    connect_s: float = 2.0
    report_floor_s: float = 2.0
    loading_floor_s: float = 30.0
    departure_margin_s: float = 1.0


# ---------------------------------------------------------------- events


@dataclass(frozen=True)
class SessionOpened:
    """The stream to the operator stands."""


@dataclass(frozen=True)
class SessionClosed:
    """The stream to the operator is gone; the shell opens another by itself."""


@dataclass(frozen=True)
class FromOperator:
    """A message of the operator, in the session that was opened last."""

    message: OperatorMessage


@dataclass(frozen=True)
class FromWorker:
    """A message of the worker."""

    message: AgentMessage


@dataclass(frozen=True)
class WorkerExited:
    """The worker's process has ended; ``message``: the essential line, if any is known."""

    exit_code: int
    message: str = ""


@dataclass(frozen=True)
class Progressed:
    """The shared page: instructions finished, step, the longest instruction so far in seconds."""

    word: int
    step: int
    longest_s: float = 0.0


@dataclass(frozen=True)
class PeerHeard:
    """Something came over the liveness socket of that agent."""

    agent: AgentId


@dataclass(frozen=True)
class PeerClosed:
    """The liveness socket of that agent is closed, reset or refused."""

    agent: AgentId


@dataclass(frozen=True)
class Departing:
    """The pod will go away in ``lead_s`` seconds (0: unknown): SIGTERM, metadata, taint."""

    lead_s: float
    reason: str
    is_signal: bool = True


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = (
    SessionOpened | SessionClosed | FromOperator | FromWorker | WorkerExited | Progressed
    | PeerHeard | PeerClosed | Departing | Tick
)  # fmt: skip

# ---------------------------------------------------------------- effects


@dataclass(frozen=True)
class SendOperator:
    """Send over the session."""

    message: AgentMessage


@dataclass(frozen=True)
class CloseSession:
    """Close the stream and open another after so many seconds."""

    after_s: float
    reason: str


@dataclass(frozen=True)
class SpawnWorker:
    """Start the worker's process and hand it the Welcome."""

    welcome: Welcome


@dataclass(frozen=True)
class ToWorker:
    """Pass on to the worker."""

    message: Stop | Directive | Continuation


@dataclass(frozen=True)
class KillWorker:
    """SIGKILL; a WorkerExited follows."""

    reason: str


@dataclass(frozen=True)
class ConnectLiveness:
    """Hold liveness sockets to exactly these; ``key`` is this agent's own."""

    peers: tuple[Peer, ...]
    key: bytes


@dataclass(frozen=True)
class Exit:
    """Flush the session for a moment, end the worker, end the process with this code."""

    code: int
    reason: str


Effect = SendOperator | CloseSession | SpawnWorker | ToWorker | KillWorker | ConnectLiveness | Exit

_KEPT = (Sealed, BadCheckpoint, Failure, Progress)
_MAX_KEPT = 1024
_NEVER = Fence()


class _Worker(IntEnum):
    NONE = 0
    STARTING = 1
    READY = 2
    GONE = 3


@dataclass
class Supervisor:
    """State of one supervisor. ``identity``: its Hello, with the fields that never change."""

    identity: Hello
    timing: Timing = Timing()
    fence: Fence = _NEVER
    installed: Fence = _NEVER
    step: int = 0
    word: int = 0
    longest_s: float = 0.0
    welcome: Welcome | None = None
    is_over: bool = False
    _is_open: bool = False
    _is_welcome: bool = False
    _directive: Directive | None = None  # waits for its continuation
    _worker: _Worker = _Worker.NONE
    _ready: Ready | None = None
    _end: Finished | Left | None = None
    _overdue_at: float | None = None
    _is_loading: bool = False
    _departs_at: float | None = None
    _gone_at: float | None = None
    _why_gone: str = ""
    _is_signalled: bool = False
    _contact_at: float | None = None
    _progress_at: float = 0.0
    _beat_at: float = 0.0
    _beats: int = 0
    _heard: dict[AgentId, float] = field(default_factory=dict)
    _suspected: set[AgentId] = field(default_factory=set)
    _kept: deque[AgentMessage] = field(default_factory=lambda: deque(maxlen=_MAX_KEPT))

    def handle(self, event: Event, now: float) -> list[Effect]:
        """What to do about the event, in order. Never raises on anything that came from outside."""
        if self.is_over:
            return []
        if self._contact_at is None:
            self._contact_at = now
        match event:
            case SessionOpened():
                return self._opened()
            case SessionClosed():
                self._is_open = self._is_welcome = False
                return []
            case FromOperator(message):
                return self._from_operator(message, now)
            case FromWorker(message):
                return self._from_worker(message, now)
            case WorkerExited(code, text):
                return self._worker_exited(code, text)
            case Progressed():
                return self._progressed(event, now)
            case PeerHeard(agent):
                if agent in self._heard:
                    self._heard[agent] = now
                return []
            case PeerClosed(agent):
                return self._suspect(agent, Cause.LIVENESS_CLOSED)
            case Departing():
                return self._departing(event, now)
            case Tick():
                return self._tick(now)

    # ------------------------------------------------------------ session

    def _opened(self) -> list[Effect]:
        self._is_open, self._is_welcome = True, False
        has_state = self._worker in (_Worker.STARTING, _Worker.READY) and self.fence > _NEVER
        hello = replace(self.identity, fence=self.fence, has_state=has_state)
        return [SendOperator(hello)]

    def _from_operator(self, message: OperatorMessage, now: float) -> list[Effect]:
        if not self._is_open:
            return []
        self._contact_at = now
        if isinstance(message, Welcome):
            return self._welcomed(message, now)
        if not self._is_welcome:
            return []
        match message:
            case Stop():
                return self._stopped(message, now)
            case Directive():
                return self._directed(message, now)
            case Continuation():
                return self._continued(message, now)
            case Release(code, reason):
                return self._exit(code, reason)
            case Reconnect(after_s):
                self._is_open = self._is_welcome = False
                return [CloseSession(after_s, "the operator asked for it")]

    def _welcomed(self, welcome: Welcome, now: float) -> list[Effect]:
        """A leader of an older term than one that has been followed is a leader no more."""
        if welcome.term < self.fence.term:
            self._is_open = self._is_welcome = False
            return [CloseSession(1.0, f"term {welcome.term} is older than {self.fence.term}")]
        self._is_welcome = True
        self._beat_at = now
        effects: list[Effect] = []
        if self.welcome is None:
            self._worker = _Worker.STARTING
            effects.append(SpawnWorker(welcome))
        self.welcome = welcome
        if self._ready is not None:
            effects.append(SendOperator(self._ready))
        if self._gone_at is not None:
            effects.append(SendOperator(self._notice(self._gone_at, now)))
        effects += [SendOperator(m) for m in self._kept]
        self._kept.clear()
        if self._end is not None:
            effects.append(SendOperator(self._end))
        return effects

    def _tell(self, message: AgentMessage) -> list[Effect]:
        if self._is_welcome:
            return [SendOperator(message)]
        if isinstance(message, _KEPT):
            self._kept.append(message)
        return []

    # ------------------------------------------------------------ orders

    def _stopped(self, stop: Stop, now: float) -> list[Effect]:
        """Adopt the fence; a worker that does not report in time is killed."""
        if stop.fence < self.fence or self._worker not in (_Worker.STARTING, _Worker.READY):
            return []
        if stop.fence > self.fence:
            self.fence, self._end = stop.fence, None
        if self._worker is _Worker.READY and self.installed != self.fence:
            floor_s = self.timing.report_floor_s
            if self._is_loading:
                floor_s = self.timing.loading_floor_s
            self._overdue_at = now + max(floor_s, 3 * self.longest_s)
        return [ToWorker(stop)]

    def _directed(self, directive: Directive, now: float) -> list[Effect]:
        if directive.fence != self.fence or self.installed == self.fence:
            return []
        self.installed, self._overdue_at = self.fence, None
        self._directive = directive if directive.has_continuation else None
        self._progress_at = now
        self._is_loading = any(x.op in (Op.INIT, Op.LOAD) for x in directive.resume)
        return [ToWorker(directive), *self._watch(directive.peers, directive.key, now)]

    def _continued(self, rest: Continuation, now: float) -> list[Effect]:
        """The second part of the plan: once, and of no other plan."""
        first = self._directive
        if first is None or self.installed != self.fence:
            return []
        if (rest.fence, rest.plan_hash) != (first.fence, first.plan_hash):
            return []
        self._directive = None
        self._progress_at = now
        return [ToWorker(rest), *self._connect(rest.peers, first.key, now)]

    def _watch(self, peers: tuple[Peer, ...], key: bytes, now: float) -> list[Effect]:
        """Peers of the new plan. All get a fresh start: the plan has no lost agent."""
        self._heard.clear()
        self._suspected.clear()
        return self._connect(peers, key, now)

    def _connect(self, peers: tuple[Peer, ...], key: bytes, now: float) -> list[Effect]:
        """Liveness sockets to exactly these peers; new ones have time to connect."""
        grace = now + self.timing.connect_s - self.timing.silence_s
        heard = self._heard
        self._heard = {
            p.agent: heard.get(p.agent, grace) for p in peers if p.agent != self.identity.agent
        }
        return [ConnectLiveness(peers, key)]

    # ------------------------------------------------------------ worker

    def _from_worker(self, message: AgentMessage, now: float) -> list[Effect]:
        self._progress_at = now
        match message:
            case Ready():
                self._worker, self._ready = _Worker.READY, message
                return [SendOperator(message)] if self._is_welcome else []
            case AgentReport():
                if message.fence != self.fence:
                    return []
                self._overdue_at = None
                return self._tell(message)
            case Suspicion():
                return self._tell(message) if message.fence == self.fence else []
            case Progress():
                self._is_loading = False
                return self._tell(message)
            case Failure():
                return self._failed(message)
            case Left():
                return self._left(message)
            case Finished():
                self._end = message
                return [SendOperator(message)] if self._is_welcome else []
            case _:
                return self._tell(message)

    def _left(self, left: Left) -> list[Effect]:
        self._end = left
        effects: list[Effect] = [SendOperator(left)] if self._is_welcome else []
        if self._is_signalled:
            effects += self._exit(ExitCode.DRAINED, "drained")
        return effects

    def _failed(self, failure: Failure) -> list[Effect]:
        self._worker = _Worker.GONE
        code = ExitCode.USER if failure.user_error else ExitCode.FAILED
        return self._tell(failure) + self._exit(code, f"{failure.reason}: {failure.message}")

    def _worker_exited(self, code: int, text: str) -> list[Effect]:
        """Its results are gone with it: the pod ends and another takes its place."""
        self._worker = _Worker.GONE
        if self._end is not None and code == 0:
            return []
        user_error = code == ExitCode.USER
        message = text or f"the worker ended with code {code}"
        return self._failed(Failure("WorkerExited", message, user_error, code))

    def _progressed(self, event: Progressed, now: float) -> list[Effect]:
        if event.word != self.word:
            self._progress_at = now
        self.word, self.step = event.word, event.step
        self.longest_s = max(self.longest_s, event.longest_s)
        return []

    # ------------------------------------------------------------ peers

    def _suspect(self, agent: AgentId, cause: Cause) -> list[Effect]:
        """Once per peer and plan; in a new plan what is still broken is told again."""
        if agent not in self._heard or agent in self._suspected:
            return []
        self._suspected.add(agent)
        return self._tell(Suspicion(agent, cause, self.fence))

    # ------------------------------------------------------------ departure and time

    def _departing(self, event: Departing, now: float) -> list[Effect]:
        """An agent of the plan hands over before it goes; one without a part goes at once."""
        self._is_signalled = self._is_signalled or event.is_signal
        gone_at = now + event.lead_s
        if self._gone_at is None or gone_at < self._gone_at:
            self._gone_at, self._why_gone = gone_at, event.reason
        if self.installed == _NEVER or isinstance(self._end, Left):
            told = self._tell(Notice(event.lead_s, event.reason))
            return told + self._exit(ExitCode.DRAINED, event.reason) if event.is_signal else told
        if event.is_signal:
            lead_s = max(0.0, event.lead_s - self.timing.departure_margin_s)
            self._departs_at = now + lead_s
        return self._tell(Notice(event.lead_s, event.reason))

    def _notice(self, gone_at: float, now: float) -> Notice:
        return Notice(max(0.0, gone_at - now), self._why_gone)

    def _tick(self, now: float) -> list[Effect]:
        if self._departs_at is not None and now >= self._departs_at:
            return self._exit(ExitCode.DRAINED, "the grace period is over")
        if self._is_lease_over(now):
            return self._exit(ExitCode.FENCED, "no operator and no progress for the lease's length")
        effects = self._late_worker(now)
        for agent, at in sorted(self._heard.items()):
            if now - at > self.timing.silence_s:
                effects += self._suspect(agent, Cause.LIVENESS_SILENT)
        return effects + self._heartbeat(now)

    def _late_worker(self, now: float) -> list[Effect]:
        if self._overdue_at is None or now < self._overdue_at:
            return []
        self._overdue_at = None
        return [KillWorker("no report in time after STOP")]

    def _heartbeat(self, now: float) -> list[Effect]:
        if not self._is_welcome or self.welcome is None or now < self._beat_at:
            return []
        self._beat_at, self._beats = now + self.welcome.heartbeat_s, self._beats + 1
        return [SendOperator(Heartbeat(self._beats, self.step, self.word))]

    def _is_lease_over(self, now: float) -> bool:
        """Neither operator nor progress: nobody will come back for what is held here."""
        if self._is_welcome:
            return False
        lease_s = self.welcome.lease_s if self.welcome is not None else Welcome.lease_s
        since = max(self._contact_at if self._contact_at is not None else now, self._progress_at)
        return now - since > lease_s

    def _exit(self, code: int, reason: str) -> list[Effect]:
        self.is_over = True
        return [Exit(int(code), reason)]
