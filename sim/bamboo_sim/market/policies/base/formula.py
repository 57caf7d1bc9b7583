"""The base function: how long a step takes, as a formula (rivals.md 4.1).

Policies take their ratios from it: a rival's step is the dry run of its undisturbed grid, times the
formula of its state over the formula of that grid. :class:`FormulaTimes` is the formula in the
place of the dry run, so that policies can be tried without the planner.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from itertools import product
from math import ceil
from typing import NamedTuple

from bamboo_sim.market.simulation.step_times import Hole


class Grid(NamedTuple):
    """Pipelines (D) of stages (P)."""

    pipelines: int
    stages: int

    @property
    def seats(self) -> int:
        """D x P."""
        return self.pipelines * self.stages


@dataclass(frozen=True)
class Formula:
    """Times in milliseconds, sizes in bytes.

    ``microbatches``: of all pipelines in a step; ``layer_ms``: forward and backward of one
    micro-batch in one layer; ``wait_ms``: that each slot waits for its tensors; ``is_split``:
    backwards are split, and so a step has almost no bubble (the zero-bubble schedule).
    """

    layers: int
    microbatches: int
    layer_ms: float
    wait_ms: float
    gradient_bytes: float
    bytes_per_s: float
    is_split: bool = False

    def slot_ms(self, stages: float) -> float:
        """One micro-batch in one stage, forward and backward, with its exposed wait."""
        return self.layer_ms * ceil(self.layers / stages) + self.wait_ms

    def share(self, pipelines: int) -> int:
        """The micro-batches of one pipeline (M)."""
        return ceil(self.microbatches / pipelines)

    def reduce_ms(self, pipelines: int, stages: int) -> float:
        """The reduction of gradients over the pipelines, by a ring."""
        moved = 2 * (pipelines - 1) / pipelines * self.gradient_bytes / stages
        return moved / self.bytes_per_s * 1000

    def slots(self, work: float, stages: int) -> float:
        """The slots of a step in which the busiest node has so much work, in micro-batches."""
        return max(work, stages) if self.is_split else work + stages - 1

    def step_ms(self, grid: Grid, work: float | None = None) -> float:
        """A step of a grid whose busiest node has so much work (None: its share)."""
        pipelines, stages = grid
        slots = self.slots(self.share(pipelines) if work is None else work, stages)
        return slots * self.slot_ms(stages) + self.reduce_ms(pipelines, stages)

    def routed_ms(self, grid: Grid, work: float) -> float:
        """A step in which work was moved to nodes with bubbles: the busiest node's work, but no
        less than the whole grid's step takes."""
        pipelines, stages = grid
        slots = max(work, self.slots(self.share(pipelines), stages))
        return slots * self.slot_ms(stages) + self.reduce_ms(pipelines, stages)


class Way(NamedTuple):
    """How ours gives lost work away in :class:`FormulaTimes`.

    ``name``: Shadow, Peers or Diffuse; ``overhead``: of a diffused step over its bound; ``tax``:
    the share by which forwards that are computed ahead make steps longer; ``upkeep_ms``: of copies,
    in each step; ``has_copies``: agents hold the next stage.
    """

    name: str = "Diffuse"
    overhead: float = 0.03
    tax: float = 0.0
    upkeep_ms: float = 0.0
    has_copies: bool = True


DIFFUSE = Way()
"""Copies, fully hidden, and all who hold a layer share its work."""


class FormulaTimes:
    """The formula as step times. ``stages``: the least and the most into which the model fits."""

    def __init__(
        self, formula: Formula, stages: tuple[int, int], samples: int, way: Way = DIFFUSE
    ) -> None:
        self._formula, self._stages, self._way = formula, stages, way
        self.samples = samples

    @property
    def network(self) -> str:
        """The wire of the formula: reductions pay for it, and the wait of slots is measured."""
        return f"formula at {self._formula.bytes_per_s * 8 / 1e9:g} Gb/s"

    def whole_ms(self, pipelines: int, stages: int) -> float | None:
        """A step of the whole grid."""
        least, most = self._stages
        if not least <= stages <= most:
            return None
        grid = Grid(pipelines, stages)
        return self._taxed(self._formula.step_ms(grid))

    def degraded_ms(self, pipelines: int, stages: int, holes: frozenset[Hole]) -> float | None:
        """A step of rivals.md 4.10 while seats are empty."""
        whole = self.whole_ms(pipelines, stages)
        if not holes or whole is None:
            return whole
        grid = Grid(pipelines, stages)
        work = self._work(grid, holes)
        if work is None:
            return None
        if self._way.name == "Shadow":
            return self._taxed(self._formula.step_ms(grid, work))
        return self._taxed(self._formula.routed_ms(grid, work))

    def _taxed(self, step_ms: float) -> float:
        return step_ms * (1 + self._way.tax) + self._way.upkeep_ms

    def _work(self, grid: Grid, holes: frozenset[Hole]) -> float | None:
        """The work of the busiest node; None: a layer is nowhere."""
        pipelines, stages = grid
        share = self._formula.share(pipelines)
        loads = {
            seat: float(share)
            for seat in product(range(pipelines), range(stages))
            if seat not in holes
        }
        for hole in holes:
            servers = self._servers(grid, hole, loads)
            if not servers:
                return None
            for seat in servers:
                loads[seat] += share / len(servers)
        if self._way.name == "Diffuse" and self._way.has_copies:
            return (1 + self._way.overhead) * ceil(share * grid.seats / len(loads))
        return ceil(max(loads.values()))

    def _servers(self, grid: Grid, hole: Hole, live: Container[Hole]) -> list[Hole]:
        """The seats that compute the work of an empty one."""
        pipelines, stages = grid
        pipeline, stage = hole
        own = [(d, stage) for d in range(pipelines) if (d, stage) in live]
        if not self._way.has_copies:
            return own
        copies = [(d, (stage - 1) % stages) for d in range(pipelines)]
        shadow = (pipeline, (stage - 1) % stages)
        shadows = [shadow] if shadow in live else []
        if self._way.name == "Shadow":
            own, shadows = (shadows, []) if shadows else (own, [])
        return own + shadows or [copy for copy in copies if copy in live]
