"""How many pipelines a given number of agents can run."""

from __future__ import annotations

from collections.abc import Collection

from bamboo_core.model.ids import AgentId


def pipelines_for(agents: int, *, stages: int, wanted: int) -> int:
    """Rows of the grid when seats may stay empty: the fewest that have a seat for each agent.

    With less than P empty seats no agent moves; with more, one row less leaves no agent without a
    seat. How many pipelines compute then is decided by comparison (ADR 57).
    """
    return max(1, min(wanted, -(-agents // stages)))


def is_enough(agents: Collection[AgentId], *, stages: int, least: int) -> bool:
    """Whether a stopped job may resume: no agent has to do the work of more than two seats."""
    return len(agents) >= fewest(stages=stages, least=least)


def fewest(*, stages: int, least: int = 1) -> int:
    """Agents that are enough for ``least`` pipelines."""
    return -(-stages * least // 2)
