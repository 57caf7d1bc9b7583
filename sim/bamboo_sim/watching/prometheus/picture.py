"""A board drawn as SVG in its own grid, from what Prometheus has answered. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import NamedTuple
from xml.sax.saxutils import escape

from bamboo_cli.views.svg.elements import Axis
from bamboo_sim.watching.definitions.panels import (
    COLUMNS,
    TIMELINE,
    Board,
    Panel,
    Place,
    Row,
    placed,
)
from bamboo_sim.watching.prometheus.server import Series

_CELL, _LINE, _TOP, _MARGIN = 46, 24, 46, 8
_INK, _MUTED, _GRID, _BACK = "#1f2328", "#656d76", "#e6e9ed", "#f6f8fa"
_COLOURS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#cf222e", "#9a6700", "#0e8a8a", "#57606a")
_FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
_REST = 66  # room for "and 3 more"
_NAMES = 150  # room for the names of a timeline
_BYTES = ("B", "kB", "MB", "GB", "TB")
_SHORT = ("", "K", "M", "G")

Answers = Mapping[str, Sequence[Sequence[Series]]]
"""Title of a panel -> for each of its queries the series."""


def picture(board: Board, answers: Answers, start: float, end: float) -> str:
    """The SVG document. start, end: seconds since 1970."""
    places = [place for place in placed(board) if not place.is_hidden]
    width = COLUMNS * _CELL
    height = _TOP + max(p.y + p.height for p in places) * _LINE + _MARGIN
    body = "\n".join(line for place in places for line in _place(place, answers, start, end))
    span = f"{(end - start) / 60:.1f} minutes"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" font-family="{_FONT}" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="{_BACK}"/>\n'
        f"{_text(12, 28, board.title, size=17, weight=600)}\n"
        f"{_text(width - 12, 28, span, fill=_MUTED, anchor='end')}\n{body}\n</svg>\n"
    )


def _place(place: Place, answers: Answers, start: float, end: float) -> Iterator[str]:
    x, y = place.x * _CELL, _TOP + place.y * _LINE
    if isinstance(place.item, Row):
        yield _text(12, y + 17, _heading(place.item), size=13, weight=600)
        return
    width, height = place.width * _CELL - _MARGIN, place.height * _LINE - _MARGIN
    yield (
        f'<rect x="{x + 4}" y="{y + 4}" width="{width}" height="{height}" rx="4" fill="#ffffff"'
        f' stroke="{_GRID}"/>'
    )
    yield _text(x + 14, y + 22, place.item.title, weight=600)
    curves = _curves(place.item, answers.get(place.item.title, ()))
    if not curves:
        yield _text(x + 14, y + 44, "no data", fill=_MUTED)
    elif place.item.kind == "stat":
        newest = curves[0].points[-1][1]
        yield _text(x + 14, y + height / 2 + 18, shown(newest, place.item.unit), size=26)
    elif place.item.kind == TIMELINE:
        box = (x + 14 + _NAMES, y + 34, x + width - 8, y + height - 8)
        yield from _timeline(curves, box, Axis(start, end, box[0], box[2]))
    else:
        box = (x + 62, y + 34, x + width - 8, y + height - 38)
        yield from _plot(place.item, curves, box, Axis(start, end, box[0], box[2]))
        yield from _legend(curves, x + 14, y + height - 8, width - 20)


def _heading(row: Row) -> str:
    return f"{row.title} ({len(row.panels)} panels, closed)" if row.is_collapsed else row.title


Points = Sequence[tuple[float, float]]


class Curve(NamedTuple):
    """A named line. In a stacked panel the room between it and ``base`` is filled."""

    name: str
    points: Points
    base: Points = ()


def _curves(panel: Panel, answered: Sequence[Sequence[Series]]) -> list[Curve]:
    """Names and points, in stacked panels summed from below."""
    found: list[Curve] = []
    for query, series in zip(panel.queries, answered, strict=False):
        for one in series:
            name = legend(query.legend, one.labels) or panel.title
            found.append(Curve(name, [p for p in one.points if isfinite(p[1])]))
    found = [curve for curve in found if curve.points]
    found.sort(key=lambda curve: curve.name)
    if not panel.is_stacked:
        return found
    below: dict[float, float] = {}
    stacked: list[Curve] = []
    for name, points, _ in _seen(found):
        base = [(at, below.get(at, 0.0)) for at, _ in points]
        for at, value in points:
            below[at] = below.get(at, 0.0) + value
        stacked.append(Curve(name, [(at, below[at]) for at, _ in points], base))
    return stacked


def _seen(found: list[Curve]) -> list[Curve]:
    """Without those that are always zero: in a stack they only take the room of other names."""
    return [curve for curve in found if any(value for _, value in curve.points)] or found


def legend(text: str, labels: Mapping[str, str]) -> str:
    """Grafana's legend with the labels of a series."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), text)


