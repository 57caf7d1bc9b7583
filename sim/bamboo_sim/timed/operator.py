"""The operator of a timed run: the production arbiter and planner, with declared delays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bamboo_core.api.spec import to_json
from bamboo_core.arbiter.arbiter import Arbiter
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import (
    ArbiterJob,
    ComputePlan,
    Connected,
    DesiredState,
    Effect,
    Event,
    Lost,
    NodeLeaves,
    Over,
    Persist,
    Persisted,
    Planned,
    Received,
    Send,
    Timing,
)
from bamboo_core.job import orders
from bamboo_core.model.ids import AgentId
from bamboo_core.placement.plan import Plan
from bamboo_core.planning.requests import Continuations, Decision, PlannerFault
from bamboo_core.protocol.messages import AgentMessage, Fingerprint, Hello, Notice, Ready
from bamboo_sim.timed.clock import Clock
from bamboo_sim.timed.declared import TimedJob

_SAMPLES = 1 << 40  # of the training set


class TimedRunError(Exception):
    """The run cannot go on; the text says why."""


@dataclass(frozen=True)
class Decided:
    """A plan that has been made. asked_at: when all reports were in."""

    plan: Plan
    tasks: int  # compute tasks that were missing
    asked_at: float


class TimedOperator:
    """One arbiter. deliver: brings a message to an agent; ``decided``: all plans so far."""

    def __init__(
        self,
        job: TimedJob,
        clock: Clock,
        deliver: Callable[[AgentId, Any], None],
        planned: Callable[[Plan], None],
    ) -> None:
        spec = job.spec
        timing = Timing(join_grace_s=0.0)
        self._arbiter = Arbiter(
            ArbiterJob("timed/job", "uid", spec, to_json(spec), timing), Durable(), 1
        )
        self._job, self._clock, self._deliver, self._planned = job, clock, deliver, planned
        self.decided: list[Decided] = []

    def start(self) -> None:
        """All agents connect and are ready."""
        job = self._job
        self._tell(DesiredState(job.pipelines, expected=frozenset(job.agents)))
        for agent in job.agents:
            self.join(agent)

    def join(self, agent: AgentId) -> None:
        """An agent connects and is ready."""
        job, place = self._job, f"{agent}:1"
        hello = Hello(agent, agent, agent, job.zone(agent), agent, place, place)
        self._tell(Connected(hello, b"key"))
        ready = Ready(
            Fingerprint(),
            len(job.layers),
            _SAMPLES,
            0,
            job.layers,
            memory_bytes=job.device.memory_bytes,
        )
        self._tell(Received(agent, ready))

    def announce(self, agent: AgentId, lead_s: float) -> None:
        """The operator hears that the node of an agent ends in so many seconds."""
        self._tell(NodeLeaves(agent, Notice(lead_s, "it was announced")))

    def hear(self, agent: AgentId, message: AgentMessage) -> None:
        """A message of an agent; it takes its time."""
        self._clock.after(self._job.delays.message_s, lambda: self._tell(Received(agent, message)))

    def lose(self, agent: AgentId) -> None:
        """An agent has ended; the arbiter hears of it later."""
        lost = Lost(agent, True, "it was killed")
        self._clock.after(self._job.delays.detection_s, lambda: self._tell(lost))

    def _tell(self, event: Event) -> None:
        for effect in self._arbiter.handle(event, self._clock.now):
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        delays = self._job.delays
        match effect:
            case Persist(_, version):
                self._clock.after(delays.persist_s, lambda: self._tell(Persisted(version)))
            case ComputePlan():
                answers = orders.answers(effect)
                self._clock.after(delays.decision_s, lambda: self._plan(answers, self._clock.now))
            case Send(agent, message):
                self._clock.after(delays.message_s, lambda: self._deliver(agent, message))
            case Over(_, reason, message):
                raise TimedRunError(f"the job is over: {reason}: {message}")

    def _plan(self, answers: Iterator[Planned], now: float) -> None:
        """The next part of a plan is ready."""
        answer = next(answers, None)
        if answer is None:
            return
        result = answer.result
        if isinstance(result, PlannerFault):
            raise TimedRunError(result.message)
        if isinstance(result, Decision):
            asked_at = now - self._job.delays.decision_s
            self.decided.append(Decided(result.plan, result.tasks, asked_at))
            self._planned(result.plan)
        if isinstance(result, Decision | Continuations):
            later = self._job.delays.continuation_s
            self._clock.after(later, lambda: self._plan(answers, now))
        self._tell(answer)
