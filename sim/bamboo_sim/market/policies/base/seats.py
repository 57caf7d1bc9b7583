"""Who sits where in a grid, as a value, and what every policy asks about it."""

from __future__ import annotations

from collections.abc import Container, Iterable
from random import Random
from typing import NamedTuple

from bamboo_sim.market.policies.base.formula import Grid
from bamboo_sim.market.simulation.events import News
from bamboo_sim.market.simulation.policy import Fleet
from bamboo_sim.market.simulation.step_times import Hole

NO_GRID = Grid(0, 0)


class Seats(NamedTuple):
    """``holders``: the node of each seat, pipeline by pipeline; None: it is empty. ``since_ms``:
    when training began with a checkpoint, from which on others are made."""

    grid: Grid = NO_GRID
    holders: tuple[int | None, ...] = ()
    since_ms: int = 0

    @property
    def serving(self) -> frozenset[int]:
        """The nodes that have seats."""
        return frozenset(node for node in self.holders if node is not None)

    @property
    def holes(self) -> frozenset[Hole]:
        """The empty seats."""
        return frozenset(
            divmod(seat, self.grid.stages) for seat, node in enumerate(self.holders) if node is None
        )

    @property
    def empty(self) -> tuple[int, ...]:
        """The number of empty seats of each stage."""
        pipelines, stages = self.grid
        return tuple(
            sum(self.holders[d * stages + s] is None for d in range(pipelines))
            for s in range(stages)
        )

    def without(self, lost: Container[int]) -> Seats:
        """The seats after a loss."""
        kept = tuple(None if node in lost else node for node in self.holders)
        return self._replace(holders=kept)

    def filled(self, nodes: Iterable[int]) -> Seats:
        """The seats after nodes have taken empty ones, as many as there are, in order."""
        free = iter(nodes)
        holders = tuple(next(free, None) if node is None else node for node in self.holders)
        return self._replace(holders=holders)


def dealt(grid: Grid, nodes: Iterable[int], since_ms: int) -> Seats:
    """Nodes in the seats of a grid. Where there are too few, the empty seats are spread over stages
    and pipelines: no stage has two more than another, and neighbours are empty last."""
    found = tuple(nodes)[: grid.seats]
    pipelines, stages = grid
    apart = [*range(0, stages, 2), *range(1, stages, 2)]
    order = [
        (pipelines - 1 - (turn + s) % pipelines) * stages + s
        for turn in range(pipelines)
        for s in apart
    ]
    gone = set(order[: grid.seats - len(found)])
    free = iter(found)
    return Seats(
        grid, tuple(None if i in gone else next(free) for i in range(grid.seats)), since_ms
    )


def ordered(fleet: Fleet, seed: int, first: Iterable[int] = ()) -> list[int]:
    """Ready nodes in the order in which they get seats: ``first`` (those that stay), then as they
    became ready, or as a seed shuffles them."""
    stay = [node for node in first if node in fleet.ready]
    others = [node for node in fleet.ready if node not in set(stay)]
    if seed:
        others.sort(key=lambda node: Random(f"{seed} {node}").random())
    return stay + others


def lost_of(serving: Container[int], news: News) -> frozenset[int]:
    """The nodes that serve and are lost with this news."""
    return frozenset(node.number for node in news.nodes if node.number in serving)


def age_ms(now_ms: int, since_ms: int, interval_ms: int, persist_ms: int) -> int:
    """The time of training that no readable checkpoint has. Checkpoints begin each interval after
    ``since_ms``, when one was read, and can be read ``persist_ms`` later."""
    trained = max(0, now_ms - since_ms)
    if trained < interval_ms + persist_ms:
        return trained
    return persist_ms + (trained - persist_ms) % interval_ms
