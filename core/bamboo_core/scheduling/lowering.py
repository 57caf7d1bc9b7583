"""From the order of tasks to programs: inserts SEND and RECV.

A SEND follows its producer directly, or comes first in the program if the item exists already. A
file's record is sent last, since the file is written in the background. The agents of a stage send
slices of its gradient to all others, each beginning with another receiver: an interface receives
one item after the other. A task that is a RECV stands for an agent that passes a slice on. Between
two agents, messages of one lane are received in the order in which they are sent: before a message,
an agent receives all of the lane that were sent earlier.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from bamboo_core.graph.tasks import Gather, TaskId, Transfer
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import BULK, Item, Kind
from bamboo_core.model.program import Instruction, Messages, Op, Packed, Program
from bamboo_core.scheduling.exchange import ENDS
from bamboo_core.scheduling.indexed_graph import Hub, IndexedGraph

_SEND, _RECV, _REDUCE, _RED = Op.SEND, Op.RECV, Op.REDUCE, Kind.RED
_new = tuple.__new__  # five times faster; two thirds of the instructions are messages
_CLOSES = frozenset({Op.END, Op.EXIT})

_T = TypeVar("_T")

_FIRST = -1  # in place of a task
_Parts = list[Instruction | Messages]
_Queue = list[Transfer | Item]
"""What one agent sends to another in one lane, in order. An item is one that is gathered."""

_Queues = dict[AgentId, dict[AgentId, _Queue]]
"""Receiver -> sender -> messages."""


class Lowering:
    """One set of programs. ``order``: task numbers of each agent, as they begin."""

    def __init__(self, graph: IndexedGraph, order: list[list[int]]) -> None:
        self._graph, self._order = graph, order
        # RECV of a reduced slice, by the id of its REDUCE: the same for all agents that get it.
        self._receives: dict[int, Instruction] = {}
        self._collected: dict[int, Messages] = {}  # by the id of a gather
        self._sends = _Sends(graph, order)

    def programs(self) -> dict[AgentId, Program]:
        """One program per agent of the graph; packed if anything is gathered."""
        graph, sends = self._graph, self._sends
        order = dict(zip(graph.agents, self._order, strict=True))
        # First those that gather the same items: their queues are still in the processor's cache.
        hub_of = {graph.tasks[i][0]: n for n, x in enumerate(graph.hubs) for i, _ in x.readers}
        turns = sorted(order, key=lambda name: hub_of.get(name, 0))
        made = {name: self._parts(name, order[name], sends.after[name]) for name in turns}
        if graph.hubs:
            return {name: Packed(made[name]) for name in order}
        return {name: tuple(cast(list[Instruction], made[name])) for name in order}

    def _parts(self, name: AgentId, tasks: list[int], sends: dict[int, _Parts]) -> _Parts:
        names, inbound, gathers = self._graph.tasks, self._graph.inbound, self._graph.gathers
        large, small, received = self._sends.large[name], self._sends.small[name], set[int]()
        out: _Parts = sends.get(_FIRST, [])
        for i in tasks:
            for transfer in inbound[i]:
                key = id(transfer)
                if key in received:
                    continue
                item, source, _, producer = transfer
                queue = (large if item[0] in BULK else small)[source]
                if queue[0] is not transfer:
                    self._catch_up(queue, transfer, source, received, out)
                del queue[0]
                received.add(key)
                if producer is None or producer[1][9] or item[0] is _RED:
                    out.append(self._receive(transfer))
                else:  # the usual case of :func:`_message`
                    out.append(_new(Instruction, (_RECV, 0, 0, 0, 0, item, source, (), (), 0)))
            for gather in gathers.get(i, ()):
                if id(gather) not in received:
                    self._collect(name, gather, received, out)
            if names[i][1][0] is not _RECV:
                out.append(names[i][1])
            if i in sends:
                out += sends[i]
        return out

    def _collect(self, name: AgentId, gather: Gather, received: set[int], out: _Parts) -> None:
        """Receive what is gathered, after what the same agents have sent earlier."""
        received.add(id(gather))
        wanted, queues, places = self._wanted(name, gather), self._sends.large[name], list[int]()
        peers, items = wanted.peers, wanted.items
        waiting = list(map(queues.__getitem__, peers))
        is_plain = bool(peers) and all(waiting) and len(set(peers)) == len(peers)
        if is_plain and [queue[0] for queue in waiting] == list(items):  # the usual case
            for queue in waiting:
                del queue[0]
            out.append(wanted)
            return
        for at, (item, peer) in enumerate(zip(items, peers, strict=True)):
            queue = queues[peer]
            if not queue or queue[0] is not item:
                if id(item) in received:
                    continue
                if any(peers[place] == peer for place in places):
                    out.append(wanted.only(places))
                    places = []
                self._catch_up(queue, item, peer, received, out)
            del queue[0]
            places.append(at)
        if places:
            out.append(wanted if len(places) == len(items) else wanted.only(places))

    def _wanted(self, name: AgentId, gather: Gather) -> Messages:
        """The RECVs of what is gathered, without what the agent makes."""
        found = self._collected.get(id(gather))
        if found is None:
            sources = tuple([task[0] for task in gather.makers])
            found = self._collected[id(gather)] = Messages(_RECV, gather.items, sources)
        if name not in found.peers:
            return found
        return found.only([at for at, peer in enumerate(found.peers) if peer != name])

    def _catch_up(
        self,
        queue: _Queue,
        wanted: Transfer | Item,
        source: AgentId,
        received: set[int],
        out: _Parts,
    ) -> None:
        """Receive all that was sent before this one."""
        while queue[0] is not wanted:
            earlier = queue.pop(0)
            received.add(id(earlier))
            if isinstance(earlier, Transfer):
                out.append(self._receive(earlier))
            else:
                out.append(_received(earlier, source))

    def _receive(self, transfer: Transfer) -> Instruction:
        item, source, _, producer = transfer
        if item[0] is not _RED or producer is None:
            return _message(_RECV, transfer, source, self._graph)
        found = self._receives.get(id(producer))
        if found is None:
            found = _message(_RECV, transfer, source, self._graph)
            self._receives[id(producer)] = found
        return found


def _received(item: Item, source: AgentId) -> Instruction:
    return _new(Instruction, (_RECV, 0, 0, 0, 0, item, source, (), (), 0))


def _message(op: Op, transfer: Transfer, peer: AgentId, graph: IndexedGraph) -> Instruction:
    """SEND or RECV, skipped in the same steps as the task that makes or needs the item."""
    producer = transfer[3] or graph.tasks[graph.openers[id(transfer)][0]]
    task = producer[1]
    every = task[9]
    step = task[1] if every else 0
    return _new(Instruction, (op, step, 0, 0, 0, transfer[0], peer, (), (), every))


@dataclass
class _Turns:
    """Receivers of a hub's items: agents that reduce slices of the stage, by rank; then others."""

    ranks: list[int]  # of the first of the agents; the others have none
    agents: tuple[AgentId, ...]
    items: list[tuple[Item, ...]]  # for each maker of the hub, what it sends to each of the agents


