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
from bamboo_core.protocol.supervisor_io import CloseSession as CloseSession
from bamboo_core.protocol.supervisor_io import ConnectLiveness as ConnectLiveness
from bamboo_core.protocol.supervisor_io import Departing as Departing
from bamboo_core.protocol.supervisor_io import Effect as Effect
from bamboo_core.protocol.supervisor_io import Event as Event
from bamboo_core.protocol.supervisor_io import Exit as Exit
from bamboo_core.protocol.supervisor_io import FromOperator as FromOperator
from bamboo_core.protocol.supervisor_io import FromWorker as FromWorker
from bamboo_core.protocol.supervisor_io import KillWorker as KillWorker
from bamboo_core.protocol.supervisor_io import PeerClosed as PeerClosed
from bamboo_core.protocol.supervisor_io import PeerHeard as PeerHeard
from bamboo_core.protocol.supervisor_io import Progressed as Progressed
from bamboo_core.protocol.supervisor_io import SendOperator as SendOperator
from bamboo_core.protocol.supervisor_io import SessionClosed as SessionClosed
from bamboo_core.protocol.supervisor_io import SessionOpened as SessionOpened
from bamboo_core.protocol.supervisor_io import SpawnWorker as SpawnWorker
from bamboo_core.protocol.supervisor_io import Tick as Tick
from bamboo_core.protocol.supervisor_io import ToWorker as ToWorker
from bamboo_core.protocol.supervisor_io import WorkerExited as WorkerExited


@dataclass(frozen=True)
class Timing:
    """Seconds. A stopped worker must report within max(floor, 3 x its longest instruction)."""

    silence_s: float = 1.0  # a peer not heard for so long is suspected
    connect_s: float = 2.0  # for new peers to connect
    report_floor_s: float = 2.0
    loading_floor_s: float = 30.0  # instead, while it builds or loads layers: never measured before
    departure_margin_s: float = 1.0  # the process exits so long before the grace period ends


_MUST_ARRIVE = (Sealed, BadCheckpoint, Failure, Progress)
_MAX_UNSENT = 1024
_NEVER = Fence()


class _Worker(IntEnum):
    NONE = 0
    STARTING = 1
    READY = 2
    GONE = 3


