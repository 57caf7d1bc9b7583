"""The network in the simulation of a step: in which order slices leave, and who passes them on.

An interface sends, and receives, one slice after the other. A slice of a sum goes from its maker to
the agent that reduces it. A slice of a reduced gradient goes to all that need it, and each of them
may pass it on once it has no more to compute: otherwise those that add up send everything.
Whenever an interface is free, it sends something to one of those whose interfaces can receive now:
slices of sums first, since others wait for these, and of reduced gradients the slice that the
fewest have.

Small items are not here: they have a lane of their own, and take no time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappush

from bamboo_core.graph.tasks import TaskId, Transfer
from bamboo_core.model.ids import AgentId, Range
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.program import Instruction, Op
from bamboo_core.scheduling.indexed_graph import IndexedGraph

_PIECE, _RED = Kind.PIECE, Kind.RED
_SLICE = Op.SLICE
_COMPUTING = frozenset({Op.F, Op.B, Op.I, Op.W})
ENDS = frozenset({Op.SLICE, Op.REDUCE})
"""Their messages are slices, and no others' are."""

_UNKNOWN = 1e-9  # time of a gradient on its way, if it has not been measured
_Turn = tuple[bool, int, bool, bool, float, int, int]
_new = tuple.__new__  # large grids have tens of thousands of transfers: this spares __new__


@dataclass(slots=True)
class _Slice:
    """One slice of a reduced gradient."""

    item: Item
    time: float  # that it takes an interface
    maker: int  # the agent that reduces it
    peers: set[int]  # agents that reduce slices of the same gradient
    lack: dict[int, Transfer] = field(default_factory=dict)  # agents to which nobody sends it yet
    copies: int = 1  # agents that have it, or to which somebody sends it
    votes: set[int] = field(default_factory=set)  # agents that need it for their vote


@dataclass(slots=True)
class _Agent:
    """An agent and its interface."""

    order: list[int]  # its tasks, as they begin
    left: int = 0  # tasks that compute, or slice sums
    pieces: list[tuple[int, float, Transfer, int]] = field(default_factory=list)
    """Slices of sums to send: receiver, time, which one, the task that has made it."""
    offers: dict[int, int | None] = field(default_factory=dict)
    """Slices of gradients that it can send -> the task after which; None: it must receive it."""
    later: list[int] = field(default_factory=list)  # slices of gradients to offer once left is 0
    rest: float = 0.0  # time of all that it has to receive
    is_sending: bool = False
    is_receiving: bool = False
    sent: list[tuple[Transfer, int]] = field(default_factory=list)  # in order; after which task


