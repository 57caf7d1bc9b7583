"""What happens to a fleet, and in which order at one instant. Times are whole milliseconds."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Kind(IntEnum):
    """The kinds of events. Their numbers are the order at one instant: this is the only place
    that says it. All events of one kind at one instant are told together."""

    ADD = 1
    """A node is rented. It costs from now on, and boots."""
    REMOVE = 2
    """A node is gone. A node may go in the instant of its ADD, after it."""
    READY = 3
    """A node has booted, and can serve from now on."""
    RESUME = 4
    """A pause ends: nodes that are ready at this instant may take part."""
    LOOK = 5
    """The policy asked to be called now, or at the end of the step, which ends before it."""


ADD, REMOVE, READY, RESUME, LOOK = Kind
"""The kinds by themselves, for code that each event runs: attributes of an enumeration are slow."""


class Node(NamedTuple):
    """A machine with one agent. ``number``: never used again; nodes count up by their ADD."""

    number: int
    zone: str
    capacity: str
    """``spot`` or ``on-demand``."""


class FleetEvent(NamedTuple):
    """An event of the fleet itself: ADD, REMOVE or READY. Sorts by time, kind and sequence."""

    at_ms: int
    kind: Kind
    sequence: int
    node: Node


class News(NamedTuple):
    """All events of one kind at one instant. ``nodes``: none for RESUME and LOOK."""

    at_ms: int
    kind: Kind
    nodes: tuple[Node, ...] = ()
