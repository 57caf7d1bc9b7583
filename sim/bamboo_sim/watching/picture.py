"""A board drawn as SVG in its own grid, from what Prometheus has answered. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from xml.sax.saxutils import escape

from bamboo_cli.svg import Axis
from bamboo_sim.watching.panels import COLUMNS, Board, Panel, Place, placed
from bamboo_sim.watching.server import Series

_CELL, _LINE, _TOP, _MARGIN = 46, 24, 46, 8
_INK, _MUTED, _GRID, _BACK = "#1f2328", "#656d76", "#e6e9ed", "#f6f8fa"
_COLOURS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#cf222e", "#9a6700", "#0e8a8a", "#57606a")
_FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
_REST = 66  # room for "and 3 more"
_BYTES = ("B", "kB", "MB", "GB", "TB")
_SHORT = ("", "K", "M", "G")

Answers = Mapping[str, Sequence[Sequence[Series]]]
"""Title of a panel -> for each of its queries the series."""


def picture(board: Board, answers: Answers, start: float, end: float) -> str:
    """The SVG document. start, end: seconds since 1970."""
    places = list(placed(board))
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
    if not isinstance(place.item, Panel):
        yield _text(12, y + 17, place.item.title, size=13, weight=600)
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
        newest = curves[0][1][-1][1]
        yield _text(x + 14, y + height / 2 + 18, shown(newest, place.item.unit), size=26)
    else:
        box = (x + 62, y + 34, x + width - 8, y + height - 38)
        yield from _plot(place.item, curves, box, Axis(start, end, box[0], box[2]))
        yield from _legend(curves, x + 14, y + height - 8, width - 20)


Curve = tuple[str, Sequence[tuple[float, float]]]


def _curves(panel: Panel, answered: Sequence[Sequence[Series]]) -> list[Curve]:
    """Names and points, in stacked panels summed from below."""
    found: list[Curve] = []
    for query, series in zip(panel.queries, answered, strict=False):
        for one in series:
            name = legend(query.legend, one.labels) or panel.title
            found.append((name, [p for p in one.points if isfinite(p[1])]))
    found = [curve for curve in found if curve[1]]
    found.sort(key=lambda curve: curve[0])
    if not panel.is_stacked:
        return found
    below: dict[float, float] = {}
    stacked: list[Curve] = []
    for name, points in found:
        for at, value in points:
            below[at] = below.get(at, 0.0) + value
        stacked.append((name, [(at, below[at]) for at, _ in points]))
    return stacked


def legend(text: str, labels: Mapping[str, str]) -> str:
    """Grafana's legend with the labels of a series."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), text)


def _plot(
    panel: Panel, curves: list[Curve], box: tuple[float, float, float, float], time: Axis
) -> Iterator[str]:
    left, top, right, bottom = box
    most = max(value for _, points in curves for _, value in points)
    values = Axis(0.0, most * 1.05 or 1.0, bottom, top)
    for tick in values.ticks(3):
        y = values(tick)
        yield f'<path d="M{left:.0f} {y:.1f}H{right:.0f}" stroke="{_GRID}"/>'
        yield _text(left - 6, y + 4, shown(tick, panel.unit), fill=_MUTED, anchor="end")
    for number, (_, points) in enumerate(curves):
        steps = [f"M{time(points[0][0]):.1f} {values(points[0][1]):.1f}"]
        before = points[0][1]
        for at, value in points[1:]:
            if value == before and at != points[-1][0]:
                continue  # a level line needs no points in between
            if panel.is_step or value != before:
                steps.append(f"H{time(at):.1f}V{values(value):.1f}")
            else:
                steps.append(f"L{time(at):.1f} {values(value):.1f}")
            before = value
        colour = _COLOURS[number % len(_COLOURS)]
        yield f'<path d="{"".join(steps)}" fill="none" stroke="{colour}" stroke-width="1.4"/>'


def _legend(curves: list[Curve], x: float, y: float, width: float) -> Iterator[str]:
    at = x
    for number, (name, _) in enumerate(curves):
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
