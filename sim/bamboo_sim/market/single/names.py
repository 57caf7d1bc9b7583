"""Systems by the names that users write."""

from __future__ import annotations

from collections.abc import Iterable

from bamboo_sim.market.compare.comparison import Key, Table
from bamboo_sim.market.markets.parameters import MarketError

_PUBLISHED = "-published"


def written(key: Key) -> str:
    """The name of a system on a command line. With parameters that its authors published, it says
    so at its end."""
    table, name = key
    plain = name.lower().replace(",", "").replace(" ", "-")
    return plain + (_PUBLISHED if table is Table.OWN else "")


def named(name: str, keys: Iterable[Key]) -> Key:
    """The system of this name. MarketError has all names if there is none."""
    known = {written(key): key for key in keys}
    if name not in known:
        raise MarketError(f"--policy {name} is unknown; give one of {', '.join(sorted(known))}.")
    return known[name]
