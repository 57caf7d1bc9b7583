"""Whatever an agent says arrives, at whichever moments its streams break."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.protocol.supervised import READY, TICK_S, A, B, continuation, directive, welcome

from bamboo_core.model.ids import Fence
from bamboo_core.protocol import supervisor as m
from bamboo_core.protocol.messages import (
    AgentReport,
    BadCheckpoint,
    Cause,
    CommitRecord,
    Finished,
    Heartbeat,
    Hello,
    Left,
    Listed,
    Manifest,
    OperatorMessage,
    Progress,
    Ready,
    Sealed,
    Stop,
    Suspicion,
)
from bamboo_core.protocol.said import MOST_BAD, MOST_SEALED


@dataclass
class Leader:
    """An operator that keeps what it has heard, and loses any suffix of a stream.

    Like the arbiter, it knows durably what came before a report once it has planned with it.
    """

    fence: Fence = Fence(0, 1, 0)
    heard: list[object] = field(default_factory=list)  # over all streams, in order
    stream: list[object] = field(default_factory=list)  # said in the open one
    read: int = 0  # so many of them have arrived

    def listen(self, share: float) -> None:
        """Another part of what is on its way arrives."""
        until = self.read + round(share * (len(self.stream) - self.read))
        self.heard += self.stream[self.read : until]
        self.read = until

    def newest(self, kind: type) -> object:
        """The newest word of that kind that it has heard."""
        return next((x for x in reversed(self.heard) if isinstance(x, kind)), None)


class History:
    """One agent and its leader; the moves are methods."""

    def __init__(self) -> None:
        self.supervisor = m.Supervisor(Hello(A, "u", "n", "z", "m", "a:1", "a:2"))
        self.leader = Leader()
        self.now = 0.0
        self.said: list[object] = []  # by the worker, in the present attempt of the plan
        self.repeated = 0  # words in the newest repetition
        self.step = 0
        self.reset(1.0)
        self.tell(READY)

    def event(self, event: m.Event) -> None:
        for effect in self.supervisor.handle(event, self.now):
            if isinstance(effect, m.SendOperator) and self.supervisor.is_open:
                self.leader.stream.append(effect.message)

    def tell(self, message: object) -> None:
        """The worker says something."""
        self.said.append(message)
        self.event(m.FromWorker(message))  # type: ignore[arg-type]

    def order(self, message: OperatorMessage) -> None:
        self.event(m.FromOperator(message))

    # ------------------------------------------------------------ moves

    def reset(self, share: float) -> None:
        """The stream breaks when a part of what was on its way has arrived; another opens."""
        self.leader.listen(share)
        self.leader.stream, self.leader.read = [], 0
        self.event(m.SessionClosed())
        self.event(m.SessionOpened())
        self.order(welcome())
        self.repeated = len(self.leader.stream)

    def away(self, share: float) -> None:
        """The stream breaks, and no other opens for now."""
        self.leader.listen(share)
        self.leader.stream, self.leader.read = [], 0
        self.event(m.SessionClosed())

    def speak(self, share: float) -> None:
        """The worker commits, seals, or finds a bad checkpoint."""
        self.step += 1
        manifest = Manifest(0, self.step, "path", "digest")
        kinds = {
            0.0: [Progress(CommitRecord(self.step), self.supervisor.fence), Listed((manifest,))],
            0.5: [Sealed(manifest), BadCheckpoint(0, self.step, "torn")],
            1.0: [Left(self.supervisor.fence), Finished(self.supervisor.fence)],
        }
        self.tell(kinds[share][self.step % 2])

    def stop(self, share: float) -> None:
        """A STOP of the next epoch, and the worker's report."""
        if not self.supervisor._is_admitted:
            return
        fence = Fence(0, 1, self.leader.fence.epoch + 1)
        self.leader.fence = fence
        self.order(Stop(fence))
        self.tell(AgentReport(fence, Fence(), {}, frozenset()))

    def ask_again(self, share: float) -> None:
        """A leader repeats its STOP in a new session, and gets the report again."""
        if self.supervisor._is_admitted and self.leader.fence.epoch:
            self.order(Stop(self.leader.fence))
            self.tell(AgentReport(self.leader.fence, Fence(), {}, frozenset()))

    def plan(self, share: float) -> None:
        """A directive, if the leader has heard the report; what it says may come later."""
        self.leader.listen(share)
        fence = self.leader.fence
        if any(isinstance(x, AgentReport) and x.fence == fence for x in self.leader.heard):
            self.order(directive(fence))
            self.order(continuation(fence))

    def suspect(self, share: float) -> None:
        """A channel breaks."""
        self.event(m.FromWorker(Suspicion(B, Cause.CHANNEL_BROKEN, self.supervisor.fence)))

    def wait(self, share: float) -> None:
        """Time passes."""
        self.now += TICK_S
        self.event(m.Tick())


