"""The list scheduler: turns a task graph into one program per agent.

Only F, B, I and W take time, and slices of gradients on the network (:mod:`exchange`). Every other
task is free and runs as soon as it can. An idle agent takes the first ready task in this order: I
or B (earliest in its pipeline, lower stage); F (earliest, deeper stage), within its cap of
activations in flight; W (earliest). The deepest stage of an agent has one slot beyond the cap.
Without it, agents of two stages could deadlock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush

from bamboo_core.graph.tasks import TaskGraph
from bamboo_core.model.ids import AgentId, Range
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Op, Program
from bamboo_core.scheduling.costs import Costs as Costs
from bamboo_core.scheduling.exchange import ENDS, Exchange
from bamboo_core.scheduling.indexed_graph import IndexedGraph
from bamboo_core.scheduling.lowering import Lowering


def caps(seats: Sequence[Sequence[AgentId | None]], extra: int = 0) -> dict[AgentId, int]:
    """Cap of activations in flight of every seated agent: P - s + extra, with s from 0."""
    return {
        agent: len(pipeline) - stage + extra
        for pipeline in seats
        for stage, agent in enumerate(pipeline)
        if agent is not None
    }


@dataclass(frozen=True)
class Schedule:
    """Programs, and what the simulation of their step has shown.

    lower: makes the programs. Most schedules are only compared, and nobody asks for theirs.
    """

    lower: Callable[[], dict[AgentId, Program]]
    length: float  # until the last computation ends, in the unit of the costs
    forced: int  # forwards released beyond the cap; 0 unless the cap is impossible
    end: float  # when the last slice of a gradient has come, too
    is_split: bool = False  # as its graph
    busiest: float = 0.0  # all that the agent with most to compute computes

    @cached_property
    def programs(self) -> dict[AgentId, Program]:
        """The program of each agent."""
        return self.lower()


MANY = 64
"""Agents; beyond, one way to schedule a step is tried only."""


def build(
    graph: TaskGraph,
    *,
    batch: BatchShape,
    costs: Costs,
    caps: Mapping[AgentId, int],
    order: Sequence[int] = (),
    speeds: Mapping[AgentId, float] | None = None,
    sums: Mapping[Range, float] | None = None,
    relays: bool = True,
    is_split: bool = False,
) -> Schedule:
    """Programs that run every task of the graph.

    caps: activations in flight per agent (absent: no limit), in the order of their seats, which
    decides whose turn it is, so that names do not; order: micro-batch -> its place in the step
    (empty: by their numbers); speeds: relative speed of the agents (absent: 1); sums: layers
    of a stage -> time that its gradient takes to another agent (absent: none); relays: whether
    agents may pass gradients on. Where gradients are gathered, or agents are many, they take no
    time and nobody passes them on. is_split: whether backwards of the graph are.
    ValueError if the graph is cyclic.
    """
    indexed = IndexedGraph(graph)
    index = _Index(indexed, order or range(batch.microbatches), costs, speeds or {})
    run = _Simulation(index, caps)
    if (relays or sums) and not indexed.hubs and len(indexed.agents) <= MANY:
        run.exchange = Exchange(
            indexed,
            sums or {},
            seated=caps,
            order=run.order,
            events=run.events,
            first=2 * index.size + 1,
            latency=costs.latency,
            passes=relays,
        )
    run.run()
    end = run.length
    if run.exchange is not None:
        run.exchange.settle()
        end = max(end, run.exchange.end)
    begun = run.order
    return Schedule(
        lambda: Lowering(indexed, begun).programs(),
        run.length,
        run.forced,
        end,
        is_split,
        max(index.loads(), default=0.0),
    )


_FORWARD, _BACKWARD, _WEIGHT, _EAGER, _HUB = range(5)
_B, _I, _KIND = Op.B, Op.I, {Op.F: _FORWARD, Op.B: _BACKWARD, Op.I: _BACKWARD, Op.W: _WEIGHT}


class _Index:
    """Facts about tasks for the simulation; lists by task number, with hubs at the end.

    kind: its class. No task waits for the backward of the first stage: it has the priority of W.
    key: priority within the task's class, smaller first; its last digits are the task's number.
    deep: whether the task is of the deepest stage whose forwards its agent runs.
    holds: whether the task is a forward whose activation is kept. frees: whether it frees one.
    held: tasks that free an activation that exists already.
    """

    def __init__(
        self,
        graph: IndexedGraph,
        positions: Sequence[int],
        costs: Costs,
        speeds: Mapping[AgentId, float],
    ) -> None:
        hubs = graph.hubs
        self.tasks, self.size = graph.tasks, len(graph.tasks) + len(hubs)
        self.names, self.latency = graph.agents, costs.latency
        self.after = [*graph.after, *([] for _ in hubs)]
        self.far = [*graph.far, *([reader for reader, _ in hub.readers] for hub in hubs)]
        self.opening = [i for readers in graph.openers.values() for i in readers]
        self.waits = graph.waits
        ordinal = {a: i for i, a in enumerate(self.names)}
        self.agent = [ordinal[agent] for agent, _ in self.tasks]
        # Op, lower layer and index of each: a large grid has tens of thousands.
        self.parts = [(x[0], x[2], x[4]) for _, x in self.tasks]
        self.kind = [
            _WEIGHT if op is _B and not lo else _KIND.get(op, _EAGER) for op, lo, _ in self.parts
        ]
        durations = costs.durations()
        self.duration = [
            durations.of(x) if kind != _EAGER else 0.0
            for (_, x), kind in zip(self.tasks, self.kind, strict=True)
        ]
        if speeds:
            speed = [speeds.get(a, 1.0) for a in self.names]
            self.duration = [x / speed[a] for x, a in zip(self.duration, self.agent, strict=True)]
        self.key = self._keys(positions)
        self.deep = self._deep()
        self.holds, self.frees, self.held = self._acts()
        self.kind += [_HUB for _ in hubs]

    def _keys(self, positions: Sequence[int]) -> list[int]:
        layers = 1 + max([x[3] for _, x in self.tasks], default=0)
        microbatches, size = len(positions), self.size
        keys = []
        for i, ((_, lo, m), kind) in enumerate(zip(self.parts, self.kind, strict=True)):
            if kind == _EAGER:
                keys.append(i)
                continue
            stage = layers - lo if kind == _FORWARD else lo
            order = (positions[m] * (layers + 1) + stage) * microbatches + m
            keys.append(order * size + i)
        return keys

    def loads(self) -> list[float]:
        """Agent -> the time of all its tasks."""
        found = [0.0] * len(self.names)
        for agent, duration in zip(self.agent, self.duration, strict=True):
            found[agent] += duration
        return found

    def _deep(self) -> list[bool]:
        deepest = [-1] * len(self.names)
        for (_, lo, _), agent, kind in zip(self.parts, self.agent, self.kind, strict=True):
            if kind == _FORWARD and lo > deepest[agent]:
                deepest[agent] = lo
        return [lo == deepest[a] for (_, lo, _), a in zip(self.parts, self.agent, strict=True)]

    def _acts(self) -> tuple[list[bool], list[bool], list[int]]:
        users: dict[tuple[int, int, int], int] = {}
        makers: dict[tuple[int, int, int], int] = {}
        for i, ((op, lo, m), kind) in enumerate(zip(self.parts, self.kind, strict=True)):
            if kind == _EAGER:
                continue
            key = (self.agent[i], lo, m)
            if kind == _FORWARD:
                makers[key] = i
            elif op is not _I or key not in users:  # W frees if there is one, else I
                users[key] = i
        holds, frees = [False] * len(self.tasks), [False] * self.size
        for key, i in users.items():
            frees[i] = True
            if key in makers:
                holds[makers[key]] = True
        return holds, frees, [i for key, i in users.items() if key not in makers]


class _Simulation:
    """Runs the tasks in simulated time. ``order``: tasks per agent as they began."""

    def __init__(self, index: _Index, caps: Mapping[AgentId, int]) -> None:
        self.index = index
        n = len(index.names)
        self.cap = [caps.get(a, index.size + 1) for a in index.names]
        self.waits = index.waits
        self.order: list[list[int]] = [[] for _ in range(n)]
        self.busy = [False] * n
        self.eager: list[deque[int]] = [deque() for _ in range(n)]
        self.backward: list[list[int]] = [[] for _ in range(n)]
        self.weight: list[list[int]] = [[] for _ in range(n)]
        self.forward: list[list[int]] = [[] for _ in range(n)]
        self.reserved: list[list[int]] = [[] for _ in range(n)]  # F of the deepest stage
        self.in_flight = [0] * n
        self.deep_in_flight = [0] * n
        for i in index.held:
            self.in_flight[index.agent[i]] += 1
            self.deep_in_flight[index.agent[i]] += index.deep[i]
        self.events: list[tuple[float, int]] = []
        self.now = self.length = 0.0
        self.exchange: Exchange | None = None
        self.forced = 0
        self.touched: list[int] = []
        self.passed = 0  # hubs

    def run(self) -> None:
        """Run until every task has run. ValueError if some can never run."""
        for i, waits in enumerate(self.waits):
            if waits == 0:
                self._ready(i)
        if self.index.latency and self.index.opening:
            heappush(self.events, (self.index.latency, 2 * self.index.size))
        else:
            self._release(self.index.opening)
        while True:
            self._settle()
            self._dispatch()
            if self.exchange is not None:
                self.exchange.match(self.now)
            if self.events:
                self._next_moment()
            elif not self._force():
                return

    def _next_moment(self) -> None:
        """Process all ends and arrivals at the next moment that has any."""
        events, size = self.events, self.index.size
        self.now = events[0][0]
        while events and events[0][0] <= self.now:
            i = heappop(events)[1]
            if i < size:
                agent = self.index.agent[i]
                self.busy[agent] = False
                self.touched.append(agent)
                self._complete(i)
            elif i <= 2 * size:
                self._release(self.index.far[i - size] if i < 2 * size else self.index.opening)
            else:
                assert self.exchange is not None, "nobody else makes such events"
                self._release(self.exchange.arrived(i))

    def _ready(self, i: int) -> None:
        kind = self.index.kind[i]
        if kind == _HUB:
            self.passed += 1
            self._complete(i)
            return
        agent = self.index.agent[i]
        self.touched.append(agent)
        if kind == _EAGER:
            self.eager[agent].append(i)
        elif kind == _BACKWARD:
            heappush(self.backward[agent], self.index.key[i])
        elif kind == _WEIGHT:
            heappush(self.weight[agent], self.index.key[i])
        elif self.index.deep[i]:
            heappush(self.reserved[agent], self.index.key[i])
        else:
            heappush(self.forward[agent], self.index.key[i])

    def _complete(self, i: int) -> None:
        index = self.index
        if index.frees[i]:
            agent = index.agent[i]
            self.in_flight[agent] -= 1
            self.deep_in_flight[agent] -= index.deep[i]
        self._release(index.after[i])
        exchange = self.exchange
        if exchange is not None:
            if index.kind[i] != _EAGER:
                exchange.computed(index.agent[i])
            elif index.parts[i][0] in ENDS:
                exchange.made(i, index.agent[i])
                return  # its messages are slices
        if index.far[i]:
            if index.latency:
                heappush(self.events, (self.now + index.latency, i + index.size))
            else:
                self._release(index.far[i])

    def _release(self, tasks: list[int]) -> None:
        """One dependency of these tasks is met."""
        waits = self.waits
        for j in tasks:
            waits[j] -= 1
            if not waits[j]:
                self._ready(j)

    def _settle(self) -> None:
        """Run all free tasks of idle agents, and the free tasks that become ready thereby."""
        for agent in self.touched:  # grows meanwhile
            queue = self.eager[agent]
            if queue and not self.busy[agent]:
                while queue:
                    i = queue.popleft()
                    self.order[agent].append(i)
                    self._complete(i)

    def _dispatch(self) -> None:
        for agent in self.touched:
            if not self.busy[agent]:
                i = self._choose(agent)
                if i >= 0:
                    self._begin(agent, i)
        self.touched = []

    def _choose(self, agent: int) -> int:
        """Number of the task that the idle agent begins next; -1 for none."""
        heap = self.backward[agent]
        if not heap:
            forward, reserved = self.forward[agent], self.reserved[agent]
            if self.in_flight[agent] < self.cap[agent]:
                heap = forward
                if reserved and (not forward or reserved[0] < forward[0]):
                    heap = reserved
            elif reserved and not self.deep_in_flight[agent]:
                heap = reserved
            if not heap:
                heap = self.weight[agent]
        return heappop(heap) % self.index.size if heap else -1

    def _begin(self, agent: int, i: int) -> None:
        if self.index.holds[i]:
            self.in_flight[agent] += 1
            self.deep_in_flight[agent] += self.index.deep[i]
        self.busy[agent] = True
        self.order[agent].append(i)
        end = self.now + self.index.duration[i]
        self.length = max(self.length, end)
        heappush(self.events, (end, i))

    def _force(self) -> bool:
        """No agent can go on: release the first waiting F beyond its cap. False at the end."""
        heaps = [h for h in (*self.forward, *self.reserved) if h]
        if heaps:
            i = heappop(min(heaps)) % self.index.size
            self.forced += 1
            self._begin(self.index.agent[i], i)
            return True
        left = self.index.size - self.passed - sum(map(len, self.order))
        if self.exchange is not None:
            left += self.exchange.added
        if left:
            raise ValueError(f"{left} tasks of the graph can never run: it is cyclic")
        return False
