"""A plan: who takes part from which step on, who holds which layers, under which cut.

A plan is facts only; programs are computed from it by :mod:`bamboo_core.planning.planner`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.model.ids import AgentId, Coordinate, Fence, Range
from bamboo_core.model.numerics import BatchShape

Pipeline = tuple[AgentId | None, ...]
"""Stage -> the agent at home there; None: a hole, whose stage others compute."""

Cut = tuple[Range, ...]
"""Stage -> its layers; the same for all pipelines of a plan."""


@dataclass(frozen=True)
class Plan:
    """One epoch's plan.

    pipelines: the grid; cut: stages of all steps after ``target``; step_cut: those of the target
    step, which is finished under the cut with which it was begun; last: number of steps of the
    job, whose program is the epilogue; live: the voters after the target step, all of whom hold
    ``wants``; leaving: members that help until the target step has ended; short_notice: those of
    them that compute nothing and only send what they hold; learners: newcomers without a seat ->
    layers that they get copies of while the others train: they do not vote, and nobody waits for
    them.
    """

    fence: Fence
    pipelines: tuple[Pipeline, ...]
    cut: Cut
    step_cut: Cut
    target: int
    last: int
    live: tuple[AgentId, ...]
    leaving: tuple[AgentId, ...]
    short_notice: tuple[AgentId, ...]
    wants: dict[AgentId, tuple[Range, ...]]
    coordinator: AgentId
    batch: BatchShape
    learners: dict[AgentId, tuple[Range, ...]] = field(default_factory=dict)

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return self.cut[-1][1]

    @property
    def members(self) -> tuple[AgentId, ...]:
        """Everyone who gets a directive, sorted."""
        return tuple(sorted({*self.live, *self.leaving, *self.learners}))

    @property
    def computing(self) -> tuple[AgentId, ...]:
        """Members that may compute in the target step and that vote for it, sorted."""
        idle = {*self.short_notice, *self.learners}
        return tuple(a for a in self.members if a not in idle)

    @property
    def seats(self) -> dict[AgentId, Coordinate]:
        """Home coordinate of every seated agent."""
        return {
            agent: Coordinate(d, s)
            for d, pipeline in enumerate(self.pipelines)
            for s, agent in enumerate(pipeline)
            if agent is not None
        }

    @property
    def holes(self) -> int:
        """Seats in which nobody sits."""
        return sum(agent is None for pipeline in self.pipelines for agent in pipeline)


def layers_of(ranges: Iterable[Range]) -> list[int]:
    """The layers of some ranges, ascending."""
    return sorted({x for lo, hi in ranges for x in range(lo, hi)})


def ranges_of(layers: Iterable[int]) -> tuple[Range, ...]:
    """The fewest ranges that hold exactly these layers."""
    out: list[Range] = []
    for layer in sorted(set(layers)):
        if out and out[-1][1] == layer:
            out[-1] = (out[-1][0], layer + 1)
        else:
            out.append((layer, layer + 1))
    return tuple(out)


def wants(
    *,
    pipelines: Sequence[Pipeline],
    cut: Cut,
    live: Sequence[AgentId],
    mode: RedundancyMode,
    holders: Mapping[int, Sequence[AgentId]],
) -> dict[AgentId, tuple[Range, ...]]:
    """Layers that each live agent shall hold after the target step.

    Its home stage, and in mode Replica that of its ring successor. A stage that nobody would
    want goes to the live agents that hold most of its layers (``holders``: layer -> agents with
    a usable version), else to the one with the least.
    """
    wanted: dict[AgentId, set[int]] = {a: set() for a in sorted(live)}
    for pipeline in pipelines:
        for s, agent in enumerate(pipeline):
            if agent is None or agent not in wanted:
                continue
            wanted[agent].update(range(*cut[s]))
            if mode is RedundancyMode.REPLICA:
                wanted[agent].update(range(*cut[(s + 1) % len(cut)]))
    held = {a: set[int]() for a in wanted}
    for layer, agents in holders.items():
        for agent in agents:
            if agent in held:
                held[agent].add(layer)
    for stage in cut:
        _adopt(range(*stage), wanted, held)
    return {a: ranges_of(layers) for a, layers in wanted.items()}


def _adopt(
    stage: range, wanted: Mapping[AgentId, set[int]], held: Mapping[AgentId, set[int]]
) -> None:
    """See that one agent wants all of the stage, since a stage is computed whole."""
    if not wanted or any(set(stage) <= x for x in wanted.values()):
        return
    best = min(wanted, key=lambda a: (-len(held[a] & set(stage)), len(wanted[a] | set(stage)), a))
    wanted[best].update(stage)
