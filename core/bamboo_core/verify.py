"""The dry run: every set of programs is executed on names alone before agents get it.

What an instruction needs, makes and uses up is the executor's own rule (bamboo_core.rules), so a
program that passes here runs there. Stricter than the executor in one point: an item counts as
received only by its RECV, and the messages of an ordered pair of agents come first in first out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from bamboo_core.costs import Costs
from bamboo_core.ids import AgentId
from bamboo_core.items import Item, Kind
from bamboo_core.numerics import BatchShape
from bamboo_core.program import COMPUTE, Instruction, Op, Program
from bamboo_core.rules import makes, needs, releases, uses_up


@dataclass(frozen=True)
class Message:
    """An item on its way from one agent to another."""

    item: Item
    source: AgentId
    target: AgentId


@dataclass(frozen=True)
class Blocked:
    """An agent that cannot go on: its instruction number ``at`` lacks ``item``."""

    at: int
    instruction: Instruction
    item: Item

    def __str__(self) -> str:
        return f"#{self.at} {self.instruction} lacks {self.item}"


@dataclass(frozen=True)
class Report:
    """Outcome of a dry run; times in the unit of the costs.

    deadlock: agents that did not reach the end; unmatched: sent, never received; disorder: received
    before what was sent earlier; peaks per agent: forward results held (activations), boundary
    tensors held (OUT and INGRAD), gradient buffers (sums of one stage's size; a slice counts 1/C);
    busy: computing time per agent; length: end of the last computation.
    """

    deadlock: dict[AgentId, Blocked]
    unmatched: tuple[Message, ...]
    disorder: tuple[Message, ...]
    activations: dict[AgentId, int]
    boundaries: dict[AgentId, int]
    gradients: dict[AgentId, float]
    busy: dict[AgentId, float]
    length: float

    @property
    def ok(self) -> bool:
        """Whether the programs may be used."""
        return not (self.deadlock or self.unmatched or self.disorder)

    @property
    def bubbles(self) -> float:
        """Idle time of all agents up to the end of the last computation."""
        return len(self.busy) * self.length - sum(self.busy.values())

    def __str__(self) -> str:
        """One line a fault; ``ok`` if there is none."""
        lines = [f"{agent} stands at {why}" for agent, why in sorted(self.deadlock.items())]
        lines += [
            f"{m.source} sends {m.item} to {m.target}, who never takes it" for m in self.unmatched
        ]
        lines += [f"{m.target} takes {m.item} of {m.source} out of turn" for m in self.disorder]
        return "\n".join(lines) or "ok"


def dry_run(
    programs: Mapping[AgentId, Program],
    *,
    batch: BatchShape,
    layers: int,
    holdings: Mapping[AgentId, Collection[Item]] | None = None,
    costs: Costs | None = None,
    periodic: bool = True,
) -> Report:
    """Execute the programs of one step.

    layers: of the whole model; holdings: items (VER included, steps relative to the programs')
    that agents have at the start; costs: F = I = W = 1, B = 2 per layer if absent; periodic:
    whether instructions with ``every`` run in this step.
    """
    run = _Run(programs, batch, layers, holdings or {}, costs or Costs.even(layers), periodic)
    run.run()
    return run.report()


_WEIGHTED = {Kind.PART: 1.0, Kind.LEAF: 1.0, Kind.FOLDED: 1.0}
_BOUNDARIES = (Kind.OUT, Kind.INGRAD)


@dataclass
class _Agent:
    name: AgentId
    program: Program
    at: int = 0
    clock: float = 0.0
    busy: float = 0.0
    ended: float = 0.0
    lacks: Item | None = None
    held: dict[Item, bool] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    count: dict[Kind, float] = field(default_factory=dict)
    peak: dict[Kind, float] = field(default_factory=dict)


class _Run:
    """All agents' state and the messages between them."""

    def __init__(
        self,
        programs: Mapping[AgentId, Program],
        batch: BatchShape,
        layers: int,
        holdings: Mapping[AgentId, Collection[Item]],
        costs: Costs,
        periodic: bool,
    ) -> None:
        self.batch, self.layers, self.periodic = batch, layers, periodic
        self.durations, self.latency = costs.durations(), costs.latency
        self.agents = {a: _Agent(a, p) for a, p in programs.items()}
        for name, items in holdings.items():
            if name in self.agents:
                for item in items:
                    self._gain(self.agents[name], item, received=False)
        self.ways: dict[tuple[AgentId, AgentId], deque[tuple[Item, float]]] = {}
        self.disorder: list[Message] = []
        self.todo = deque(self.agents.values())

    def run(self) -> None:
        """Until nobody can go on."""
        while self.todo:
            agent = self.todo.popleft()
            agent.lacks = None
            while agent.at < len(agent.program):
                if not self._execute(agent, agent.program[agent.at]):
                    break
                agent.at += 1

    def _execute(self, agent: _Agent, instruction: Instruction) -> bool:
        if instruction.every > 1 and not self.periodic:
            return True
        if instruction.op is Op.RECV:
            return self._receive(agent, instruction)
        for item in needs(instruction, self.batch, self.layers):
            if not self._has(agent, item):
                agent.lacks = item
                return False
        if instruction.op is Op.SEND:
            self._send(agent, instruction)
            return True
        self._compute(agent, instruction)
        return True

    def _has(self, agent: _Agent, item: Item) -> bool:
        if item.kind is Kind.VER:
            return agent.versions.get(item.lo) == item.step
        return item in agent.held

    def _send(self, agent: _Agent, instruction: Instruction) -> None:
        item, peer = instruction.item, instruction.peer
        assert item is not None
        way = self.ways.setdefault((agent.name, peer), deque())
        way.append((item, agent.clock + self.latency))
        target = self.agents.get(peer)
        if target is not None and target.lacks is not None:
            self.todo.append(target)

    def _receive(self, agent: _Agent, instruction: Instruction) -> bool:
        item = instruction.item
        assert item is not None
        way = self.ways.get((instruction.peer, agent.name))
        if way and way[0][0] != item and any(x == item for x, _ in way):
            self.disorder.append(Message(item, instruction.peer, agent.name))
            way.rotate(-next(i for i, (x, _) in enumerate(way) if x == item))
        if not way or way[0][0] != item:
            agent.lacks = item
            return False
        _, arrival = way.popleft()
        agent.clock = max(agent.clock, arrival)
        self._gain(agent, item, received=True)
        return True

    def _compute(self, agent: _Agent, instruction: Instruction) -> None:
        if instruction.op in COMPUTE:
            duration = self.durations.of(instruction)
            agent.clock += duration
            agent.busy += duration
            agent.ended = agent.clock
        for item in uses_up(instruction, self.batch, self.layers):
            self._lose(agent, item)
        for item in releases(instruction, self.layers):
            if agent.held.get(item):
                self._lose(agent, item)
        for item in makes(instruction, self.batch, self.layers):
            self._gain(agent, item, received=False)
        if instruction.op is Op.VOTE:
            vote = Item(Kind.VOTE, instruction.step, agent=agent.name)
            self._gain(agent, vote, received=False)
        elif instruction.op is Op.SAVE:
            for layer in range(instruction.lo, instruction.hi):
                self._gain(
                    agent, Item(Kind.FILE, instruction.step, layer, layer + 1), received=False
                )

    def _gain(self, agent: _Agent, item: Item, *, received: bool) -> None:
        if item.kind is Kind.VER:
            agent.versions[item.lo] = item.step
        elif item not in agent.held:
            agent.held[item] = received
            self._count(agent, item, 1)

    def _lose(self, agent: _Agent, item: Item) -> None:
        if item.kind is Kind.VER:
            agent.versions.pop(item.lo, None)
        elif agent.held.pop(item, None) is not None:
            self._count(agent, item, -1)

    def _count(self, agent: _Agent, item: Item, sign: int) -> None:
        kind = item.kind
        amount = 1.0
        if kind in _BOUNDARIES:
            kind = Kind.OUT
        elif kind in _WEIGHTED or kind is Kind.CHUNK:
            amount = 1.0 if kind is not Kind.CHUNK else 1 / self.batch.chunks
            kind = Kind.LEAF
        elif kind is not Kind.ACT:
            return
        total = agent.count[kind] = agent.count.get(kind, 0) + sign * amount
        if total > agent.peak.get(kind, 0):
            agent.peak[kind] = total

    def report(self) -> Report:
        """What came of it."""
        agents = sorted(self.agents.values(), key=lambda a: a.name)
        stuck = [a for a in agents if a.at < len(a.program)]
        return Report(
            deadlock={a.name: Blocked(a.at, a.program[a.at], a.lacks) for a in stuck if a.lacks},
            unmatched=tuple(
                Message(item, *pair) for pair, way in sorted(self.ways.items()) for item, _ in way
            ),
            disorder=tuple(self.disorder),
            activations={a.name: int(a.peak.get(Kind.ACT, 0)) for a in agents},
            boundaries={a.name: int(a.peak.get(Kind.OUT, 0)) for a in agents},
            gradients={a.name: a.peak.get(Kind.LEAF, 0.0) for a in agents},
            busy={a.name: a.busy for a in agents},
            length=max((a.ended for a in agents), default=0.0),
        )
