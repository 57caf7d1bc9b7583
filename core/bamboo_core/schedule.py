"""The list scheduler: a task graph becomes one program per agent (step-graph, section 4.2).

Only F, B, I and W take time; every other task costs nothing and runs as soon as it can. An idle
agent takes the first that is ready of: I or B (earliest in its pipeline, lower stage), F (earliest,
deeper stage) while its cap of forward results in flight allows, W (earliest). The deepest stage of
an agent has one slot of its own beyond the cap: without it, agents of two stages lock each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate

from bamboo_core.graph import TaskGraph, TaskId, Transfer
from bamboo_core.ids import AgentId
from bamboo_core.messages import LayerCost
from bamboo_core.numerics import BatchShape
from bamboo_core.program import Instruction, Op, Program
from bamboo_core.workmap import pipeline_of


@dataclass(frozen=True)
class Costs:
    """Time of the tasks of each layer, in any one unit (slots, seconds); ``latency`` of a message.

    forward, fused (B), input_gradient (I), weight_gradient (W): one number per layer.
    """

    forward: tuple[float, ...]
    fused: tuple[float, ...]
    input_gradient: tuple[float, ...]
    weight_gradient: tuple[float, ...]
    latency: float = 0.0

    @staticmethod
    def even(layers: int, *, unit: float = 1.0, latency: float = 0.0) -> Costs:
        """F = I = W = ``unit`` and B = 2 units for every layer."""
        one, two = (unit,) * layers, (2 * unit,) * layers
        return Costs(one, two, one, one, latency)

    @staticmethod
    def measured(
        profile: Sequence[LayerCost], *, split_overhead: float = 0.12, latency: float = 0.0
    ) -> Costs:
        """From profiled seconds; a split backward is dearer by ``split_overhead`` of the fused."""
        fused = tuple(x.backward_s for x in profile)
        half = tuple(x * (1 + split_overhead) / 2 for x in fused)
        return Costs(tuple(x.forward_s for x in profile), fused, half, half, latency)

    def durations(self) -> Durations:
        """The same as prefix sums."""
        return Durations(
            {
                Op.F: _prefix(self.forward),
                Op.V: _prefix(self.forward),
                Op.B: _prefix(self.fused),
                Op.I: _prefix(self.input_gradient),
                Op.W: _prefix(self.weight_gradient),
            }
        )


class Durations(dict[Op, list[float]]):
    """Compute op -> prefix sums of its cost over the layers."""

    def of(self, instruction: Instruction) -> float:
        """Time that the instruction takes."""
        sums = self.get(instruction.op)
        return sums[instruction.hi] - sums[instruction.lo] if sums else 0.0


def _prefix(costs: tuple[float, ...]) -> list[float]:
    return list(accumulate(costs, initial=0.0))


def caps(seats: Sequence[Sequence[AgentId | None]], extra: int = 0) -> dict[AgentId, int]:
    """In-flight cap of every seated agent: P - s + extra, with s from 0."""
    return {
        agent: len(pipeline) - stage + extra
        for pipeline in seats
        for stage, agent in enumerate(pipeline)
        if agent is not None
    }


@dataclass(frozen=True)
class Schedule:
    """Programs with what the scheduler saw: ``length`` in the unit of the costs (optimizer and
    reduction free), ``forced`` releases beyond the cap (0 unless a cap is impossible)."""

    programs: dict[AgentId, Program]
    length: float
    forced: int


def build(
    graph: TaskGraph,
    *,
    batch: BatchShape,
    costs: Costs,
    caps: Mapping[AgentId, int],
    pipelines: int = 1,
) -> Schedule:
    """Programs that run every task of the graph.

    caps: forward results in flight per agent (absent: no limit); pipelines: D of the plan, by
    which the position of a micro-batch in its pipeline is known. ValueError on a cyclic graph.
    """
    index = _Index(graph, batch, pipelines)
    run = _Simulation(index, costs, caps)
    run.run()
    return Schedule(_Emission(index, run.order).programs(), run.now, run.forced)


_FORWARD, _BACKWARD, _WEIGHT, _EAGER = range(4)
_CLASS = {Op.F: _FORWARD, Op.B: _BACKWARD, Op.I: _BACKWARD, Op.W: _WEIGHT}
_STAGE_BITS = 14  # layers < 2**14
_MICROBATCH_BITS = 24


class _Index:
    """The graph with numbers for names. Lists are by task number; transfers have numbers too."""

    def __init__(self, graph: TaskGraph, batch: BatchShape, pipelines: int) -> None:
        self.tasks = list(graph.tasks)
        self.agents = {a: i for i, a in enumerate(graph.agents)}
        self.names = graph.agents
        number = {task: i for i, task in enumerate(self.tasks)}
        n = len(self.tasks)
        self.agent = [self.agents[t.agent] for t in self.tasks]
        self.kind = [_CLASS.get(t.instruction.op, _EAGER) for t in self.tasks]
        self.waits = [0] * n
        self.after: list[list[int]] = [[] for _ in range(n)]
        self.inbound: list[list[int]] = [[] for _ in range(n)]
        self.outbound: list[list[int]] = [[] for _ in range(n)]
        self.transfers: list[Transfer] = []
        self.readers: list[list[int]] = []
        self.acts: dict[tuple[int, int, int], int] = {}
        self.frees = [False] * n
        self._link(graph, number)
        self._find_acts()
        self.key = self._keys(batch, pipelines)

    def _link(self, graph: TaskGraph, number: dict[TaskId, int]) -> None:
        seen: dict[tuple[object, ...], int] = {}
        for i, needs in enumerate(graph.tasks.values()):
            self.waits[i] = len(needs)
            for need in needs:
                if isinstance(need, TaskId):
                    self.after[number[need]].append(i)
                else:
                    self._link_transfer(i, need, number, seen)

    def _link_transfer(
        self,
        reader: int,
        transfer: Transfer,
        number: dict[TaskId, int],
        seen: dict[tuple[object, ...], int],
    ) -> None:
        item, source, target, producer = transfer
        known = seen.setdefault((item, source, target), len(self.transfers))
        if known == len(self.transfers):
            self.transfers.append(transfer)
            self.readers.append([])
            if producer is not None:
                self.outbound[number[producer]].append(known)
        self.readers[known].append(reader)
        self.inbound[reader].append(known)

    def _find_acts(self) -> None:
        """``acts``: forward result -> the task that frees it (its B or W, else its I)."""
        for i, (agent, instruction) in enumerate(self.tasks):
            if self.kind[i] in (_BACKWARD, _WEIGHT):
                key = (self.agents[agent], instruction.lo, instruction.index)
                if instruction.op is not Op.I or key not in self.acts:
                    self.acts[key] = i
        for i in self.acts.values():
            self.frees[i] = True

    def _keys(self, batch: BatchShape, pipelines: int) -> list[int]:
        """Priority within a class, smaller first; the task's number makes it unique."""
        first = [0] * batch.leaves
        for leaf in range(1, batch.leaves):
            same = pipeline_of(leaf, leaves=batch.leaves, pipelines=pipelines) == pipeline_of(
                leaf - 1, leaves=batch.leaves, pipelines=pipelines
            )
            first[leaf] = first[leaf - 1] if same else leaf
        size, deepest = batch.leaf_size, (1 << _STAGE_BITS) - 1
        keys = []
        for i, (_, x) in enumerate(self.tasks):
            if self.kind[i] == _EAGER:
                keys.append(i)
                continue
            position = x.index - first[x.index // size] * size
            stage = deepest - x.lo if x.op is Op.F else x.lo
            order = position << _STAGE_BITS | stage
            keys.append((order << _MICROBATCH_BITS | x.index) * len(self.tasks) + i)
        return keys


class _Simulation:
    """Runs the tasks in simulated time; ``order`` = tasks per agent as they began."""

    def __init__(self, index: _Index, costs: Costs, caps: Mapping[AgentId, int]) -> None:
        self.index, self.latency = index, costs.latency
        durations = costs.durations()
        self.duration = [
            durations.of(t.instruction) if k != _EAGER else 0.0
            for t, k in zip(index.tasks, index.kind, strict=True)
        ]
        n = len(index.names)
        unlimited = len(index.tasks) + 1
        self.cap = [caps.get(a, unlimited) for a in index.names]
        self.waits = list(index.waits)
        self.order: list[list[int]] = [[] for _ in range(n)]
        self.busy = [False] * n
        self.eager: list[deque[int]] = [deque() for _ in range(n)]
        self.backward: list[list[int]] = [[] for _ in range(n)]
        self.weight: list[list[int]] = [[] for _ in range(n)]
        self.forward: list[list[int]] = [[] for _ in range(n)]
        self.reserved: list[list[int]] = [[] for _ in range(n)]  # F of the deepest stage
        self.in_flight = [0] * n
        self.deep_in_flight = [0] * n
        self.deepest = self._deepest(n)
        self.events: list[tuple[float, int]] = []
        self.now = 0.0
        self.forced = 0
        self.touched: list[int] = []

    def _deepest(self, n: int) -> list[int]:
        deepest = [-1] * n
        forwards = set()
        for i, (_, x) in enumerate(self.index.tasks):
            if self.index.kind[i] == _FORWARD:
                a = self.index.agent[i]
                forwards.add((a, x.lo, x.index))
                deepest[a] = max(deepest[a], x.lo)
        for agent, lo, microbatch in self.index.acts:
            if (agent, lo, microbatch) not in forwards:  # held since before the loss
                self.in_flight[agent] += 1
                self.deep_in_flight[agent] += lo == deepest[agent]
        return deepest

    def run(self) -> None:
        """Until every task has run. ValueError if some never can."""
        for i, waits in enumerate(self.waits):
            if waits == 0:
                self._ready(i)
        begin = [t for t, x in enumerate(self.index.transfers) if x.producer is None]
        self._deliver(begin)
        left = len(self.index.tasks)
        while True:
            self._settle()
            self._dispatch()
            if not self.events:
                left = len(self.index.tasks) - sum(map(len, self.order))
                if left == 0:
                    return
                self._force(left)
                continue
            self._next_moment()

    def _next_moment(self) -> None:
        """Everything that ends or arrives at the next moment at which something does."""
        events, total = self.events, len(self.index.tasks)
        self.now = events[0][0]
        while events and events[0][0] <= self.now:
            _, i = heappop(events)
            if i >= total:
                self._arrive(i - total)
            else:
                agent = self.index.agent[i]
                self.busy[agent] = False
                self.touched.append(agent)
                self._complete(i)

    def _ready(self, i: int) -> None:
        agent, kind = self.index.agent[i], self.index.kind[i]
        self.touched.append(agent)
        if kind == _EAGER:
            self.eager[agent].append(i)
        elif kind == _BACKWARD:
            heappush(self.backward[agent], self.index.key[i])
        elif kind == _WEIGHT:
            heappush(self.weight[agent], self.index.key[i])
        elif self.index.tasks[i].instruction.lo == self.deepest[agent]:
            heappush(self.reserved[agent], self.index.key[i])
        else:
            heappush(self.forward[agent], self.index.key[i])

    def _complete(self, i: int) -> None:
        index = self.index
        if index.frees[i]:
            agent = index.agent[i]
            self.in_flight[agent] -= 1
            if index.tasks[i].instruction.lo == self.deepest[agent]:
                self.deep_in_flight[agent] -= 1
        waits = self.waits
        for j in index.after[i]:
            waits[j] -= 1
            if waits[j] == 0:
                self._ready(j)
        if index.outbound[i]:
            self._deliver(index.outbound[i])

    def _deliver(self, transfers: list[int]) -> None:
        if self.latency:
            total = len(self.index.tasks)
            for t in transfers:
                heappush(self.events, (self.now + self.latency, t + total))
        else:
            for t in transfers:
                self._arrive(t)

    def _arrive(self, transfer: int) -> None:
        waits = self.waits
        for j in self.index.readers[transfer]:
            waits[j] -= 1
            if waits[j] == 0:
                self._ready(j)

    def _settle(self) -> None:
        """Run all costless tasks of idle agents, and those that they make ready."""
        at = 0
        while at < len(self.touched):  # grows meanwhile
            agent = self.touched[at]
            at += 1
            queue = self.eager[agent]
            while queue and not self.busy[agent]:
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
        """Number of the task that the idle agent begins; -1: none."""
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
        return heappop(heap) % len(self.index.tasks) if heap else -1

    def _begin(self, agent: int, i: int) -> None:
        index = self.index
        if index.kind[i] == _FORWARD:
            x = index.tasks[i].instruction
            if (agent, x.lo, x.index) in index.acts:
                self.in_flight[agent] += 1
                if x.lo == self.deepest[agent]:
                    self.deep_in_flight[agent] += 1
        self.busy[agent] = True
        self.order[agent].append(i)
        heappush(self.events, (self.now + self.duration[i], i))

    def _force(self, left: int) -> None:
        """Nobody may go on: release the first waiting F of all beyond its cap."""
        total = len(self.index.tasks)
        heaps = [h for h in (*self.forward, *self.reserved) if h]
        if not heaps:
            raise ValueError(f"{left} tasks of the graph can never run: it is cyclic")
        heap = min(heaps)
        i = heappop(heap) % total
        self.forced += 1
        self._begin(self.index.agent[i], i)


class _Emission:
    """Programs from orders: sends behind their producers, receipts before their first readers.

    Messages of an ordered pair of agents are received in the order in which they are sent: whoever
    waits for one first takes all that were sent before it.
    """

    def __init__(self, index: _Index, order: list[list[int]]) -> None:
        self.index, self.order = index, order
        self.agents = index.agents
        self.received = [False] * len(index.transfers)
        self.sent: dict[tuple[AgentId, AgentId], deque[int]] = {}
        self.opening = self._opening()

    def programs(self) -> dict[AgentId, Program]:
        """One program per agent of the graph."""
        for agent, tasks in enumerate(self.order):
            for sends in (self.opening[agent], *(self.index.outbound[i] for i in tasks)):
                for t in sends:
                    _, source, target, _ = self.index.transfers[t]
                    self.sent.setdefault((source, target), deque()).append(t)
        return {name: self._program(agent) for agent, name in enumerate(self.index.names)}

    def _opening(self) -> list[list[int]]:
        """Per agent the transfers of what it holds already, soonest needed first."""
        place = {i: at for tasks in self.order for at, i in enumerate(tasks)}
        opening: list[list[int]] = [[] for _ in self.order]
        for t, transfer in enumerate(self.index.transfers):
            if transfer.producer is None:
                opening[self.agents[transfer.source]].append(t)
        for sends in opening:
            sends.sort(key=lambda t: (min(place[i] for i in self.index.readers[t]), t))
        return opening

    def _program(self, agent: int) -> Program:
        index = self.index
        out = [self._message(Op.SEND, t) for t in self.opening[agent]]
        for i in self.order[agent]:
            for t in index.inbound[i]:
                if not self.received[t]:
                    self._receive(t, out)
            out.append(index.tasks[i].instruction)
            for t in index.outbound[i]:
                out.append(self._message(Op.SEND, t))
        return tuple(out)

    def _receive(self, wanted: int, out: list[Instruction]) -> None:
        transfer = self.index.transfers[wanted]
        queue = self.sent[transfer.source, transfer.target]
        while not self.received[wanted]:
            t = queue.popleft()
            self.received[t] = True
            out.append(self._message(Op.RECV, t))

    def _message(self, op: Op, t: int) -> Instruction:
        """Skipped in the same steps as the task that makes or needs the item."""
        item, source, target, producer = self.index.transfers[t]
        task = producer or self.index.tasks[self.index.readers[t][0]]
        every = task.instruction.every
        step = task.instruction.step if every else 0
        peer = target if op is Op.SEND else source
        return Instruction(op, step, 0, 0, 0, item, peer, (), (), every)
