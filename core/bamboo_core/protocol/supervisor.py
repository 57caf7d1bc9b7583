"""An agent's supervisor as a pure state machine: session, worker, liveness, notices, lease.

The shell (bamboo_agent.supervisor.shell, or the explorer) turns what it observes into events, calls
``Supervisor.handle(event, now)`` and performs the effects in order. ``now`` is a monotonic clock in
seconds, the same in all calls. The machine never sleeps: the shell sends a ``Tick`` several times
per heartbeat. Nothing follows an ``Exit``.

A stream that breaks loses its last words, and a new leader has heard nothing. So every session
begins with a repetition of what counts: Ready, the notice that this agent will leave, and
:class:`~bamboo_core.protocol.said.Said`. Reports are not repeated, since a new session asks for
them again. A failure is said once and ends this process, which tells the same by its exit code.
Suspicions and the worker's activity are part of every heartbeat.

Deadlines are attentive time (:mod:`bamboo_core.protocol.clock`): what this process missed while it
stood still is not held against its worker or its peers. The end of the pod is real time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum

from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.clock import PatientClock
from bamboo_core.protocol.exit_codes import ExitCode, is_from_outside
from bamboo_core.protocol.messages import (
    Activity,
    ActivityKind,
    AgentMessage,
    AgentReport,
    BadCheckpoint,
    Cause,
    Continuation,
    Directive,
    Disputed,
    Failure,
    Finished,
    Halted,
    Heartbeat,
    Hello,
    Left,
    Listed,
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
from bamboo_core.protocol.said import Said
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
from bamboo_core.protocol.watch import Transfers, Watch


@dataclass(frozen=True)
class Timing:
    """Seconds. A stopped worker must report within max(floor, 3 x its longest instruction, what is
    left of the limit of the instruction that runs)."""

    silence_s: float = 1.0  # a peer not heard for so long is suspected
    connect_s: float = 2.0  # for new peers to connect
    report_floor_s: float = 2.0
    departure_margin_s: float = 1.0  # the process exits so long before the grace period ends
    attention_s: float = 0.5  # a pause of this process counts as at most so long
    activity_s: float = 1.0  # what the worker does is told once it has lasted so long


_REPEATED = (Progress, Sealed, BadCheckpoint, Listed, Disputed, Halted, Left, Finished)
START_DEADLINE_EXCEEDED = "StartDeadlineExceeded"
_SIGNALS = 128  # exit codes above are signals
_KILLED = _SIGNALS + 9
_SAMPLE = " reads sample "
_ITS_CODE = (
    "code that it runs may not end the process, and has to raise an error instead; the agent's log"
    " may say why it did"
)
_TOO_LARGE = "the sample may take more memory than there is, or may have killed the process"
_CRASH = "native code has crashed; the agent's log has the stack"
_NEVER = Fence()


class _Worker(IntEnum):
    NONE = 0
    STARTING = 1
    READY = 2
    GONE = 3


@dataclass
class Supervisor:
    """The state of one supervisor. Times are attentive unless they say otherwise; None: not set."""

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
    _started_at: float | None = None  # the worker began to build model and data
    _report_due_at: float | None = None  # then the worker is killed, unless an instruction runs
    _has_killed: bool = False  # the worker, which did not report
    _exit_at: float | None = None  # real time: when the grace period ends
    _leaves_at: float | None = None  # real time: when the pod or its node will be gone
    _leave_reason: str = ""
    _leave_source: str = ""
    _hint: Notice | None = None  # newest; of no meaning once the agent will leave
    _is_signalled: bool = False
    _seen_at: float | None = None  # last sign of life of operator or worker
    _heartbeat_at: float = 0.0  # when the next one is due
    _heartbeats: int = 0
    _doing: Progressed | None = None  # newest
    _doing_since: float = 0.0  # the worker has given no sign of life since
    _time: float = 0.0  # attentive time of the present event
    _clock: PatientClock = field(init=False)
    _said: Said = field(default_factory=Said)
    _watch: Watch = field(default_factory=Watch)
    _transfers: Transfers = field(default_factory=Transfers)

    def __post_init__(self) -> None:
        self._clock = PatientClock(self.timing.attention_s)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """The effects to perform, in order. No message from outside makes it raise."""
        if self.is_over:
            return []
        self._time = self._clock.read(now)
        if self._seen_at is None:
            self._seen_at = self._time
        match event:
            case SessionOpened():
                return self._opened()
            case SessionClosed():
                self.is_open = self._is_admitted = False
                return []
            case FromOperator(message):
                return self._from_operator(message, now)
            case FromWorker(message):
                return self._from_worker(message)
            case WorkerExited(code, text, place):
                return self._worker_exited(code, text, place)
            case Progressed():
                return self._progressed(event)
            case PeerHeard(agent):
                self._watch.hear(agent, self._time)
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
        self._seen_at = self._time
        if isinstance(message, Welcome):
            return self._welcomed(message, now)
        if not self._is_admitted:
            return []
        match message:
            case Stop():
                return self._stopped(message)
            case Directive():
                return self._directed(message)
            case Continuation():
                return self._continued(message)
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
        self._heartbeat_at = self._time
        effects: list[Effect] = []
        if self.welcome is None:
            self._worker, self._started_at = _Worker.STARTING, self._time
            effects.append(SpawnWorker(welcome))
        self.welcome = welcome
        if self._ready is not None:
            effects.append(SendOperator(self._ready))
        if self._leaves_at is not None:
            effects.append(SendOperator(self._notice(self._leaves_at, now)))
        elif self._hint is not None:
            effects.append(SendOperator(self._hint))
        return effects + [SendOperator(word) for word in self._said.words()]

    def _send(self, message: AgentMessage) -> list[Effect]:
        if isinstance(message, _REPEATED):
            self._said.add(message)
        return [SendOperator(message)] if self._is_admitted else []

    # ------------------------------------------------------------ orders

    def _stopped(self, stop: Stop) -> list[Effect]:
        """Adopt the fence and start the deadline for the worker's report."""
        if stop.fence < self.fence or self._worker not in (_Worker.STARTING, _Worker.READY):
            return []
        if stop.fence > self.fence:
            self.fence = stop.fence
            self._said.stop()
            self._watch.reconnect()
            self._transfers.begin()
        if self._worker is _Worker.READY and self.installed != self.fence:
            least_s = max(self.timing.report_floor_s, 3 * self.longest_s)
            self._report_due_at = self._time + least_s
        return [ToWorker(stop)]

    def _directed(self, directive: Directive) -> list[Effect]:
        if directive.fence != self.fence or self.installed == self.fence:
            return []
        self.installed, self._report_due_at = self.fence, None
        self._directive = directive if directive.has_continuation else None
        self._doing_since = self._time
        self._said.install(self.fence)
        self._watch.begin()  # a plan has no lost agents
        return [ToWorker(directive), *self._connect(directive.peers, directive.key)]

    def _continued(self, rest: Continuation) -> list[Effect]:
        """Pass on the continuation of the installed directive, once."""
        first = self._directive
        if first is None or self.installed != self.fence:
            return []
        if (rest.fence, rest.plan_hash) != (first.fence, first.plan_hash):
            return []
        self._directive = None
        self._doing_since = self._time
        return [ToWorker(rest), *self._connect(rest.peers, first.key)]

    def _connect(self, peers: tuple[Peer, ...], key: bytes) -> list[Effect]:
        """Connect to exactly these peers. New ones have ``connect_s`` before silence counts."""
        grace = self._time + self.timing.connect_s - self.timing.silence_s
        others = [p.agent for p in peers if p.agent != self.identity.agent]
        self._watch.expect(others, grace)
        self._transfers.expect(others)
        return [ConnectLiveness(peers, key)]

    # ------------------------------------------------------------ worker

    def _from_worker(self, message: AgentMessage) -> list[Effect]:
        self._seen_at = self._doing_since = self._time
        match message:
            case Ready():
                self._worker, self._ready = _Worker.READY, message
                return self._send(message)
            case AgentReport():
                if message.fence != self.fence:
                    return []
                self._report_due_at = None
                self._said.report(message.fence)
                return self._send(message)
            case Suspicion():
                is_present = message.fence == self.fence
                return self._suspect(message.agent, message.cause) if is_present else []
            case Failure():
                return self._failed(message)
            case Left():
                ends = self._exit(ExitCode.DRAINED, "drained") if self._is_signalled else []
                return self._send(message) + ends
            case _:
                return self._send(message)

    def _failed(self, failure: Failure) -> list[Effect]:
        self._worker = _Worker.GONE
        code = ExitCode.USER if failure.user_error else ExitCode.FAILED
        return self._send(failure) + self._exit(code, f"{failure.reason}: {failure.message}")

    def _worker_exited(self, code: int, text: str, place: str) -> list[Effect]:
        """Its state is lost: the pod exits, and another replaces it. place: what it ran; it counts
        if its code, or the data, called exit or crashed."""
        is_set_up = self._worker is _Worker.STARTING
        self._worker = _Worker.GONE
        if self._said.outcome is not None and code == 0:
            return []
        message = text or f"the worker ended with code {code}"
        place *= code != ExitCode.THREAD_DIED  # another thread was at fault
        is_its_own = not is_from_outside(code)
        if place:
            where = f"the set-up of {place}" if is_set_up else place
            message += f", in {where}"
        if place and is_its_own:
            message += f": {_ITS_CODE if code < _SIGNALS else _CRASH}"
        elif code == _KILLED and _SAMPLE in place and not self._has_killed:
            is_its_own = True
            message += f": {_TOO_LARGE}"
        found = place if is_its_own and not is_set_up else ""  # else nobody has computed the same
        user_error = code == ExitCode.USER and not found  # code of the user's may end so, too
        return self._failed(Failure("WorkerExited", message, user_error, code, found))

    def _progressed(self, event: Progressed) -> list[Effect]:
        if event.word != self.word:
            self._seen_at = self._time
        if self._doing is None or _is_another(self._doing, event):
            self._doing_since = self._time
        self._doing = event
        self._look_at_transfer()
        self.word, self.step = event.word, event.step
        self.longest_s = max(self.longest_s, event.longest_s)
        return []

    def _look_at_transfer(self) -> None:
        doing = self._doing
        if doing is not None:
            peer = doing.peer if doing.kind is ActivityKind.WAITING else None
            self._transfers.look(self._time, peer, doing.received or 0, is_coming=doing.is_coming)

    def _activity(self) -> Activity | None:
        """The worker's activity, once it has lasted for a while, or waits for what is too slow."""
        if self._worker is _Worker.STARTING and self._started_at is not None:
            limit_s = self.welcome.start_s if self.welcome is not None else 0.0
            found = Activity(ActivityKind.STARTING, self._time - self._started_at, limit_s)
        elif (doing := self._doing) is not None:
            age_s = self._time - self._doing_since
            found = Activity(doing.kind, age_s, doing.limit_s, doing.instruction, doing.peer)
            if (slow := self._transfers.slow()) is not None:
                return replace(found, still_s=slow.seconds, rate=slow.rate)
        else:
            return None
        return found if found.age_s > self.timing.activity_s else None

    # ------------------------------------------------------------ peers

    def _suspect(self, agent: AgentId, cause: Cause) -> list[Effect]:
        """Tell the operator at once. Every heartbeat repeats it while it holds."""
        return self._heartbeat() if self._watch.suspect(agent, cause) else []

    # ------------------------------------------------------------ departure and time

    def _departing(self, event: Departing, now: float) -> list[Effect]:
        """An agent in a plan hands over first, any other exits at once. A hint is passed on."""
        if event.is_hint:
            self._hint = Notice(event.lead_s, event.reason, event.source, is_hint=True)
            return self._send(self._hint)
        self._is_signalled = self._is_signalled or event.is_signal
        leaves_at = now + event.lead_s
        if self._leaves_at is None or leaves_at < self._leaves_at:
            self._leaves_at = leaves_at
            self._leave_reason, self._leave_source = event.reason, event.source
        notice = Notice(event.lead_s, event.reason, event.source)
        if self.installed == _NEVER or isinstance(self._said.outcome, Left):
            effects = self._send(notice)
            if event.is_signal:
                effects += self._exit(ExitCode.DRAINED, event.reason)
            return effects
        if event.is_signal:
            self._exit_at = now + max(0.0, event.lead_s - self.timing.departure_margin_s)
        return self._send(notice)

    def _notice(self, leaves_at: float, now: float) -> Notice:
        return Notice(max(0.0, leaves_at - now), self._leave_reason, self._leave_source)

    def _tick(self, now: float) -> list[Effect]:
        self._look_at_transfer()
        if self._is_admitted:
            self._seen_at = self._time  # an operator that has nothing to say is there, too
        if self._exit_at is not None and now >= self._exit_at:
            return self._exit(ExitCode.DRAINED, "the grace period has ended")
        if self._is_lease_over():
            return self._exit(ExitCode.FENCED, "no operator and no progress for the lease's length")
        if self._is_start_late():
            return self._end_start()
        has_news = self._watch.look(self._time, self.timing.silence_s)
        is_due = has_news or self._time >= self._heartbeat_at
        return self._late_worker() + (self._heartbeat() if is_due else [])

    def _late_worker(self) -> list[Effect]:
        if self._report_due_at is None or self._time < self._report_due_at:
            return []
        if self._is_within_limit():
            return []
        self._report_due_at, self._has_killed = None, True
        return [KillWorker("no report in time after STOP")]

    def _is_within_limit(self) -> bool:
        """Whether an instruction runs and is not overdue. The STOP cannot end it. One that only
        waits for the storage has no limit, since the STOP abandons it."""
        doing = self._doing
        if doing is None or doing.kind not in (ActivityKind.RUNNING, ActivityKind.LOADING):
            return False
        return self._time - self._doing_since < doing.limit_s

    def _is_start_late(self) -> bool:
        if self._worker is not _Worker.STARTING or self._started_at is None:
            return False
        start_s = self.welcome.start_s if self.welcome is not None else 0.0
        return 0 < start_s <= self._time - self._started_at

    def _end_start(self) -> list[Effect]:
        assert self.welcome is not None
        text = (
            f"spec.model.factory and spec.data.factory have not finished within"
            f" {self.welcome.start_s:g} s; make them faster, or raise"
            " spec.runPolicy.startDeadlineSeconds"
        )
        failure = Failure(START_DEADLINE_EXCEEDED, text, False, int(ExitCode.FAILED))
        return [KillWorker("not ready in time"), *self._failed(failure)]

    def _heartbeat(self) -> list[Effect]:
        if not self._is_admitted or self.welcome is None:
            return []
        self._heartbeat_at = self._time + self.welcome.heartbeat_s
        self._heartbeats += 1
        beat = Heartbeat(
            self._heartbeats,
            self.step,
            self.word,
            fence=self.fence,
            activity=self._activity(),
            suspicions=self._watch.suspicions(self.fence),
        )
        return [SendOperator(beat)]

    def _is_lease_over(self) -> bool:
        """Whether neither operator nor worker has shown a sign of life for the lease."""
        if self._is_admitted:
            return False
        assert self._seen_at is not None
        lease_s = self.welcome.lease_s if self.welcome is not None else Welcome.lease_s
        return self._time - self._seen_at > lease_s

    def _exit(self, code: int, reason: str) -> list[Effect]:
        self.is_over = True
        return [Exit(int(code), reason)]


def _is_another(before: Progressed, after: Progressed) -> bool:
    """Whether the worker has done something since. What comes from the peer ends a wait for it: how
    fast it comes is judged by itself. If that is not known, whatever moves ends the wait. So do
    files a wait for storage, but nothing that of a data set: it has a limit."""
    is_known = before.received is not None and after.received is not None
    if before.kind is ActivityKind.WAITING and before.peer is not None and is_known:
        has_moved = before.received != after.received
    else:
        is_for_files = before.kind is ActivityKind.LOADING and not before.limit_s
        is_wait = before.kind is ActivityKind.WAITING or is_for_files
        has_moved = is_wait and before.traffic != after.traffic
    return has_moved or _without_traffic(before) != _without_traffic(after)


def _without_traffic(event: Progressed) -> Progressed:
    return replace(event, traffic=0, received=0, is_coming=False)