@dataclass
class Supervisor:
    """The state of one supervisor. Times are on the clock of ``handle``; None: not set."""

    identity: Hello  # its Hello, with the fields that never change
    timing: Timing = Timing()
    fence: Fence = _NEVER  # newest adopted
    installed: Fence = _NEVER  # newest whose directive was passed on to the worker
    step: int = 0
    word: int = 0  # instructions that the worker has finished
    longest_s: float = 0.0  # the worker's longest instruction
    welcome: Welcome | None = None  # newest
    is_over: bool = False  # Exit has been returned
    is_open: bool = False  # a stream to the operator is open
    _is_admitted: bool = False  # the operator has answered the Hello of this stream
    _directive: Directive | None = None  # waits for its continuation
    _worker: _Worker = _Worker.NONE
    _ready: Ready | None = None
    _outcome: Finished | Left | None = None  # sent again in every session
    _report_due_at: float | None = None  # a later report: the worker is killed
    _is_loading: bool = False  # the plan builds or loads layers and has committed nothing yet
    _exit_at: float | None = None  # when the grace period ends
    _leaves_at: float | None = None  # when the pod or its node will be gone
    _leave_reason: str = ""
    _is_signalled: bool = False
    _contact_at: float | None = None  # last message of the operator
    _progress_at: float = 0.0
    _heartbeat_at: float = 0.0  # when the next one is due
    _heartbeats: int = 0
    _heard_at: dict[AgentId, float] = field(default_factory=dict)  # peers of the plan
    _suspected: set[AgentId] = field(default_factory=set)  # reported in this plan
    _unsent: deque[AgentMessage] = field(default_factory=lambda: deque(maxlen=_MAX_UNSENT))

    def handle(self, event: Event, now: float) -> list[Effect]:
        """The effects to perform, in order. No message from outside makes it raise."""
        if self.is_over:
            return []
        if self._contact_at is None:
            self._contact_at = now
        match event:
            case SessionOpened():
                return self._opened()
            case SessionClosed():
                self.is_open = self._is_admitted = False
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
                if agent in self._heard_at:
                    self._heard_at[agent] = now
                return []
            case PeerClosed(agent):
                return self._suspect(agent, Cause.LIVENESS_CLOSED)
            case Departing():
                return self._departing(event, now)
            case Tick():
                return self._tick(now)

    # ------------------------------------------------------------ session

    def _opened(self) -> list[Effect]:
        self.is_open, self._is_admitted = True, False
        has_state = self._worker in (_Worker.STARTING, _Worker.READY) and self.fence > _NEVER
        hello = replace(self.identity, fence=self.fence, has_state=has_state)
        return [SendOperator(hello)]

    def _from_operator(self, message: OperatorMessage, now: float) -> list[Effect]:
        if not self.is_open:
            return []
        self._contact_at = now
        if isinstance(message, Welcome):
            return self._welcomed(message, now)
        if not self._is_admitted:
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
                self.is_open = self._is_admitted = False
                return [CloseSession(after_s, "the operator asked for it")]

    def _welcomed(self, welcome: Welcome, now: float) -> list[Effect]:
        """Leave a leader of an older term than the fence: it has been replaced."""
        if welcome.term < self.fence.term:
            self.is_open = self._is_admitted = False
            return [CloseSession(1.0, f"term {welcome.term} is older than {self.fence.term}")]
        self._is_admitted = True
        self._heartbeat_at = now
        effects: list[Effect] = []
        if self.welcome is None:
            self._worker = _Worker.STARTING
            effects.append(SpawnWorker(welcome))
        self.welcome = welcome
        if self._ready is not None:
            effects.append(SendOperator(self._ready))
        if self._leaves_at is not None:
            effects.append(SendOperator(self._notice(self._leaves_at, now)))
        effects += [SendOperator(m) for m in self._unsent]
        self._unsent.clear()
        if self._outcome is not None:
            effects.append(SendOperator(self._outcome))
        return effects

    def _send(self, message: AgentMessage) -> list[Effect]:
        if self._is_admitted:
            return [SendOperator(message)]
        if isinstance(message, _MUST_ARRIVE):
            self._unsent.append(message)
        return []

    # ------------------------------------------------------------ orders

    def _stopped(self, stop: Stop, now: float) -> list[Effect]:
        """Adopt the fence and start the deadline for the worker's report."""
        if stop.fence < self.fence or self._worker not in (_Worker.STARTING, _Worker.READY):
            return []
        if stop.fence > self.fence:
            self.fence, self._outcome = stop.fence, None
        if self._worker is _Worker.READY and self.installed != self.fence:
            floor_s = self.timing.report_floor_s
            if self._is_loading:
                floor_s = self.timing.loading_floor_s
            self._report_due_at = now + max(floor_s, 3 * self.longest_s)
        return [ToWorker(stop)]

    def _directed(self, directive: Directive, now: float) -> list[Effect]:
        if directive.fence != self.fence or self.installed == self.fence:
            return []
        self.installed, self._report_due_at = self.fence, None
        self._directive = directive if directive.has_continuation else None
        self._progress_at = now
        self._is_loading = any(x.op in (Op.INIT, Op.LOAD) for x in directive.resume)
        return [ToWorker(directive), *self._watch(directive.peers, directive.key, now)]

    def _continued(self, rest: Continuation, now: float) -> list[Effect]:
        """Pass on the continuation of the installed directive, once."""
        first = self._directive
        if first is None or self.installed != self.fence:
            return []
        if (rest.fence, rest.plan_hash) != (first.fence, first.plan_hash):
            return []
        self._directive = None
        self._progress_at = now
        return [ToWorker(rest), *self._connect(rest.peers, first.key, now)]

    def _watch(self, peers: tuple[Peer, ...], key: bytes, now: float) -> list[Effect]:
        """Watch the peers of a new plan. Nobody in it is suspected: it has no lost agents."""
        self._heard_at.clear()
        self._suspected.clear()
        return self._connect(peers, key, now)

    def _connect(self, peers: tuple[Peer, ...], key: bytes, now: float) -> list[Effect]:
        """Connect to exactly these peers. New ones have ``connect_s`` before silence counts."""
        grace = now + self.timing.connect_s - self.timing.silence_s
        heard = self._heard_at
        self._heard_at = {
            p.agent: heard.get(p.agent, grace) for p in peers if p.agent != self.identity.agent
        }
        return [ConnectLiveness(peers, key)]

    # ------------------------------------------------------------ worker

    def _from_worker(self, message: AgentMessage, now: float) -> list[Effect]:
        self._progress_at = now
        match message:
            case Ready():
                self._worker, self._ready = _Worker.READY, message
                return [SendOperator(message)] if self._is_admitted else []
            case AgentReport():
                if message.fence != self.fence:
                    return []
                self._report_due_at = None
                return self._send(message)
            case Suspicion():
                return self._send(message) if message.fence == self.fence else []
            case Progress():
                self._is_loading = False
                return self._send(message)
            case Failure():
                return self._failed(message)
            case Left():
                return self._left(message)
            case Finished():
                self._outcome = message
                return [SendOperator(message)] if self._is_admitted else []
            case _:
                return self._send(message)

    def _left(self, left: Left) -> list[Effect]:
        self._outcome = left
        effects: list[Effect] = [SendOperator(left)] if self._is_admitted else []
        if self._is_signalled:
            effects += self._exit(ExitCode.DRAINED, "drained")
        return effects

    def _failed(self, failure: Failure) -> list[Effect]:
        self._worker = _Worker.GONE
        code = ExitCode.USER if failure.user_error else ExitCode.FAILED
        return self._send(failure) + self._exit(code, f"{failure.reason}: {failure.message}")

    def _worker_exited(self, code: int, text: str) -> list[Effect]:
        """Its state is lost: the pod exits, and another replaces it."""
        self._worker = _Worker.GONE
        if self._outcome is not None and code == 0:
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
        """Report a peer once per plan."""
        if agent not in self._heard_at or agent in self._suspected:
            return []
        self._suspected.add(agent)
        return self._send(Suspicion(agent, cause, self.fence))

    # ------------------------------------------------------------ departure and time

    def _departing(self, event: Departing, now: float) -> list[Effect]:
        """An agent in a plan hands over first; any other exits at once."""
        self._is_signalled = self._is_signalled or event.is_signal
        leaves_at = now + event.lead_s
        if self._leaves_at is None or leaves_at < self._leaves_at:
            self._leaves_at, self._leave_reason = leaves_at, event.reason
        if self.installed == _NEVER or isinstance(self._outcome, Left):
            effects = self._send(Notice(event.lead_s, event.reason))
            if event.is_signal:
                effects += self._exit(ExitCode.DRAINED, event.reason)
            return effects
        if event.is_signal:
            self._exit_at = now + max(0.0, event.lead_s - self.timing.departure_margin_s)
        return self._send(Notice(event.lead_s, event.reason))

    def _notice(self, leaves_at: float, now: float) -> Notice:
        return Notice(max(0.0, leaves_at - now), self._leave_reason)

    def _tick(self, now: float) -> list[Effect]:
        if self._exit_at is not None and now >= self._exit_at:
            return self._exit(ExitCode.DRAINED, "the grace period has ended")
        if self._is_lease_over(now):
            return self._exit(ExitCode.FENCED, "no operator and no progress for the lease's length")
        effects = self._late_worker(now)
        for agent, at in sorted(self._heard_at.items()):
            if now - at > self.timing.silence_s:
                effects += self._suspect(agent, Cause.LIVENESS_SILENT)
        return effects + self._heartbeat(now)

    def _late_worker(self, now: float) -> list[Effect]:
        if self._report_due_at is None or now < self._report_due_at:
            return []
        self._report_due_at = None
        return [KillWorker("no report in time after STOP")]

    def _heartbeat(self, now: float) -> list[Effect]:
        if not self._is_admitted or self.welcome is None or now < self._heartbeat_at:
            return []
        self._heartbeat_at, self._heartbeats = now + self.welcome.heartbeat_s, self._heartbeats + 1
        return [SendOperator(Heartbeat(self._heartbeats, self.step, self.word))]

    def _is_lease_over(self, now: float) -> bool:
        """Whether neither operator nor worker has shown a sign of life for the lease."""
        if self._is_admitted:
            return False
        lease_s = self.welcome.lease_s if self.welcome is not None else Welcome.lease_s
        since = max(self._contact_at if self._contact_at is not None else now, self._progress_at)
        return now - since > lease_s

    def _exit(self, code: int, reason: str) -> list[Effect]:
        self.is_over = True
        return [Exit(int(code), reason)]
