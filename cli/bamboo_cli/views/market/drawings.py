"""What the pages of the market simulator draw, and the colours that they explain. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from bamboo_cli.views.svg import plots
from bamboo_cli.views.svg.elements import AGENT, GRID, LINE, LOST, PAUSE
from bamboo_cli.views.svg.page_charts import PAUSED, ZONES
from bamboo_cli.views.svg.plots import Bar, Point

_HOUR_S = 3600
_OURS, _OTHER, _UNRANKED = LINE, "#bc4c00", "#8c959f"
ACTIVITIES = {
    "training": AGENT,
    "repeating": PAUSED,
    "paused": LOST,
    "standing": PAUSE,
    "idle": GRID,
}
"""What a job does -> colour."""


class Drawing(NamedTuple):
    """``key``: what each colour means, by name."""

    title: str
    svg: Markup
    key: Mapping[str, str] = {}


def of_comparison(found: Mapping[str, Any]) -> list[Drawing]:
    """The fleet, each system per dollar, what some of them do over time, and where time goes."""
    rows = found["tables"]["common"]
    first = [rows_by_name(rows)[name] for name in _followed(found)]
    colours = dict(zip((row["name"] for row in first), (_OURS, _OTHER, _UNRANKED), strict=False))
    systems = found["over_time"]["systems"]

    def followed(what: str) -> plots.Series:
        return {name: systems[name][what] for name in colours}

    seconds = seconds_of(found["over_time"])
    return [
        fleet(found["over_time"]),
        Drawing("Samples per dollar", Markup(plots.bars([_bar(found, row) for row in rows]))),
        Drawing(
            "Throughput over time, samples per second",
            Markup(plots.curves(followed("samples_per_s"), colours, seconds)),
            colours,
        ),
        cost(found["over_time"]),
        Drawing(
            "Value over time, samples per dollar",
            Markup(plots.curves(followed("samples_per_dollar"), colours, seconds)),
            colours,
        ),
        Drawing(
            "Share of time by what the job does",
            Markup(plots.shares({row["name"]: row["share"] for row in rows}, ACTIVITIES)),
            ACTIVITIES,
        ),
    ]


def of_run(found: Mapping[str, Any]) -> list[Drawing]:
    """The fleet, what the job does, throughput, cost and value over time."""
    over, seconds = found["over_time"], seconds_of(found["over_time"])
    colours = {"": _OURS}
    return [
        fleet(over),
        Drawing(
            "What the job does, share of time",
            Markup(plots.stacked(over["share"], ACTIVITIES, seconds)),
            ACTIVITIES,
        ),
        Drawing(
            "Throughput over time, samples per second",
            Markup(plots.curves({"": over["samples_per_s"]}, colours, seconds)),
        ),
        cost(over),
        Drawing(
            "Value over time, samples per dollar",
            Markup(plots.curves({"": over["samples_per_dollar"]}, colours, seconds)),
        ),
    ]


def of_advice(found: Mapping[str, Any]) -> Drawing:
    """Cost against time: each computed candidate, and the front."""
    shown = [
        Point(
            each["hours"],
            each["dollars"],
            _colour(each),
            f"{each['pipelines']} x {each['stages']}" if each["is_on_front"] else "",
            each["is_recommended"],
        )
        for each in found["candidates"]
    ]
    front = [
        (each["hours"], each["dollars"]) for each in found["candidates"] if each["is_on_front"]
    ]
    key = {"recommended": AGENT, "on the front": _OURS, "slower or dearer": _UNRANKED}
    return Drawing("Dollars against hours", Markup(plots.points(shown, front, "hours")), key)


def _colour(each: Mapping[str, Any]) -> str:
    if each["is_recommended"]:
        return AGENT
    return _OURS if each["is_on_front"] else _UNRANKED


def fleet(over: Mapping[str, Any]) -> Drawing:
    """The nodes of each zone."""
    zones: Mapping[str, Sequence[float]] = over["nodes"]
    colours = {zone: ZONES[n % len(ZONES)] for n, zone in enumerate(zones)}
    svg = plots.stacked(zones, colours, seconds_of(over))
    return Drawing("Fleet: nodes by zone", Markup(svg), colours)


def cost(over: Mapping[str, Any]) -> Drawing:
    """Dollars per hour."""
    svg = plots.curves({"": over["dollars_per_h"]}, {"": _OURS}, seconds_of(over))
    return Drawing("Cost over time, dollars per hour", Markup(svg))


def rows_by_name(rows: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Name -> row."""
    return {row["name"]: row for row in rows}


def seconds_of(over: Mapping[str, Any]) -> float:
    """The length of a run."""
    return float(over["bin_hours"] * len(over["dollars_per_h"]) * _HOUR_S)


def _followed(found: Mapping[str, Any]) -> tuple[str, ...]:
    """The systems that are drawn over time: ours, the best other, and the bound."""
    return found["default"], found["best_other"], found["bound"]


def _bar(found: Mapping[str, Any], row: Mapping[str, Any]) -> Bar:
    is_ours = row["name"].startswith(found["ours"])
    colour = _UNRANKED if row["rank"] is None else _OURS if is_ours else _OTHER
    value = row["samples_per_dollar"]
    return Bar(row["name"], value, colour, f"{value:,.0f}", *row["interval"])
