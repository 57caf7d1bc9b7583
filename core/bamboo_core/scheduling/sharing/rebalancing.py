"""Chains of moves by which stages share work, so that no agent has much more than the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from math import inf

from bamboo_core.model.ids import AgentId
from bamboo_core.scheduling.sharing.assignment import Assignment
from bamboo_core.scheduling.sharing.step_work import Work, WorkMap

_EPSILON = 1e-9


class Rebalancing:
    """Relieves the busiest agents by shortest chains of moves of leaves.

    owners: agents that may share a stage of a pipeline at most; 0: any number.

    Agents of one speed that hold the same stages form a class. Only the least loaded of a class is
    considered, so a move costs O(stages), not O(agents).
    """

    def __init__(self, task: Assignment, owners: int = 0) -> None:
        self.task, self.step, self.load = task, task.step, task.load
        self.most = owners
        self.own: dict[AgentId, dict[int, set[int]]] = {a: {} for a in self.load}
        for (stage, leaf), agent in task.map.items():
            work = (stage, leaf)
            if work not in self.step.pinned and self.step.weight.get(work, 1.0) > 0:
                self.own[agent].setdefault(stage, set()).add(leaf)
        self._keep_measured()
        able: dict[AgentId, list[int]] = {a: [] for a in self.load}
        for stage, agents in enumerate(self.step.able):
            for agent in agents:
                able[agent].append(stage)
        kind = {a: (tuple(x), self.step.speed.get(a, 1.0)) for a, x in able.items()}
        kinds = sorted(set(kind.values()))
        self.kind = {a: kinds.index(x) for a, x in kind.items()}
        self.open_to = [[k for k, (x, _) in enumerate(kinds) if s in x] for s in self.step.stages]
        self.classes: list[list[tuple[float, AgentId]]] = [[] for _ in kinds]
        for agent, load in self.load.items():
            self.classes[self.kind[agent]].append((load, agent))
        self.tops = [(-load, agent) for agent, load in self.load.items()]
        for heap in (*self.classes, self.tops):
            heapify(heap)

    def _keep_measured(self) -> None:
        """A slow agent keeps a leaf of its seat, so that its speed is still measured."""
        for agent, speed in self.step.speed.items():
            home = self.step.home.get(agent)
            own = self.own[agent].get(home.stage) if home else None
            if speed < 1 and own:
                own.discard(min(own))

    def run(self, above: float = -inf) -> None:
        """Relieve the busiest agent until none can be relieved; drop those that cannot.

        above: an agent with no more load than this is left alone.
        """
        while self.tops:
            load, top = heappop(self.tops)
            if -load <= above + _EPSILON:
                return
            if -load == self.load[top]:
                hops = self._chain(top)
                if hops and self._gains(top, hops):
                    self._move(top, hops)

    def _least(self, kind: int, but: AgentId) -> AgentId | None:
        """The least loaded agent of a class except ``but``; drops stale entries."""
        heap, kept = self.classes[kind], None
        while heap and (self.load[heap[0][1]] != heap[0][0] or heap[0][1] == but):
            entry = heappop(heap)
            if entry == (self.load[but], but):
                kept = entry
        found = heap[0][1] if heap else None
        if kept is not None:
            heappush(heap, kept)
        return found

    def _pick(self, giver: AgentId, stage: int, taker: AgentId) -> Work:
        """The leaf to move: the latest, preferably of the taker's pipeline."""
        home = self.step.home.get(taker)
        d = home.pipeline if home else -1
        leaves = self.own[giver][stage]
        return stage, max(leaves, key=lambda x: (self.step.pipelines[x] == d, x))

    def _chain(self, top: AgentId) -> list[tuple[AgentId, AgentId, Work]]:
        """Shortest chain of (giver, taker, work) whose last taker stays below the top."""
        limit = self.load[top] - _EPSILON
        before: dict[AgentId, tuple[AgentId, Work]] = {}
        seen: set[int] = set()
        queue = deque([top])
        while queue:
            giver = queue.popleft()
            for taker, work in self._takers(giver, top, seen):
                before[taker] = (giver, work)
                if self.load[taker] + self.step.cost(work, taker) < limit:
                    return self._unroll(before, taker, top)
                queue.append(taker)
        return []

    def _takers(
        self, giver: AgentId, top: AgentId, seen: set[int]
    ) -> Iterator[tuple[AgentId, Work]]:
        for stage, leaves in self.own[giver].items():
            if not leaves:
                continue
            for kind in self.open_to[stage]:
                if kind in seen:
                    continue
                taker = self._least(kind, top)
                if taker is not None and taker != giver:
                    work = self._pick(giver, stage, taker)
                    if self.most and not self._is_open(work, giver, taker):
                        continue
                    seen.add(kind)
                    yield taker, work

    def _is_open(self, work: Work, giver: AgentId, taker: AgentId) -> bool:
        """Whether so few agents share this stage of the pipeline that the taker may, too."""
        owners = self.task.owners(work)
        return taker in owners or len(owners) - (owners[giver] == 1) < self.most

    @staticmethod
    def _unroll(
        before: dict[AgentId, tuple[AgentId, Work]], end: AgentId, top: AgentId
    ) -> list[tuple[AgentId, AgentId, Work]]:
        hops = []
        while end != top:
            giver, work = before[end]
            hops.append((giver, end, work))
            end = giver
        return hops

    def _after(self, hops: list[tuple[AgentId, AgentId, Work]]) -> dict[AgentId, float]:
        new: dict[AgentId, float] = {}
        for giver, taker, work in hops:
            less, more = self.step.cost(work, giver), self.step.cost(work, taker)
            new[giver] = new.get(giver, self.load[giver]) - less
            new[taker] = new.get(taker, self.load[taker]) + more
        return new

    def _gains(self, top: AgentId, hops: list[tuple[AgentId, AgentId, Work]]) -> bool:
        """Whether the top falls and no other agent rises to it (leaves may differ in weight)."""
        limit = self.load[top] - _EPSILON
        new = self._after(hops)
        raised = any(x > self.load[a] + _EPSILON and x >= limit for a, x in new.items())
        return not raised and new[top] < self.load[top]

    def _move(self, top: AgentId, hops: list[tuple[AgentId, AgentId, Work]]) -> None:
        for agent, load in self._after(hops).items():
            self.load[agent] = load
        for giver, taker, (stage, leaf) in hops:
            self.own[giver][stage].discard(leaf)
            self.own[taker].setdefault(stage, set()).add(leaf)
            self.task.move((stage, leaf), taker)
        for agent in {top, *(taker for _, taker, _ in hops)}:
            heappush(self.classes[self.kind[agent]], (self.load[agent], agent))
            heappush(self.tops, (-self.load[agent], agent))


