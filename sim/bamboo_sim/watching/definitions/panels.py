"""Boards as data, and Grafana's JSON of them.

Only a few fields of that JSON are used, so it is written here; Grafana fills in the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

COLUMNS = 24
"""Width of a board in Grafana's grid."""
TIMELINE = "state-timeline"
RATE = "[$__rate_interval]"
"""The range that Grafana chooses for rates."""
_ROW_HEIGHT = 1
_SCHEMA = 39
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

Json = dict[str, Any]


@dataclass(frozen=True)
class Query:
    """A query in PromQL and the name of its curves, such as ``{{zone}}``."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """Curves over time. With ``kind`` stat the newest value as a number; with TIMELINE a bar
    for each series, while its value is 1."""

    title: str
    text: str  # what it shows
    queries: tuple[Query, ...]
    unit: str = "short"  # Grafana's name of it
    width: int = 8
    height: int = 7
    kind: str = "timeseries"
    is_stacked: bool = False
    is_step: bool = False  # the value holds until it changes


def one(title: str, text: str, expr: str, legend: str = "", **more: object) -> Panel:
    """A panel with one query."""
    return Panel(title, text, (Query(expr, legend),), **more)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Row:
    """Panels under a heading, from left to right."""

    title: str
    panels: tuple[Panel, ...]
    is_collapsed: bool = False  # only the heading is shown until somebody opens it


@dataclass(frozen=True)
class Variable:
    """A choice at the top of the board: the values of a label."""

    name: str
    label: str
    query: str
    is_multi: bool = False


@dataclass(frozen=True)
class Board:
    """One page."""

    uid: str
    title: str
    text: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]

    def panels(self) -> list[Panel]:
        """All panels from the top to the bottom."""
        return [panel for row in self.rows for panel in row.panels]


@dataclass(frozen=True)
class Place:
    """Where a panel or heading stands in the grid."""

    item: Panel | Row
    x: int
    y: int
    width: int
    height: int
    is_hidden: bool = False  # a panel of a collapsed row


def placed(board: Board) -> Iterator[Place]:
    """Headings and panels with their places. A line of panels ends when it is full.

    A collapsed row takes no more room than its heading.
    """
    y = 0
    for row in board.rows:
        yield Place(row, 0, y, COLUMNS, _ROW_HEIGHT)
        y, x, line = y + _ROW_HEIGHT, 0, 0
        heading = y
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, line = 0, y + line, 0
            yield Place(panel, x, y, panel.width, panel.height, row.is_collapsed)
            x, line = x + panel.width, max(line, panel.height)
        y = heading if row.is_collapsed else y + line


def text(board: Board) -> str:
    """The board as Grafana reads it."""
    panels: list[Json] = []
    for number, place in enumerate(placed(board), start=1):
        (panels[-1]["panels"] if place.is_hidden else panels).append(_panel(number, place))
    found = {
        "uid": board.uid,
        "title": board.title,
        "description": board.text,
        "tags": ["bamboo"],
        "editable": False,
        "schemaVersion": _SCHEMA,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_data_source(), *map(_variable, board.variables)]},
        "panels": panels,
    }
    return json.dumps(found, indent=1) + "\n"


def _data_source() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
    }


def _variable(variable: Variable) -> Json:
    found: Json = {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": variable.query, "refId": variable.name},
        "refresh": 2,
        "sort": 1,
    }
    return found | (
        {"multi": True, "includeAll": True, "allValue": ".*"} if variable.is_multi else {}
    )


def _panel(number: int, place: Place) -> Json:
    grid = {"x": place.x, "y": place.y, "w": place.width, "h": place.height}
    item = place.item
    if isinstance(item, Row):
        head = {"id": number, "type": "row", "title": item.title, "gridPos": grid}
        return head | {"collapsed": item.is_collapsed, "panels": []}
    return {
        "id": number,
        "type": item.kind,
        "title": item.title,
        "description": item.text,
        "gridPos": grid,
        "datasource": _DATASOURCE,
        "fieldConfig": {"defaults": _defaults(item), "overrides": []},
        "options": _OPTIONS.get(item.kind, {}),
        "targets": [
            {
                "refId": chr(ord("A") + n),
                "expr": query.expr,
                "legendFormat": query.legend or "__auto",
                "datasource": _DATASOURCE,
            }
            for n, query in enumerate(item.queries)
        ],
    }


def _defaults(panel: Panel) -> Json:
    """How Grafana shows values."""
    found: Json = {"unit": panel.unit}
    if panel.kind == TIMELINE:
        texts = {"0": {"text": "no", "color": "transparent"}, "1": {"text": "yes", "color": "blue"}}
        found |= {"mappings": [{"type": "value", "options": texts}], "custom": {"fillOpacity": 70}}
    elif panel.kind == "timeseries":
        custom: Json = {"lineWidth": 1, "fillOpacity": 60 if panel.is_stacked else 0}
        if panel.is_stacked:
            custom["stacking"] = {"mode": "normal"}
        if panel.is_step:
            custom["lineInterpolation"] = "stepAfter"
        found |= {"custom": custom, "min": 0}
    return found


_OPTIONS: dict[str, Json] = {
    "timeseries": {"tooltip": {"mode": "multi"}},
    TIMELINE: {"showValue": "never", "mergeValues": True, "legend": {"showLegend": False}},
}
