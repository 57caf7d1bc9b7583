"""Slices of a reduced gradient that an agent which only copies the stage passes on to the others.

D agents compute a stage and exchange slices of its gradient, which takes the time g to another
agent: each receives (1 - 1/D) g to add up, and as much of sums. D agents of another stage that copy
the layers need all sums, too. If those who add up send to all of them, each sends (3 - 2/D) g in
all. If each sends a slice to one copying agent, which passes it on to the others, it sends
(2 - 1/D) g. This pays where the copying agents have time while the others still compute.

A relay is one more task, whose instruction is the RECV of the slice; its SENDs follow. All possible
relays take part in the simulation of the step, so that programs with them cannot block each other.
Then it is known who has time, and those that do not pay are taken out again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bamboo_core.graph.tasks import TaskId, Transfer
from bamboo_core.model.ids import AgentId, Range
from bamboo_core.model.program import Instruction, Op
from bamboo_core.scheduling.indexed_graph import IndexedGraph

_UNKNOWN = 1e-9  # time of a gradient on its way, if it has not been measured

_new = tuple.__new__  # large grids have tens of thousands of transfers: this spares __new__


@dataclass
class _Exchange:
    """The exchange of one stage's reduced gradient."""

    reduces: list[int] = field(default_factory=list)  # tasks
    votes: dict[AgentId, int] = field(default_factory=dict)  # of agents that only copy the stage
    relays: list[int] = field(default_factory=list)  # tasks
    sent: dict[int, list[Transfer]] = field(default_factory=dict)  # of each REDUCE, without relays
    instead: dict[int, Transfer] = field(default_factory=dict)  # id with relays -> without


@dataclass(frozen=True)
class _Load:
    """How long a stage's exchange keeps agents busy. whole: time of its gradient to another agent;
    ends: when agents end their last computation."""

    reducers: Sequence[AgentId]
    copiers: Sequence[AgentId]
    whole: float
    ends: Mapping[AgentId, float]

    @property
    def begin(self) -> float:
        """When the last one that adds up has computed its own."""
        return max(self.ends[a] for a in self.reducers)

    def _until(self, copies: int) -> float:
        """When they have received each other's slices and sent their own, and these copies."""
        count = len(self.reducers)
        return self.begin + (2 - 2 / count + copies / count) * self.whole

    @property
    def sent(self) -> float:
        """When they have sent everything, if no one passes it on."""
        return self._until(len(self.copiers))

    @property
    def passed_on(self) -> float:
        """When they have sent everything, if copying agents pass it on."""
        return self._until(1)

    def pays(self, busy: Mapping[AgentId, float]) -> bool:
        """Whether the last copying agent has all slices earlier, by more than half of what those
        who add up lose: each slice goes to its relay first. busy: until when agents send their own.

        Half: measured on the shapes of ``redundancy_overhead`` and on equal stages.
        """
        come = self.begin + self.whole
        free = max(busy.get(a, self.ends[a]) for a in self.copiers)
        share = 1 / len(self.copiers)
        price = self.whole / len(self.reducers) / 2
        return max(come, free) + (1 - share) * self.whole + price < self.sent