class Exchange:
    """The slices of one graph. ``end``: when the last one has come.

    sums: layers of a stage -> time of its gradient to another agent; seated: agents in the order of
    their seats, on which turns depend, and not on names; order: task numbers of each agent of the
    graph, as they begin; events: of the simulation, to which this adds its own, numbered from
    ``first`` on; passes: whether agents pass slices on.
    """

    def __init__(
        self,
        graph: IndexedGraph,
        sums: Mapping[Range, float],
        *,
        seated: Collection[AgentId],
        order: list[list[int]],
        events: list[tuple[float, int]],
        first: int,
        latency: float,
        passes: bool,
    ) -> None:
        self._graph, self._sums, self._events = graph, sums, events
        self._first, self._latency, self._passes = first, latency, passes
        ordinal = {a: n for n, a in enumerate(graph.agents)}
        self._names = [
            *(a for a in seated if a in ordinal),
            *(a for a in ordinal if a not in seated),
        ]
        self._number = {a: n for n, a in enumerate(self._names)}
        self._numbers = [self._number[a] for a in graph.agents]
        self._agents = [_Agent(order[ordinal[a]]) for a in self._names]
        self._slices: list[_Slice] = []
        self._made_by: dict[int, int] = {}  # REDUCE -> its slice
        self._readers: dict[int, list[int]] = {}  # id of a transfer -> tasks that wait for it
        self._moves: list[tuple[int, int, Transfer, int]] = []  # from, to, what, slice or -1
        self._from: dict[tuple[int, int], int] = {}  # agent, slice -> who has sent it
        self._relays: dict[tuple[int, int], int] = {}  # agent, slice -> the task that is its RECV
        self._open: set[int] = set()  # agents that may have something to send
        self.end = 0.0
        self._makers: list[int] = []  # tasks that slice, or add slices up
        for i, (agent, x) in enumerate(graph.tasks):
            op = x[0]
            if op in _COMPUTING:  # nine of ten tasks
                self._agents[self._number[agent]].left += 1
                continue
            if op in ENDS:
                self._makers.append(i)
                self._agents[self._number[agent]].left += op is _SLICE
            for transfer in graph.inbound[i]:
                kind = transfer[0][0]
                if transfer[3] is not None and (kind is _PIECE or kind is _RED):
                    self._readers.setdefault(id(transfer), []).append(i)
        self._find_slices()

    def _find_slices(self) -> None:
        graph, number = self._graph, self._number
        peers: dict[tuple[int, ...], set[int]] = {}
        for i in self._makers:
            agent, x = graph.tasks[i]
            if x[0] is not _SLICE:
                peers.setdefault(x[2:4], set()).add(number[agent])
        for i in self._makers:
            agent = graph.tasks[i][0]
            for transfer in graph.outbound[i]:
                item, target = transfer[0], number[transfer[2]]
                time = self._time(item)
                self._agents[target].rest += time
                if item[0] is _RED:
                    at = self._made_by.setdefault(i, len(self._slices))
                    if at == len(self._slices):
                        self._slices.append(_Slice(item, time, number[agent], peers[item[2:4]]))
                    self._slices[at].lack[target] = transfer
                    ops = (graph.tasks[j][1][0] for j in self._readers[id(transfer)])
                    if Op.VOTE in ops:
                        self._slices[at].votes.add(target)

    def _time(self, item: Item) -> float:
        return self._sums.get((item[2], item[3]), _UNKNOWN) / item[8]

    # ------------------------------------------------------------ events

    def computed(self, ordinal: int) -> None:
        """The agent has computed. ordinal: in the graph."""
        self._advance(self._numbers[ordinal])

    def _advance(self, number: int) -> None:
        """The agent has computed, or sliced a sum."""
        agent = self._agents[number]
        agent.left -= 1
        if not agent.left:
            agent.offers |= dict.fromkeys(agent.later)
            self._open.add(number)

    def made(self, i: int, ordinal: int) -> None:
        """The agent has sliced a sum, or added slices up. ordinal: in the graph."""
        number = self._numbers[ordinal]
        agent = self._agents[number]
        if i in self._made_by:
            agent.offers[self._made_by[i]] = i
            self._open.add(number)
            return
        if self._graph.tasks[i][1][0] is not _SLICE:
            return  # nobody needs it
        self._advance(number)
        count, found = len(self._agents), list[tuple[int, float, Transfer, int]]()
        for transfer in self._graph.outbound[i]:
            found.append((self._number[transfer[2]], self._time(transfer[0]), transfer, i))
        if found:
            agent.pieces += sorted(found, key=lambda x: (x[0] - number) % count)
            self._open.add(number)

    def arrived(self, event: int) -> list[int]:
        """Tasks that get a slice by this event."""
        at, is_late = divmod(event - self._first, 2)
        source, target, transfer, found = self._moves[at]
        if not is_late:
            self._agents[source].is_sending = self._agents[target].is_receiving = False
            self._open.add(source)
            if self._latency:
                return []
        agent = self._agents[target]
        if found >= 0 and self._passes and target in self._slices[found].votes:
            if agent.left:
                agent.later.append(found)
            else:
                agent.offers[found] = None
                self._open.add(target)
        return self._readers[id(transfer)]

    def match(self, now: float) -> None:
        """Let all free interfaces send that can."""
        for number in sorted(self._open):
            agent = self._agents[number]
            if not agent.is_sending:
                self._send_piece(number, agent, now)
        for number in sorted(self._open):
            agent = self._agents[number]
            if not agent.is_sending:
                self._send_slice(number, agent, now)
            if agent.is_sending or not (agent.pieces or agent.offers):
                self._open.discard(number)

    def _send_piece(self, number: int, agent: _Agent, now: float) -> None:
        for at, (target, time, transfer, maker) in enumerate(agent.pieces):
            if not self._agents[target].is_receiving:
                del agent.pieces[at]
                agent.sent.append((transfer, maker))
                self._begin(number, target, time, transfer, -1, now)
                return

    def _send_slice(self, number: int, agent: _Agent, now: float) -> None:
        best: _Turn | None = None
        for at in list(agent.offers):
            if not self._slices[at].lack:
                del agent.offers[at]
                continue
            found = min(self._turns(number, at), default=None)
            if found is not None and (best is None or found < best):
                best = found
        if best is None:
            return
        *_, turn, at = best
        target, found_slice = (turn + number) % len(self._agents), self._slices[at]
        transfer = found_slice.lack.pop(target)
        found_slice.copies += 1
        maker = agent.offers[at]
        if maker is None:
            maker = agent.offers[at] = self._relay(number, at)
        agent.sent.append((transfer, maker))
        self._from[target, at] = number
        self._begin(number, target, found_slice.time, transfer, at, now)

    def _turns(self, number: int, at: int) -> Iterator[_Turn]:
        """Agents to which this one can send the slice now; the least comes first.

        Those that vote, since others may be slow. Rare slices. Its maker sends it first to one that
        can pass it on, then to its peers, while the others get it from there. An agent's own slice.
        Agents that have most to receive.
        """
        found, count = self._slices[at], len(self._agents)
        passes = found.maker != number
        for target in found.lack:
            other = self._agents[target]
            if other.is_receiving:
                continue
            is_peer = target in found.peers
            spreads = passes or (found.copies == 1 and not other.left)
            yield (
                target not in found.votes,
                found.copies,
                is_peer if spreads else not is_peer,
                passes,
                -other.rest,
                (target - number) % count,
                at,
            )

    def _begin(
        self, source: int, target: int, time: float, transfer: Transfer, at: int, now: float
    ) -> None:
        agent, other = self._agents[source], self._agents[target]
        agent.is_sending = other.is_receiving = True
        other.rest -= time
        event = self._first + 2 * len(self._moves)
        self._moves.append((source, target, transfer, at))
        heappush(self._events, (now + time, event))
        if self._latency:
            heappush(self._events, (now + time + self._latency, event + 1))
        self.end = max(self.end, now + time + self._latency)

    def _relay(self, number: int, at: int) -> int:
        """A task that is the RECV of a slice, so that the agent can send it."""
        graph, names, item = self._graph, self._names, self._slices[at].item
        receive = Instruction(Op.RECV, item=item, peer=names[self._from[number, at]])
        graph.tasks.append(TaskId(names[number], receive))
        graph.inbound.append([])
        graph.outbound.append([])
        new = len(graph.tasks) - 1
        self._agents[number].order.append(new)
        self._relays[number, at] = new
        return new

    @property
    def added(self) -> int:
        """Tasks that the graph has got."""
        return len(self._relays)

    # ------------------------------------------------------------ the result

    def settle(self) -> None:
        """Write into the graph who sends what, and in which order."""
        graph = self._graph
        changed = self._rewired()
        for i in {i for key in changed for i in self._readers[key]}:
            graph.inbound[i] = [changed.get(id(t), t) for t in graph.inbound[i]]
        for i in self._makers:
            graph.outbound[i] = []
        for agent in self._agents:
            place = {i: at for at, i in enumerate(agent.order)}
            last = -1
            for transfer, maker in agent.sent:
                last = max(last, place[maker])
                found = changed.get(id(transfer), transfer)
                graph.outbound[agent.order[last]].append(found)
        graph.is_ordered = True

    def _rewired(self) -> dict[int, Transfer]:
        """Id of a transfer -> the one in its place, from the agent that has really sent it. Tasks
        that are RECVs get theirs."""
        graph, names = self._graph, self._names
        changed: dict[int, Transfer] = {}
        for source, target, old, at in self._moves:
            if at < 0:
                continue
            found, relay = old, self._relays.get((source, at))
            if relay is not None:
                maker = graph.tasks[relay]
                found = _new(Transfer, (old[0], names[source], names[target], maker))
                changed[id(old)] = found
            if (target, at) in self._relays:
                graph.inbound[self._relays[target, at]].append(found)
        return changed
