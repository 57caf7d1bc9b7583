"""What Parcae's authors published about the time that migrations of nodes take."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from bamboo_sim.market.policies.base.formula import Grid
from bamboo_sim.market.policies.base.job import Job


class Costs(NamedTuple):
    """The parameters; parameters.json says what each is."""

    fixed_ms: float
    remove_ms: float
    add_ms: float
    rendezvous_ms: float
    build_ms: float
    every_ms: int
    horizon_ms: int


def migration_ms(job: Job, costs: Costs, after: Grid, *, copies: bool, joins: bool) -> int:
    """A change to a grid, beyond detection. ``copies``: some node gets another stage than it had;
    ``joins``: new nodes take seats, which meet and build their layers first."""
    groups = after.pipelines + after.stages + 1 + after.seats
    found = costs.fixed_ms + groups * (costs.add_ms if joins else costs.remove_ms)
    if joins:
        layers = ceil(job.formula.layers / after.stages)
        found += costs.rendezvous_ms + costs.build_ms * layers
    if copies:
        found += job.copy_ms(after.stages)
    return ceil(found)
