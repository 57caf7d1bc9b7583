"""The state of a dry run: each agent's, what it holds at most, and what the run has found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from itertools import accumulate

from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import BULK, Item, Kind
from bamboo_core.model.program import Instruction, Messages, Program
from bamboo_core.model.rules import Prepared
from bamboo_core.protocol.execution.lane import Lane

Span = tuple[int, float, float]
"""Position in the program, begin, end."""

Inbox = dict[AgentId, list[tuple[Item, float]]]
"""Sender -> its messages."""

_VER, _PIECE, _RED = Kind.VER, Kind.PIECE, Kind.RED
_ACTIVATIONS, _BOUNDARIES, _GRADIENTS, _AHEAD = range(4)
_DIGITS = 6  # of a peak: thirds of a sum are counted one by one, or many at once
_GROUP = {
    Kind.ACT: _ACTIVATIONS,
    Kind.OUT: _BOUNDARIES,
    Kind.INGRAD: _BOUNDARIES,
    Kind.PART: _GRADIENTS,
    Kind.SUM: _GRADIENTS,
    Kind.PIECE: _GRADIENTS,
    Kind.PREFIX: _AHEAD,
}


@dataclass(frozen=True)
class Message:
    """An item in transit."""

    item: Item
    source: AgentId
    target: AgentId


@dataclass(frozen=True)
class Blocked:
    """An agent that cannot continue: its instruction number ``at`` lacks ``item``."""

    at: int
    instruction: Instruction
    item: Item

    def __str__(self) -> str:
        return f"#{self.at} {self.instruction} lacks {self.item}"


@dataclass(frozen=True)
class DryRunResult:
    """Outcome of a dry run; times in the unit of the costs. What is not measured is empty."""

    deadlock: dict[AgentId, Blocked]  # agents that did not reach the end
    unmatched: tuple[Message, ...]  # sent, never received
    disorder: tuple[Message, ...]  # received before messages that were sent earlier
    # Peak numbers: activations held, OUT and INGRAD, sums of a stage's size (a slice counts as the
    # part that it is).
    activations: dict[AgentId, int] = field(default_factory=dict)
    boundaries: dict[AgentId, int] = field(default_factory=dict)
    gradients: dict[AgentId, float] = field(default_factory=dict)
    busy: dict[AgentId, float] = field(default_factory=dict)  # computing time
    length: float = 0.0  # end of the last computation
    end: float = 0.0  # of the last instruction
    # One span per computation of the program.
    spans: dict[AgentId, tuple[Span, ...]] = field(default_factory=dict)
    # Peak number of forwards computed ahead, in part or as a whole, and the time that they took.
    ahead: dict[AgentId, int] = field(default_factory=dict)
    ahead_s: dict[AgentId, float] = field(default_factory=dict)
    # Peak of all items and layers; empty without ``bytes_of``.
    bytes: dict[AgentId, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the programs can be used."""
        return not (self.deadlock or self.unmatched or self.disorder)

    @property
    def bubbles(self) -> float:
        """Idle time of all agents up to the end of the last computation."""
        return len(self.busy) * self.length - sum(self.busy.values())

    def __str__(self) -> str:
        """One line per fault; ``ok`` without faults."""
        lines = [f"{agent} is stuck at {why}" for agent, why in sorted(self.deadlock.items())]
        lines += [
            f"{m.source} sends {m.item} to {m.target}, which never receives it"
            for m in self.unmatched
        ]
        lines += [
            f"{m.target} receives {m.item} from {m.source} out of order" for m in self.disorder
        ]
        return "\n".join(lines) or "ok"


@dataclass(slots=True)
class Interface:
    """One direction of a network interface, which takes one item after the other. Small items go
    before large ones, and delay those that follow."""

    small: float = 0.0  # until when it has small items
    large: float = 0.0  # until when it has others

    def take(self, now: float, time: float, *, is_bulk: bool) -> float:
        """When it begins with an item that is there now."""
        begin = max(now, self.large if is_bulk else self.small)
        if is_bulk:
            self.large = begin + time
        else:
            self.small, self.large = begin + time, max(now, self.large) + time
        return begin


