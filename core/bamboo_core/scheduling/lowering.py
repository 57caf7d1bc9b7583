"""From the order of tasks to programs: inserts SEND and RECV.

:mod:`sends` says what follows each task. Between two agents, messages are received in the order in
which they are sent: before a message, an agent receives all that were sent earlier.
"""

from __future__ import annotations

from typing import cast

from bamboo_core.graph.tasks import Gather, Transfer
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.program import Instruction, Messages, Op, Packed, Program
from bamboo_core.scheduling.indexed_graph import IndexedGraph
from bamboo_core.scheduling.sends import FIRST, Parts, Queue, Sends, message

_RECV, _RED = Op.RECV, Kind.RED
_new = tuple.__new__  # five times faster; two thirds of the instructions are messages


class Lowering:
    """One set of programs. ``order``: task numbers of each agent, as they begin."""

    def __init__(self, graph: IndexedGraph, order: list[list[int]]) -> None:
        self._graph, self._order = graph, order
        # RECV of a reduced slice, by the id of its REDUCE: the same for all agents that get it.
        self._receives: dict[int, Instruction] = {}
        self._collected: dict[int, Messages] = {}  # by the id of a gather

    def programs(self) -> dict[AgentId, Program]:
        """One program per agent of the graph; packed if anything is gathered."""
        sends = Sends(self._graph, self._order)
        self._queues = sends.queues
        graph = self._graph
        order = dict(zip(graph.agents, self._order, strict=True))
        # those that gather the same items one after the other: this spares a tenth of the time,
        # since their queues are still in the processor's cache
        hub_of = {graph.tasks[i][0]: n for n, x in enumerate(graph.hubs) for i, _ in x.readers}
        turns = sorted(order, key=lambda name: hub_of.get(name, 0))
        made = {name: self._parts(name, order[name], sends.after[name]) for name in turns}
        if graph.hubs:
            return {name: Packed(made[name]) for name in order}
        return {name: tuple(cast(list[Instruction], made[name])) for name in order}

    def _parts(self, name: AgentId, tasks: list[int], sends: dict[int, Parts]) -> Parts:
        names, inbound, gathers = self._graph.tasks, self._graph.inbound, self._graph.gathers
        queues, received = self._queues, set[int]()
        out: Parts = sends.get(FIRST, [])
        for i in tasks:
            for transfer in inbound[i]:
                key = id(transfer)
                if key in received:
                    continue
                item, source, _, producer = transfer
                queue = queues[source][name]
                if queue[0] is not transfer:
                    self._catch_up(queue, transfer, source, received, out)
                del queue[0]
                received.add(key)
                if producer is None or producer[1][9] or item[0] is _RED:
                    out.append(self._receive(transfer))
                else:  # the usual case of :func:`message`
                    out.append(_new(Instruction, (_RECV, 0, 0, 0, 0, item, source, (), (), 0)))
            for gather in gathers.get(i, ()):
                if id(gather) not in received:
                    self._collect(name, gather, received, out)
            if names[i][1][0] is not _RECV:
                out.append(names[i][1])
            if i in sends:
                out += sends[i]
        return out

    def _collect(self, name: AgentId, gather: Gather, received: set[int], out: Parts) -> None:
        """Receive what is gathered, after what the same agents have sent earlier."""
        received.add(id(gather))
        wanted, queues, places = self._wanted(name, gather), self._queues, list[int]()
        for at, (item, peer) in enumerate(zip(wanted.items, wanted.peers, strict=True)):
            queue = queues[peer][name]
            if not queue or queue[0] is not item:
                if id(item) in received:
                    continue
                if any(wanted.peers[place] == peer for place in places):
                    out.append(wanted.only(places))
                    places = []
                self._catch_up(queue, item, peer, received, out)
            del queue[0]
            places.append(at)
        if places:
            out.append(wanted if len(places) == len(wanted.items) else wanted.only(places))

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
        queue: Queue,
        wanted: Transfer | Item,
        source: AgentId,
        received: set[int],
        out: Parts,
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
            return message(_RECV, transfer, source, self._graph)
        found = self._receives.get(id(producer))
        if found is None:
            found = message(_RECV, transfer, source, self._graph)
            self._receives[id(producer)] = found
        return found


def _received(item: Item, source: AgentId) -> Instruction:
    return _new(Instruction, (_RECV, 0, 0, 0, 0, item, source, (), (), 0))
