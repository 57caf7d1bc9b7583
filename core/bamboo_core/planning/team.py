"""The agents that take part in a plan."""

from __future__ import annotations

from dataclasses import dataclass

from bamboo_core.model.ids import AgentId, Range
from bamboo_core.placement.plan import Pipeline


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
