"""What may be tried for a job: grids, modes, zones, and how many of the nodes are on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bamboo_core.api.spec import RedundancyMode
from bamboo_sim.market.policies.base.formula import Grid
from bamboo_sim.market.policies.ours.modes import MODES

SHARES = (0.25, 0.5)
"""Parts of the nodes that are on demand, beside none and all."""


class Candidate(NamedTuple):
    """``steady``: nodes on demand, of all that the grid has; ``zones``: of the spot nodes, none:
    all that are offered."""

    grid: Grid
    mode: RedundancyMode
    steady: int = 0
    zones: tuple[str, ...] = ()

    @property
    def spot(self) -> int:
        """Spot nodes that are rented at most."""
        return self.grid.seats - self.steady

    @property
    def name(self) -> str:
        """The grid, the mode and the nodes."""
        pipelines, stages = self.grid
        if not self.spot:
            nodes = f"{self.steady} nodes on demand"
        elif not self.steady:
            nodes = f"{self.spot} spot nodes"
        else:
            nodes = f"{self.spot} spot nodes and {self.steady} on demand"
        where = f" in {', '.join(self.zones)}" if self.zones else ""
        return f"{pipelines} x {stages} in mode {self.mode} on {nodes}{where}"


def grids(nodes: int, fewest_stages: int, most_stages: int) -> list[Grid]:
    """All grids of so many nodes at most."""
    return [
        Grid(pipelines, stages)
        for stages in range(fewest_stages, most_stages + 1)
        for pipelines in range(1, nodes // stages + 1)
    ]


def plain(found: Sequence[Grid]) -> Iterator[Candidate]:
    """Each grid in each mode on spot nodes, and without copies on demand, where none is lost."""
    for grid in found:
        for mode in MODES:
            yield Candidate(grid, mode)
        yield Candidate(grid, RedundancyMode.NONE, grid.seats)


def variants(candidate: Candidate, zones: Sequence[str]) -> Iterator[Candidate]:
    """The same with some nodes on demand, or with spot nodes of one zone alone."""
    if not candidate.spot:
        return
    for share in SHARES:
        steady = round(share * candidate.grid.seats)
        if 0 < steady < candidate.grid.seats:
            yield candidate._replace(steady=steady)
    if len(zones) > 1:
        for zone in zones:
            yield candidate._replace(zones=(zone,))