MOVES = (
    *("speak", "speak", "speak", "stop", "stop", "plan", "plan", "plan", "reset", "reset"),
    *("away", "ask_again", "suspect", "wait"),
)
SHARES = (0.0, 0.5, 1.0)
histories = st.lists(
    st.tuples(st.sampled_from(MOVES), st.sampled_from(SHARES)), min_size=10, max_size=50
)


def played(moves: list[tuple[str, float]]) -> History:
    history = History()
    for name, share in moves:
        getattr(history, name)(share)
    return history


def settle(history: History) -> None:
    """The last stream lives for long enough."""
    history.reset(0.0)
    for _ in range(6):
        history.wait(1.0)
    history.leader.listen(1.0)


@settings(max_examples=150)
@given(histories)
def test_what_must_arrive_arrives(moves: list[tuple[str, float]]) -> None:
    history = played(moves)
    settle(history)
    leader, said, supervisor = history.leader, history.said, history.supervisor
    heard = set(x for x in leader.heard if not isinstance(x, Heartbeat | AgentReport))
    assert READY in heard
    for kind, most in ((Sealed, MOST_SEALED), (BadCheckpoint, MOST_BAD)):
        assert set([x for x in said if isinstance(x, kind)][-most:]) <= heard  # type: ignore[arg-type]
    for kind in (Progress, Listed):
        newest = [x for x in said if isinstance(x, kind)][-1:]
        assert set(newest) <= heard
    outcomes = [x for x in said if isinstance(x, Left | Finished)]
    if outcomes and outcomes[-1].fence == supervisor.fence:
        assert outcomes[-1] in heard
    beat = leader.newest(Heartbeat)
    assert isinstance(beat, Heartbeat)
    assert beat.suspicions == supervisor._watch.suspicions(supervisor.fence)


@settings(max_examples=150)
@given(histories)
def test_nothing_is_repeated_for_ever(moves: list[tuple[str, float]]) -> None:
    """Two plans later nothing but Ready is left; before, there is a bound."""
    history = played(moves)
    history.reset(0.0)
    assert history.repeated <= 2 + MOST_SEALED + MOST_BAD + 3  # Hello, Ready; one of each other
    for _ in range(2):
        history.stop(1.0)
        history.plan(1.0)
    history.reset(1.0)
    assert [type(x) for x in history.leader.stream] == [Hello, Ready]


@settings(max_examples=150)
@given(histories)
def test_words_keep_their_order(moves: list[tuple[str, float]]) -> None:
    """A repetition is in the order in which its words were said, the outcome last."""
    history = played(moves)
    history.reset(0.0)
    words = [x for x in history.leader.stream if isinstance(x, Sealed | BadCheckpoint)]
    first = [history.said.index(x) for x in words]
    assert first == sorted(first)
    outcomes = [x for x in history.leader.stream if isinstance(x, Left | Finished)]
    assert outcomes in ([], history.leader.stream[-1:])
