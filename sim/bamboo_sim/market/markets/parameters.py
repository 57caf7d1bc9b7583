"""The parameters of a drawn market, each with the reason for its value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from bamboo_sim.market.markets import drawn
from bamboo_sim.market.simulation.events import FleetEvent


class MarketError(ValueError):
    """A parameter that makes no market: its name, its value and the remedy."""


class Parameter(NamedTuple):
    """``source``: where the value is from; also who assumes it, if somebody does."""

    value: Any
    unit: str
    source: str


@dataclass(frozen=True)
class Market:
    """A market of spot nodes in which losses come in bursts.

    ``parameters``: by the names in UNITS, all of them. MarketError if one is missing, unknown or
    makes no sense.
    """

    name: str
    parameters: Mapping[str, Parameter]

    def __post_init__(self) -> None:
        for name in [*UNITS, *self.parameters]:
            if name not in self.parameters:
                raise MarketError(f"parameters has no {name} ({UNITS[name]}); add it.")
            if name not in UNITS:
                raise MarketError(f"parameters.{name} is unknown; use only {', '.join(UNITS)}.")
            is_good, remedy = _RULES[name]
            if not is_good(self.parameters[name].value):
                value = self.parameters[name].value
                raise MarketError(f"parameters.{name} is {value!r}; {remedy}.")
        if self["bulk_chance"] > 0 and not self["bulk_sizes"]:
            raise MarketError("parameters.bulk_sizes is empty; give sizes, or bulk_chance 0.")

    def __getitem__(self, name: str) -> Any:
        return self.parameters[name].value

    @property
    def sizes(self) -> dict[int, float]:
        """Size of a burst -> its chance. Chances add up to 1."""
        chance, weights = self["bulk_chance"], self["bulk_sizes"]
        total = sum(weights.values())
        bulks = {int(size): chance * weight / total for size, weight in weights.items()}
        return {1: 1 - chance} | (bulks if chance else {})

    def events(self, seed: int) -> Iterator[FleetEvent]:
        """The fleet, without end and in order; memory for its live nodes only."""
        return drawn.events(
            drawn.Rules(
                nodes=self["nodes"],
                zones=tuple(self["zones"]),
                hazard=self["hazard"],
                sizes=self.sizes,
                gap_cv=self["gap_cv"],
                refill_minutes=self["refill_minutes"],
                boot_ms=round(self["boot_seconds"] * 1000),
            ),
            seed,
        )


UNITS = {
    "nodes": "nodes that are wanted",
    "zones": "names; a bulk takes nodes of one",
    "hazard": "losses per node-hour",
    "bulk_chance": "chance that a burst of losses takes more than one node",
    "bulk_sizes": "weight of each number of nodes that such a burst takes, at most its zone's",
    "gap_cv": "standard deviation over mean of the node-hours between bursts; 1: no memory",
    "refill_minutes": "mean minutes until a burst's nodes are replaced, exponential",
    "boot_seconds": "seconds from rented to ready",
}
"""Parameter -> unit."""


def _is_number(value: object, least: float = -math.inf, most: float = math.inf) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and least <= value <= most  # type: ignore[arg-type, operator]


def _is_sizes(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        str(size).isdecimal() and int(size) > 1 and _is_number(weight, 0) and weight > 0
        for size, weight in value.items()
    )


def _is_zones(value: object) -> bool:
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(isinstance(zone, str) and zone for zone in value) and len({*value}) == len(value)


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "nodes": (lambda x: _is_number(x, 1) and isinstance(x, int), "give an integer of at least 1"),
    "zones": (_is_zones, "give a list of different names, at least one"),
    "hazard": (
        lambda x: _is_number(x, 0, 3600) and x > 0,
        "give a number above 0 and at most 3600; nodes that are never lost are on demand",
    ),
    "bulk_chance": (lambda x: _is_number(x, 0, 1), "give a number from 0 to 1"),
    "bulk_sizes": (_is_sizes, "give weights above 0 by sizes of at least 2"),
    "gap_cv": (lambda x: _is_number(x, 0.1, 10), "give a number from 0.1 to 10"),
    "refill_minutes": (lambda x: _is_number(x, 0) and x > 0, "give a number above 0"),
    "boot_seconds": (lambda x: _is_number(x, 0), "give a number of at least 0"),
}
