"""Facts about the jobs that want room, and about the nodes that have some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bamboo_core.api.spec import Adjacency, JobSpec
from bamboo_core.controller.view import JobView
from bamboo_core.placement import zones
from bamboo_core.placement.fitting import Amounts


@dataclass(frozen=True)
class NodeRoom:
    """A node: its zone, what its pods leave of it, and what they would without those of jobs."""

    zone: str
    free: Amounts
    whole: Amounts


@dataclass(frozen=True, eq=False)
class Shape:
    """The resources that an agent takes, and where it may run. Equal jobs share one object."""

    asks: Amounts
    usable: tuple[str, ...]  # nodes where an agent may be placed now if there is room
    suitable: frozenset[str]  # nodes where it could run if they were empty
    wishes: frozenset[str] = frozenset()  # zones and labels of the nodes that it asks for


@dataclass(frozen=True)
class Claim:
    """A job that wants room."""

    job: JobView
    priority: int
    stages: int
    least: int  # pipelines without which it cannot train
    most: int  # pipelines wanted
    adjacency: Adjacency
    shape: Shape
    held: Mapping[str, int]  # node -> number of its pods there
    is_training: bool = False  # its agents hold the state of the training
    assured: int = 0  # agents that it gets back before others, once it has started
    closed: frozenset[str] = frozenset()  # zones where the scheduler refuses its pods
    # The API server refuses its pods, they fail, or it cannot be reconciled.
    is_refused: bool = False
    is_unheard: bool = False  # no scheduler says anything about its pods
    # zone -> its pods there that have no node; "": in any zone
    waiting: Mapping[str, int] = field(default_factory=dict)

    @property
    def minimum(self) -> int:
        """Number of agents in the smallest grid."""
        return self.least * self.stages

    @property
    def seats(self) -> int:
        """Number of agents in the wanted grid."""
        return self.most * self.stages

    @property
    def pods(self) -> int:
        """Number of its pods that have a node."""
        return sum(self.held.values())

    @property
    def zone_limit(self) -> int:
        """The most agents of the wanted grid that one zone may have."""
        return zones.zone_limit(stages=self.stages, pipelines=self.most, adjacency=self.adjacency)

    def fits(self, by_zone: Mapping[str, int]) -> bool:
        """Whether its smallest grid does. by_zone: zone -> agents there."""
        found = zones.feasible_pipelines(
            by_zone, stages=self.stages, most=self.least, adjacency=self.adjacency
        )
        return found >= self.least

    def seated(self, by_zone: Mapping[str, int]) -> int:
        """Agents of the wanted grid that have a seat then."""
        return zones.capacity(
            by_zone, stages=self.stages, pipelines=self.most, adjacency=self.adjacency
        )


def claim(
    job: JobView,
    spec: JobSpec,
    shape: Shape,
    *,
    priority: int,
    held: Mapping[str, int],
    is_training: bool,
    assured: int,
    closed: frozenset[str] = frozenset(),
    is_refused: bool = False,
    is_unheard: bool = False,
    waiting: Mapping[str, int],
) -> Claim:
    """That of a job with this spec."""
    grid = spec.pipelines
    return Claim(
        job,
        priority,
        grid.stages,
        grid.min,
        grid.count,
        spec.placement.adjacency,
        shape,
        held,
        is_training,
        assured,
        closed,
        is_refused,
        is_unheard,
        waiting,
    )
