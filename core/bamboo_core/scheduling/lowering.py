"""From the order of tasks to programs: where SEND and RECV stand.

A SEND stands right behind its producer, or first in the program if the item is there already; a
file's record is sent last, since it is written in the background. Messages of an ordered pair of
agents are received in the order in which they are sent: whoever waits for one first takes all
that were sent before it.
"""

from __future__ import annotations

from collections.abc import Iterable

from bamboo_core.graph.tasks import TaskId, Transfer
from bamboo_core.model.ids import AgentId
from bamboo_core.model.program import Instruction, Op, Program
from bamboo_core.scheduling.indexed_graph import IndexedGraph

_SEND, _RECV = Op.SEND, Op.RECV
_new = tuple.__new__  # a fifth of the time, for two of three instructions of a big grid
_CLOSES = frozenset({Op.END, Op.EXIT})


class Lowering:
    """One set of programs. ``order``: task numbers by agent, as they begin."""

    def __init__(self, graph: IndexedGraph, order: list[list[int]]) -> None:
        self._graph, self._order = graph, order
        self._agents = graph.graph.agents
        self._opening = self._open()
        self._closing: dict[AgentId, list[Transfer]] = {}
        for transfer in graph.closing.values():
            self._closing.setdefault(transfer.source, []).append(transfer)
        self._received: set[int] = set()

    def programs(self) -> dict[AgentId, Program]:
        """One program per agent of the graph."""
        everyone = list(zip(self._agents, self._order, strict=True))
        sends = {name: self._sends(name, tasks) for name, tasks in everyone}
        lanes = {name: _lanes(sent) for name, sent in sends.items()}
        return {name: self._program(name, tasks, sends[name], lanes) for name, tasks in everyone}

    def _open(self) -> dict[AgentId, list[Transfer]]:
        """What agents send at once: what is needed soonest first."""
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
        """Task number -> what is sent behind it, in the order of the program; -1: first."""
        outbound, closing = self._graph.outbound, self._closing.get(name)
        out = {-1: self._opening[name]} if name in self._opening else {}
        last = self._last(tasks) if closing else -1
        for i in tasks:
            if outbound[i]:
                out[i] = outbound[i]
            if closing and i == last:
                out[i] = outbound[i] + closing
        return out

    def _last(self, tasks: list[int]) -> int:
        """The task behind which the records of files are sent: the last but END and EXIT."""
        names = self._graph.tasks
        return next(i for i in reversed(tasks) if names[i].instruction.op not in _CLOSES)

    def _program(
        self,
        name: AgentId,
        tasks: list[int],
        sends: dict[int, list[Transfer]],
        lanes: dict[AgentId, dict[AgentId, list[Transfer]]],
    ) -> Program:
        names, inbound, received = self._graph.tasks, self._graph.inbound, self._received
        out: list[Instruction] = []
        self._send(sends.get(-1, ()), out)
        for i in tasks:
            for transfer in inbound[i]:
                if id(transfer) not in received:
                    lane = lanes[transfer[1]][name]
                    if lane[-1] is not transfer:
                        self._receive(lane, transfer, out)
                    lane.pop()
                    received.add(id(transfer))
                    out.append(self._message(_RECV, transfer, transfer[1]))
            out.append(names[i][1])
            if i in sends:
                self._send(sends[i], out)
        return tuple(out)

    def _send(self, transfers: Iterable[Transfer], out: list[Instruction]) -> None:
        for transfer in transfers:
            out.append(self._message(_SEND, transfer, transfer[2]))

    def _receive(self, lane: list[Transfer], wanted: Transfer, out: list[Instruction]) -> None:
        """Take what was sent before the wanted one; a lane is in reverse order."""
        while lane[-1] is not wanted:
            transfer = lane.pop()
            self._received.add(id(transfer))
            out.append(self._message(_RECV, transfer, transfer[1]))

    def _message(self, op: Op, transfer: Transfer, peer: AgentId) -> Instruction:
        """Skipped in the same steps as the task that makes or needs the item."""
        task = (transfer[3] or self._reader(transfer))[1]
        every = task[9]
        step = task[1] if every else 0
        return _new(Instruction, (op, step, 0, 0, 0, transfer[0], peer, (), (), every))

    def _reader(self, transfer: Transfer) -> TaskId:
        return self._graph.tasks[self._graph.openers[id(transfer)][0]]


def _lanes(sends: dict[int, list[Transfer]]) -> dict[AgentId, list[Transfer]]:
    """Receiver -> what is sent to it, last first."""
    lanes: dict[AgentId, list[Transfer]] = {}
    for transfers in sends.values():
        for transfer in transfers:
            target = transfer[2]
            if target in lanes:
                lanes[target].append(transfer)
            else:
                lanes[target] = [transfer]
    for lane in lanes.values():
        lane.reverse()
    return lanes
