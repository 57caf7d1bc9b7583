"""Plots of plain numbers, each an SVG document: bars, stacked shares, series over time, and points.
Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from bamboo_cli.views.svg import panels
from bamboo_cli.views.svg.elements import FONT, INK, MUTED, Axis, area, line, rect, text
from bamboo_cli.views.svg.panels import Panel

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 900, 210, 64, 16, 18, 26
_PANEL = Panel(
    _LEFT, _WIDTH - _RIGHT, _TOP, _HEIGHT - _BOTTOM, labels_below=_BOTTOM - 8, edge=_WIDTH
)
_NAMES, _ROW = 170, 22
_LABEL, _LINE = 40, 13
"""The width and height of a name: where another one stands so near, there is none."""
_ROOM = 1.08  # above the largest value

Row = TypeVar("Row")
Series = Mapping[str, Sequence[float]]
"""Name -> a number for each bin of time."""


@dataclass(frozen=True)
class Bar:
    """``low`` and ``high``: the ends of its interval; equal where there is none."""

    name: str
    value: float
    colour: str
    said: str
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True)
class Point:
    """A place in a plane with two values. ``is_marked``: it is drawn larger."""

    x: float
    y: float
    colour: str
    said: str = ""
    is_marked: bool = False


def bars(shown: Sequence[Bar]) -> str:
    """A bar for each row, with its interval and what is said of it."""
    most = max((max(bar.value, bar.high) for bar in shown), default=0.0) or 1.0
    axis = Axis(0.0, most, _NAMES, _WIDTH - 90)
    parts = []
    for top, bar in _rows(shown):
        end = axis(bar.value)
        parts += [
            _name(bar.name, top),
            rect(_NAMES, top + 4, end - _NAMES, _ROW - 8, bar.colour, opacity=0.85),
        ]
        middle, reach = top + _ROW / 2, end
        if bar.high > bar.low:
            parts.append(line([(axis(bar.low), middle), (axis(bar.high), middle)], INK, 1.5))
            reach = max(end, axis(bar.high))
        parts.append(text(reach + 6, middle + 4, bar.said, fill=MUTED, size=11))
    return document(_ROW * len(shown) + 8, parts)


def shares(shown: Mapping[str, Mapping[str, float]], colours: Mapping[str, str]) -> str:
    """A bar for each row, of which parts that add up to 1 have a colour each."""
    axis = Axis(0.0, 1.0, _NAMES, _WIDTH - _RIGHT)
    parts = []
    for top, (name, of) in _rows(list(shown.items())):
        parts.append(_name(name, top))
        ends = [0.0, *accumulate(of[part] for part in colours)]
        for colour, begin, end in zip(colours.values(), ends, ends[1:], strict=False):
            if end > begin:
                width = axis(end) - axis(begin)
                parts.append(rect(axis(begin), top + 3, width, _ROW - 6, colour))
    return document(_ROW * len(shown) + 8, parts)


def stacked(series: Series, colours: Mapping[str, str], seconds: float) -> str:
    """Series over time, one above the other, in bins of equal length."""
    bins = len(next(iter(series.values()), ()))
    totals = [sum(each[n] for each in series.values()) for n in range(bins)]
    values = _PANEL.values(0, max(totals, default=0.0) or 1.0)
    parts = [*panels.levels(_PANEL, values), *panels.since_labels(seconds, _PANEL)]
    below = [0.0] * bins
    for name, each in series.items():
        above = [low + value for low, value in zip(below, each, strict=True)]
        edges = [list(_stairs(edge, values)) for edge in (above, below)]
        parts.append(area([*edges[0], *reversed(edges[1])], colours[name], opacity=0.85))
        below = above
    return document(_HEIGHT, parts)


def curves(series: Series, colours: Mapping[str, str], seconds: float) -> str:
    """Series over time as lines, in bins of equal length."""
    most = max((max(each, default=0.0) for each in series.values()), default=0.0)
    values = _PANEL.values(0, most * _ROOM or 1.0)
    parts = [*panels.levels(_PANEL, values), *panels.since_labels(seconds, _PANEL)]
    parts += [
        line(list(_stairs(each, values)), colours[name], 1.6) for name, each in series.items()
    ]
    return document(_HEIGHT, parts)


def points(shown: Sequence[Point], front: Sequence[tuple[float, float]], x_name: str) -> str:
    """Points in a plane, and a line through the best of them. A name has its place only if no other
    stands there. ``x_name``: below the last label."""
    height = 320
    panel = Panel(_LEFT, _WIDTH - 40, _TOP, height - 44, labels_below=18, edge=_WIDTH)
    values = panel.values(0, max((point.y for point in shown), default=0.0) * _ROOM or 1.0)
    most = max((point.x for point in shown), default=0.0) * _ROOM or 1.0
    axis = Axis(0.0, most, panel.left, panel.right)
    parts = [*panels.levels(panel, values)]
    parts += [panel.label(axis(tick), f"{tick:g}") for tick in axis.ticks(8)]
    parts.append(text(panel.right, height - 6, x_name, anchor="end", fill=MUTED, size=11))
    if len(front) > 1:
        parts.append(line([(axis(x), values(y)) for x, y in front], MUTED, 1))
    for point in sorted(shown, key=lambda each: (each.is_marked, bool(each.said))):
        x, y, radius = axis(point.x), values(point.y), 6 if point.is_marked else 3
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{point.colour}"/>')
    named: list[tuple[float, float]] = []
    for point in sorted(shown, key=lambda each: not each.is_marked):
        x, y = axis(point.x), values(point.y)
        if point.said and all(abs(x - a) > _LABEL or abs(y - b) > _LINE for a, b in named):
            named.append((x, y))
            parts.append(text(x + 9, y - 5, point.said, size=11))
    return document(height, parts)


def document(height: float, parts: Sequence[str]) -> str:
    """The SVG document of such parts."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:g}"'
        f' font-family="{FONT}" font-size="12" role="img">\n' + "\n".join(parts) + "\n</svg>"
    )


def _rows(shown: Sequence[Row]) -> Iterator[tuple[float, Row]]:
    """Each row with its top."""
    for number, row in enumerate(shown):
        yield 4.0 + number * _ROW, row


def _name(name: str, top: float) -> str:
    return text(_NAMES - 8, top + _ROW / 2 + 4, name, anchor="end")


def _stairs(series: Sequence[float], values: Axis) -> Iterator[tuple[float, float]]:
    """The corners of a series in bins."""
    axis = Axis(0.0, len(series), _PANEL.left, _PANEL.right)
    for number, value in enumerate(series):
        yield axis(number), values(value)
        yield axis(number + 1), values(value)
