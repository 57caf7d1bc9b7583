"""The agents that take part in a plan."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf

from bamboo_core.model.ids import AgentId, Range
from bamboo_core.placement.plan import Pipeline, layers_of
from bamboo_core.protocol.messages import LayerCost

_STATES = 3  # copies of a parameter's bytes that move with it: Adam keeps two beside the weight


@dataclass(frozen=True)
class Team:
    """Agents by their part in a plan; see :class:`bamboo_core.placement.plan.Plan`."""

    pipelines: tuple[Pipeline, ...]
    live: tuple[AgentId, ...]  # agents that stay
    leaving: tuple[AgentId, ...]  # agents that help until the target step has ended
    short_notice: tuple[AgentId, ...]
    learners: dict[AgentId, tuple[Range, ...]]


def live_in(seats: tuple[Pipeline, ...]) -> tuple[AgentId, ...]:
    """All agents that have a seat, sorted."""
    return tuple(sorted({a for p in seats for a in p if a is not None}))


def lacking_bytes(
    have: Collection[int], wanted: Collection[Range], costs: Sequence[LayerCost]
) -> float:
    """Bytes of weights and optimizer state that an agent must get; -inf if it has every layer."""
    lacking = set(layers_of(wanted)).difference(have)
    if not lacking:
        return -inf
    return sum(_STATES * costs[x].parameter_bytes for x in lacking) if costs else 0.0
