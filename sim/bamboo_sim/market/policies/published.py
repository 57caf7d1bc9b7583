"""The parameters of Bamboo as published; assumptions.json has them with their sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """``step_ms``: of a grid by its number of pipelines; ``slowdown``: of a step from the first
    loss to the next rendezvous; ``risk``: the share of nodes whose loss would be fatal from which
    on a rendezvous is planned."""

    samples: int
    stages: int
    step_ms: Mapping[int, int]
    slowdown: float
    planned_ms: int
    fatal_ms: int
    risk: float
