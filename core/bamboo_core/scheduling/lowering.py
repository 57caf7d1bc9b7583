"""From the order of tasks to programs: inserts SEND and RECV.

A SEND follows its producer directly, or comes first in the program if the item exists already. A
file's record is sent last, since the file is written in the background. The agents of a stage send
pieces of its gradient to all others, each beginning with another receiver: an interface receives
one item after the other. Between two agents, messages are received in the order in which they are
sent: before a message, an agent receives all that were sent earlier.
"""

from __future__ import annotations

from collections.abc import Iterable

from bamboo_core.graph.tasks import TaskId, Transfer
from bamboo_core.model.ids import AgentId
from bamboo_core.model.program import Instruction, Op, Program
from bamboo_core.scheduling.indexed_graph import IndexedGraph

_SEND, _RECV, _REDUCE = Op.SEND, Op.RECV, Op.REDUCE
_new = tuple.__new__  # five times faster; two thirds of the instructions are messages
_CLOSES = frozenset({Op.END, Op.EXIT})
_EXCHANGES = frozenset({Op.FOLD, Op.REDUCE})


class Lowering:
    """One set of programs. ``order``: task numbers of each agent, as they begin."""

    def __init__(self, graph: IndexedGraph, order: list[list[int]]) -> None:
        self._graph, self._order = graph, order
        self._agents = graph.agents
        self._ranks = _ranks(graph)
        self._opening = self._open()
        self._closing: dict[AgentId, list[Transfer]] = {}
        for transfer in graph.closing.values():
            self._closing.setdefault(transfer.source, []).append(transfer)
        self._received: set[int] = set()

    def programs(self) -> dict[AgentId, Program]:
        """One program per agent of the graph."""
        ordered = list(zip(self._agents, self._order, strict=True))
        sends = {name: self._sends(name, tasks) for name, tasks in ordered}
        channels = {name: _channels(sent) for name, sent in sends.items()}
        return {name: self._program(name, tasks, sends[name], channels) for name, tasks in ordered}

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

    def _sends(self, name: AgentId, tasks: list[int]) -> dict[int, list[Transfer]]:
        """Task number -> transfers that follow it, in program order; -1: first in the program."""
        outbound, closing = self._graph.outbound, self._closing.get(name)
        out = {-1: self._opening[name]} if name in self._opening else {}
        last = self._last(tasks) if closing else -1
        for i in tasks:
            if outbound[i]:
                out[i] = self._in_turn(self._graph.tasks[i], outbound[i])
            if closing and i == last:
                out[i] = out.get(i, []) + closing
        return out

    def _in_turn(self, task: TaskId, transfers: list[Transfer]) -> list[Transfer]:
        """Gradients: first to the agents that reduce those of the stage, then to those that only
        copy its layers; each from the sender's rank on, so that no two crowd one receiver."""
        source, instruction = task
        ranks = self._ranks.get(instruction[2:4])
        if ranks is None or instruction[0] not in _EXCHANGES or len(transfers) < 2:
            return transfers
        peers: list[Transfer] = []
        others: list[Transfer] = []
        for transfer in transfers:
            (peers if transfer[2] in ranks else others).append(transfer)
        rank, count = ranks.get(source, 0), len(ranks)
        peers.sort(key=lambda transfer: (ranks[transfer[2]] - rank) % count)
        first = rank * len(others) // count
        return peers + others[first:] + others[:first]

    def _last(self, tasks: list[int]) -> int:
        """The task after which records of files are sent: the last one before END and EXIT."""
        names = self._graph.tasks
        return next(i for i in reversed(tasks) if names[i].instruction.op not in _CLOSES)

    def _program(
        self,
        name: AgentId,
        tasks: list[int],
        sends: dict[int, list[Transfer]],
        channels: dict[AgentId, dict[AgentId, list[Transfer]]],
    ) -> Program:
        names, inbound, received = self._graph.tasks, self._graph.inbound, self._received
        out: list[Instruction] = []
        self._send(sends.get(-1, ()), out)
        for i in tasks:
            for transfer in inbound[i]:
                if id(transfer) not in received:
                    channel = channels[transfer[1]][name]
                    if channel[-1] is not transfer:
                        self._receive(channel, transfer, out)
                    channel.pop()
                    received.add(id(transfer))
                    out.append(self._message(_RECV, transfer, transfer[1]))
            out.append(names[i][1])
            if i in sends:
                self._send(sends[i], out)
        return tuple(out)

    def _send(self, transfers: Iterable[Transfer], out: list[Instruction]) -> None:
        for transfer in transfers:
            out.append(self._message(_SEND, transfer, transfer[2]))

    def _receive(self, channel: list[Transfer], wanted: Transfer, out: list[Instruction]) -> None:
        """Receive what was sent before the wanted transfer; a channel is in reverse order."""
        while channel[-1] is not wanted:
            transfer = channel.pop()
            self._received.add(id(transfer))
            out.append(self._message(_RECV, transfer, transfer[1]))

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


def _channels(sends: dict[int, list[Transfer]]) -> dict[AgentId, list[Transfer]]:
    """Receiver -> the transfers to it, last first."""
    channels: dict[AgentId, list[Transfer]] = {}
    for transfers in sends.values():
        for transfer in transfers:
            target = transfer[2]
            if target in channels:
                channels[target].append(transfer)
            else:
                channels[target] = [transfer]
    for channel in channels.values():
        channel.reverse()
    return channels