def _plot(
    panel: Panel, curves: list[Curve], box: tuple[float, float, float, float], time: Axis
) -> Iterator[str]:
    left, top, right, bottom = box
    most = max(value for curve in curves for _, value in curve.points)
    values = Axis(0.0, most * 1.05 or 1.0, bottom, top)
    for tick in values.ticks(3):
        y = values(tick)
        yield f'<path d="M{left:.0f} {y:.1f}H{right:.0f}" stroke="{_GRID}"/>'
        yield _text(left - 6, y + 4, shown(tick, panel.unit), fill=_MUTED, anchor="end")
    for number, curve in enumerate(curves):
        colour = _COLOURS[number % len(_COLOURS)]
        line = [(time(at), values(v)) for at, v in _corners(curve.points, panel.is_step)]
        if curve.base:
            base = [(time(at), values(v)) for at, v in _corners(curve.base, panel.is_step)]
            area = _path([*line, *reversed(base)])
            yield f'<path d="{area}Z" fill="{colour}" fill-opacity="0.6"/>'
        yield f'<path d="{_path(line)}" fill="none" stroke="{colour}" stroke-width="1.4"/>'


def _corners(points: Points, is_step: bool) -> list[tuple[float, float]]:
    """The points where the line turns. is_step: a value holds until the next one."""
    found = [points[0]]
    for n in range(1, len(points)):
        at, value = points[n]
        if is_step and value != points[n - 1][1]:
            found.append((at, points[n - 1][1]))
        is_level = value == points[n - 1][1] and n + 1 < len(points) and value == points[n + 1][1]
        if not is_level:
            found.append((at, value))
    return found


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _timeline(
    curves: list[Curve], box: tuple[float, float, float, float], time: Axis
) -> Iterator[str]:
    """A line for each series, with bars while its value is 1."""
    left, top, _, bottom = box
    height = (bottom - top) / len(curves)
    for number, curve in enumerate(curves):
        y = top + number * height
        yield _text(left - 10, y + height / 2 + 4, curve.name, fill=_MUTED, anchor="end")
        for begin, end in _times(curve.points):
            width = max(1.0, time(end) - time(begin))
            yield (
                f'<rect x="{time(begin):.1f}" y="{y + 2:.1f}" width="{width:.1f}"'
                f' height="{height - 4:.1f}" fill="{_COLOURS[0]}" fill-opacity="0.7"/>'
            )


def _times(points: Points) -> list[tuple[float, float]]:
    """From when to when the value is 1."""
    found: list[tuple[float, float]] = []
    begin: float | None = None
    for at, value in points:
        if value == 1 and begin is None:
            begin = at
        elif value != 1 and begin is not None:
            found.append((begin, at))
            begin = None
    return found if begin is None else [*found, (begin, points[-1][0])]


def _legend(curves: list[Curve], x: float, y: float, width: float) -> Iterator[str]:
    at = x
    for number, (name, _, _) in enumerate(curves):
        step, is_last = 28 + 6.6 * len(name), number == len(curves) - 1
        if at + step + (0 if is_last else _REST) > x + width:
            yield _text(at, y, f"and {len(curves) - number} more", fill=_MUTED)
            break
        colour = _COLOURS[number % len(_COLOURS)]
        yield f'<path d="M{at:.0f} {y - 4:.0f}h12" stroke="{colour}" stroke-width="3"/>'
        yield _text(at + 16, y, name, fill=_MUTED)
        at += step


def shown(value: float, unit: str) -> str:
    """A value with Grafana's unit, short."""
    if unit == "percentunit":
        return f"{100 * value:.0f} %"
    if unit == "currencyUSD":
        return f"${value:.2f}"
    if unit == "s":
        return f"{value:.3g} s" if value < 1000 else f"{value:.0f} s"
    names, last = (_BYTES, "/s" if unit == "Bps" else "") if unit != "short" else (_SHORT, "")
    power = 0
    while abs(value) >= 1000 and power < len(names) - 1:
        value, power = value / 1000, power + 1
    return f"{value:.3g} {names[power]}{last}".strip()


def _text(
    x: float, y: float, text: str, *, fill: str = _INK, size: int = 11, weight: int = 400,
    anchor: str = "start",
) -> str:  # fmt: skip
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" fill="{fill}" font-size="{size}" font-weight="{weight}"'
        f' text-anchor="{anchor}">{escape(text)}</text>'
    )
