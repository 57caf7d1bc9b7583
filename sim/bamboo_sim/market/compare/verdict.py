"""Where ours stands in a comparison, in sentences: by how much it is ahead or behind, and why. Each
sentence follows from the rows; none is written beforehand."""

from __future__ import annotations

from typing import NamedTuple

from bamboo_sim.market.compare.comparison import (
    BOUND,
    DEFAULT,
    FIXED_BOUND,
    ON_DEMAND_ROW,
    OURS,
    UNRANKED,
    Comparison,
    Row,
    Table,
)
from bamboo_sim.market.compare.intervals import LEVEL
from bamboo_sim.market.simulation.outcome import Activity

_MILLION = 1e6
_EQUAL = 0.005
"""A factor that is nearer to 1 explains nothing."""


class Factor(NamedTuple):
    """A part of a ratio of samples per dollar: factors multiply to it. ``text``: what it says."""

    name: str
    ratio: float
    text: str


def systems(found: Comparison) -> list[Row]:
    """The systems on spot nodes in the first table, by rank."""
    rows = [x for x in found.rows if x.table is Table.COMMON and x.name not in UNRANKED]
    return sorted(rows, key=lambda row: (row.rank, row.name))


def best_other(found: Comparison) -> Row:
    """The system of others that has the most samples per dollar."""
    return next(row for row in systems(found) if not row.name.startswith(OURS))


def factors(found: Comparison, ours: Row, other: Row) -> list[Factor]:
    """Why one system has more than another: the time that each trains, the depth of its grids, and
    the rest of the speed of its steps, which is empty seats, copies and nodes that stand by."""
    bound, fixed = _speed(found.row(BOUND)), _speed(found.row(FIXED_BOUND))
    mine, theirs = ours.share[Activity.TRAINING], other.share[Activity.TRAINING]
    depth = fixed / bound
    return [
        Factor(
            "time in training",
            mine / theirs,
            f"it trains {mine:.1%} of the time, {other.name} {theirs:.1%}",
        ),
        Factor(
            "depth",
            depth,
            f"it keeps {found.setting.common.stages} stages, and whole grids of that depth are"
            f" {depth:.3f} times as fast as the fastest of any depth",
        ),
        Factor(
            "steps",
            (_speed(ours) / fixed) / (_speed(other) / bound),
            f"while it trains it has {_speed(ours) / fixed:.3f} of whole grids of its depth, and"
            f" {other.name} {_speed(other) / bound:.3f} of the fastest grids",
        ),
    ]


def verdict(found: Comparison) -> list[str]:
    """Where the default stands, why it is behind if it is, what another mode of ours would have,
    and what on-demand nodes cost."""
    ours, other = found.row(DEFAULT), best_other(found)
    ratio = ours.samples_per_dollar / other.samples_per_dollar
    low, high = found.resampled[ours.key].over(found.resampled[other.key])
    interval = f"{LEVEL:.0%} interval {low:.3f} to {high:.3f}"
    lines = [
        f"{ours.name} is number {ours.rank} of {len(systems(found))} systems by samples per dollar:"
        f" {ours.samples_per_dollar:.0f}, which is {ratio:.3f} of {other.name}, the best of the"
        f" others ({interval})."
    ]
    if ratio < 1:
        lines.append(_behind(found, ours, other, ratio))
    else:
        lines.append(f"No other system has more: ours is {ratio - 1:.1%} ahead of {other.name}.")
    if low < 1 < high:
        lines.append("The interval has 1 in it: this record does not decide between the two.")
    return [*lines, *_other_mode(found, ours, other), _on_demand(found, ours)]


def _behind(found: Comparison, ours: Row, other: Row, ratio: float) -> str:
    parts = sorted(factors(found, ours, other), key=lambda part: part.ratio)
    told = [part for part in parts if abs(part.ratio - 1) > _EQUAL] or parts[:1]
    shown = "; ".join(f"{part.name}, x {part.ratio:.3f}: {part.text}" for part in told)
    return f"Ours is behind by {1 - ratio:.1%}. What makes the ratio, the worst first: {shown}."


def _other_mode(found: Comparison, ours: Row, other: Row) -> list[str]:
    best = next(row for row in systems(found) if row.name.startswith(OURS))
    if best.samples_per_dollar <= ours.samples_per_dollar:
        return ["No other mode of ours has more."]
    more = best.samples_per_dollar / ours.samples_per_dollar - 1
    ratio = best.samples_per_dollar / other.samples_per_dollar
    return [f"{best.name} has {more:.1%} more than the default: {ratio:.3f} of {other.name}."]


def _on_demand(found: Comparison, ours: Row) -> str:
    steady = found.row(ON_DEMAND_ROW)
    mine, theirs = (_MILLION / row.samples_per_dollar for row in (ours, steady))
    slower = 1 - ours.samples_per_s / steady.samples_per_s
    pace = f"{slower:.0%} slower" if slower > 0 else f"{-slower:.0%} faster"
    return (
        f"A million samples cost {mine:.2f} dollars, and {theirs:.2f} on"
        f" {found.setting.fleets.nodes} on-demand nodes that are never lost: on spot it is"
        f" {theirs / mine:.1f} times cheaper and {pace}."
    )


def _speed(row: Row) -> float:
    """Samples per second while it trains."""
    training = row.share[Activity.TRAINING]
    return row.samples_per_s / training if training else 0.0
