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
    PAUSE,
    Axis,
    cross,
    dot,
    line,
    rect,
    text,
    triangle,
)

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 900, 210, 64, 16, 18, 26
_ZONES = ("#4c8dd6", "#a475f9", "#39b5b2", "#d4a72c", "#6aa84f", "#d96570", "#7d8590", "#b8860b")
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


def _ground(run: Run, values: Axis, *, has_pauses: bool = True) -> Iterator[str]:
    """Pauses, grid and labels of a chart over time."""
    time = _time_axis(run)
    for pause in run.pauses if has_pauses else ():
        x, end = time(pause.begin), time(pause.end)
        yield rect(x, _TOP, max(end - x, 1.0), _HEIGHT - _BOTTOM - _TOP, PAUSE, opacity=0.35)
    yield from _levels(values)
    seconds = run.span.seconds
    unit_s, unit = next((size, name) for least, size, name in _UNITS if seconds >= least)
    for tick in Axis(0.0, seconds / unit_s, 0.0, 1.0).ticks(8):
        x = time(run.span.begin + tick * unit_s)
        yield text(x, _HEIGHT - 8, f"{tick:g} {unit}", anchor="middle", fill=MUTED, size=11)


def _levels(values: Axis) -> Iterator[str]:
    for tick in values.ticks(4):
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
    parts = list(_ground(run, values, has_pauses=False))
    below = [0] * len(times)
    for zone, colour in zone_colours(run).items():
        above = [low + count for low, count in zip(below, counts[zone], strict=True)]
        for n in range(len(times) - 1):
            if counts[zone][n]:
                x, end = time(times[n]), time(times[n + 1])
                top = values(above[n])
                parts.append(rect(x, top, end - x, values(below[n]) - top, colour, opacity=0.85))
        below = above
    for gone in run.gone:
        if run.span.begin <= gone.at <= run.span.end:
            mark = triangle if gone.is_noticed else cross
            parts.append(mark(time(gone.at), _TOP - 8))
    return parts


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
    return [*_ground(run, values), line(points, LINE, 2)]


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
        label = f"step {tick:g}"
        parts.append(text(steps(tick), _HEIGHT - 8, label, anchor="middle", fill=MUTED, size=11))
    points = [(steps(step), values(value)) for step, value in run.loss]
    marks = [dot(x, y) for x, y in points] if len(points) <= 100 else []
    return [*parts, line(points, LINE, 1.5), *marks]