class _Sends:
    """The messages of all agents. ``order``: task numbers of each agent, as they begin.

    after: agent -> task number, or _FIRST -> SENDs that follow it, in program order.
    large, small: receiver -> sender -> the messages of a lane. Transfers and gathered items are
    known by their ids: they live as long as the graph.
    """

    def __init__(self, graph: IndexedGraph, order: Sequence[list[int]]) -> None:
        self._graph = graph
        self._ranks = _ranks(graph)
        self._opening = self._open(order)
        self._closing: dict[AgentId, list[Transfer]] = {}
        for transfer in graph.closing.values():
            self._closing.setdefault(transfer.source, []).append(transfer)
        # task -> the hubs of its item, and which of a hub's items it is
        self._hubs: dict[int, list[tuple[_Turns, int]]] = {}
        for hub in graph.hubs:
            turns = self._turns(hub)
            for place, maker in enumerate(hub.makers):
                self._hubs.setdefault(maker, []).append((turns, place))
        self.large: _Queues = {name: {} for name in graph.agents}
        self.small: _Queues = {name: {} for name in graph.agents}
        self.after = {
            name: self._of(name, tasks) for name, tasks in zip(graph.agents, order, strict=True)
        }

    def _open(self, order: Sequence[list[int]]) -> dict[AgentId, list[Transfer]]:
        """Transfers that agents send first, ordered by when they are needed."""
        out: dict[AgentId, list[Transfer]] = {}
        if not self._graph.opening:
            return out
        begun = {i: at for tasks in order for at, i in enumerate(tasks)}
        first = {key: min(begun[i] for i in x) for key, x in self._graph.openers.items()}
        for key in sorted(first, key=first.__getitem__):
            transfer = self._graph.opening[key]
            out.setdefault(transfer.source, []).append(transfer)
        return out

    def _of(self, name: AgentId, tasks: list[int]) -> dict[int, _Parts]:
        outbound, hubs, closing = self._graph.outbound, self._hubs, self._closing.get(name)
        out: dict[int, _Parts] = {}
        if name in self._opening:
            out[_FIRST] = self._sent(self._opening[name])
        last = self._last(tasks) if closing else -1
        for i in tasks:
            if outbound[i]:
                out[i] = self._sent(self._in_turn(self._graph.tasks[i], outbound[i]))
            if i in hubs:
                spread = (self._spread(i, turns, place) for turns, place in hubs[i])
                out[i] = [*out.get(i, ()), *(found for found in spread if found.items)]
            if closing and i == last:
                out[i] = out.get(i, []) + self._sent(closing)
        return out

    def _sent(self, transfers: list[Transfer]) -> _Parts:
        """Their SENDs."""
        out: _Parts = []
        for transfer in transfers:
            item, source, target, producer = transfer
            queues = (self.large if item[0] in BULK else self.small)[target]
            if source in queues:
                queues[source].append(transfer)
            else:
                queues[source] = [transfer]
            if producer is None or producer[1][9]:
                out.append(_message(_SEND, transfer, target, self._graph))
            else:  # the usual case of :func:`_message`
                out.append(_new(Instruction, (_SEND, 0, 0, 0, 0, item, target, (), (), 0)))
        return out

    def _in_turn(self, task: TaskId, transfers: list[Transfer]) -> list[Transfer]:
        """Gradients that no simulation has put in order: first to those that reduce others of the
        stage, then to those that only copy its layers; each from the sender's rank on, so that no
        two crowd one receiver."""
        if self._graph.is_ordered:
            return transfers
        source, instruction = task
        ranks = self._ranks.get(instruction[2:4])
        if ranks is None or instruction[0] not in ENDS or len(transfers) < 2:
            return transfers
        turns = [ranks.get(transfer[2], -1) for transfer in transfers]
        ordered = sorted(turns)
        if turns != ordered:
            places = sorted(range(len(turns)), key=turns.__getitem__)
            transfers = [transfers[i] for i in places]
        split = bisect_left(ordered, 0)
        others, peers = transfers[:split], transfers[split:]
        rank = ranks.get(source, 0)
        next_peer = bisect_left(ordered, rank) - split
        next_other = rank * len(others) // len(ranks)
        return [
            *peers[next_peer:],
            *peers[:next_peer],
            *others[next_other:],
            *others[:next_other],
        ]

    def _turns(self, hub: Hub) -> _Turns:
        tasks = self._graph.tasks
        ranks = self._ranks[tasks[hub.makers[0]][1][2:4]]
        readers = {(tasks[i][0], id(gather)): gather for i, gather in hub.readers}
        found = [(agent, gather) for (agent, _), gather in readers.items()]
        peers = sorted((x for x in found if x[0] in ranks), key=lambda x: ranks[x[0]])
        others = [x for x in found if x[0] not in ranks]
        ordered = [*peers, *others]
        return _Turns(
            [ranks[agent] for agent, _ in peers],
            tuple([agent for agent, _ in ordered]),
            list(zip(*[gather.items for _, gather in ordered], strict=True)),
        )

    def _spread(self, task: int, turns: _Turns, place: int) -> Messages:
        """The order of :meth:`_in_turn`, for an item that is gathered."""
        source, instruction = self._graph.tasks[task]
        ranks = self._ranks[instruction[2:4]]
        rank, first = ranks.get(source, 0), len(turns.ranks)
        at = bisect_left(turns.ranks, rank)
        then = first + rank * (len(turns.agents) - first) // len(ranks)

        def in_turn(x: tuple[_T, ...]) -> tuple[_T, ...]:
            return (*x[at:first], *x[:at], *x[then:], *x[first:then])

        peers, items = in_turn(turns.agents), in_turn(turns.items[place])
        while source in peers:
            own = peers.index(source)
            peers, items = peers[:own] + peers[own + 1 :], items[:own] + items[own + 1 :]
        for item, queues in zip(items, map(self.large.__getitem__, peers), strict=True):
            if source in queues:
                queues[source].append(item)
            else:
                queues[source] = [item]
        return Messages(_SEND, items, peers)

    def _last(self, tasks: list[int]) -> int:
        """The task after which records of files are sent: the last one before END and EXIT."""
        names = self._graph.tasks
        return next(i for i in reversed(tasks) if names[i].instruction.op not in _CLOSES)


def _ranks(graph: IndexedGraph) -> dict[tuple[int, ...], dict[AgentId, int]]:
    """Layers of a stage -> the agents that reduce slices of its gradient, numbered."""
    found: dict[tuple[int, ...], dict[AgentId, int]] = {}
    for agent, instruction in graph.tasks:
        if instruction[0] is _REDUCE:
            ranks = found.setdefault(instruction[2:4], {})
            ranks.setdefault(agent, len(ranks))
    return found
