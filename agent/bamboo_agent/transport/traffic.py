"""What an agent has sent to others, by zone and by what it is for, and what comes from each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, Protocol

from bamboo_core.api.progress import MOST_ZONES, OTHERS, Lane, Sent
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Kind

_SUMS: Final = (Kind.PART, Kind.SUM, Kind.PIECE, Kind.RED)
_COPIES: Final = (Kind.VER, Kind.ACT)
LANES: Final[Mapping[Kind, Lane]] = {
    kind: Lane.SUMS if kind in _SUMS else Lane.COPIES if kind in _COPIES else Lane.BOUNDARY
    for kind in Kind
}
"""What items are for."""


class Traffic:
    """Bytes of tensors since the start. One thread adds them, and any may ask for the sums.

    There is no lock: the sums are read from a copy of the table, which Python makes in one piece.
    """

    def __init__(self) -> None:
        self._bytes: dict[tuple[str, Lane], int] = {}
        self._by_group: dict[str, int] = {}
        self._zones: set[str] = set()

    def add(self, zone: str, kind: Kind, count: int) -> None:
        """Count a frame with an item of this kind to an agent in this zone; empty: not known."""
        if not count:
            return
        key = zone, LANES[kind]
        if key not in self._bytes:
            key = self._named(zone), LANES[kind]
        self._bytes[key] = self._bytes.get(key, 0) + count

    def add_by_group(self, zone: str, count: int) -> None:
        """Count what a process group has carried of frames to this zone."""
        zone = self._named(zone)
        self._by_group[zone] = self._by_group.get(zone, 0) + count

    def _named(self, zone: str) -> str:
        if zone not in self._zones and len(self._zones) == MOST_ZONES:
            return OTHERS
        self._zones.add(zone)
        return zone

    def sent(self) -> tuple[Sent, ...]:
        """The sums, at most MOST_ZONES + 1."""
        found, by_group = self._bytes.copy(), self._by_group.copy()
        return tuple(
            replace(
                Sent(zone, *(found.get((zone, lane), 0) for lane in Lane)),
                group_bytes=by_group.get(zone, 0),
            )
            for zone in sorted({zone for zone, _ in found})
        )


class _Link(Protocol):
    """A link that brings frames of a peer."""

    @property
    def peer(self) -> AgentId:
        """The sender."""

    @property
    def received(self) -> int:
        """Bytes that have come."""

    @property
    def is_coming(self) -> bool:
        """Whether a part of a frame is here."""


Write = Callable[[int, AgentId, int, bool], None]
"""Place of a link, its peer (empty: the place is free), bytes that have come, is_coming."""


class Arrivals:
    """What comes over each link, at a place of a table that others read. One thread calls it.

    places: so many links have one; the others are left out until one is free.
    """

    def __init__(self, write: Write, places: int) -> None:
        self._write, self._free = write, list(range(places - 1, -1, -1))
        self._places: dict[_Link, int] = {}

    def note(self, link: _Link) -> None:
        """Something has come over the link."""
        place = self._places.get(link)
        if place is None:
            if not self._free:
                return
            place = self._places[link] = self._free.pop()
        self._write(place, link.peer, link.received, link.is_coming)

    def forget(self, link: _Link) -> None:
        """The link is closed: its place is free."""
        place = self._places.pop(link, None)
        if place is not None:
            self._write(place, AgentId(""), 0, False)
            self._free.append(place)
