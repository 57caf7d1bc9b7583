"""The job that all policies train, and what all of them pay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Any

from bamboo_sim.market.policies.base.formula import DIFFUSE, Formula, FormulaTimes, Grid, Way
from bamboo_sim.market.policies.base.parameters import values
from bamboo_sim.market.simulation.policy import Pace
from bamboo_sim.market.simulation.step_times import StepTimes


@dataclass(frozen=True)
class Common:
    """The same for every system; times in milliseconds, sizes in bytes.

    ``notice_ms``: how long before its loss a node is told; no recorded fleet has notices, so it is
    assumed, and 0 means none. A system that acts within it has acted when the loss comes.
    ``mean_gap_ms``: between instants with losses, as those who set intervals by it know it.
    ``interval_ms``: between checkpoints of systems that need one only when no copy is left; these
    cost nothing. ``seats_seed``: how nodes are dealt to seats; 0: as they come.
    """

    detect_ms: int
    notice_ms: int
    boot_ms: int
    bytes_per_s: float
    state_bytes: float
    block_ms: int
    persist_ms: int
    restart_ms: int
    interval_ms: int
    mean_gap_ms: int
    fewest_stages: int
    most_stages: int
    stages: int
    nodes: int
    seats_seed: int = 0


class Job:
    """Step times, the formula that gives ratios, and what is common. Equal arguments give equal
    answers; answers are kept, since a dry run takes long."""

    def __init__(self, times: StepTimes, formula: Formula, common: Common) -> None:
        self.times, self.formula, self.common = times, formula, common
        self._whole: dict[Grid, float | None] = {}
        self._best: dict[int, Grid | None] = {}

    def whole_ms(self, grid: Grid) -> float | None:
        """A step of the undisturbed grid. None: the model does not fit."""
        if grid not in self._whole:
            self._whole[grid] = self.times.whole_ms(*grid)
        return self._whole[grid]

    def best(self, nodes: int) -> Grid | None:
        """The fastest undisturbed grid of at most so many nodes. None: there is none."""
        if nodes not in self._best:
            timed = [
                (ms, grid)
                for stages in self.depths
                for pipelines in range(1, nodes // stages + 1)
                if (ms := self.whole_ms(grid := Grid(pipelines, stages))) is not None
            ]
            self._best[nodes] = min(timed)[1] if timed else None
        return self._best[nodes]

    @property
    def pipelines(self) -> int:
        """The most pipelines of the common depth that the largest fleet makes."""
        return max(1, self.common.nodes // self.common.stages)

    @property
    def depths(self) -> range:
        """The numbers of stages that are tried."""
        return range(self.common.fewest_stages, self.common.most_stages + 1)

    def pace(self, grid: Grid, step_ms: float | None = None, share: float = 1.0) -> Pace | None:
        """The pace of a state that takes so long by the formula (None: the undisturbed grid), and
        trains a share of the step's samples. None: the model does not fit."""
        whole = self.whole_ms(grid)
        if whole is None:
            return None
        ratio = 1.0 if step_ms is None else step_ms / self.formula.step_ms(grid)
        return Pace(whole * ratio, round(self.times.samples * share))

    def copy_ms(self, stages: int) -> int:
        """How long the state of one stage takes from node to node, and from a store to a node."""
        common = self.common
        return round(common.state_bytes / stages / common.bytes_per_s * 1000)

    @cached_property
    def saving_ms(self) -> int:
        """The interval of checkpoints by Young and Daly: sqrt(2 x cost x mean gap)."""
        common = self.common
        return max(common.persist_ms, round(sqrt(2 * common.block_ms * common.mean_gap_ms)))

    def is_told(self, pause_ms: float) -> bool:
        """Whether the notice of a loss is long enough to act before it."""
        return 0 < self.common.notice_ms >= pause_ms

    @cached_property
    def best_per_node(self) -> float:
        """The most samples per second of one node in any undisturbed grid of the common nodes."""
        return max(
            self.times.samples / ms * 1000 / grid.seats
            for stages in self.depths
            for pipelines in range(1, self.common.nodes // stages + 1)
            if (ms := self.whole_ms(grid := Grid(pipelines, stages))) is not None
        )


def rate(pace: Pace | None) -> float:
    """Samples per millisecond."""
    return pace.samples / pace.step_ms if pace else 0.0


def common(**changed: Any) -> Common:
    """The common parameters of the file, with some changed."""
    return replace(Common(**values("base", "common")), **changed)


def formula(*, is_split: bool) -> Formula:
    """GPT-2 1.5B on V100 nodes at 10 Gb/s, as the file says."""
    return Formula(**values("base", "gpt2"), is_split=is_split)


def formula_job(*, is_split: bool, way: Way = DIFFUSE, **changed: Any) -> Job:
    """The job whose step times are the formula, for trials without the planner."""
    of, shared = formula(is_split=is_split), common(**changed)
    depths = shared.fewest_stages, shared.most_stages
    return Job(FormulaTimes(of, depths, of.microbatches, way), of, shared)
