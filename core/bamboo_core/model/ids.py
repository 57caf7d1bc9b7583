"""Names and numbers that identify things: agents, layers, fences."""

from __future__ import annotations

from typing import NamedTuple, NewType

AgentId = NewType("AgentId", str)
"""An agent's name: unique for the life of a job (a replacement gets another one)."""

Range = tuple[int, int]
"""Layers lo..hi-1 of the model's ordered list of layers."""


class Coordinate(NamedTuple):
    """A seat in the grid: stage ``stage`` of pipeline ``pipeline``, both from 0."""

    pipeline: int
    stage: int


class Fence(NamedTuple):
    """What every message carries; a lower one is refused. Compared in this order.

    attempt: life of the training state between restores; term: the leader's generation;
    epoch: number of the plan.
    """

    attempt: int = 0
    term: int = 0
    epoch: int = 0

    def __str__(self) -> str:
        return f"{self.attempt}.{self.term}.{self.epoch}"
