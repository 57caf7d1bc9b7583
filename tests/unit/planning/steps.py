"""A normal step's task graph, written for tests of the scheduler alone (no closure involved).

Every agent holds version 0 of its layers; one layer a stage; grid agents are named ``d-s``.
"""

from __future__ import annotations

from bamboo_core.graph import TaskGraph, TaskId, Transfer
from bamboo_core.ids import AgentId
from bamboo_core.items import Item, Kind
from bamboo_core.numerics import BatchShape
from bamboo_core.program import Instruction, Op
from bamboo_core.workmap import WorkMap


def name(pipeline: int, stage: int) -> AgentId:
    return AgentId(f"{pipeline}-{stage}")


def seats(pipelines: int, stages: int, lost: tuple[tuple[int, int], ...] = ()):
    return tuple(
        tuple(None if (d, s) in lost else name(d, s) for s in range(stages))
        for d in range(pipelines)
    )


def replica_holders(grid):
    """Each agent holds its own stage and its ring successor's."""
    stages = len(grid[0])
    return [
        [p[s] for p in grid if p[s]] + [p[s - 1] for p in grid if p[s - 1] and stages > 1]
        for s in range(stages)
    ]


class Step:
    """F, I or B, W, FOLD and the reduction of one step under a work map."""

    def __init__(self, *, batch: BatchShape, work: WorkMap, stages: int, split: bool):
        self.batch, self.work, self.stages, self.split = batch, work, stages, split
        self.agents = tuple(sorted(set(work.values())))
        self.graph = TaskGraph(agents=self.agents)
        for m in range(batch.microbatches):
            for s in range(stages):
                self._compute(s, m)
        for s in range(stages):
            for c in range(batch.chunks):
                self._fold(s, c)
            for z in range(batch.chunks):
                self._reduce(s, z)
        self._commit()

    def at(self, s: int, m: int) -> AgentId:
        return self.work[s, self.batch.leaf_of(m)]

    def task(self, agent, op, s, m) -> TaskId:
        return TaskId(agent, Instruction(op, 0, s, s + 1, m))

    def need(self, item, producer: TaskId, target: AgentId):
        if producer.agent == target:
            return producer
        return Transfer(item, producer.agent, target, producer)

    def backward(self, s: int, m: int) -> TaskId:
        return self.task(self.at(s, m), Op.I if self.split and s else Op.B, s, m)

    def weight(self, s: int, m: int) -> TaskId:
        return self.task(self.at(s, m), Op.W if self.split and s else Op.B, s, m)

    def _compute(self, s: int, m: int) -> None:
        a = self.at(s, m)
        tasks, forward = self.graph.tasks, self.task(a, Op.F, s, m)
        tasks[forward] = ()
        if s:
            made = self.task(self.at(s - 1, m), Op.F, s - 1, m)
            tasks[forward] = (self.need(Item(Kind.OUT, 0, s, 0, m), made, a),)
        needs = [forward]
        if s + 1 < self.stages:
            item = Item(Kind.INGRAD, 0, s + 1, 0, m)
            needs.append(self.need(item, self.backward(s + 1, m), a))
        if self.split and s:
            tasks[self.backward(s, m)] = tuple(needs)
            needs = [forward, self.backward(s, m)]
        if m % self.batch.leaf_size:
            needs.append(self.weight(s, m - 1))
        tasks[self.weight(s, m)] = tuple(needs)

    def collector(self, s: int, c: int) -> AgentId:
        return self.work[s, self.batch.leaves_of(c)[0]]

    def _fold(self, s: int, c: int) -> None:
        a, before = self.collector(s, c), None
        for leaf in self.batch.leaves_of(c):
            last = self.weight(s, self.batch.microbatches_of(leaf)[-1])
            needs = [self.need(Item(Kind.LEAF, 0, s, s + 1, leaf), last, a)]
            before = [before] if before else []
            fold = self.task(a, Op.FOLD, s, leaf)
            self.graph.tasks[fold] = (*needs, *before)
            before = fold

    def hosts(self, s: int) -> list[AgentId]:
        return sorted({a for (stage, _), a in self.work.items() if stage == s})

    def reducer(self, s: int, z: int) -> TaskId:
        hosts = self.hosts(s)
        return self.task(hosts[z % len(hosts)], Op.REDUCE, s, z)

    def _reduce(self, s: int, z: int) -> None:
        task = self.reducer(s, z)
        needs = []
        for c in range(self.batch.chunks):
            fold = self.task(self.collector(s, c), Op.FOLD, s, self.batch.leaves_of(c)[-1])
            needs.append(self.need(Item(Kind.CHUNK, 0, s, s + 1, c, z), fold, task.agent))
        self.graph.tasks[task] = tuple(needs)

    def _commit(self) -> None:
        votes = []
        held = {a: sorted({s for (s, _), b in self.work.items() if b == a}) for a in self.agents}
        reds = {}
        for a in self.agents:
            reds[a] = {
                s: [
                    self.need(Item(Kind.RED, 0, s, s + 1, 0, z), self.reducer(s, z), a)
                    for z in range(self.batch.chunks)
                ]
                for s in held[a]
            }
            ranges = tuple(r for s in held[a] for r in ((s, s + 1), (s, s + 1)))
            vote = TaskId(a, Instruction(Op.VOTE, ranges=ranges))
            self.graph.tasks[vote] = tuple(x for s in held[a] for x in reds[a][s])
            votes.append(vote)
        first = self.agents[0]
        commit = TaskId(first, Instruction(Op.COMMIT, agents=self.agents))
        self.graph.tasks[commit] = tuple(
            self.need(Item(Kind.VOTE, 0, agent=v.agent), v, first) for v in votes
        )
        for a in self.agents:
            told = self.need(Item(Kind.COMMIT, 0), commit, a)
            last = []
            for s in held[a]:
                update = TaskId(a, Instruction(Op.UPDATE, 0, s, s + 1, ranges=((s, s + 1),)))
                self.graph.tasks[update] = (*reds[a][s], told)
                last.append(update)
            self.graph.tasks[TaskId(a, Instruction(Op.END))] = (told, *last)


def holdings(work: WorkMap) -> dict[AgentId, set[Item]]:
    out: dict[AgentId, set[Item]] = {}
    for (s, _), agent in work.items():
        out.setdefault(agent, set()).add(Item(Kind.VER, 0, s, s + 1))
    return out
