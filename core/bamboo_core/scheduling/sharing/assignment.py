"""A work map under construction, and the load of every agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from bamboo_core.model.ids import AgentId, Coordinate
from bamboo_core.model.numerics import fewest
from bamboo_core.scheduling.sharing.dealing import deal
from bamboo_core.scheduling.sharing.step_work import StepWork, Work, WorkMap


class Assignment:
    """At first, every leaf is with its own seat or with the agent that it is pinned to."""

    def __init__(self, step: StepWork) -> None:
        self.step = step
        self.load = dict(step.loads)
        self.map: WorkMap = {}
        self._owners: dict[tuple[int, int], Counter[AgentId]] = {}
        for work, agent in step.own.items():
            self.put(work, agent)

    def put(self, work: Work, agent: AgentId) -> None:
        """Give the leaf to the agent."""
        self.map[work] = agent
        self.load[agent] += self.step.cost(work, agent)
        self.owners(work)[agent] += 1

    def move(self, work: Work, taker: AgentId) -> None:
        """Give a leaf that an agent has to another one. Loads are the caller's."""
        owners, giver = self.owners(work), self.map[work]
        owners[giver] -= 1
        if not owners[giver]:
            del owners[giver]
        owners[taker] += 1
        self.map[work] = taker

    def owners(self, work: Work) -> Counter[AgentId]:
        """Agents that share the leaf's stage in its pipeline -> their leaves."""
        key = work[0], self.step.pipelines[work[1]]
        if key not in self._owners:
            self._owners[key] = Counter()
        return self._owners[key]

    def give(self, work: Work, candidates: Collection[AgentId]) -> None:
        """Give the leaf to the candidate that is done first; with none, to any holder."""
        able = candidates or self.step.able[work[0]]
        self.put(work, min(able, key=lambda a: self._rank(a, work)))

    def share(self, stage: int, pipeline: int, takers: Sequence[AgentId]) -> None:
        """Deal the orphans of a seat in aligned shares; the largest goes to the least loaded.

        Agents of unequal speed take leaf by leaf, each the one that is done first.
        """
        leaves = self.step.lost[stage, pipeline]
        if self.step.speed:
            for leaf in leaves:
                self.give((stage, leaf), takers)
            return
        ordered = self.in_turn(takers, stage, pipeline)
        left = [x for x in leaves if self.step.weight.get((stage, x), 1.0) > 0]
        for leaf in set(leaves).difference(left):  # it is finished: nobody computes it
            self.put((stage, leaf), ordered[0])
        shares: dict[int, list[int]] = {}
        for run in deal(self.step.batch, left, len(ordered)):
            shares.setdefault(run.share, []).extend(run.leaves)
        largest = sorted(shares.values(), key=lambda x: (-len(x), x))
        for agent, share in zip(ordered, largest, strict=False):
            for leaf in share:
                self.put((stage, leaf), agent)

    def first(self, takers: Collection[AgentId], stage: int, pipeline: int) -> AgentId:
        """The least loaded of them; of equal ones, where the orphans of the seat make the fewest
        sums together with its own leaves."""
        lost, own = self.step.lost[stage, pipeline], dict[AgentId, list[int]]()
        for (s, leaf), agent in self.map.items():
            if s == stage:
                own.setdefault(agent, []).append(leaf)
        sums = {a: len(fewest(self.step.batch, [*own.get(a, ()), *lost])) for a in takers}
        work = stage, lost[0]
        return min(takers, key=lambda a: (self.load[a], sums[a], self._rank(a, work)))

    def in_turn(self, takers: Collection[AgentId], stage: int, pipeline: int) -> list[AgentId]:
        """The agents in the order in which they take orphans of the seat."""
        work = stage, self.step.lost[stage, pipeline][0]
        return sorted(takers, key=lambda a: self._rank(a, work))

    def typical_top(self) -> float:
        """Load of the busiest agent if all agents had the typical speed."""
        speed = self.step.speed
        return max(b + (self.load[a] - b) * speed.get(a, 1.0) for a, b in self.step.loads.items())

    def _rank(self, agent: AgentId, work: Work) -> tuple[float, int, bool, AgentId]:
        """Sort key: done first; then the nearest pipeline, then a seat in the stage."""
        step, (stage, leaf) = self.step, work
        home = step.home.get(agent, Coordinate(len(step.seats), -1))
        extra = step.cost(work, agent) - step.weight.get(work, 1.0)  # else exactly 0
        return (
            self.load[agent] + extra,
            abs(home.pipeline - step.pipelines[leaf]),
            home.stage != stage,
            agent,
        )
