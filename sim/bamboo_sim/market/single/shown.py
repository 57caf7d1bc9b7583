"""A run as text and as JSON: what it gave and cost, each pause with its cause, and its states."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from bamboo_sim.market.compare.record import over_time
from bamboo_sim.market.compare.text import rules, values
from bamboo_sim.market.policies.base.parameters import GROUPS, parameters
from bamboo_sim.market.simulation.outcome import HOUR_MS, Activity, Use
from bamboo_sim.market.single.names import written
from bamboo_sim.market.single.run import Single

_PARTS = 12
"""How many lines the states have as text."""


def as_text(found: Single) -> str:
    """The run for a terminal."""
    outcome, setting = found.outcome, found.setting
    dollars = sum(outcome.dollars.values())
    lines = [
        f"{found.key[1]} on {Path(setting.fleets.name).name}: {setting.profile.name},"
        f" {setting.profile.samples} samples a step; network: {setting.network.name}.",
        f"{outcome.samples:.0f} samples in {outcome.hours:.2f} h,"
        f" {1000 * outcome.samples / outcome.end_ms:.2f} samples/s; {dollars:.2f} dollars,"
        f" {3600 * outcome.value:.0f} samples/$.",
        f"Nodes that went: {outcome.removals}. Losses without a copy (fatal): {outcome.fatal}.",
        ", ".join(f"{activity} {outcome.share(activity):.1%}" for activity in Activity) + ".",
        "",
        "Dollars by zone and capacity, and by what nodes do:",
        *_table(("zone", "capacity", *Use, "all", "node-hours"), _spends(found)),
        "",
        f"States over time, shares of {_PARTS} parts:",
        *_table(("until hour", "nodes", *Activity, "samples/s", "samples/$"), _parts(found)),
        "",
        "Pauses by cause:",
        *_table(("cause", "times", "seconds"), _causes(found)),
        "",
        "Every pause:",
        *_table(
            ("at hour", "seconds", "cause"),
            [(f"{p.at_ms / HOUR_MS:.4f}", f"{p.ms / 1000:.1f}", p.cause) for p in outcome.pauses],
        ),
        "",
        "Assumed:",
        *(f"  {line}" for line in _assumed(found)),
    ]
    return "\n".join(lines)


def as_json(found: Single) -> dict[str, Any]:
    """All of it; times are in seconds from the begin of the fleet."""
    outcome, setting = found.outcome, found.setting
    timeline = found.timeline
    return {
        "source": Path(setting.fleets.name).name,
        "policy": written(found.key),
        "system": found.key[1],
        "table": found.key[0],
        "model": setting.profile.name,
        "network": setting.network.name,
        "stages": setting.common.stages,
        "nodes": setting.fleets.nodes,
        "samples": outcome.samples,
        "hours": outcome.hours,
        "samples_per_s": 1000 * outcome.samples / outcome.end_ms,
        "samples_per_dollar": 3600 * outcome.value,
        "removals": outcome.removals,
        "fatal": outcome.fatal,
        "share": {activity: outcome.share(activity) for activity in Activity},
        "dollars": sum(outcome.dollars.values()),
        "spent": [
            {**spend._asdict(), "node_hours": ms / HOUR_MS, "dollars": outcome.dollars[spend]}
            for spend, ms in outcome.node_ms.items()
        ],
        "pauses": [
            {"at_s": p.at_ms / 1000, "seconds": p.ms / 1000, "cause": p.cause}
            for p in outcome.pauses
        ],
        "states": [
            {
                "begin_s": state.begin_ms / 1000,
                "end_s": state.end_ms / 1000,
                "activity": state.activity,
                "samples": state.samples,
            }
            for state in found.states
        ],
        "over_time": {
            **over_time(found.events, setting.fleets.until_ms, timeline),
            "share": {name: list(each) for name, each in timeline.shares().items()},
        },
        "assumptions": {
            "rules": list(rules(setting)),
            "values": values(setting, found.pauses),
            "parameters": [vars(x) for group in GROUPS for x in parameters(group)],
        },
    }


def _assumed(found: Single) -> list[str]:
    return [*rules(found.setting), *values(found.setting, found.pauses)]


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Columns as wide as what they have; none where there is no row."""
    if not rows:
        return ["  none"]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return [
        "  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        for row in (heads, *rows)
    ]


def _spends(found: Single) -> list[tuple[str, ...]]:
    groups: dict[tuple[str, str], dict[Use, tuple[float, float]]] = defaultdict(dict)
    for spend, ms in found.outcome.node_ms.items():
        paid = found.outcome.dollars[spend]
        groups[spend.zone, spend.capacity][spend.use] = paid, ms / HOUR_MS
    return [
        (
            *where,
            *(f"{uses[use][0]:.2f}" for use in Use),
            f"{sum(paid for paid, _ in uses.values()):.2f}",
            f"{sum(hours for _, hours in uses.values()):.2f}",
        )
        for where, uses in groups.items()
    ]


def _causes(found: Single) -> list[tuple[str, ...]]:
    by_cause: dict[str, list[int]] = defaultdict(list)
    for pause in found.outcome.pauses:
        by_cause[pause.cause].append(pause.ms)
    longest = sorted(by_cause.items(), key=lambda entry: -sum(entry[1]))
    return [(cause, str(len(ms)), f"{sum(ms) / 1000:.1f}") for cause, ms in longest]


def _parts(found: Single) -> list[tuple[str, ...]]:
    """Sums of neighbouring bins."""
    timeline, over = (
        found.timeline,
        over_time(found.events, found.setting.fleets.until_ms, found.timeline),
    )
    width = len(timeline.net) // _PARTS
    part_s = 3600 * over["bin_hours"] * width
    rows = []
    for number in range(_PARTS):
        cut = slice(number * width, (number + 1) * width)
        fresh, dollars = sum(timeline.fresh[cut]), sum(timeline.dollars[cut])
        shares = (sum(each[cut]) / width for each in timeline.shares().values())
        rows.append(
            (
                f"{(number + 1) * part_s / 3600:.2f}",
                f"{sum(sum(each[cut]) for each in over['nodes'].values()) / width:.1f}",
                *(f"{share:.1%}" for share in shares),
                f"{fresh / part_s:.2f}",
                f"{fresh / dollars if dollars else 0.0:.0f}",
            )
        )
    return rows
