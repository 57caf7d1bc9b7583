"""The work of a step, the agents that can do it, and the map that says who does what."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from bamboo_core.model.ids import AgentId, Coordinate
from bamboo_core.model.numerics import BatchShape
from bamboo_core.scheduling.sharing.dealing import pipelines_of

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


@dataclass(frozen=True)
class StepWork:
    """What is to be done, and which agents can do it. An agent's load is the time that it needs.

    seats: the grid; holders: stage -> the live agents that may run it; weight: time that a leaf
    still costs (default 1; 0: it is finished and does not move); pinned: leaves that do not move,
    since results of them survive on that agent; base: other load of the agents in the same unit
    (default: the start-up offset of the later stages); speeds: relative speed of the agents
    (default 1: typical); credit: what agents have done of leaves ahead; transfer: stage -> time
    in which a sum goes to another agent (empty: none); dealt: leaf -> its pipeline (empty: as the
    job's batch is dealt).
    """

    batch: BatchShape
    seats: Seats
    holders: Sequence[Collection[AgentId]]
    weight: Mapping[Work, float] = field(default_factory=dict)
    pinned: Mapping[Work, AgentId] = field(default_factory=dict)
    base: Mapping[AgentId, float] | None = None
    speeds: Mapping[AgentId, float] = field(default_factory=dict)
    credit: Credit = field(default_factory=dict)
    transfer: Sequence[float] = ()
    dealt: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for stage, able in enumerate(self.holders):
            if not able:
                raise ValueError(
                    f"stage {stage} has no live holder: restore it before work is assigned"
                )

    @property
    def stages(self) -> range:
        """The stages, from the first."""
        return range(len(self.holders))

    @cached_property
    def pipelines(self) -> tuple[int, ...]:
        """Leaf -> its pipeline."""
        return self.dealt or pipelines_of(self.batch, len(self.seats))

    @cached_property
    def able(self) -> list[frozenset[AgentId]]:
        """Stage -> agents that may run it."""
        return [frozenset(x) for x in self.holders]

    @cached_property
    def home(self) -> dict[AgentId, Coordinate]:
        """Agent -> its seat."""
        return {
            agent: Coordinate(d, s)
            for d, pipeline in enumerate(self.seats)
            for s, agent in enumerate(pipeline)
            if agent is not None
        }

    @cached_property
    def agents(self) -> list[AgentId]:
        """All that may compute anything, sorted."""
        return sorted(set().union(*self.able, self.pinned.values()))

    @cached_property
    def speed(self) -> dict[AgentId, float]:
        """Relative speeds; empty if they are equal. ValueError if one is not positive."""
        return unequal(self.agents, self.speeds)

    @cached_property
    def loads(self) -> dict[AgentId, float]:
        """The load of agents besides the leaves."""
        if self.base is not None:
            return {a: self.base.get(a, 0.0) for a in self.agents}
        mean = sum(self.weight.values()) / len(self.weight) if self.weight else 1.0
        slot = mean / (_TASKS * self.batch.leaf_size)
        stage = {a: self.home[a].stage if a in self.home else 0 for a in self.agents}
        return {a: slot * _OFFSET * stage[a] for a in self.agents}

    @cached_property
    def is_begun(self) -> bool:
        """Whether some leaves are further than others, or bound to an agent."""
        first = {s: self.weight.get((s, 0)) for s in self.stages}
        uneven = any(x != first[s] for (s, _), x in self.weight.items())
        return bool(self.pinned or self.credit) or uneven

    @cached_property
    def own(self) -> WorkMap:
        """The leaves that stay with their seat or with the agent that they are pinned to."""
        out: WorkMap = {}
        for stage, able in enumerate(self.able):
            for leaf, d in enumerate(self.pipelines):
                pinned = self.pinned.get((stage, leaf))
                agent = pinned or self.seats[d][stage]
                if agent is not None and (pinned or agent in able):
                    out[stage, leaf] = agent
        return out

    @cached_property
    def orphans(self) -> list[Work]:
        """Leaves that nobody has, the costliest first."""
        every = ((s, leaf) for s in self.stages for leaf in range(self.batch.leaves))
        lost = [x for x in every if x not in self.own]
        return sorted(lost, key=lambda x: (-self.weight.get(x, 1.0), x))

    @cached_property
    def lost(self) -> dict[tuple[int, int], list[int]]:
        """(stage, pipeline) -> its orphans, ascending."""
        out: dict[tuple[int, int], list[int]] = {}
        for stage, leaf in sorted(self.orphans):
            out.setdefault((stage, self.pipelines[leaf]), []).append(leaf)
        return out

    def cost(self, work: Work, agent: AgentId) -> float:
        """Time that the agent needs for a leaf."""
        left = self.weight.get(work, 1.0) - self.credit.get((work, agent), 0.0)
        return left / self.speed.get(agent, 1.0)

    def peers(self, stage: int) -> list[AgentId]:
        """Agents with a seat in the stage that may run it, by pipeline."""
        return [a for p in self.seats if (a := p[stage]) is not None and a in self.able[stage]]

    def is_moved(self, work: WorkMap) -> bool:
        """Whether an agent other than the one in its seat computes any leaf."""
        return any(self.seats[self.pipelines[leaf]][s] != a for (s, leaf), a in work.items())


def unequal(agents: Collection[AgentId], speeds: Mapping[AgentId, float]) -> dict[AgentId, float]:
    """Relative speeds of these agents (default 1); empty if they are equal.

    ValueError if a speed is not positive.
    """
    for agent, speed in speeds.items():
        if speed <= 0:
            raise ValueError(f"the speed of {agent} is {speed}; it must be positive")
    out = {a: speeds.get(a, 1.0) for a in agents}
    return out if len(set(out.values())) > 1 else {}
