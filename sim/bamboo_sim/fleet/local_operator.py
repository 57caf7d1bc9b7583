"""The operator of one job without Kubernetes, with faults. Durable writes can be slow and fail:

operator.writes = Writes(delay_s=2.0)   a durable write takes that long (from the next one on)
operator.freeze(), operator.thaw()      as SIGSTOP and SIGCONT: what comes meanwhile waits
operator.hold("a"), operator.let_go()   nothing passes a's session, which stays open
await operator.replace()                it dies; a new leader begins with the durable facts
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import grpc

from bamboo_agent.local import operator
from bamboo_agent.local.certificates import Authority
from bamboo_core.api.spec import JobSpec, to_json
from bamboo_core.arbiter_state import durable
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import (
    ArbiterJob,
    DesiredState,
    Event,
    Persisted,
    Record,
    Tick,
    Timing,
)
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import (
    AgentMessage,
    CommitRecord,
    Directive,
    OperatorMessage,
    Progress,
    Ready,
)
from bamboo_sim.fleet.injection import effects
from bamboo_sim.fleet.injection.effects import OPERATOR

RETRY_S = 0.2
"""Between a failed durable write and the next attempt, in seconds."""


@dataclass(frozen=True)
class Sent:
    """A message that an agent sent."""

    at: float  # time.monotonic()
    agent: AgentId
    message: AgentMessage


@dataclass(frozen=True)
class Writes:
    """How durable writes go. lands_first: a write takes effect at its start and is confirmed at its
    end, so that a leader that dies meanwhile has written."""

    delay_s: float = 0.0
    fail: bool = False
    lands_first: bool = False


class LocalOperator(operator.LocalOperator):
    """One leader at a time; :meth:`start` starts another one from the durable facts."""

    def __init__(
        self,
        spec: JobSpec,
        authority: Authority,
        *,
        dismiss: Callable[[AgentId, str], None],
        timing: Timing,
        profiled: bool,
        counted: effects.Effects,
        hosts_ahead: bool = False,
    ) -> None:
        """counted: counts the effects of faults; profiled: use the agents' measured costs; if
        False, all layers cost the same, so that all runs have the same programs; hosts_ahead: tell
        agents to keep in host memory what they compute ahead, as if their devices were short."""
        job = ArbiterJob("ns/job", "job-uid", spec, to_json(spec), timing)
        super().__init__(job, authority, dismiss=dismiss)
        self._profiled, self._hosts_ahead = profiled, hosts_ahead
        self._counted = counted
        self.messages: list[Sent] = []
        self.records: list[tuple[float, Record]] = []
        self._writes = Writes()
        self._has_died = False
        self._unwritten: tuple[str, int] | None = None
        self._wants_write = asyncio.Event()
        self._waiting: list[Event] | None = None
        self._held: set[AgentId] = set()
        self._refused: set[AgentId] = set()
        self._released = asyncio.Event()

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """A new leader, at the same address as the one before."""
        if self._has_died:
            self._counted.count(OPERATOR, effects.Effect.REPLACED)
        self._unwritten = None
        await super().start()
        self._run(self._write())

    async def stop(self) -> None:
        """Stop without closing sessions in order."""
        self._has_died = self.arbiter is not None
        self._waiting = None
        await super().stop()

    def handle(self, event: Event) -> None:
        """Pass an event to the arbiter and perform the effects."""
        if self._waiting is None:
            super().handle(event)
            return
        if isinstance(event, DesiredState):
            self.goal = event
        if not isinstance(event, Tick):
            self._counted.count(OPERATOR, effects.Effect.UNHEARD)
            self._waiting.append(event)

    @property
    def commits(self) -> dict[int, CommitRecord]:
        """Commit record of each step in the newest attempt that has one. AssertionError if two
        agents report different bits in one attempt."""
        found: dict[int, tuple[int, CommitRecord]] = {}
        for said in self.messages:
            if isinstance(said.message, Progress):
                attempt, commit = said.message.fence.attempt, said.message.commit
                before = found.setdefault(commit.step, (attempt, commit))
                if before[0] == attempt:
                    assert repr(before[1]) == repr(commit), said
                elif before[0] < attempt:
                    found[commit.step] = attempt, commit
        return {step: commit for step, (_, commit) in found.items()}

    # ------------------------------------------------------------ faults

    @property
    def writes(self) -> Writes:
        """How durable writes go."""
        return self._writes

    @writes.setter
    def writes(self, writes: Writes) -> None:
        if writes.fail:
            self._counted.ordered("failing writes", [OPERATOR], effects.Effect.FAILED_WRITE)
        elif writes.delay_s:
            text = f"slow writes of {writes.delay_s:g} s"
            self._counted.ordered(text, [OPERATOR], effects.Effect.SLOW_WRITE)
        self._writes = writes

    async def replace(self) -> None:
        """The operator dies, and another one takes over."""
        await self.stop()
        await self.start()

    def freeze(self) -> None:
        """Stand still: time passes, and what comes waits."""
        if self._waiting is None:
            self._counted.ordered("freeze the operator", [OPERATOR], effects.Effect.UNHEARD)
            self._waiting = []

    def thaw(self) -> None:
        """Go on. The clock is read before the messages that have waited."""
        waited, self._waiting = self._waiting or [], None
        for event in (Tick(), *waited):
            self.handle(event)

    def hold(self, *agents: str) -> None:
        """Let nothing pass these agents' sessions, in both directions, new sessions included."""
        self._counted.ordered(
            f"hold the sessions of {' '.join(agents)}", agents, effects.Effect.HELD
        )
        self._held |= {AgentId(agent) for agent in agents}

    def refuse(self, *agents: str) -> None:
        """Close these agents' sessions, and refuse new ones."""
        self._counted.ordered(
            f"refuse the sessions of {' '.join(agents)}", agents, effects.Effect.REFUSED
        )
        for agent in map(AgentId, agents):
            self._refused.add(agent)
            if agent in self._streams:
                self._streams[agent].put_nowait(None)

    def admit(self, agent: str) -> None:
        """Let a refused agent open a session again."""
        self._refused.discard(AgentId(agent))

    def let_go(self) -> None:
        """Undo :meth:`hold` and :meth:`refuse`: what was held arrives now."""
        self._held.clear()
        self._refused.clear()
        self._released.set()
        self._released = asyncio.Event()

    async def _admit(self, agent: AgentId, context: Any) -> None:
        if agent in self._refused:
            self._counted.count(agent, effects.Effect.REFUSED)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this session is refused")

    async def _pass(self, agent: AgentId) -> None:
        if agent in self._held:
            self._counted.count(agent, effects.Effect.HELD)
        while agent in self._held:
            await self._released.wait()

    # ------------------------------------------------------------ durable writes

    def _persist(self, known: Durable, version: int) -> None:
        self._unwritten = (json.dumps(durable.to_json(known)), version)
        self._wants_write.set()

    async def _write(self) -> None:
        """Write the newest facts, one write at a time, until it is stopped."""
        while True:
            await self._wants_write.wait()
            self._wants_write.clear()
            while self._unwritten is not None:
                unwritten = text, version = self._unwritten
                how = self.writes
                if how.lands_first and not how.fail:
                    self.facts = text
                await asyncio.sleep(how.delay_s)
                if how.delay_s:
                    self._counted.count(OPERATOR, effects.Effect.SLOW_WRITE)
                if how.fail:
                    self._counted.count(OPERATOR, effects.Effect.FAILED_WRITE)
                    await asyncio.sleep(RETRY_S)
                    continue
                self.facts = text
                if self._unwritten is unwritten:
                    self._unwritten = None
                self.handle(Persisted(version))

    # ------------------------------------------------------------ what is heard and said

    def _record(self, record: Record) -> None:
        self.records.append((time.monotonic(), record))

    def _heard(self, agent: AgentId, message: AgentMessage) -> AgentMessage:
        self.messages.append(Sent(time.monotonic(), agent, message))
        if isinstance(message, Ready) and not self._profiled:
            return replace(message, costs=())
        return message

    def _said(self, message: OperatorMessage) -> OperatorMessage:
        if self._hosts_ahead and isinstance(message, Directive):
            return replace(message, hosts_ahead=True)
        return message