class Relays:
    """The relays of one graph, which is changed. Only agents that vote pass anything on, since
    others may leave or be slow."""

    def __init__(self, graph: IndexedGraph) -> None:
        self._graph = graph
        self._exchanges = _exchanges(graph)
        self._own: dict[AgentId, list[int]] = {}  # the agent's REDUCEs
        for exchange in self._exchanges.values():
            for number in exchange.reduces:
                self._own.setdefault(graph.tasks[number].agent, []).append(number)
        for exchange in self._exchanges.values():
            self._find_copiers(exchange)
            if len(exchange.votes) > 1:
                self._insert(exchange)

    def _find_copiers(self, exchange: _Exchange) -> None:
        tasks = self._graph.tasks
        reducers = {tasks[i].agent for i in exchange.reduces}
        for number in exchange.reduces:
            for reader in self._graph.far[number]:
                agent, instruction = tasks[reader]
                if instruction[0] is Op.VOTE and agent not in reducers:
                    exchange.votes[agent] = reader
        exchange.votes = dict(sorted(exchange.votes.items()))

    def _insert(self, exchange: _Exchange) -> None:
        graph, copiers = self._graph, list(exchange.votes)
        changed: dict[int, Transfer | None] = {}  # id without relays -> what comes in its place
        for number in exchange.reduces:
            relay = copiers[graph.tasks[number].instruction.index % len(copiers)]
            if any(t.target == relay for t in graph.outbound[number]):
                self._relay(exchange, number, relay, changed)
        for vote in exchange.votes.values():
            graph.inbound[vote] = _replaced(graph.inbound[vote], changed)

    def _relay(
        self, exchange: _Exchange, number: int, relay: AgentId, changed: dict[int, Transfer | None]
    ) -> None:
        """Let this agent pass the slice of the REDUCE on."""
        graph, votes, new = self._graph, exchange.votes, len(self._graph.tasks)
        sent = exchange.sent[number] = graph.outbound[number]
        first = next(t for t in sent if t.target == relay)
        receive = TaskId(relay, Instruction(Op.RECV, item=first.item, peer=first.source))
        passed: list[Transfer] = []
        for old in sent:
            if old.target in votes and old is not first:
                passed.append(_new(Transfer, (old.item, relay, old.target, receive)))
                exchange.instead[id(passed[-1])], changed[id(old)] = old, passed[-1]
        changed[id(first)] = None
        own = self._own.get(relay, ())  # other agents wait for these sums
        copying = set(votes.values())
        graph.tasks.append(receive)
        graph.waits.append(1 + len(own))
        graph.after.append([votes[relay]])
        graph.far.append([votes[t.target] for t in passed])
        graph.inbound.append([first])
        graph.outbound.append(passed)
        graph.outbound[number] = [t for t in sent if t is first or t.target not in votes]
        graph.far[number] = [new, *(i for i in graph.far[number] if i not in copying)]
        for i in own:
            graph.after[i].append(new)
        exchange.relays.append(new)

    def settle(
        self, order: list[list[int]], ends: Mapping[AgentId, float], sums: Mapping[Range, float]
    ) -> None:
        """Take out the relays that do not pay.

        order: task numbers of each agent, as they begin, which is changed; ends: when agents end
        their last computation; sums: layers of a stage -> time of its whole gradient to another
        agent, in the same unit.
        """
        paying = self._paying(ends, {cut: sums.get(cut, _UNKNOWN) for cut in self._exchanges})
        self._remove(order, [x for cut, x in self._exchanges.items() if cut not in paying])

    @property
    def remain(self) -> bool:
        """Whether any relay has not been taken out."""
        return any(x.relays for x in self._exchanges.values())

    def remove(self, order: list[list[int]]) -> None:
        """Take out all relays."""
        self._remove(order, list(self._exchanges.values()))

    def _remove(self, order: list[list[int]], exchanges: list[_Exchange]) -> None:
        gone = {i for x in exchanges for i in x.relays}
        for exchange in exchanges:
            self._take_out(exchange)
        if gone:
            for tasks in order:
                tasks[:] = [i for i in tasks if i not in gone]

    def _paying(self, ends: Mapping[AgentId, float], sums: Mapping[Range, float]) -> set[Range]:
        """Stages whose relays pay. Agents that need not send all copies of their own stage's
        gradient can pass on that of another one sooner, so this is repeated."""
        loads = {
            cut: _Load(
                reducers=list(dict.fromkeys(self._graph.tasks[i].agent for i in x.reduces)),
                copiers=list(x.votes),
                whole=sums[cut],
                ends=ends,
            )
            for cut, x in self._exchanges.items()
        }
        found = set[Range]()
        while True:
            busy = {
                a: x.passed_on if cut in found else x.sent
                for cut, x in loads.items()
                for a in x.reducers
            }
            more = {
                cut
                for cut, x in loads.items()
                if cut not in found and self._exchanges[cut].relays and x.pays(busy)
            }
            if not more:
                return found
            found |= more

    def _take_out(self, exchange: _Exchange) -> None:
        graph = self._graph
        for number, sent in exchange.sent.items():
            graph.outbound[number] = sent
        for vote in exchange.votes.values():
            graph.inbound[vote] = _replaced(graph.inbound[vote], exchange.instead)
        for number in exchange.relays:
            (first,) = graph.inbound[number]
            graph.inbound[exchange.votes[first.target]].append(first)
            graph.inbound[number], graph.outbound[number] = [], []
        exchange.relays = []


def _exchanges(graph: IndexedGraph) -> dict[Range, _Exchange]:
    found: dict[Range, _Exchange] = {}
    for number, (_, x) in enumerate(graph.tasks):
        if x[0] is Op.REDUCE:
            found.setdefault((x.lo, x.hi), _Exchange()).reduces.append(number)
    return found


def _replaced(transfers: list[Transfer], instead: Mapping[int, Transfer | None]) -> list[Transfer]:
    found = (instead.get(id(t), t) for t in transfers)
    return [t for t in found if t is not None]
