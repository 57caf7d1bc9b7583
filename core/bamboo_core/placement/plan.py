"""A plan: the members from a step on, their seats and layers, and the cut.

A plan is data; :mod:`bamboo_core.planning.planner` computes programs from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.model.ids import AgentId, Coordinate, Fence, Range
from bamboo_core.model.numerics import BatchShape

Pipeline = tuple[AgentId | None, ...]
"""Stage -> the agent in that seat; None: an empty seat, whose work other agents do."""

Cut = tuple[Range, ...]
"""Stage -> its layers, in all pipelines."""


class Move(NamedTuple):
    """An agent leaves its seat, if it has one, for an empty one."""

    agent: AgentId
    to: Coordinate


@dataclass(frozen=True)
class Plan:
    """The plan of one epoch."""

    fence: Fence
    pipelines: tuple[Pipeline, ...]  # the grid
    cut: Cut  # of all steps after the target step
    step_cut: Cut  # of the target step, which ends under the cut under which it began
    target: int  # the step that runs first
    last: int  # number of steps of the job; the program of this index is the epilogue
    live: tuple[AgentId, ...]  # voters after the target step; all hold what they want
    leaving: tuple[AgentId, ...]  # members that leave after the target step
    short_notice: tuple[AgentId, ...]  # leavers that compute nothing and only send what they hold
    wants: dict[AgentId, tuple[Range, ...]]  # layers to hold after the target step
    coordinator: AgentId
    batch: BatchShape
    # Newcomers without a seat -> layers that they copy while the others train. Learners have no
    # vote, and no agent waits for them.
    learners: dict[AgentId, tuple[Range, ...]] = field(default_factory=dict)
    move: Move | None = None  # a learner has left a seat, and is to get this one

    @property
    def layers(self) -> int:
        """Number of layers of the model."""
        return self.cut[-1][1]

    @cached_property
    def members(self) -> tuple[AgentId, ...]:
        """All agents that get a directive, sorted."""
        return tuple(sorted({*self.live, *self.leaving, *self.learners}))

    @cached_property
    def computing(self) -> tuple[AgentId, ...]:
        """Members that may compute in the target step and that vote for it, sorted."""
        idle = {*self.short_notice, *self.learners}
        return tuple(a for a in self.members if a not in idle)

    @cached_property
    def seats(self) -> dict[AgentId, Coordinate]:
        """Agent -> its seat."""
        return {
            agent: Coordinate(d, s)
            for d, pipeline in enumerate(self.pipelines)
            for s, agent in enumerate(pipeline)
            if agent is not None
        }

    @property
    def holes(self) -> int:
        """Number of empty seats."""
        return sum(agent is None for pipeline in self.pipelines for agent in pipeline)


def layers_of(ranges: Iterable[Range]) -> list[int]:
    """The layers in these ranges, ascending."""
    return sorted({x for lo, hi in ranges for x in range(lo, hi)})


def ranges_of(layers: Iterable[int]) -> tuple[Range, ...]:
    """The fewest ranges that contain exactly these layers."""
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
    """Layers that each live agent must hold after the target step.

    The stage of its seat and, if the mode keeps copies, the stage of its ring successor. A stage
    that no agent would want goes to the live agent that holds most of its layers, else to the one
    with the fewest layers. holders: layer -> agents with a usable version.
    """
    wanted: dict[AgentId, set[int]] = {a: set() for a in sorted(live)}
    for pipeline in pipelines:
        for s, agent in enumerate(pipeline):
            if agent is None or agent not in wanted:
                continue
            wanted[agent].update(range(*cut[s]))
            if mode.keeps_copies:
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
    """Ensure that one agent wants the whole stage, since a stage is computed as a whole."""
    if not wanted or any(set(stage) <= x for x in wanted.values()):
        return
    best = min(wanted, key=lambda a: (-len(held[a] & set(stage)), len(wanted[a] | set(stage)), a))
    wanted[best].update(stage)
