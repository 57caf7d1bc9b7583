"""From the order of tasks to programs: inserts SEND and RECV.

A SEND follows its producer directly, or comes first in the program if the item exists already. A
file's record is sent last, since the file is written in the background. The agents of a stage send
pieces of its gradient to all others, each beginning with another receiver: an interface receives
one item after the other. A task that is a RECV stands for an agent that passes a piece on. Between
two agents, messages are received in the order in which they are sent: before a message, an agent
receives all that were sent earlier.
"""

from __future__ import annotations

from bisect import bisect_left

from bamboo_core.graph.tasks import TaskId, Transfer
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Kind
from bamboo_core.model.program import Instruction, Op, Program
from bamboo_core.scheduling.indexed_graph import IndexedGraph

_SEND, _RECV, _REDUCE, _RED = Op.SEND, Op.RECV, Op.REDUCE, Kind.RED
_new = tuple.__new__  # five times faster; two thirds of the instructions are messages
_CLOSES = frozenset({Op.END, Op.EXIT})
_EXCHANGES = frozenset({Op.FOLD, Op.REDUCE})


class Lowering:
    """One set of programs. ``order``: task numbers of each agent, as they begin.

    Transfers are known by their ids: they, and their items, live as long as the graph.
    """

    def __init__(self, graph: IndexedGraph, order: list[list[int]]) -> None:
        self._graph, self._order = graph, order
        self._agents = graph.agents
        self._ranks = _ranks(graph)
        self._relayed = {  # transfers to agents that pass the piece on
            id(transfer)
            for (_, x), inbound in zip(graph.tasks, graph.inbound, strict=True)
            if x[0] is _RECV
            for transfer in inbound
        }
        self._opening = self._open()
        self._closing: dict[AgentId, list[Transfer]] = {}
        for transfer in graph.closing.values():
            self._closing.setdefault(transfer.source, []).append(transfer)
        self._before: dict[int, Transfer] = {}  # the transfer that the same pair sends before it
        self._received: set[int] = set()
        # RECV of a reduced slice, by the id of its REDUCE: the same for all agents that get it.
        self._receives: dict[int, Instruction] = {}

    def programs(self) -> dict[AgentId, Program]:
        """One program per agent of the graph."""
        ordered = list(zip(self._agents, self._order, strict=True))
        sends = [self._sends(name, tasks) for name, tasks in ordered]
        return {
            name: self._program(tasks, sent)
            for (name, tasks), sent in zip(ordered, sends, strict=True)
        }

    def _open(self) -> dict[AgentId, list[Transfer]]:
        """What agents send first, ordered by when it is needed."""
        out: dict[AgentId, list[Transfer]] = {}
        if not self._graph.opening:
            return out
        begun = {i: at for tasks in self._order for at, i in enumerate(tasks)}
        first = {key: min(begun[i] for i in x) for key, x in self._graph.openers.items()}
        for key in sorted(first, key=first.__getitem__):
            transfer = self._graph.opening[key]
            out.setdefault(transfer.source, []).append(transfer)
        return out

    def _sends(self, name: AgentId, tasks: list[int]) -> dict[int, list[Instruction]]:
        """Task number -> SENDs that follow it, in program order; -1: first in the program."""
        outbound, closing = self._graph.outbound, self._closing.get(name)
        newest: dict[AgentId, Transfer] = {}
        out: dict[int, list[Instruction]] = {}
        if name in self._opening:
            out[-1] = self._sent(self._opening[name], newest)
        last = self._last(tasks) if closing else -1
        for i in tasks:
            if outbound[i]:
                out[i] = self._sent(self._in_turn(self._graph.tasks[i], outbound[i]), newest)
            if closing and i == last:
                out[i] = out.get(i, []) + self._sent(closing, newest)
        return out

    def _sent(
        self, transfers: list[Transfer], newest: dict[AgentId, Transfer]
    ) -> list[Instruction]:
        """Their SENDs. newest: receiver -> the transfer that the agent sends to it before."""
        before = self._before
        out: list[Instruction] = []
        for transfer in transfers:
            item, _, target, producer = transfer
            if target in newest:
                before[id(transfer)] = newest[target]
            newest[target] = transfer
            if producer is None or producer[1][9]:
                out.append(self._message(_SEND, transfer, target))
            else:  # the usual case of :meth:`_message`
                out.append(_new(Instruction, (_SEND, 0, 0, 0, 0, item, target, (), (), 0)))
        return out

    def _in_turn(self, task: TaskId, transfers: list[Transfer]) -> list[Transfer]:
        """Gradients: first to an agent that passes them on, then to those that reduce others of the
        stage, then to those that only copy its layers; each from the sender's rank on, so that no
        two crowd one receiver."""
        source, instruction = task
        if instruction[0] is _RECV:
            return sorted(transfers, key=lambda x: (x[2] < source, x[2]))
        ranks = self._ranks.get(instruction[2:4])
        if ranks is None or instruction[0] not in _EXCHANGES or len(transfers) < 2:
            return transfers
        turns = [ranks.get(transfer[2], -1) for transfer in transfers]
        ordered = sorted(turns)
        if turns != ordered:
            places = sorted(range(len(turns)), key=turns.__getitem__)
            transfers = [transfers[i] for i in places]
        relays = [x for x in transfers if id(x) in self._relayed] if self._relayed else []
        split = bisect_left(ordered, 0)
        others, peers = transfers[:split], transfers[split:]
        rank = ranks.get(source, 0)
        next_peer = bisect_left(ordered, rank) - split
        next_other = rank * len(others) // len(ranks)
        if relays:
            others = [x for x in others if id(x) not in self._relayed]
        return [
            *relays,
            *peers[next_peer:],
            *peers[:next_peer],
            *others[next_other:],
            *others[:next_other],
        ]

    def _last(self, tasks: list[int]) -> int:
        """The task after which records of files are sent: the last one before END and EXIT."""
        names = self._graph.tasks
        return next(i for i in reversed(tasks) if names[i].instruction.op not in _CLOSES)

    def _program(self, tasks: list[int], sends: dict[int, list[Instruction]]) -> Program:
        names, inbound = self._graph.tasks, self._graph.inbound
        before, received = self._before, self._received
        out: list[Instruction] = sends.get(-1, [])
        for i in tasks:
            for transfer in inbound[i]:
                key = id(transfer)
                if key in received:
                    continue
                earlier = before.get(key)
                if earlier is not None and id(earlier) not in received:
                    self._catch_up(earlier, out)
                received.add(key)
                item, source, _, producer = transfer
                if producer is None or producer[1][9] or item[0] is _RED:
                    out.append(self._receive(transfer))
                else:  # the usual case of :meth:`_message`
                    out.append(_new(Instruction, (_RECV, 0, 0, 0, 0, item, source, (), (), 0)))
            if names[i][1][0] is not _RECV:
                out.append(names[i][1])
            if i in sends:
                out += sends[i]
        return tuple(out)

    def _catch_up(self, transfer: Transfer | None, out: list[Instruction]) -> None:
        """Receive the transfer, and before it all that were sent earlier."""
        missed: list[Transfer] = []
        while transfer is not None and id(transfer) not in self._received:
            missed.append(transfer)
            transfer = self._before.get(id(transfer))
        for found in reversed(missed):
            self._received.add(id(found))
            out.append(self._receive(found))

    def _receive(self, transfer: Transfer) -> Instruction:
        item, source, _, producer = transfer
        if item[0] is not _RED or producer is None:
            return self._message(_RECV, transfer, source)
        found = self._receives.get(id(producer))
        if found is None:
            found = self._receives[id(producer)] = self._message(_RECV, transfer, source)
        return found

    def _message(self, op: Op, transfer: Transfer, peer: AgentId) -> Instruction:
        """SEND or RECV, skipped in the same steps as the task that makes or needs the item."""
        task = (transfer[3] or self._reader(transfer))[1]
        every = task[9]
        step = task[1] if every else 0
        return _new(Instruction, (op, step, 0, 0, 0, transfer[0], peer, (), (), every))

    def _reader(self, transfer: Transfer) -> TaskId:
        return self._graph.tasks[self._graph.openers[id(transfer)][0]]


def _ranks(graph: IndexedGraph) -> dict[tuple[int, ...], dict[AgentId, int]]:
    """Layers of a stage -> the agents that reduce slices of its gradient, numbered."""
    found: dict[tuple[int, ...], dict[AgentId, int]] = {}
    for agent, instruction in graph.tasks:
        if instruction[0] is _REDUCE:
            ranks = found.setdefault(instruction[2:4], {})
            ranks.setdefault(agent, len(ranks))
    return found
