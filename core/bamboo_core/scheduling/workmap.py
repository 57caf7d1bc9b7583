"""The work map: which agent computes which leaf of which stage.

Survivors keep their own leaves, except that Diffuse relieves the busiest. Leaves of empty seats
(orphans) go where the policy says. An agent's load is the time that it needs, so a slow agent gets
fewer leaves. An agent sends one sum for leaves that lie together, and one for each single leaf of
another pipeline. Over a slow network that takes longer than to compute the leaf: then one agent
gets all of them. Deterministic: equal arguments give equal maps.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf

from bamboo_core.api.spec import RecoveryPolicy
from bamboo_core.model.ids import AgentId, Coordinate
from bamboo_core.model.numerics import BatchShape
from bamboo_core.scheduling.costs import unequal

Work = tuple[int, int]
"""(stage, leaf)"""

WorkMap = dict[Work, AgentId]
"""Every (stage, leaf) of a step -> the agent that computes it."""

Credit = Mapping[tuple[Work, AgentId], float]
"""(leaf, agent) -> how much less than its weight the leaf costs there."""

Seats = Sequence[Sequence[AgentId | None]]
"""seats[pipeline][stage]; None: an empty seat."""

_OFFSET = 0.5  # half the slots by which a stage begins after the previous one (measured)
_TASKS = 3  # F, I and W of a micro-batch
_EPSILON = 1e-9
_CLEARLY = 0.95  # of the busiest agent's load: more than that is no reason to move leaves


def pipeline_of(leaf: int, *, leaves: int, pipelines: int) -> int:
    """The pipeline of a leaf; pipelines may have unequal numbers of leaves."""
    return leaf * pipelines // leaves


def is_moved(work: WorkMap, seats: Seats, *, leaves: int) -> bool:
    """Whether an agent other than the one in its seat computes any leaf."""
    return any(
        seats[pipeline_of(leaf, leaves=leaves, pipelines=len(seats))][stage] != agent
        for (stage, leaf), agent in work.items()
    )


def assign(
    *,
    batch: BatchShape,
    seats: Seats,
    holders: Sequence[Collection[AgentId]],
    policy: RecoveryPolicy,
    weight: Mapping[Work, float] | None = None,
    pinned: Mapping[Work, AgentId] | None = None,
    base: Mapping[AgentId, float] | None = None,
    speeds: Mapping[AgentId, float] | None = None,
    credit: Credit | None = None,
    transfer: Sequence[float] = (),
) -> WorkMap:
    """Assign every leaf of every stage to an agent.

    seats: the grid; holders: stage -> the live agents that may run it; weight: time that a leaf
    still costs (default 1; 0: it is finished and does not move); pinned: leaves that do not move,
    since results of them survive on that agent; base: other load of the agents in the same unit
    (default: the start-up offset of the later stages); speeds: relative speed of the agents
    (default 1: typical). Equal speeds have no effect. With unequal ones, Diffuse moves leaves of
    slow agents even if no seat is empty; credit: what agents have done of leaves ahead; transfer:
    stage -> time in which the sum of a leaf goes to another agent (default 0).
    ValueError if a stage has no holder: the loss is fatal; or if a speed is not positive.
    """
    for stage, able in enumerate(holders):
        if not able:
            raise ValueError(
                f"stage {stage} has no live holder: restore it before work is assigned"
            )
    task = _Assignment(
        batch,
        seats,
        holders,
        weight or {},
        pinned or {},
        base,
        speeds or {},
        credit or {},
        transfer,
    )
    orphans = task.place_own()
    for work in sorted(orphans, key=lambda x: (-task.weight.get(x, 1.0), x)):
        task.put(work, task.new_owner(work, policy))
    if policy is RecoveryPolicy.DIFFUSE:
        if orphans:
            _Rebalancing(task).run()
        elif task.is_uneven:
            _relieve_slow(task)
    return _spread(task)


def _relieve_slow(task: _Assignment) -> None:
    """Move leaves of slow agents if that makes the step clearly shorter.

    Nothing moves from an agent that is no busier than the busiest would be at typical speed.
    """
    before, top = dict(task.map), max(task.load.values())
    _Rebalancing(task).run(above=task.typical_top())
    if max(task.load.values()) > _CLEARLY * top:
        task.map = before


class _Assignment:
    """The map under construction, and the load of every agent."""

    def __init__(
        self,
        batch: BatchShape,
        seats: Seats,
        holders: Sequence[Collection[AgentId]],
        weight: Mapping[Work, float],
        pinned: Mapping[Work, AgentId],
        base: Mapping[AgentId, float] | None,
        speeds: Mapping[AgentId, float],
        credit: Credit,
        transfer: Sequence[float],
    ) -> None:
        self.batch, self.seats, self.weight, self.pinned = batch, seats, weight, pinned
        self.credit = credit
        self.transfer = transfer if any(transfer) else ()
        self.shares: dict[Work, Counter[AgentId]] = {}  # (stage, pipeline) -> leaves of each agent
        self.holders = [frozenset(x) for x in holders]
        self.home = {
            agent: Coordinate(d, s)
            for d, pipeline in enumerate(seats)
            for s, agent in enumerate(pipeline)
            if agent is not None
        }
        n, d = batch.leaves, len(seats)
        self._pipelines = [pipeline_of(x, leaves=n, pipelines=d) for x in range(n)]
        self.mean = sum(weight.values()) / len(weight) if weight else 1.0
        agents = sorted(set().union(*self.holders, pinned.values()))
        start = base if base is not None else {a: self._offset(a) for a in agents}
        self.base = {a: start.get(a, 0.0) for a in agents}
        self.load = dict(self.base)
        self.top = 0.0  # load of the busiest agent
        self.speed = unequal(agents, speeds)
        self.is_uneven = bool(self.speed)
        self.map: WorkMap = {}

    def _offset(self, agent: AgentId) -> float:
        stage = self.home[agent].stage if agent in self.home else 0
        return self.mean * _OFFSET * stage / (_TASKS * self.batch.leaf_size)

    def pipeline(self, leaf: int) -> int:
        return self._pipelines[leaf]

    def cost(self, work: Work, agent: AgentId) -> float:
        """Time that the agent needs for a leaf."""
        left = self.weight.get(work, 1.0) - self.credit.get((work, agent), 0.0)
        return left / self.speed.get(agent, 1.0)

    def put(self, work: Work, agent: AgentId) -> None:
        self.map[work] = agent
        self.load[agent] += self.cost(work, agent)
        self.top = max(self.top, self.load[agent])
        if self.transfer:
            self.shares.setdefault(self.sum_of(work), Counter())[agent] += 1

    def sum_of(self, work: Work) -> Work:
        """The stage, and the pipeline whose agent sends one sum of all leaves that it keeps."""
        return work[0], self.pipeline(work[1])

    def is_dear(self, work: Work) -> bool:
        """Whether the sum of the leaf takes longer to another agent than the leaf is computed."""
        return self.transfer[work[0]] > self.weight.get(work, 1.0)

    def receiving(self, work: Work, taker: AgentId, giver: AgentId | None = None) -> float:
        """Time that the sums of a pipeline's leaves take if the taker gets the leaf.

        The agent with most of them adds up its own, and sends one sum anyway.
        giver: has the leaf now; None: nobody has.
        """
        shares = dict(self.shares.get(self.sum_of(work), ()))
        shares[taker] = shares.get(taker, 0) + 1
        if giver is not None:
            shares[giver] = shares.get(giver, 0) - 1
        return (sum(shares.values()) - max(shares.values())) * self.transfer[work[0]]

    def typical_top(self) -> float:
        """Load of the busiest agent if all agents had the typical speed."""
        return max(b + (self.load[a] - b) * self.speed.get(a, 1.0) for a, b in self.base.items())

    def place_own(self) -> list[Work]:
        """Give every leaf to its own seat or to the agent that it is pinned to; return the rest."""
        orphans: list[Work] = []
        for stage, able in enumerate(self.holders):
            for leaf in range(self.batch.leaves):
                own = self.pinned.get((stage, leaf)) or self.seats[self.pipeline(leaf)][stage]
                if own is not None and (own in able or (stage, leaf) in self.pinned):
                    self.put((stage, leaf), own)
                else:
                    orphans.append((stage, leaf))
        return orphans

    def new_owner(self, work: Work, policy: RecoveryPolicy) -> AgentId:
        """The agent that gets an orphan: a candidate of the policy, or else any holder."""
        stage, leaf = work
        able, d = self.holders[stage], self.pipeline(leaf)
        candidates: list[AgentId] = []
        if policy is RecoveryPolicy.SHADOW:
            shadow = self.seats[d][(stage - 1) % len(self.holders)]
            candidates = [shadow] if shadow in able else []
        elif policy is RecoveryPolicy.PEERS:
            candidates = [a for p in self.seats if (a := p[stage]) is not None and a in able]
        return min(candidates or able, key=lambda a: self._rank(a, work, d))

    def _rank(self, agent: AgentId, work: Work, d: int) -> tuple[float, float, int, bool, AgentId]:
        """Sort key: the step is the shortest, with sums that are sent after everything is computed;
        done first; then the nearest pipeline, then a seat in the stage."""
        home = self.home.get(agent, Coordinate(len(self.seats), -1))
        extra = self.cost(work, agent) - self.weight.get(work, 1.0)  # else exactly 0
        length = 0.0
        if self.transfer:
            length = max(self.top, self.load[agent] + self.cost(work, agent))
            length += self.receiving(work, agent)
        return (
            length,
            self.load[agent] + extra,
            abs(home.pipeline - d),
            home.stage != work[0],
            agent,
        )


class _Rebalancing:
    """Relieves the busiest agents by shortest chains of moves of leaves.

    Agents of one speed that hold the same stages form a class. Only the least loaded of a class is
    considered, so a move costs O(stages), not O(agents).
    """

    def __init__(self, task: _Assignment) -> None:
        self.task, self.load = task, task.load
        self.own: dict[AgentId, dict[int, set[int]]] = {a: {} for a in self.load}
        for (stage, leaf), agent in task.map.items():
            work = (stage, leaf)
            if work not in task.pinned and task.weight.get(work, 1.0) > 0:
                self.own[agent].setdefault(stage, set()).add(leaf)
        self._keep_measured()
        able: dict[AgentId, list[int]] = {a: [] for a in self.load}
        for stage, agents in enumerate(task.holders):
            for agent in agents:
                able[agent].append(stage)
        kind = {a: (tuple(x), task.speed.get(a, 1.0)) for a, x in able.items()}
        kinds = sorted(set(kind.values()))
        self.kind = {a: kinds.index(x) for a, x in kind.items()}
        self.open_to = [
            [k for k, (x, _) in enumerate(kinds) if s in x] for s in range(len(task.holders))
        ]
        self.classes: list[list[tuple[float, AgentId]]] = [[] for _ in kinds]
        for agent, load in self.load.items():
            self.classes[self.kind[agent]].append((load, agent))
        self.tops = [(-load, agent) for agent, load in self.load.items()]
        for heap in (*self.classes, self.tops):
            heapify(heap)

    def _keep_measured(self) -> None:
        """A slow agent keeps a leaf of its seat, so that its speed is still measured."""
        for agent, speed in self.task.speed.items():
            home = self.task.home.get(agent)
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
        home = self.task.home.get(taker)
        d = home.pipeline if home else -1
        leaves = self.own[giver][stage]
        return stage, max(leaves, key=lambda x: (self.task.pipeline(x) == d, x))

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
                if self.load[taker] + self.task.cost(work, taker) < limit:
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
                    if self._pays(work, giver, taker):
                        seen.add(kind)
                        yield taker, work

    def _pays(self, work: Work, giver: AgentId, taker: AgentId) -> bool:
        """Whether the giver saves more time than sums take longer to their collector."""
        if not self.task.transfer:
            return True
        more = self.task.receiving(work, taker, giver) - self.task.receiving(work, giver, giver)
        return more < self.task.cost(work, giver)

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
            less, more = self.task.cost(work, giver), self.task.cost(work, taker)
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
            self.task.map[stage, leaf] = taker
            if self.task.transfer:
                shares = self.task.shares[self.task.sum_of((stage, leaf))]
                shares[giver] -= 1
                shares[taker] += 1
        for agent in {top, *(taker for _, taker, _ in hops)}:
            heappush(self.classes[self.kind[agent]], (self.load[agent], agent))
            heappush(self.tops, (-self.load[agent], agent))


def _spread(task: _Assignment) -> WorkMap:
    """Spread each agent's leaves of a (stage, pipeline) evenly over time; keep their number.

    Where sums are dear, also their number in each chunk: else more of them would be sent.
    """
    out: WorkMap = {}
    groups: dict[tuple[int, int, int], list[int]] = {}
    for work in sorted(task.map):
        agent = task.map[work]
        stays = work in task.pinned or (work, agent) in task.credit
        if stays or task.weight.get(work, 1.0) <= 0:
            out[work] = agent
        else:
            chunk = task.sum_of(work)[1] if task.transfer and task.is_dear(work) else -1
            groups.setdefault((work[0], task.pipeline(work[1]), chunk), []).append(work[1])
    for (stage, _, _), leaves in groups.items():
        agents = [task.map[stage, leaf] for leaf in leaves]
        for leaf, agent in zip(leaves, _interleave(task, stage, agents), strict=True):
            out[stage, leaf] = agent
    return out


def _interleave(task: _Assignment, stage: int, agents: list[AgentId]) -> Iterator[AgentId]:
    """The same agents as often as before, each spread evenly (largest remainder)."""
    counts = {a: agents.count(a) for a in sorted(set(agents))}
    if len(counts) == 1:
        yield from agents
        return
    used = dict.fromkeys(counts, 0)
    for i in range(len(agents)):
        due = {a: n * (i + 0.5) / len(agents) - used[a] for a, n in counts.items() if used[a] < n}
        chosen = max(due, key=lambda a: (due[a], a in task.home and task.home[a].stage == stage))
        used[chosen] += 1
        yield chosen