@dataclass(slots=True)
class DryRunAgent:
    """State of one agent."""

    name: AgentId
    program: Program
    parts: Sequence[Instruction | Messages]  # of the program
    at: int = 0  # position in the parts
    within: int = 0  # messages of that part that are done
    clock: float = 0.0
    spans: list[Span] = field(default_factory=list)  # with positions in the parts
    lane: Lane = field(default_factory=Lane)
    lane_limit: int = 0
    continued: Set[Item] = frozenset()  # computed ahead, and continued by the program
    last: int = -1  # the computation with which the lane ends
    ahead_s: float = 0.0
    lacks: Item | None = None  # the item for which it has stopped
    wake: tuple[AgentId, Item] | None = None  # the message that it waits for: sender, item
    held: dict[Item, bool] = field(default_factory=dict)  # without VER; True: received
    versions: dict[int, int] = field(default_factory=dict)  # layer -> version
    # Sender -> (item, arrival), in the order in which they were sent. Few wait at a time, and there
    # is one for each pair of agents: a list is made faster than a deque, and takes a sixth of it.
    inbox: Inbox = field(default_factory=dict)
    bulk: Inbox = field(default_factory=dict)  # the same of large items, which have their own lane
    # Slices that it has sent many at a time: arrival, receiver -> item. They follow all that is in
    # the receivers' ``bulk``, and take less time than as many entries of theirs.
    posted: list[tuple[float, dict[AgentId, Item]]] = field(default_factory=list)
    count: list[float] = field(default_factory=lambda: [0, 0, 0, 0])  # by group, see _GROUP
    peak: list[float] = field(default_factory=lambda: [0, 0, 0, 0])
    bytes: int = 0
    most_bytes: int = 0
    sending: Interface = field(default_factory=lambda: Interface())
    receiving: Interface = field(default_factory=lambda: Interface())

    def items(self, until: float) -> set[Item]:
        """All items that it holds, including messages that have arrived by then."""
        versions = {Item.ver(k, x) for x, k in self.versions.items()}
        waiting = (*self.inbox.values(), *self.bulk.values())
        come = {i for inbox in waiting for i, at in inbox if at < until}
        return versions | {i for i in self.held if i.kind is not Kind.VOTE} | come

    def lane_of(self, item: Item) -> Inbox:
        """The messages among which the item comes."""
        return self.bulk if item[0] in BULK else self.inbox

    def may(self, task: Prepared) -> bool:
        """Whether all inputs of the task are here."""
        return all(self.versions.get(x) == version for x, version in task.versions) and all(
            item in self.held for item in task.items
        )

    def blocked(self, item: Item) -> Blocked:
        """Where it has stopped for the item."""
        at = self._starts()[self.at] + self.within
        return Blocked(at, self.program[at], item)

    def program_spans(self) -> tuple[Span, ...]:
        """Its spans, with positions in the program."""
        if self.parts is self.program:
            return tuple(self.spans)
        starts = self._starts()
        return tuple([(starts[at], begin, end) for at, begin, end in self.spans])

    def _starts(self) -> list[int]:
        """Part -> its position in the program."""
        lengths = (len(x.items) if isinstance(x, Messages) else 1 for x in self.parts)
        return list(accumulate(lengths, initial=0))


