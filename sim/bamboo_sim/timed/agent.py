"""A timed agent: the production executor; instructions take their declared time, payloads none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import BULK, Kind
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import COMPUTE, Instruction, Op
from bamboo_core.model.rules import consumes, makes
from bamboo_core.protocol.effects import Drop, Effect, Run, SendOperator, StepEnded, Transmit
from bamboo_core.protocol.execution.lane import Patience
from bamboo_core.protocol.executor import Executor
from bamboo_core.protocol.messages import (
    AgentMessage,
    CommitRecord,
    Continuation,
    Directive,
    Progress,
    Stop,
)
from bamboo_core.scheduling.item_bytes import ItemBytes
from bamboo_sim.timed.clock import Clock
from bamboo_sim.timed.memory import Memory
from bamboo_sim.timed.network import Network
from bamboo_sim.timed.sizes import Times, hosted

_GROWING = frozenset({Kind.PART, Kind.SUM, Kind.PREFIX})
"""The next item of the kind takes their place in memory. Others go when the instruction is over."""

Span = tuple[Instruction, float, float]
"""Instruction with its absolute step, begin, end."""


class TimedAgent:
    """One worker and its shell.

    say: sends to the operator; reach: the agent of that name; committed: notes a committed step;
    own: layers of the agent's seat.
    """

    def __init__(
        self,
        name: AgentId,
        num_layers: int,
        *,
        batch: BatchShape,
        mode: RedundancyMode,
        clock: Clock,
        network: Network,
        sizes: ItemBytes,
        times: Times,
        memory: Memory,
        slowness: float,
        say: Callable[[AgentId, AgentMessage], None],
        reach: Callable[[AgentId], TimedAgent],
        committed: Callable[[int], None],
    ) -> None:
        self.name, self.executor = name, Executor(name, num_layers, patience=Patience())
        self.memory, self.own = memory, range(0)
        self.is_alive = True
        self.spans: list[Span] = []  # of instructions that compute
        self._num_layers, self._batch, self._mode = num_layers, batch, mode
        self._clock, self._network, self._sizes, self._times = clock, network, sizes, times
        self._slowness, self._say, self._reach = slowness, say, reach
        self._committed = committed

    # ------------------------------------------------------------ events

    def hear(self, message: Any) -> None:
        """A message of the operator."""
        if not self.is_alive:
            return
        self.executor.now = self._clock.now
        match message:
            case Stop():
                self._perform(self.executor.stop(message))
            case Directive():
                self.memory.hosted = hosted(message, self._mode)
                self._perform(self.executor.install(message))
            case Continuation():
                self._perform(self.executor.proceed(message))

    def arrive(self, sent: Transmit) -> None:
        """A peer's item has come."""
        item = sent.item
        if not self.is_alive or not self.executor.accepts(item, sent.fence):
            return
        self.executor.now = self._clock.now
        if item.kind is Kind.VER:
            self.memory.keep_layer(item.lo, is_own=item.lo in self.own)
        else:
            self.memory.keep(item)
        self._perform(self.executor.arrive(item, sent.fence, sent.commit))

    def end(self) -> None:
        """The agent is gone."""
        self.is_alive = False
        self._network.end(self.name)

    def _done(self, task: Instruction) -> None:
        if not self.is_alive:
            return
        self.executor.now = self._clock.now
        record = CommitRecord(task.step) if task.op is Op.COMMIT else None
        if record is not None and task.agents:
            self._committed(task.step)
        for item in consumes(task, self._batch, self._num_layers):
            if item.kind in _GROWING:
                self.memory.free(item)
        for item in makes(task, self._batch, self._num_layers):
            if item.kind is Kind.VER:
                self.memory.keep_layer(item.lo, is_own=item.lo in self.own)
            else:
                self.memory.keep(item)
        self._perform(self.executor.done(record))

    # ------------------------------------------------------------ effects

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if type(effect) is Run:
                self._run(effect.instruction)
            elif type(effect) is Transmit:
                self._transmit(effect)
            elif type(effect) is Drop:
                for item in effect.items:
                    self.memory.free(item)
            elif type(effect) is StepEnded:
                self._say(self.name, Progress(effect.commit, self.executor.fence))
            elif type(effect) is SendOperator:
                self._say(self.name, effect.message)

    def _run(self, task: Instruction) -> None:
        seconds = self._slowness * self._times.of(task, self.own, self.memory.hosted)
        begin = self._clock.now
        if task.op in COMPUTE:
            self.spans.append((task, begin, begin + seconds))
        # an item that comes when a slice ends is in time for the program
        self._clock.after(seconds, lambda: self._done(task), last=task.op is Op.R)

    def _transmit(self, sent: Transmit) -> None:
        peer = self._reach(sent.peer)
        size, is_bulk = self._sizes.of(sent.item), sent.item.kind in BULK
        self._network.send(self.name, peer.name, size, lambda: peer.arrive(sent), is_bulk=is_bulk)
