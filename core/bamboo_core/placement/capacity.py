"""How many pipelines a number of agents can run."""

from __future__ import annotations

from collections.abc import Collection

from bamboo_core.model.ids import AgentId


def pipelines_for(agents: int, *, stages: int, wanted: int) -> int:
    """D for that many agents when seats may stay empty: N / P rounded up (ADR 16).

    Spreading the work of up to P - 1 empty seats over all is faster than one pipeline less, and
    nobody moves; from P on nobody idles in a grid that is smaller by one.
    """
    return max(1, min(wanted, -(-agents // stages)))


def is_enough(agents: Collection[AgentId], *, stages: int, least: int) -> bool:
    """Whether a stopped job may go on: nobody shall stand in for more than two seats."""
    return 2 * len(agents) >= stages * least
