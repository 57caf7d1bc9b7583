"""A task graph with numbers instead of names, for speed; used by scheduler and lowering.

A task's number is its position in ``graph.tasks``. Tasks and transfers are looked up by identity:
the closure uses one object for each. An equal task that is another object is found, but slowly.
Two equal transfers would both be sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bamboo_core.graph.tasks import Gather, TaskGraph, TaskId, Transfer
from bamboo_core.model.items import Kind
from bamboo_core.model.program import Op

_FILE, _SEAL = Kind.FILE, Op.SEAL
_BEFORE_SEAL = frozenset({Op.V, Op.UPDATE})


@dataclass
class Hub:
    """Between the tasks that make items and those that gather them: ready once all are made."""

    makers: list[int]  # tasks
    readers: list[tuple[int, Gather]] = field(default_factory=list)  # tasks, and what they need


class IndexedGraph:
    """Lists by task number.

    waits: number of dependencies. after: tasks of the same agent, and hubs, that wait for the task.
    far: tasks that wait for its messages, one entry per message.
    inbound: transfers that the task waits for. outbound: transfers of its results, except records
    of files, which are in ``closing``. opening: transfers of items that exist already;
    ``openers`` lists the tasks that wait for them. Transfers are keyed by ``id``.
    is_ordered: whether each task's outbound transfers leave in their order.
    gathers: task -> what it gathers. hubs: one for the makers of gathers; their numbers follow
    those of the tasks, in ``waits`` and ``after``.
    """

    def __init__(self, graph: TaskGraph) -> None:
        self.agents = graph.agents
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
        self.gathers: dict[int, list[Gather]] = {}
        self.hubs: list[Hub] = []
        self.is_ordered = False
        self._hub_of: dict[int, Hub] = {}  # by the id of the makers
        self._link(graph)
        self._delay_seals()

    def _link(self, graph: TaskGraph) -> None:
        number = {id(task): i for i, task in enumerate(graph.tasks)}
        after, far, inbound, outbound = self.after, self.far, self.inbound, self.outbound
        known: set[int] = set()
        for i, needs in enumerate(graph.tasks.values()):
            arriving = inbound[i]
            for need in needs:
                if isinstance(need, TaskId):
                    before = number.get(id(need))
                    after[self._find(need) if before is None else before].append(i)
                    continue
                if isinstance(need, Gather):
                    self._gather(i, need, number)
                    continue
                arriving.append(need)
                producer, key = need[3], id(need)
                if producer is None:
                    self.opening[key] = need
                    self.openers.setdefault(key, []).append(i)
                    continue
                maker = number.get(id(producer))
                if maker is None:
                    maker = self._find(producer)
                far[maker].append(i)
                if key not in known:
                    known.add(key)
                    if need[0][0] is _FILE:
                        self.closing[key] = need
                    else:
                        outbound[maker].append(need)

    def _gather(self, reader: int, gather: Gather, number: Mapping[int, int]) -> None:
        hub = self._hub_of.get(id(gather.makers))
        if hub is None:
            found = (number.get(id(task)) for task in gather.makers)
            tasks = zip(found, gather.makers, strict=True)
            makers = [self._find(task) if n is None else n for n, task in tasks]
            hub = self._hub_of[id(gather.makers)] = Hub(makers)
            for maker in makers:
                self.after[maker].append(len(self.tasks) + len(self.hubs))
            self.waits.append(len(makers))
            self.hubs.append(hub)
        hub.readers.append((reader, gather))
        self.gathers.setdefault(reader, []).append(gather)

    def _find(self, task: TaskId) -> int:
        """Number of an equal task that is another object. ValueError if the graph has none."""
        try:
            return self.tasks.index(task)
        except ValueError:
            raise ValueError(
                f"{task.agent} waits for {task.instruction}, which is not a task"
            ) from None

    def _delay_seals(self) -> None:
        """Let SEAL follow the agent's other tasks, since files are written in the background."""
        for seal, (agent, instruction) in enumerate(self.tasks):
            if instruction.op is _SEAL:
                for i, task in enumerate(self.tasks):
                    if task.agent == agent and task.instruction.op in _BEFORE_SEAL:
                        self.after[i].append(seal)
                        self.waits[seal] += 1
