"""A supervisor in the states that its tests begin with, and what it says."""

from __future__ import annotations

from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protocol import supervisor as m
from bamboo_core.protocol.messages import (
    AgentReport,
    Continuation,
    Directive,
    Fingerprint,
    Heartbeat,
    Hello,
    Peer,
    Ready,
    Stop,
    Suspicion,
    Welcome,
)

TICK_S = 0.05
FIRST = Fence(0, 1, 1)
SECOND = Fence(0, 1, 2)
A, B, C = AgentId("a"), AgentId("b"), AgentId("c")
HELLO = Hello(A, "uid", "node", "zone", "machine", "1.2.3.4:1", "1.2.3.4:2")
READY = Ready(Fingerprint(), 4, 100, 10)


def welcome(term: int = 1) -> Welcome:
    return Welcome(term, "ns/job", "job-uid", "{}", heartbeat_s=0.2, lease_s=6.0)


def directive(fence: Fence) -> Directive:
    peers = (Peer(B, "5.6.7.8:1", "5.6.7.8:2", b"k"),)
    return Directive(
        fence,
        0,
        4,
        (),
        ((0, 4),),
        BatchShape(2, 1, 1),
        A,
        peers=peers,
        key=b"mine",
        plan_hash=f"plan of {fence}",
        has_continuation=True,
    )


def continuation(fence: Fence, plan_hash: str = "") -> Continuation:
    peers = tuple(Peer(x, f"{x}:1", f"{x}:2", b"k") for x in (B, C))
    return Continuation(fence, plan_hash or f"plan of {fence}", (), (), peers)


def report(fence: Fence) -> AgentReport:
    return AgentReport(fence, Fence(), {}, frozenset())


def fresh() -> m.Supervisor:
    return m.Supervisor(HELLO)


def connected(term: int = 1) -> m.Supervisor:
    supervisor = fresh()
    supervisor.handle(m.SessionOpened(), 0.0)
    supervisor.handle(m.FromOperator(welcome(term)), 0.0)
    supervisor.handle(m.FromWorker(READY), 0.0)
    return supervisor


def planned(fence: Fence = FIRST) -> m.Supervisor:
    supervisor = connected()
    supervisor.handle(m.FromOperator(Stop(fence)), 0.0)
    supervisor.handle(m.FromWorker(report(fence)), 0.0)
    supervisor.handle(m.FromOperator(directive(fence)), 0.0)
    return supervisor


def sent(effects: list[m.Effect]) -> list[object]:
    return [e.message for e in effects if isinstance(e, m.SendOperator)]


def attend(supervisor: m.Supervisor, start: float, end: float) -> list[m.Effect]:
    """The effects of ticks until ``end``, as often as the shell sends them."""
    count = round((end - start) / TICK_S)
    return [e for i in range(1, count + 1) for e in supervisor.handle(m.Tick(), start + i * TICK_S)]


def suspicions(effects: list[m.Effect]) -> list[Suspicion]:
    """Those of the newest heartbeat."""
    beats = [x for x in sent(effects) if isinstance(x, Heartbeat)]
    return list(beats[-1].suspicions) if beats else []


def kills(effects: list[m.Effect]) -> bool:
    return any(isinstance(e, m.KillWorker) for e in effects)


def reopened(supervisor: m.Supervisor, now: float, term: int = 1) -> list[object]:
    """The words of the supervisor in a new session, after Hello."""
    supervisor.handle(m.SessionClosed(), now)
    supervisor.handle(m.SessionOpened(), now)
    return sent(supervisor.handle(m.FromOperator(welcome(term)), now))
