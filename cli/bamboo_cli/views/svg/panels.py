"""Panels of a run as SVG elements: seats or zones, steps, throughput and loss. Pure.

`picture` puts them below each other in one drawing, and `page_charts` makes a drawing of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from bamboo_cli.run.model import Run
from bamboo_cli.views.svg.elements import (
    AGENT,
    GRID,
    LINE,
    MUTED,
    Axis,
    area,
    cross,
    dot,
    line,
    rect,
    ring,
    text,
    triangle,
)
from bamboo_core.controller.view import Slot

_UNITS = ((3 * 86_400, 86_400, "d"), (3 * 3600, 3600, "h"), (300, 60, "min"), (0, 1, "s"))
_EDGE = 24
"""A label that begins or ends so near to the right edge ends there."""

Curve = Sequence[tuple[int, float]]
"""(committed steps, training loss)."""


@dataclass(frozen=True)
class Panel:
    """The place of a plot in a drawing, in pixels."""

    left: float
    right: float
    top: float
    bottom: float
    labels_below: float  # from the bottom to the labels of the horizontal axis
    edge: float = inf  # of the drawing: no label goes beyond it

    def time(self, run: Run) -> Axis:
        """Unix time -> pixels."""
        return Axis(run.span.begin, run.span.end, self.left, self.right)

    def values(self, low: float, high: float) -> Axis:
        return Axis(low, high, self.bottom, self.top)

    def label(self, x: float, said: str) -> str:
        """A label of the horizontal axis."""
        is_last = x > self.edge - _EDGE
        x, anchor = (self.edge - 2, "end") if is_last else (x, "middle")
        y = self.bottom + self.labels_below
        return text(x, y, said, anchor=anchor, fill=MUTED, size=11)


def levels(
    panel: Panel, values: Axis, *, count: int = 5, are_counts: bool = False
) -> Iterator[str]:
    """Grid lines with their values. are_counts: the values are whole numbers."""
    for tick in values.ticks(count):
        if are_counts and tick % 1:
            continue
        y = values(tick)
        yield line([(panel.left, y), (panel.right, y)], GRID, 1)
        yield text(panel.left - 8, y + 4, f"{tick:g}", anchor="end", fill=MUTED, size=11)


def time_labels(run: Run, panel: Panel) -> Iterator[str]:
    """Labels of the time since the run began, in a unit that fits."""
    return since_labels(run.span.seconds, panel)


def since_labels(seconds: float, panel: Panel) -> Iterator[str]:
    """Labels of the time since the left edge, of so many seconds, in a unit that fits."""
    axis = Axis(0.0, seconds, panel.left, panel.right)
    unit_s, unit = next((size, name) for least, size, name in _UNITS if seconds >= least)
    for tick in Axis(0.0, seconds / unit_s, 0.0, 1.0).ticks(8):
        yield panel.label(axis(tick * unit_s), f"{tick:g} {unit}")


def pauses(run: Run, panel: Panel, fill: str, *, opacity: float, least: float) -> Iterator[str]:
    """A bar for each pause. least: its smallest width."""
    time = panel.time(run)
    for pause in run.pauses:
        x, end = time(pause.begin), time(pause.end)
        height = panel.bottom - panel.top
        yield rect(x, panel.top, max(end - x, least), height, fill, opacity=opacity)


def mark(x: float, y: float, *, is_noticed: bool) -> str:
    """The mark of a lost agent."""
    return triangle(x, y) if is_noticed else cross(x, y)


def seats(run: Run, panel: Panel, slots: Sequence[Slot]) -> Iterator[str]:
    """A row for each slot, with a bar while an agent of it runs."""
    time = panel.time(run)
    row = (panel.bottom - panel.top) / len(slots)
    tops = {slot: panel.top + n * row for n, slot in enumerate(slots)}
    spans = run.seats
    for slot, top in tops.items():
        if row >= 11:
            name = f"pipeline {slot.pipeline}, stage {slot.stage}"
            y = top + row / 2 + 4
            yield text(panel.left - 8, y, name, anchor="end", fill=MUTED, size=11)
        for span in spans.get(slot, ()):
            x, end = time(span.begin), time(span.end)
            yield rect(x, top + row * 0.12, end - x, row * 0.76, AGENT)


def losses_of_seats(run: Run, panel: Panel, slots: Sequence[Slot]) -> Iterator[str]:
    """A mark for each injected loss, in the row of its slot."""
    time = panel.time(run)
    row = (panel.bottom - panel.top) / len(slots)
    middles = {slot: panel.top + (n + 0.5) * row for n, slot in enumerate(slots)}
    for loss in run.injected:
        if loss.slot in middles:
            yield mark(time(loss.at), middles[loss.slot], is_noticed=loss.is_noticed)


def zones(run: Run, panel: Panel, values: Axis, colours: Mapping[str, str]) -> Iterator[str]:
    """The agents of each zone, one above the other."""
    time = panel.time(run)
    times, counts = run.fleets()
    below = [0] * len(times)
    for zone, colour in colours.items():
        above = [low + count for low, count in zip(below, counts[zone], strict=True)]
        edges = [[(time(at), values(n)) for at, n in _stairs(times, x)] for x in (above, below)]
        yield area([*edges[0], *reversed(edges[1])], colour, opacity=0.85)
        below = above


def losses_of_zones(run: Run, panel: Panel) -> Iterator[str]:
    """A mark above the panel for each agent that was lost."""
    time = panel.time(run)
    for gone in run.gone:
        if run.span.begin <= gone.at <= run.span.end:
            yield mark(time(gone.at), panel.top - 8, is_noticed=gone.is_noticed)


def _stairs(times: Sequence[float], counts: Sequence[int]) -> list[tuple[float, int]]:
    """Corners of counts that hold from their time on, without those of no change."""
    found = [(times[0], counts[0])]
    for at, count in zip(times[1:], counts[1:], strict=True):
        if count != found[-1][1]:
            found += [(at, found[-1][1]), (at, count)]
    return [*found, (times[-1], found[-1][1])]


def committed(run: Run, panel: Panel, values: Axis) -> str:
    """The line of the committed steps."""
    time = panel.time(run)
    return line([(time(at), values(step)) for at, step in run.progress], LINE, 2)


def throughput(run: Run, panel: Panel, values: Axis) -> str:
    """The line of the samples per second."""
    time = panel.time(run)
    points = [
        (time(at), values(rate)) for span, rate in run.throughput() for at in (span.begin, span.end)
    ]
    return line(points, LINE, 2)


def loss_range(curve: Curve, panel: Panel) -> Axis:
    """An axis of losses with some room above and below; the curve has at least one point."""
    every = [value for _, value in curve]
    margin = 0.06 * (max(every) - min(every)) or 0.1
    return panel.values(min(every) - margin, max(every) + margin)


def loss_line(curve: Curve, steps: Axis, values: Axis, stroke: str) -> str:
    return line([(steps(step), values(value)) for step, value in curve], stroke, 1.5)


def dots(curve: Curve, steps: Axis, values: Axis) -> list[str]:
    return [dot(steps(step), values(value)) for step, value in curve]


def rings(curve: Curve, steps: Axis, values: Axis) -> list[str]:
    return [ring(steps(step), values(value)) for step, value in curve]
