"""The dry run: every set of programs is executed on names alone before agents get it.

What an instruction needs, makes and uses up is the executor's own rule (bamboo_core.model.rules),
so a program that passes here runs there. Stricter than the executor in one point: an item counts as
received only by its RECV, and the messages of an ordered pair of agents come first in first out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import COMPUTE, Instruction, Op, Program
from bamboo_core.model.rules import consumes, makes, needs, releases
from bamboo_core.scheduling.costs import Costs

Span = tuple[int, float, float]
"""Place in the program, begin, end."""


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
class DryRunResult:
    """Outcome of a dry run; times in the unit of the costs.

    deadlock: agents that did not reach the end; unmatched: sent, never received; disorder: received
    before what was sent earlier; peaks per agent: forward results held (activations), boundary
    tensors held (OUT and INGRAD), gradient buffers (sums of one stage's size; a slice counts 1/C);
    busy: computing time per agent; length: end of the last computation; spans: per agent and
    computation its place in the program, begin and end.
    """

    deadlock: dict[AgentId, Blocked]
    unmatched: tuple[Message, ...]
    disorder: tuple[Message, ...]
    activations: dict[AgentId, int]
    boundaries: dict[AgentId, int]
    gradients: dict[AgentId, float]
    busy: dict[AgentId, float]
    length: float
    spans: dict[AgentId, tuple[Span, ...]]

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
) -> DryRunResult:
    """Execute the programs of one step.

    layers: of the whole model; holdings: items (VER included, steps relative to the programs')
    that agents have at the start; costs: F = I = W = 1, B = 2 per layer if absent; periodic:
    whether instructions with ``every`` run in this step.
    """
    run = _Run(programs, batch, layers, holdings or {}, costs or Costs.even(layers), periodic)
    run.run()
    return run.report()


def stopped(
    programs: Mapping[AgentId, Program],
    *,
    until: float,
    batch: BatchShape,
    layers: int,
    holdings: Mapping[AgentId, Collection[Item]],
    costs: Costs,
) -> tuple[dict[AgentId, set[Item]], float]:
    """What everyone holds (VER included) if all are stopped at ``until``, and when the last stands.

    A computation that runs is finished; what is on its way is lost.
    """
    run = _Run(programs, batch, layers, holdings, costs, periodic=True)
    run.until = until
    run.run()
    return {a.name: a.items(until) for a in run.agents.values()}, max(
        [until, *(a.spans[-1][2] for a in run.agents.values() if a.spans)]
    )


_SEND, _RECV, _VOTE, _SAVE = Op.SEND, Op.RECV, Op.VOTE, Op.SAVE
_VER, _CHUNK = Kind.VER, Kind.CHUNK
_ACTIVATIONS, _BOUNDARIES, _GRADIENTS = range(3)
_GROUP = {
    Kind.ACT: _ACTIVATIONS,
    Kind.OUT: _BOUNDARIES,
    Kind.INGRAD: _BOUNDARIES,
    Kind.PART: _GRADIENTS,
    Kind.LEAF: _GRADIENTS,
    Kind.FOLDED: _GRADIENTS,
    Kind.CHUNK: _GRADIENTS,
}


@dataclass
class _Agent:
    """held: item -> whether it was received; inbox: source -> (item, arrival); wake: the message
    that it waits for, if it waits."""

    name: AgentId
    program: Program
    at: int = 0
    clock: float = 0.0
    spans: list[Span] = field(default_factory=list)
    lacks: Item | None = None
    wake: tuple[AgentId, Item] | None = None
    held: dict[Item, bool] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    inbox: dict[AgentId, deque[tuple[Item, float]]] = field(default_factory=dict)
    count: list[float] = field(default_factory=lambda: [0, 0, 0])
    peak: list[float] = field(default_factory=lambda: [0, 0, 0])

    def items(self, until: float) -> set[Item]:
        """All that it holds, what has come by then included."""
        versions = {Item.ver(k, x) for x, k in self.versions.items()}
        come = {i for inbox in self.inbox.values() for i, at in inbox if at < until}
        return versions | {i for i in self.held if i.kind is not Kind.VOTE} | come


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
        self.until = float("inf")
        self.strays: list[Message] = []
        self.disorder: list[Message] = []
        self.todo = deque(self.agents.values())

    def run(self) -> None:
        """Until nobody can go on."""
        while self.todo:
            self._advance(self.todo.popleft())

    def _advance(self, agent: _Agent) -> None:
        """Run the agent's program up to the end, or to what it lacks."""
        program, periodic = agent.program, self.periodic
        for at in range(agent.at, len(program)):
            instruction = program[at]
            op = instruction[0]
            if agent.clock >= self.until:
                agent.at = at
                return
            if instruction[9] > 1 and not periodic:
                continue
            if op is _RECV:
                done = self._receive(agent, instruction)
            elif op is _SEND:
                done = self._send(agent, instruction)
            else:
                done = self._compute(agent, instruction, at)
            if not done:
                agent.at = at
                return
        agent.at = len(program)

    def _send(self, agent: _Agent, instruction: Instruction) -> bool:
        item, peer = instruction[5], instruction[6]
        assert item is not None
        held = item in agent.held
        if not held and (item[0] is not _VER or agent.versions.get(item[2]) != item[1]):
            agent.lacks = item
            return False
        target = self.agents.get(peer)
        if target is None:
            self.strays.append(Message(item, agent.name, peer))
            return True
        inbox = target.inbox.get(agent.name)
        if inbox is None:
            inbox = target.inbox[agent.name] = deque()
        inbox.append((item, agent.clock + self.latency))
        if target.wake is not None and target.wake == (agent.name, item):
            target.wake = None
            self.todo.append(target)
        return True

    def _receive(self, agent: _Agent, instruction: Instruction) -> bool:
        item, peer = instruction[5], instruction[6]
        assert item is not None
        inbox = agent.inbox.get(peer)
        if not inbox or (
            inbox[0][0] is not item
            and inbox[0][0] != item
            and not self._in_disorder(agent, peer, item)
        ):
            agent.lacks, agent.wake = item, (peer, item)
            return False
        arrival = inbox[0][1]
        if arrival >= self.until:
            agent.lacks = item
            return False
        inbox.popleft()
        if arrival > agent.clock:
            agent.clock = arrival
        self._gain(agent, item, received=True)
        return True

    def _in_disorder(self, agent: _Agent, peer: AgentId, item: Item) -> bool:
        """Whether the item is there, but behind others: then it is brought to the front."""
        inbox = agent.inbox[peer]
        place = next((i for i, (x, _) in enumerate(inbox) if x == item), None)
        if place is None:
            return False
        self.disorder.append(Message(item, peer, agent.name))
        found = inbox[place]
        del inbox[place]
        inbox.appendleft(found)
        return True

    def _compute(self, agent: _Agent, instruction: Instruction, at: int) -> bool:
        """Whatever is no message. False if it lacks something, which then nobody can bring."""
        batch, layers = self.batch, self.layers
        held, versions = agent.held, agent.versions
        for item in needs(instruction, batch, layers):
            if item not in held and (item[0] is not _VER or versions.get(item[2]) != item[1]):
                agent.lacks = item
                return False
        op = instruction[0]
        if op in COMPUTE:
            begin = agent.clock
            agent.clock += self.durations.of(instruction)
            agent.spans.append((at, begin, agent.clock))
        for item in consumes(instruction, batch, layers):
            self._lose(agent, item)
        for item in releases(instruction, layers):
            if held.get(item):
                self._lose(agent, item)
        for item in makes(instruction, batch, layers):
            self._gain(agent, item, received=False)
        if op is _VOTE or op is _SAVE:
            self._finish(agent, instruction)
        return True

    def _finish(self, agent: _Agent, instruction: Instruction) -> None:
        """What the executor adds itself: the vote bears its name; a file is there at once here."""
        step = instruction.step
        if instruction.op is _VOTE:
            self._gain(agent, Item.vote(step, agent.name), received=False)
        for layer in range(instruction.lo, instruction.hi):
            self._gain(agent, Item.file(step, layer), received=False)

    def _gain(self, agent: _Agent, item: Item, *, received: bool) -> None:
        if item[0] is _VER:
            agent.versions[item.lo] = item.step
        elif item not in agent.held:
            agent.held[item] = received
            if item[0] in _GROUP:
                self._count(agent, item, 1)

    def _lose(self, agent: _Agent, item: Item) -> None:
        if item[0] is _VER:
            agent.versions.pop(item.lo, None)
        elif agent.held.pop(item, None) is not None and item[0] in _GROUP:
            self._count(agent, item, -1)

    def _count(self, agent: _Agent, item: Item, sign: int) -> None:
        group = _GROUP[item[0]]
        amount = sign / self.batch.chunks if item[0] is _CHUNK else sign
        total = agent.count[group] = agent.count[group] + amount
        if total > agent.peak[group]:
            agent.peak[group] = total

    def report(self) -> DryRunResult:
        """What came of it."""
        agents = sorted(self.agents.values(), key=lambda a: a.name)
        stuck = [a for a in agents if a.at < len(a.program)]
        left = [
            Message(item, source, a.name)
            for a in agents
            for source, inbox in sorted(a.inbox.items())
            for item, _ in inbox
        ]
        return DryRunResult(
            deadlock={a.name: Blocked(a.at, a.program[a.at], a.lacks) for a in stuck if a.lacks},
            unmatched=(*left, *self.strays),
            disorder=tuple(self.disorder),
            activations={a.name: int(a.peak[_ACTIVATIONS]) for a in agents},
            boundaries={a.name: int(a.peak[_BOUNDARIES]) for a in agents},
            gradients={a.name: a.peak[_GRADIENTS] for a in agents},
            busy={a.name: sum(end - begin for _, begin, end in a.spans) for a in agents},
            length=max((a.spans[-1][2] for a in agents if a.spans), default=0.0),
            spans={a.name: tuple(a.spans) for a in agents},
        )
