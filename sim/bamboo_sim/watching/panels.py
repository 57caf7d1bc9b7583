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
    """Curves over time, or with ``kind`` stat the newest value as a number."""

    title: str
    text: str  # what it shows
    queries: tuple[Query, ...]
    unit: str = "short"  # Grafana's name of it
    width: int = 8
    height: int = 7
    kind: str = "timeseries"
    is_stacked: bool = False
    is_step: bool = False  # the value holds until it changes


@dataclass(frozen=True)
class Row:
    """Panels under a heading, from left to right."""

    title: str
    panels: tuple[Panel, ...]


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


def placed(board: Board) -> Iterator[Place]:
    """Headings and panels with their places. A line of panels ends when it is full."""
    y = 0
    for row in board.rows:
        yield Place(row, 0, y, COLUMNS, _ROW_HEIGHT)
        y, x, line = y + _ROW_HEIGHT, 0, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, line = 0, y + line, 0
            yield Place(panel, x, y, panel.width, panel.height)
            x, line = x + panel.width, max(line, panel.height)
        y += line


def text(board: Board) -> str:
    """The board as Grafana reads it."""
    panels = [_panel(number, place) for number, place in enumerate(placed(board), start=1)]
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
        return {"id": number, "type": "row", "title": item.title, "gridPos": grid, "panels": []}
    custom: Json = {"lineWidth": 1, "fillOpacity": 20 if item.is_stacked else 0}
    if item.is_stacked:
        custom["stacking"] = {"mode": "normal"}
    if item.is_step:
        custom["lineInterpolation"] = "stepAfter"
    defaults: Json = {"unit": item.unit}
    if item.kind == "timeseries":
        defaults |= {"custom": custom, "min": 0}
    return {
        "id": number,
        "type": item.kind,
        "title": item.title,
        "description": item.text,
        "gridPos": grid,
        "datasource": _DATASOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"tooltip": {"mode": "multi"}} if item.kind == "timeseries" else {},
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
