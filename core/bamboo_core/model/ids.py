"""Names and numbers that identify things: agents, layers, fences."""

from __future__ import annotations

from typing import NamedTuple, NewType

AgentId = NewType("AgentId", str)
"""An agent's name: unique within a job (a replacement gets a new name)."""

Range = tuple[int, int]
"""(lo, hi): layers lo..hi-1 of the model's ordered list of layers."""


class Coordinate(NamedTuple):
    """A seat in the grid; both numbers count from 0."""

    pipeline: int
    stage: int


class Fence(NamedTuple):
    """Carried by every message; receivers refuse a lower one. Fields compare in this order."""

    attempt: int = 0  # incremented by every restore
    term: int = 0  # of the leader
    epoch: int = 0  # number of the plan

    def __str__(self) -> str:
        return f"{self.attempt}.{self.term}.{self.epoch}"