def spread(task: Assignment) -> WorkMap:
    """Spread each agent's leaves of a (stage, pipeline) evenly over time; keep their number."""
    step = task.step
    out: WorkMap = {}
    groups: dict[tuple[int, int], list[int]] = {}
    for work in sorted(task.map):
        agent = task.map[work]
        stays = work in step.pinned or (work, agent) in step.credit
        if stays or step.weight.get(work, 1.0) <= 0:
            out[work] = agent
        else:
            groups.setdefault((work[0], step.pipelines[work[1]]), []).append(work[1])
    for (stage, _), leaves in groups.items():
        agents = [task.map[stage, leaf] for leaf in leaves]
        for leaf, agent in zip(leaves, _interleave(task, stage, agents), strict=True):
            out[stage, leaf] = agent
    return out


def _interleave(task: Assignment, stage: int, agents: list[AgentId]) -> Iterator[AgentId]:
    """The same agents as often as before, each spread evenly (largest remainder)."""
    home = task.step.home
    counts = {a: agents.count(a) for a in sorted(set(agents))}
    if len(counts) == 1:
        yield from agents
        return
    used = dict.fromkeys(counts, 0)
    for i in range(len(agents)):
        due = {a: n * (i + 0.5) / len(agents) - used[a] for a, n in counts.items() if used[a] < n}
        chosen = max(due, key=lambda a: (due[a], a in home and home[a].stage == stage))
        used[chosen] += 1
        yield chosen
