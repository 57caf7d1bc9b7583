"""One way in to every source of fleets: a named market, a file of one, or a recorded fleet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bamboo_sim.market.markets import market_files
from bamboo_sim.market.markets.parameters import Market, MarketError
from bamboo_sim.market.simulation.events import FleetEvent
from bamboo_sim.market.traces.records import Price
from bamboo_sim.market.traces.shapes import TRACES, Shape, read_as
from bamboo_sim.market.traces.trace import Trace

_MARKET = Shape(
    "market",
    f'{{"format": "{market_files.FORMAT}", as `bamboo sim fit --write` writes it',
    lambda line: line.startswith("{"),
    market_files.read,
)


@dataclass(frozen=True)
class Replay:
    """A recorded fleet as a source. ``boot_ms``: from ADD to READY; ``zones``: dealt by the seed to
    nodes of which the file says none, each burst (``within_ms``) in one."""

    trace: Trace
    boot_ms: int = 45_000
    zones: Sequence[str] = ("zone-a", "zone-b", "zone-c")
    within_ms: int = 30_000

    @property
    def prices(self) -> Mapping[tuple[str, str], Price]:
        """By (zone, capacity), where the file has them."""
        return self.trace.prices

    def events(self, seed: int) -> Iterator[FleetEvent]:
        """The recorded fleet. The seed draws what the file does not say: zones, and who goes in a
        count series."""
        settings = {"boot_ms": self.boot_ms, "within_ms": self.within_ms}
        return self.trace.events(seed, zones=self.zones, **settings)


def opened(what: str) -> Market | Replay:
    """The source that a user names: a market that comes with the simulator, or else a file of any
    shape. TraceError or MarketError says what is wrong with the file, or which names there are."""
    known = market_files.named()
    if what in known:
        return known[what]
    path = Path(what)
    if not path.is_file():
        names = ", ".join(sorted(known))
        raise MarketError(f"{what!r} is no file, and no market by name; the names are {names}.")
    shapes: tuple[Shape[Trace | Market], ...] = (*TRACES, _MARKET)
    found = read_as(path, shapes)
    return Replay(found) if isinstance(found, Trace) else found
