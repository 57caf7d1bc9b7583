"""A comparison as JSON: all figures, what happens over time, and all assumptions. The pages of
`bamboo sim compare` are drawn from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bamboo_sim.market.compare import text
from bamboo_sim.market.compare.comparison import (
    BOUND,
    DEFAULT,
    ON_DEMAND_ROW,
    OURS,
    UNRANKED,
    Comparison,
    Row,
    Table,
)
from bamboo_sim.market.compare.intervals import LEVEL
from bamboo_sim.market.compare.several import Standing
from bamboo_sim.market.compare.timeline import BINS, Timeline, nodes
from bamboo_sim.market.compare.verdict import best_other, verdict
from bamboo_sim.market.policies.base.parameters import GROUPS, parameters
from bamboo_sim.market.simulation.events import FleetEvent
from bamboo_sim.market.simulation.outcome import HOUR_MS


def several_as_json(found: Sequence[Comparison], standings: Sequence[Standing]) -> dict[str, Any]:
    """All comparisons, and how systems stand on all fleets, where there are several."""
    return {
        "comparisons": [as_json(each) for each in found],
        "all_fleets": [each._asdict() for each in standings],
    }


def as_json(found: Comparison) -> dict[str, Any]:
    """All figures with all assumptions."""
    fleet = found.setting.fleets
    return {
        "source": Path(fleet.name).name,
        "model": found.setting.profile.name,
        "network": found.setting.network.name,
        "runs": len(fleet.events),
        "hours": fleet.until_ms / HOUR_MS,
        "nodes": fleet.nodes,
        "removals": fleet.removals,
        "stages": found.setting.common.stages,
        "ours": OURS,
        "default": DEFAULT,
        "bound": BOUND,
        "on_demand": ON_DEMAND_ROW,
        "unranked": list(UNRANKED),
        "best_other": best_other(found).name,
        "verdict": verdict(found),
        "level": f"{LEVEL:.0%}",
        "notes": text.notes(found),
        "titles": dict(text.TITLES),
        "tables": {
            table: [_row_json(row) for row in text.in_order(found, table)] for table in Table
        },
        "over_time": _over_time(found),
        "assumptions": {
            "rules": list(text.rules(found.setting)),
            "values": text.values(found.setting, found.pauses),
            "parameters": [vars(x) for group in GROUPS for x in parameters(group)],
        },
    }


def _row_json(row: Row) -> dict[str, Any]:
    found = {key: value for key, value in vars(row).items() if key != "table"}
    return {
        **found,
        "rank": row.rank or None,
        "share": dict(row.share),
        "interval": list(row.interval),
    }


def _over_time(found: Comparison) -> dict[str, Any]:
    """The first fleet and the first table, in bins of equal length."""
    fleets = found.setting.fleets
    ours = found.timelines[Table.COMMON, DEFAULT][0]
    shown = {key: runs[0] for key, runs in found.timelines.items() if key[0] is Table.COMMON}
    return {
        **over_time(fleets.events[0], fleets.until_ms, ours),
        "systems": {name: _speeds(timeline) for (_, name), timeline in shown.items()},
    }


def over_time(events: Sequence[FleetEvent], until_ms: int, timeline: Timeline) -> dict[str, Any]:
    """A fleet, and what a system on it does, in bins of equal length."""
    zones = nodes(events, until_ms)
    return {
        "bin_hours": until_ms / BINS / HOUR_MS,
        "nodes": {zone: rounded(each) for zone, each in zones.items()},
        "dollars_per_h": rounded(timeline.dollars_per_h()),
        **_speeds(timeline),
    }


def _speeds(timeline: Timeline) -> dict[str, list[float]]:
    return {
        "samples_per_s": rounded(timeline.samples_per_s()),
        "samples_per_dollar": rounded(timeline.samples_per_dollar()),
    }


def rounded(series: Sequence[float]) -> list[float]:
    """Five digits are enough for a drawing."""
    return [float(f"{value:.5g}") for value in series]
