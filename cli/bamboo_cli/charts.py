"""Charts of a run as SVG elements for a page: fleet by zone, steps, throughput, loss. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bamboo_cli.record import Run
from bamboo_cli.svg import (
    FONT,
    GRID,
    LINE,
    MUTED,
    Axis,
    area,
    cross,
    dot,
    line,
    rect,
    text,
    triangle,
)

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 900, 210, 64, 16, 18, 26
_ZONES = (
    "#4c8dd6", "#a475f9", "#39b5b2", "#d4a72c", "#6aa84f", "#d96570",
    "#7d8590", "#8c564b", "#e58fc4", "#2f5d8a", "#a3c644", "#c9713d",
)  # fmt: skip
PAUSED = "#e3b341"
"""Unlike the grid, so that a short pause in a long run does not look like a line of it."""
_PAUSED_OPACITY = 0.55
_EDGE = 24
"""A label that begins or ends so near to the right edge ends there."""
_UNITS = ((3 * 86_400, 86_400, "d"), (3 * 3600, 3600, "h"), (300, 60, "min"), (0, 1, "s"))


@dataclass(frozen=True)
class Chart:
    """A drawing with its title."""

    title: str
    svg: str


def charts(run: Run) -> list[Chart]:
    """Those for which there is anything to draw."""
    drawn = [
        ("Agents by zone", _fleet(run)),
        ("Committed steps", _steps(run)),
        ("Throughput, samples per second", _throughput(run)),
        ("Training loss", _loss(run)),
    ]
    return [Chart(title, _document(parts)) for title, parts in drawn if parts]


def zone_colours(run: Run) -> Mapping[str, str]:
    """Zone -> colour."""
    return {zone: _ZONES[n % len(_ZONES)] for n, zone in enumerate(run.zones)}


def _document(parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        f' font-family="{FONT}" font-size="12" role="img">\n' + "\n".join(parts) + "\n</svg>"
    )


def _time_axis(run: Run) -> Axis:
    """Unix time -> pixels."""
    return Axis(run.span.begin, run.span.end, _LEFT, _WIDTH - _RIGHT)


def _ground(
    run: Run, values: Axis, *, has_pauses: bool = True, are_counts: bool = False
) -> Iterator[str]:
    """Pauses, grid and labels of a chart over time. are_counts: the values are whole numbers."""
    time = _time_axis(run)
    for pause in run.pauses if has_pauses else ():
        x, end = time(pause.begin), time(pause.end)
        width, height = max(end - x, 1.5), _HEIGHT - _BOTTOM - _TOP
        yield rect(x, _TOP, width, height, PAUSED, opacity=_PAUSED_OPACITY)
    yield from _levels(values, are_counts=are_counts)
    seconds = run.span.seconds
    unit_s, unit = next((size, name) for least, size, name in _UNITS if seconds >= least)
    for tick in Axis(0.0, seconds / unit_s, 0.0, 1.0).ticks(8):
        x = time(run.span.begin + tick * unit_s)
        yield _below(x, f"{tick:g} {unit}")


def _below(x: float, said: str) -> str:
    """A label of the horizontal axis; the last one does not leave the drawing."""
    is_last = x > _WIDTH - _EDGE
    x, anchor = (_WIDTH - 2, "end") if is_last else (x, "middle")
    return text(x, _HEIGHT - 8, said, anchor=anchor, fill=MUTED, size=11)


def _levels(values: Axis, *, are_counts: bool = False) -> Iterator[str]:
    for tick in values.ticks(5):
        if are_counts and tick % 1:
            continue
        y = values(tick)
        yield line([(_LEFT, y), (_WIDTH - _RIGHT, y)], GRID, 1)
        yield text(_LEFT - 8, y + 4, f"{tick:g}", anchor="end", fill=MUTED, size=11)


def _values(low: float, high: float) -> Axis:
    return Axis(low, high, _HEIGHT - _BOTTOM, _TOP)


def _fleet(run: Run) -> list[str]:
    """Stacked: the agents of each zone, with a mark for each loss."""
    if not run.zones:
        return []
    times = sorted({at for zone in run.zones for at, _ in run.fleet(zone)})
    counts = {zone: _sampled(run.fleet(zone), times) for zone in run.zones}
    most = max(sum(column) for column in zip(*counts.values(), strict=True))
    values, time = _values(0, max(most, 1)), _time_axis(run)
    parts = list(_ground(run, values, has_pauses=False, are_counts=True))
    below = [0] * len(times)
    for zone, colour in zone_colours(run).items():
        above = [low + count for low, count in zip(below, counts[zone], strict=True)]
        edges = [[(time(at), values(n)) for at, n in _stairs(times, x)] for x in (above, below)]
        parts.append(area([*edges[0], *reversed(edges[1])], colour, opacity=0.85))
        below = above
    for gone in run.gone:
        if run.span.begin <= gone.at <= run.span.end:
            mark = triangle if gone.is_noticed else cross
            parts.append(mark(time(gone.at), _TOP - 8))
    return parts


def _stairs(times: Sequence[float], counts: Sequence[int]) -> list[tuple[float, int]]:
    """Corners of counts that hold from their time on, without those of no change."""
    found = [(times[0], counts[0])]
    for at, count in zip(times[1:], counts[1:], strict=True):
        if count != found[-1][1]:
            found += [(at, found[-1][1]), (at, count)]
    return [*found, (times[-1], found[-1][1])]


def _sampled(changes: Sequence[tuple[float, int]], times: Sequence[float]) -> list[int]:
    """The count in force at each of the times, which include those of the changes."""
    known, found, count = dict(changes), [], 0
    for at in times:
        count = known.get(at, count)
        found.append(count)
    return found


def _steps(run: Run) -> list[str]:
    if len(run.progress) < 2:
        return []
    values, time = _values(0, max(run.job.steps, 1)), _time_axis(run)
    points = [(time(at), values(step)) for at, step in run.progress]
    return [*_ground(run, values, are_counts=True), line(points, LINE, 2)]


def _throughput(run: Run) -> list[str]:
    found = run.throughput()
    if not found or not run.batch:
        return []
    values, time = _values(0, max(rate for _, rate in found) * 1.08 or 1.0), _time_axis(run)
    points = [(time(at), values(rate)) for span, rate in found for at in (span.begin, span.end)]
    return [*_ground(run, values), line(points, LINE, 2)]


def _loss(run: Run) -> list[str]:
    if len(run.loss) < 2:
        return []
    every = [value for _, value in run.loss]
    margin = 0.06 * (max(every) - min(every)) or 0.1
    values = _values(min(every) - margin, max(every) + margin)
    steps = Axis(run.loss[0][0], max(run.loss[-1][0], run.loss[0][0] + 1), _LEFT, _WIDTH - _RIGHT)
    parts = list(_levels(values))
    for tick in steps.ticks(8):
        if not tick % 1:
            parts.append(_below(steps(tick), f"step {tick:.0f}"))
    points = [(steps(step), values(value)) for step, value in run.loss]
    marks = [dot(x, y) for x, y in points] if len(points) <= 100 else []
    return [*parts, line(points, LINE, 1.5), *marks]
