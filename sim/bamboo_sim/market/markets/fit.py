"""Measures a recorded fleet: how often nodes are lost, how many at once, and when others come."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Any, NamedTuple

from bamboo_sim.market.markets.parameters import UNITS, Market, Parameter
from bamboo_sim.market.markets.tally import SUMS, Block, tally
from bamboo_sim.market.traces.records import Price
from bamboo_sim.market.traces.trace import Trace

LEVEL = 0.95
_RESAMPLES = 2000
_SEED = 20230417
_FEW_BURSTS = 10
_BOOT = Parameter(
    45, UNITS["boot_seconds"], "simulator of Bamboo's authors, 8080929: spot_instance_creation_time"
)


class FitError(ValueError):
    """A trace from which no figure, or no market, follows; the remedy."""


class Figure(NamedTuple):
    """A value with its interval; None: the trace has nothing to compute it from."""

    value: float | None
    low: float | None
    high: float | None


class Spread(NamedTuple):
    """The median and the 90th percentile of ``number`` times in minutes, and the longest one."""

    number: int
    p50: float
    p90: float
    most: float


@dataclass(frozen=True)
class Fit:
    """The figures of a trace. Intervals are of :data:`LEVEL`, by a bootstrap of blocks of time.

    ``least_nodes`` is since the first loss, so that a start from nothing does not count.
    ``refill``, ``refill_mean``, ``next_addition`` and ``unfilled`` are None for a count series,
    which has no names. ``gap_cv`` is the standard deviation over the mean of the node-hours between
    bursts.
    """

    shape: str
    within_ms: int
    hours: float
    node_hours: float
    zones: tuple[str, ...]
    nodes: Figure
    least_nodes: int
    most_nodes: int
    losses: int
    bursts: int
    hazard: Figure
    sizes: Mapping[int, int]
    size_mean: Figure
    bulk_chance: Figure
    share_in_bulks: Figure
    gap: Spread | None
    gap_cv: Figure
    refill: Spread | None
    refill_mean: Figure | None
    next_addition: Spread | None
    unfilled: int | None
    prices: Mapping[tuple[str, str], Price]

    @property
    def notes(self) -> list[str]:
        """Limits to know before the figures are believed."""
        found = []
        if self.bursts < _FEW_BURSTS:
            found.append(f"few bursts of losses ({self.bursts}): the intervals are rough.")
        if self.refill_mean is None:
            found.append(
                "a drop of a count series is at least as many losses: what comes and goes between"
                " two counts is not seen."
            )
        if self.shape == "lifetimes":
            found.append("refills mean something only if somebody kept the fleet at its size.")
        return found


def fit(trace: Trace, within_ms: int, level: float = LEVEL) -> Fit:
    """Measure a trace. ``within_ms``: the longest gap of a burst; a count series does not use it.
    FitError if the trace lasts no time or never has a spot node."""
    if trace.end_ms <= trace.begin_ms:
        raise FitError("the trace lasts no time; give one with nodes at two times at least.")
    found = tally(trace, within_ms)
    total = _sum(found.blocks)
    if not total["node_hours"]:
        raise FitError("the trace never has a spot node; give one that has.")
    figure = _Bootstrap(found.blocks, level).figure
    has_names = trace.has_names
    return Fit(
        shape=trace.shape,
        within_ms=within_ms,
        hours=trace.hours,
        node_hours=total["node_hours"],
        zones=trace.zones,
        nodes=figure(_ratio("node_hours", "hours")),
        least_nodes=found.least_nodes,
        most_nodes=found.most_nodes,
        losses=round(total["losses"]),
        bursts=round(total["bursts"]),
        hazard=_hazard(figure(_ratio("losses", "node_hours")), total["node_hours"], level),
        sizes=dict(sorted(Counter(found.sizes).items())),
        size_mean=figure(_ratio("losses", "bursts")),
        bulk_chance=figure(_ratio("bulks", "bursts")),
        share_in_bulks=figure(_ratio("losses_in_bulks", "losses")),
        gap=_spread(found.gaps),
        gap_cv=figure(_gap_cv),
        refill=_spread(found.refills) if has_names else None,
        refill_mean=figure(_minutes_missing) if has_names else None,
        next_addition=_spread(found.next_additions) if has_names else None,
        unfilled=found.unfilled if has_names else None,
        prices=trace.prices,
    )


def market(found: Fit, name: str, refill_minutes: float | None = None) -> Market:
    """The market that draws fleets like a trace. ``refill_minutes``: the mean time to refill, for a
    trace that does not say it. FitError if the trace says too little."""
    if not found.losses:
        raise FitError("the trace has no losses, and nodes that are never lost need no market.")
    mean = found.refill_mean
    if refill_minutes is not None:
        refill = Parameter(refill_minutes, UNITS["refill_minutes"], "given")
    elif mean is None or mean.value is None:
        why = "a count series has no names" if mean is None else "no lost node was replaced"
        raise FitError(f"{why}, so no time to refill is known; give --refill-minutes.")
    else:
        refill = _fitted("refill_minutes", mean, name)
    bulks = {str(size): times for size, times in found.sizes.items() if size > 1}
    cv = found.gap_cv
    gap_cv = (
        _fitted("gap_cv", cv._replace(value=min(10.0, max(0.1, cv.value))), name)
        if cv.value is not None
        else Parameter(1, UNITS["gap_cv"], f"assumed: {name} has too few gaps")
    )
    zones = Parameter(
        list(found.zones) or ["zone-a"],
        UNITS["zones"],
        f"named in {name}" if found.zones else f"assumed: {name} names none",
    )
    return Market(
        name,
        {
            "nodes": Parameter(found.most_nodes, UNITS["nodes"], f"the most in {name}"),
            "zones": zones,
            "hazard": _fitted("hazard", found.hazard, name),
            "bulk_chance": _fitted("bulk_chance", found.bulk_chance, name),
            "bulk_sizes": Parameter(bulks, UNITS["bulk_sizes"], f"counted in {name}"),
            "gap_cv": gap_cv,
            "refill_minutes": refill,
            "boot_seconds": _BOOT,
        },
    )


def _fitted(parameter: str, figure: Figure, name: str) -> Parameter:
    source = f"fitted to {name}"
    if figure.low is not None and figure.high is not None:
        source += f"; {LEVEL:.0%} interval {figure.low:.4g} to {figure.high:.4g}"
    assert figure.value is not None
    return Parameter(float(f"{figure.value:.6g}"), UNITS[parameter], source)


_Sums = Mapping[str, float]


def _sum(blocks: Sequence[Block]) -> dict[str, float]:
    return _added([_row(block) for block in blocks])


def _row(block: Block) -> tuple[float, ...]:
    return tuple(vars(block).values())


def _added(rows: Sequence[tuple[float, ...]]) -> dict[str, float]:
    return dict(zip(SUMS, map(sum, zip(*rows, strict=True)), strict=True))


def _ratio(part: str, whole: str) -> Callable[[_Sums], float | None]:
    return lambda sums: sums[part] / sums[whole] if sums[whole] else None


def _gap_cv(sums: _Sums) -> float | None:
    number, total = sums["gaps"], sums["gap_sum"]
    if number < 3 or not total:
        return None
    mean = total / number
    variance = max(0.0, sums["gap_squares"] / number - mean**2) * number / (number - 1)
    return math.sqrt(variance) / mean


def _minutes_missing(sums: _Sums) -> float | None:
    return 60 * sums["missing_hours"] / sums["refills"] if sums["refills"] else None


class _Bootstrap:
    """Sums of blocks that were drawn again and again, with repetition. The same for all figures."""

    def __init__(self, blocks: Sequence[Block], level: float) -> None:
        random = Random(_SEED)
        self._whole, self._level = _sum(blocks), level
        rows = [_row(block) for block in blocks]
        self._drawn = [_added(random.choices(rows, k=len(rows))) for _ in range(_RESAMPLES)]

    def figure(self, of: Callable[[_Sums], float | None]) -> Figure:
        value = of(self._whole)
        drawn = sorted(x for sums in self._drawn if (x := of(sums)) is not None)
        if value is None or not drawn:
            return Figure(value, None, None)
        outside = (1 - self._level) / 2
        return Figure(value, _percentile(drawn, outside), _percentile(drawn, 1 - outside))


def _hazard(figure: Figure, node_hours: float, level: float) -> Figure:
    """A trace without losses draws no block with one: then the highest hazard is that with which so
    long a time without a loss has the chance that the level leaves."""
    if figure.value:
        return figure
    return Figure(0.0, 0.0, -math.log(1 - level) / node_hours)


def _percentile(ordered: Sequence[float], part: float) -> float:
    """Linear between the two values beside it."""
    place = part * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def _spread(minutes: Sequence[float]) -> Spread | None:
    if not minutes:
        return None
    ordered = sorted(minutes)
    return Spread(len(ordered), median(ordered), _percentile(ordered, 0.9), ordered[-1])


def as_json(found: Fit) -> dict[str, Any]:
    """All figures for JSON; times are in the units that the names end with."""

    def plain(value: Figure | Spread | None) -> dict[str, Any] | None:
        return None if value is None else value._asdict()

    return {
        "shape": found.shape,
        "within_s": found.within_ms / 1000,
        "hours": found.hours,
        "node_hours": found.node_hours,
        "nodes": {**found.nodes._asdict(), "least": found.least_nodes, "most": found.most_nodes},
        "zones": list(found.zones),
        "losses": found.losses,
        "bursts": found.bursts,
        "interval_level": LEVEL,
        "losses_per_node_hour": plain(found.hazard),
        "nodes_per_burst": plain(found.size_mean),
        "burst_sizes": {str(size): times for size, times in found.sizes.items()},
        "bulk_chance": plain(found.bulk_chance),
        "share_of_losses_in_bulks": plain(found.share_in_bulks),
        "gap_minutes": plain(found.gap),
        "gap_cv": plain(found.gap_cv),
        "refill_minutes": plain(found.refill),
        "refill_mean_minutes": plain(found.refill_mean),
        "next_addition_minutes": plain(found.next_addition),
        "unfilled": found.unfilled,
        "dollars_per_hour": [
            {"zone": zone, "capacity": capacity, **price._asdict()}
            for (zone, capacity), price in found.prices.items()
        ],
        "notes": found.notes,
    }
