"""A led job in virtual time. Facts are durable at once; agents send what the test wants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TypeVar

from tests.core.controller.builders import JOB, nodes, pod, spec

from bamboo_core.api.events import EventReason
from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import (
    ComputePlan,
    Connected,
    Disconnected,
    Effect,
    Event,
    Persist,
    Persisted,
    Planned,
    Received,
    Record,
    Send,
    Tick,
    Timing,
)
from bamboo_core.controller.view import ClusterView, PodView
from bamboo_core.job.leadership import Action, Input, Leadership, Observed, Restarted, Wake
from bamboo_core.job.training_view import LastReported
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.planning.requests import PlannerFault
from bamboo_core.protocol.messages import (
    AgentMessage,
    Fingerprint,
    Hello,
    LayerCost,
    OperatorMessage,
    Ready,
)

PODS = (pod(0, 0, zone="a"), pod(0, 1, zone="b"))
MEMBERS = tuple(p.agent for p in PODS)
BEGUN = Durable(
    term=1,
    plan=Fence(0, 1, 1),
    members=MEMBERS,
    voters=MEMBERS,
    pipelines=(MEMBERS,),
    cut=((0, 2), (2, 4)),
    step_cut=((0, 2), (2, 4)),
    target=500,
    committed=499,
    batch=BatchShape(4, 1, 1),
)

T = TypeVar("T")


def hello(agent: AgentId, fence: Fence = Fence()) -> Hello:
    return Hello(
        agent, "uid", "node", "ab"[MEMBERS.index(agent)], agent, "x:1", "x:2",
        fence=fence, has_state=fence != Fence(),
    )  # fmt: skip


def ready(storage_error: str = "") -> Ready:
    costs = (LayerCost(0.01, 0.02, 10, 10),) * 4
    fingerprint = Fingerprint("c", "d", "t", "cpu", 1)
    return Ready(fingerprint, 4, 1000, 0, costs, storage_error=storage_error)


def defect(event: Event, now: float, heard_at: float) -> list[Effect]:
    raise KeyError("one defect, once")


class Led:
    """A Leadership, its clock, and everything that it asked for."""

    def __init__(
        self,
        durable: Durable = Durable(),  # noqa: B008 - frozen
        *,
        job_spec: JobSpec | None = None,
        reported: LastReported = LastReported(),  # noqa: B008 - frozen
    ) -> None:
        self.now, self.heard_at = 0.0, inf
        self.is_leading = self.are_facts_durable = True
        self.spec = job_spec if job_spec is not None else spec()
        self.pods: Sequence[PodView] = PODS
        self.actions: list[Action] = []
        self.sessions: set[AgentId] = set()
        self.leadership = Leadership(
            JOB,
            self.spec,
            durable,
            term=2,
            timing=Timing(return_s=0.3, voter_wait_s=0.3),
            reported=reported,
        )

    def tell(self, event: Input) -> list[Action]:
        """Handle the event; return the actions that the leader asks for."""
        actions = self.leadership.handle(
            event, self.now, is_leading=self.is_leading, heard_at=self.heard_at
        )
        self.actions += actions
        if any(isinstance(action, Restarted) for action in actions):
            self.sessions.clear()
        for action in actions:
            if isinstance(action, Persist) and self.are_facts_durable:
                self.tell(Persisted(action.version))
            if isinstance(action, ComputePlan):
                self.tell(Planned(action.id, PlannerFault("no plan in this test")))
        return actions

    def observe(self, job_spec: JobSpec | None = None) -> None:
        self.spec = job_spec if job_spec is not None else self.spec
        view = ClusterView(nodes(a=1, b=1), tuple(self.pods))
        self.tell(Observed(self.spec, view, has_sessions=bool(self.sessions)))

    def connect(self, agent: AgentId, fence: Fence = Fence()) -> None:
        self.sessions.add(agent)
        self.tell(Connected(hello(agent, fence), b"key"))

    def receive(self, agent: AgentId, message: AgentMessage) -> list[Action]:
        return self.tell(Received(agent, message))

    def disconnect(self, agent: AgentId) -> None:
        self.sessions.discard(agent)
        self.tell(Disconnected(agent))

    def tick(self, seconds: float = 0.25) -> None:
        self.now += seconds
        self.tell(Tick())

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(1000):
            if condition():
                return
            self.tick()
        raise AssertionError("it never came true")

    def found(self, kind: type[T]) -> list[T]:
        return [action for action in self.actions if isinstance(action, kind)]

    def sent(self, agent: AgentId, kind: type[OperatorMessage]) -> list[OperatorMessage]:
        sends = (s for s in self.found(Send) if s.agent == agent)
        return [s.message for s in sends if isinstance(s.message, kind)]

    def woken(self) -> int:
        return sum(wake.is_urgent for wake in self.found(Wake))

    def records(self, reason: EventReason) -> list[Record]:
        return [record for record in self.found(Record) if record.reason is reason]

    def lost(self) -> list[AgentId]:
        return [a for record in self.records(EventReason.AGENT_LOST) for a in record.agents]