class DryRunStock:
    """Notes what agents get and give up, and the most that each of them holds at once."""

    def __init__(self, bytes_of: Callable[[Item], int] | None, measures: bool) -> None:
        self.measures = measures  # times and peaks
        self.bytes_of = bytes_of

    def gain(self, agent: DryRunAgent, item: Item, received: bool) -> None:
        """The agent has the item now. received: it comes from another agent."""
        kind, held = item[0], agent.held
        if kind is _VER:
            if self.bytes_of is not None and item[2] not in agent.versions:
                self._add_bytes(agent, self.bytes_of(item))
            agent.versions[item[2]] = item[1]
            return
        before = len(held)
        held.setdefault(item, received)  # one look-up: hashing items takes most of the time
        if len(held) == before or not self.measures:
            return
        if self.bytes_of is not None:
            self._add_bytes(agent, self.bytes_of(item))
        if kind in _GROUP:
            group, count = _GROUP[kind], agent.count
            total = count[group] + (1 / item[8] if kind is _PIECE else 1)
            count[group] = total
            if total > agent.peak[group]:
                agent.peak[group] = total

    def gain_all(self, agent: DryRunAgent, items: list[Item]) -> None:
        """Received items, which are of one kind."""
        kind, held = items[0][0] if items else _RED, agent.held
        if kind is _RED or not (self.measures or kind is _VER):
            for item in items:
                held.setdefault(item, True)
        elif kind is _PIECE:
            self.gain_slices(agent, items, True)
        else:
            for item in items:
                self.gain(agent, item, True)

    def gain_slices(self, agent: DryRunAgent, slices: Sequence[Item], received: bool) -> None:
        """PIECEs of one size, of which each agent of a large grid has a hundred."""
        if self.bytes_of is not None:
            for item in slices:
                self.gain(agent, item, received)
            return
        held, count = agent.held, agent.count
        before = len(held)
        for item in slices:
            held.setdefault(item, received)
        total = count[_GRADIENTS] + (len(held) - before) / slices[0][8]
        count[_GRADIENTS] = total
        if total > agent.peak[_GRADIENTS]:
            agent.peak[_GRADIENTS] = total

    def lose(self, agent: DryRunAgent, item: Item) -> None:
        """The agent gives the item up, if it has it."""
        kind = item[0]
        if kind is _VER:
            if agent.versions.pop(item[2], None) is None:
                return
        elif agent.held.pop(item, None) is None:
            return
        elif kind in _GROUP and self.measures:
            agent.count[_GROUP[kind]] -= 1 / item[8] if kind is _PIECE else 1
        if self.bytes_of is not None:
            agent.bytes -= self.bytes_of(item)

    @staticmethod
    def _add_bytes(agent: DryRunAgent, count: int) -> None:
        agent.bytes += count
        agent.most_bytes = max(agent.most_bytes, agent.bytes)

    def result(
        self,
        every: Iterable[DryRunAgent],
        strays: Sequence[Message],
        disordered: Sequence[Message],
    ) -> DryRunResult:
        """The outcome. strays: messages to nobody; disordered: those received out of order."""
        agents = sorted(every, key=lambda a: a.name)
        stuck = [a for a in agents if a.at < len(a.parts)]
        left = [
            Message(item, source, a.name)
            for a in agents
            for source, inbox in sorted(
                (s, x) for box in (a.inbox, a.bulk) for s, x in box.items() if x
            )
            for item, _ in inbox
        ]
        posted = [(a.name, x) for a in agents for _, x in a.posted]
        left += [Message(item, name, peer) for name, x in posted for peer, item in x.items()]
        left.sort(key=lambda message: (message.target, message.source))
        deadlock = {a.name: a.blocked(a.lacks) for a in stuck if a.lacks}
        unmatched, disorder = (*left, *strays), tuple(disordered)
        if not self.measures:
            return DryRunResult(deadlock, unmatched, disorder)
        return DryRunResult(
            deadlock,
            unmatched,
            disorder,
            activations={a.name: int(a.peak[_ACTIVATIONS]) for a in agents},
            boundaries={a.name: int(a.peak[_BOUNDARIES]) for a in agents},
            gradients={a.name: round(a.peak[_GRADIENTS], _DIGITS) for a in agents},
            busy={a.name: sum(end - begin for _, begin, end in a.spans) for a in agents},
            length=max((a.spans[-1][2] for a in agents if a.spans), default=0.0),
            end=max((a.clock for a in agents), default=0.0),
            spans={a.name: a.program_spans() for a in agents},
            ahead={a.name: int(a.peak[_AHEAD]) for a in agents},
            ahead_s={a.name: a.ahead_s for a in agents},
            bytes={a.name: a.most_bytes for a in agents} if self.bytes_of is not None else {},
        )
