"""What a file of a recorded fleet says, and the fleet that it gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bamboo_sim.market.simulation.events import FleetEvent, Kind, Node


class TraceError(ValueError):
    """A line that is no part of a trace: where it is, and what it should be."""

    def __init__(self, path: Path, line: int, what: str) -> None:
        super().__init__(f"{path}:{line}: {what}")


@dataclass(frozen=True)
class Seen:
    """A node came (ADD) or went (REMOVE), by its name in the file. ``zone`` and ``capacity``: empty
    where the file says none. ``is_loss``: of a REMOVE; False if the node's user ended it."""

    at_ms: int
    kind: Kind
    name: str
    zone: str = ""
    capacity: str = ""
    is_loss: bool = True


@dataclass(frozen=True)
class Count:
    """How many nodes there were."""

    at_ms: int
    nodes: int


class Price(NamedTuple):
    """The price of a node of one zone and capacity, dollars per hour: the mean over the time of all
    its nodes, and the range."""

    mean: float
    least: float
    most: float


@dataclass(frozen=True)
class Lifetime:
    """A machine. ``is_preempted``: else its user ended it, and it would have lived on."""

    zone: str
    machine_type: str
    start_ms: int
    end_ms: int
    is_preempted: bool


def fleet(seen: Iterable[Seen], boot_ms: int, zone: str, capacity: str) -> Iterator[FleetEvent]:
    """The events of named nodes in the engine's order. ``zone`` and ``capacity``: of nodes of which
    the file says none."""
    nodes: dict[str, Node] = {}
    ends: dict[str, int] = {}
    seen = sorted(seen, key=lambda event: (event.at_ms, event.kind))
    for event in seen:
        if event.kind is Kind.REMOVE:
            ends[event.name] = event.at_ms
    made: list[tuple[int, Kind, Node]] = []
    for event in seen:
        if event.kind is Kind.ADD:
            node = nodes[event.name] = Node(
                len(nodes) + 1, event.zone or zone, event.capacity or capacity
            )
            ready_ms = event.at_ms + boot_ms
            if event.name not in ends or ready_ms < ends[event.name]:
                made.append((ready_ms, Kind.READY, node))
        made.append((event.at_ms, event.kind, nodes[event.name]))
    made.sort(key=lambda entry: entry[:2])
    for sequence, (at_ms, kind, node) in enumerate(made):
        yield FleetEvent(at_ms, kind, sequence, node)
