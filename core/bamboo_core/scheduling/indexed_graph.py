"""A task graph with numbers for names: what scheduler and emission share. Made for speed.

A task's number is its place in ``graph.tasks``; equal tasks and equal transfers of a graph are one
object (see :class:`bamboo_core.graph.tasks.TaskGraph`), so that they are known by identity. An
equal task that is another object is found, but slowly; of an equal transfer both would be sent.
"""

from __future__ import annotations

from typing import cast

from bamboo_core.graph.tasks import TaskGraph, TaskId, Transfer
from bamboo_core.model.items import Kind
from bamboo_core.model.program import Op

_FILE, _SEAL = Kind.FILE, Op.SEAL
_BEFORE_SEAL = frozenset({Op.V, Op.UPDATE})


class IndexedGraph:
    """Lists by task number.

    after: tasks of the same agent that wait for it; far: tasks that wait for its messages (one
    entry for each message that they wait for); inbound: transfers that it waits for; outbound:
    transfers that it makes, but for records of files, which are in ``closing``; opening: transfers
    of what is held already, with the numbers of their readers in ``openers``; waits: how many
    things it waits for.
    """

    def __init__(self, graph: TaskGraph) -> None:
        self.graph = graph
        self.tasks = list(graph.tasks)
        n = len(self.tasks)
        self.waits = [len(needs) for needs in graph.tasks.values()]
        self.after: list[list[int]] = [[] for _ in range(n)]
        self.far: list[list[int]] = [[] for _ in range(n)]
        self.inbound: list[list[Transfer]] = [[] for _ in range(n)]
        self.outbound: list[list[Transfer]] = [[] for _ in range(n)]
        self.opening: dict[int, Transfer] = {}
        self.openers: dict[int, list[int]] = {}
        self.closing: dict[int, Transfer] = {}
        self._link(graph)
        self._delay_seals()

    def _link(self, graph: TaskGraph) -> None:
        number = {id(task): i for i, task in enumerate(graph.tasks)}
        after, far, inbound, outbound = self.after, self.far, self.inbound, self.outbound
        known: set[int] = set()
        for i, needs in enumerate(graph.tasks.values()):
            for need in needs:
                if type(need) is TaskId:
                    before = number.get(id(need))
                    after[self._find(need) if before is None else before].append(i)
                    continue
                transfer = cast(Transfer, need)
                inbound[i].append(transfer)
                item, _, _, producer = transfer
                key = id(transfer)
                if producer is None:
                    self.opening[key] = transfer
                    self.openers.setdefault(key, []).append(i)
                    continue
                maker = number.get(id(producer))
                if maker is None:
                    maker = self._find(producer)
                far[maker].append(i)
                if key not in known:
                    known.add(key)
                    if item[0] is _FILE:
                        self.closing[key] = transfer
                    else:
                        outbound[maker].append(transfer)

    def _find(self, task: TaskId) -> int:
        """Number of a task that is known by another object. ValueError: it is not in the graph."""
        try:
            return self.tasks.index(task)
        except ValueError:
            raise ValueError(f"{task.agent} shall wait for {task.instruction}, no task") from None

    def _delay_seals(self) -> None:
        """SEAL comes after the agent's work, since files are written in the background."""
        for seal, (agent, instruction) in enumerate(self.tasks):
            if instruction.op is _SEAL:
                for i, task in enumerate(self.tasks):
                    if task.agent == agent and task.instruction.op in _BEFORE_SEAL:
                        self.after[i].append(seal)
                        self.waits[seal] += 1
