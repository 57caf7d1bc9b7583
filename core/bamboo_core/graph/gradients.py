"""The part of the closure that produces the reduced gradients of the target step.

Demand is traced backward: missing slices, then sums, weight gradients, input gradients and
forwards. Tasks are then added in the order in which they run.
"""

from __future__ import annotations

from collections.abc import Mapping

from bamboo_core.graph import cover
from bamboo_core.graph.builder import GraphBuilder
from bamboo_core.graph.cover import Cover
from bamboo_core.graph.tasks import Dependency, Gather, TaskId, Transfer
from bamboo_core.graph.versions import Versions
from bamboo_core.model.ids import AgentId, Range
from bamboo_core.model.items import Item, Kind, addends
from bamboo_core.model.program import Instruction, Op

_new = tuple.__new__  # a large grid has tens of thousands of tasks: this spares __new__
_NO_AGENT = AgentId("")
_UNKNOWN = TaskId(_NO_AGENT, Instruction(Op.FOLD))


class Gradients:
    """Tasks up to REDUCE. ``split``: I and W instead of B, except on stage 0, which has no I.

    gathers: whether a stage's slices are gathered where none exists yet. A grid of D pipelines has
    D * D transfers for each stage otherwise.
    """

    def __init__(
        self,
        builder: GraphBuilder,
        versions: Versions,
        assignment: Mapping[tuple[int, int], AgentId],
        *,
        split: bool,
        gathers: bool = False,
    ) -> None:
        self._builder, self._versions, self._assignment = builder, versions, assignment
        self._split, self._gathers = split, gathers
        self._batch, self._cut = builder.batch, builder.cut
        shape = len(builder.cut), builder.batch.microbatches
        self._w, self._i, self._f = (_flags(*shape) for _ in range(3))
        self._forward: dict[tuple[int, int], TaskId] = {}
        self._backward: dict[tuple[int, int], TaskId] = {}
        self._weight: dict[tuple[int, int], TaskId] = {}
        self._covers: dict[int, Cover] = {}
        # stage -> the sums that are reduced, each with the task that slices it; None: it is sliced
        self._sliced: dict[int, list[tuple[Range, TaskId | None]]] = {}
        self._reduce: dict[int, list[tuple[Item, TaskId | None]]] = {}
        self._counts: dict[int, int] = {}
        self._owners: dict[tuple[int, int], AgentId] = {}
        self._by_stage: dict[int, list[AgentId]] = {}
        self._red: dict[tuple[AgentId, int], list[Dependency]] = {}
        self._sums: dict[int, tuple[TaskId, ...] | None] = {}
        self._gathered: dict[int, Gather | None] = {}

    def build(self) -> None:
        """Add every task whose result is missing."""
        stages = range(len(self._cut))
        for s in stages:
            self._demand_sums(s)
        for s in stages:
            self._demand_input_gradients(s)
        for s in reversed(stages):
            self._demand_forwards(s)
        for s in stages:
            self._make_forwards(s)
        for s in reversed(stages):
            self._make_backwards(s)
        for s in stages:
            self._make_sums(s)

    def owner(self, stage: int, leaf: int) -> AgentId:
        """The agent that computes the leaf: the one that has done most of it, else as assigned."""
        key = (stage, leaf)
        if key not in self._owners:
            self._owners[key] = self._choose(stage, leaf)
        return self._owners[key]

    def _choose(self, stage: int, leaf: int) -> AgentId:
        lo, hi = self._cut[stage]
        done = self._builder.index.done.get((lo, hi, leaf), {})
        able = [a for a in done if all(x in self._builder.index.have[a] for x in range(lo, hi))]
        if able:
            return max(sorted(able), key=lambda a: done[a])
        return self._assignment[stage, leaf]

    def reduced(self, agent: AgentId, stage: int) -> list[Dependency]:
        """Dependencies of an agent that needs the stage's whole reduced gradient."""
        key = (agent, stage)
        if key not in self._red:
            if (gather := self._gather(stage)) is not None:
                return [gather]
            waits: list[Dependency | None] = []
            for item, task in self._slices(stage):
                if task is None:
                    waits.append(self._builder.fetch(item, agent))
                elif task[0] == agent:
                    waits.append(task)
                else:
                    waits.append(_new(Transfer, (item, task[0], agent, task)))
            self._red[key] = [w for w in waits if w is not None]
        return self._red[key]

    def _gather(self, stage: int) -> Gather | None:
        """All slices of the stage's reduced gradient, the same for all agents."""
        if not self._gathers:
            return None
        if stage not in self._gathered:
            found = self._slices(stage)
            makers = tuple(task for _, task in found if task is not None)
            is_whole = len(makers) == len(found)
            items = tuple(item for item, _ in found)
            self._gathered[stage] = Gather(items, makers) if is_whole else None
        return self._gathered[stage]

    def slices(self, stage: int) -> int:
        """Into how many slices the stage's gradient is cut: one for each agent that computes it."""
        if stage not in self._counts:
            begun = self._builder.index.slices(self._cut[stage])
            self._counts[stage] = begun or len(self._stage_owners(stage))
        return self._counts[stage]

    def _slices(self, stage: int) -> list[tuple[Item, TaskId | None]]:
        """The slices of the stage's reduced gradient, each with the task that makes it, if any."""
        if stage not in self._reduce:
            count = self.slices(stage)
            items = [Item.red(0, self._cut[stage], z, count) for z in range(count)]
            self._reduce[stage] = [
                (item, None if self._builder.exists(item) else self._make_reduce(stage, item.part))
                for item in items
            ]
        return self._reduce[stage]

    # ------------------------------------------------------------ demand

    def _demand_sums(self, stage: int) -> None:
        """Find the sums to reduce, and the leaves that they lack."""
        span, index = self._cut[stage], self._builder.index
        if index.slices(span) and not index.lacking(span):
            return
        found = cover.find(index, self._batch, span, lambda leaf: self.owner(stage, leaf))
        self._covers[stage] = found
        for leaf in found.leaves:
            for m in self._batch.microbatches_of(leaf)[self._summed(stage, leaf) :]:
                self._w[stage][m] = True

    def _summed(self, stage: int, leaf: int) -> int:
        """Micro-batches in the unfinished sum with which the leaf continues."""
        cut, index = self._cut[stage], self._builder.index
        own = index.count(self.owner(stage, leaf), Kind.PART, cut, leaf)
        return max(own, index.short_notice_count(Kind.PART, cut, leaf))

    def _demand_input_gradients(self, stage: int) -> None:
        if stage == 0:
            return
        lo, _ = self._cut[stage]
        below = zip(self._w[stage - 1], self._i[stage - 1], strict=True)
        for m, (w, i) in enumerate(below):
            if (w or i) and not self._builder.exists(Item.ingrad(0, lo, m)):
                self._i[stage][m] = True

    def _demand_forwards(self, stage: int) -> None:
        _, hi = self._cut[stage]
        last = hi == self._builder.layers
        for m in range(self._batch.microbatches):
            if self._w[stage][m] or self._i[stage][m]:
                self._f[stage][m] = not self._act_exists(stage, m)
            if not last and self._f[stage + 1][m] and not self._f[stage][m]:
                is_needed = not self._done(stage + 1, m)
                self._f[stage][m] = is_needed and not self._builder.exists(Item.out(0, hi, m))

    def _done(self, stage: int, m: int) -> int:
        """Layers of the stage whose forward its owner has computed ahead, as a replica."""
        agent = self.owner(stage, self._batch.leaf_of(m))
        return self._builder.index.count(agent, Kind.PREFIX, self._cut[stage], m)

    def _act_exists(self, stage: int, m: int) -> bool:
        act = Item.act(0, self._cut[stage], m)
        agent = self.owner(stage, self._batch.leaf_of(m))
        return self._builder.held(agent, act) or self._builder.exists(act)

    # ------------------------------------------------------------ tasks

    def _make_forwards(self, stage: int) -> None:
        lo, hi = self._cut[stage]
        for m in _set(self._f[stage]):
            agent = self.owner(stage, self._batch.leaf_of(m))
            waits: list[Dependency | None] = [*self._versions.dependencies(agent, (lo, hi))]
            done = self._done(stage, m)
            if stage and not done:
                item = Item.out(0, lo, m)
                waits.append(self._get(item, agent, self._forward.get((stage - 1, m))))
            forward = _task(Op.F, lo, hi, m, ((lo + done, hi),) if done else ())
            self._forward[stage, m] = self._builder.add(agent, forward, waits)

    def _get(self, item: Item, agent: AgentId, maker: TaskId | None) -> Dependency | None:
        """The item from an agent that holds it, else from the task that makes it."""
        if self._builder.held(agent, item) or self._builder.exists(item):
            return self._builder.fetch(item, agent)
        assert maker is not None, f"no agent has or makes {item}"
        return self._builder.deliver(item, maker, agent)

    def _make_backwards(self, stage: int) -> None:
        for m, (w, i) in enumerate(zip(self._w[stage], self._i[stage], strict=True)):
            if w or i:
                self._make_backward(stage, m, w=w, i=i)

    def _make_backward(self, stage: int, m: int, *, w: bool, i: bool) -> None:
        agent, (lo, hi) = self.owner(stage, self._batch.leaf_of(m)), self._cut[stage]
        waits = self._backward_waits(stage, m, agent)
        versions = self._versions.dependencies(agent, (lo, hi))
        if i and (self._split or not w):
            task = self._builder.add(agent, _task(Op.I, lo, hi, m), (*versions, *waits))
            self._backward[stage, m] = task
            waits.append(task)
        if not w:
            return
        waits.append(self._partial_sum(stage, m, agent))
        alone = stage and (self._split or not i)
        if not alone:
            waits += versions
        weight = _task(Op.W if alone else Op.B, lo, hi, m)
        self._weight[stage, m] = self._builder.add(agent, weight, waits)
        self._backward.setdefault((stage, m), self._weight[stage, m])

    def _backward_waits(self, stage: int, m: int, agent: AgentId) -> list[Dependency | None]:
        _, hi = cut = self._cut[stage]
        forward = self._forward.get((stage, m))
        act = Item.act(0, cut, m)
        waits: list[Dependency | None] = [forward or self._builder.fetch(act, agent)]
        if hi < self._builder.layers:
            item = Item.ingrad(0, hi, m)
            waits.append(self._get(item, agent, self._backward.get((stage + 1, m))))
        return waits

    def _partial_sum(self, stage: int, m: int, agent: AgentId) -> Dependency | None:
        before = m % self._batch.leaf_size
        if not before:
            return None
        if self._w[stage][m - 1]:
            return self._weight[stage, m - 1]
        leaf = self._batch.leaf_of(m)
        return self._builder.fetch(Item.partial(0, self._cut[stage], leaf, before), agent)

    def _make_sums(self, stage: int) -> None:
        if stage not in self._covers:
            return
        lo, hi = self._cut[stage]
        slices = 0, self.slices(stage)
        found = self._sliced[stage] = []
        for run, agent in self._covers[stage].addends:
            if agent is None:
                found.append((run, None))
                continue
            waits = (self._make_sum(stage, run, agent),)
            task = _task(Op.SLICE, lo, hi, 0, (run, slices))
            found.append((run, self._builder.add(agent, task, waits)))

    def _make_sum(self, stage: int, run: Range, agent: AgentId) -> Dependency | None:
        """How the agent gets the sum of the run; None: it has it."""
        lo, hi = self._cut[stage]
        todo = [run]
        while (made := self._begin_sum(stage, todo[-1], agent)) is _UNKNOWN:
            todo.append(cover.parts(self._batch, todo[-1])[0])
        before: Dependency | None = made
        for whole in reversed(todo[:-1]):
            _, rest = cover.parts(self._batch, whole)
            waits = (before, self._make_sum(stage, rest, agent))
            before = self._builder.add(agent, _task(Op.FOLD, lo, hi, rest[0], (whole,)), waits)
        return before

    def _begin_sum(self, stage: int, run: Range, agent: AgentId) -> Dependency | None:
        """The same of a run that exists or is a leaf; _UNKNOWN: it must be added up."""
        first, end = run
        builder, item = self._builder, Item.sum(0, self._cut[stage], run)
        if builder.held(agent, item):
            return None
        if run in self._covers[stage].fetched:
            return builder.fetch(item, agent)
        if end - first > 1:
            return _UNKNOWN
        return self._weight[stage, self._batch.microbatches_of(first)[-1]]

    def _make_reduce(self, stage: int, z: int) -> TaskId:
        lo, hi = cut = self._cut[stage]
        owners, slices = self._stage_owners(stage), self.slices(stage)
        owner = owners[z % len(owners)]
        runs = tuple([run for run, _ in self._sliced[stage]])
        reduce = _task(Op.REDUCE, lo, hi, z, ((0, slices), *runs))
        if (makers := self._makers(stage)) is not None:
            items = addends(cut, 0, z, slices, runs)
            return self._builder.add(owner, reduce, (Gather(items, makers),))
        waits: list[Dependency | None] = []
        for run, maker in self._sliced[stage]:
            item = Item.piece(0, cut, run, z, slices)
            if maker is None:
                waits.append(self._builder.fetch(item, owner))
            elif maker[0] == owner:
                waits.append(maker)
            else:
                waits.append(_new(Transfer, (item, maker[0], owner, maker)))
        return self._builder.add(owner, reduce, waits)

    def _makers(self, stage: int) -> tuple[TaskId, ...] | None:
        """The tasks that slice the stage's sums, if they are gathered: not if any exists."""
        if not self._gathers or self._builder.index.has_slices:
            return None
        if stage not in self._sums:
            tasks = [task for _, task in self._sliced[stage]]
            found = tuple(task for task in tasks if task is not None)
            self._sums[stage] = found if len(found) == len(tasks) else None
        return self._sums[stage]

    def _stage_owners(self, stage: int) -> list[AgentId]:
        """Everyone who computes leaves of the stage, in the order of their first leaf."""
        if stage not in self._by_stage:
            leaves = range(self._batch.leaves)
            self._by_stage[stage] = list(dict.fromkeys(self.owner(stage, x) for x in leaves))
        return self._by_stage[stage]


def _task(op: Op, lo: int, hi: int, index: int, ranges: tuple[Range, ...] = ()) -> Instruction:
    return _new(Instruction, (op, 0, lo, hi, index, None, _NO_AGENT, ranges, (), 0))


def _flags(stages: int, microbatches: int) -> list[list[bool]]:
    return [[False] * microbatches for _ in range(stages)]


def _set(flags: list[bool]) -> list[int]:
    return [i for i, flag in enumerate(flags) if flag]
