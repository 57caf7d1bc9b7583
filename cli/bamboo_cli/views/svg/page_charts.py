"""The charts of a run's page, each an SVG document: zones, steps, throughput, loss. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bamboo_cli.run.model import Run
from bamboo_cli.views.svg import panels
from bamboo_cli.views.svg.elements import FONT, LINE, Axis
from bamboo_cli.views.svg.panels import Curve, Panel

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 900, 210, 64, 16, 18, 26
_PANEL = Panel(
    _LEFT, _WIDTH - _RIGHT, _TOP, _HEIGHT - _BOTTOM, labels_below=_BOTTOM - 8, edge=_WIDTH
)
ZONES = (
    "#4c8dd6", "#a475f9", "#39b5b2", "#d4a72c", "#6aa84f", "#d96570",
    "#7d8590", "#8c564b", "#e58fc4", "#2f5d8a", "#a3c644", "#c9713d",
)  # fmt: skip
PAUSED = "#e3b341"
"""Unlike the grid, so that a short pause in a long run does not look like a line of it."""
_PAUSED_OPACITY = 0.55
_MOST_DOTS = 100


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
        ("Training loss", _loss(run.loss)),
        ("Validation loss", _loss(run.validation)),
    ]
    return [Chart(title, _document(parts)) for title, parts in drawn if parts]


def zone_colours(run: Run) -> Mapping[str, str]:
    """Zone -> colour."""
    return {zone: ZONES[n % len(ZONES)] for n, zone in enumerate(run.zones)}


def _document(parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        f' font-family="{FONT}" font-size="12" role="img">\n' + "\n".join(parts) + "\n</svg>"
    )


def _ground(
    run: Run, values: Axis, *, has_pauses: bool = True, are_counts: bool = False
) -> Iterator[str]:
    """Pauses, grid and labels of a chart over time. are_counts: the values are whole numbers."""
    if has_pauses:
        yield from panels.pauses(run, _PANEL, PAUSED, opacity=_PAUSED_OPACITY, least=1.5)
    yield from panels.levels(_PANEL, values, are_counts=are_counts)
    yield from panels.time_labels(run, _PANEL)


def _fleet(run: Run) -> list[str]:
    """The agents of each zone, stacked, with a mark for each loss."""
    colours = zone_colours(run)
    if not colours:
        return []
    _, counts = run.fleets()
    most = max(sum(column) for column in zip(*counts.values(), strict=True))
    values = _PANEL.values(0, max(most, 1))
    return [
        *_ground(run, values, has_pauses=False, are_counts=True),
        *panels.zones(run, _PANEL, values, colours),
        *panels.losses_of_zones(run, _PANEL),
    ]


def _steps(run: Run) -> list[str]:
    if len(run.progress) < 2:
        return []
    values = _PANEL.values(*run.reached)
    return [*_ground(run, values, are_counts=True), panels.committed(run, _PANEL, values)]


def _throughput(run: Run) -> list[str]:
    found = run.throughput()
    if not found or not run.batch:
        return []
    values = _PANEL.values(0, max(rate for _, rate in found) * 1.08 or 1.0)
    return [*_ground(run, values), panels.throughput(run, _PANEL, values)]


def _loss(curve: Curve) -> list[str]:
    if len(curve) < 2:
        return []
    values = panels.loss_range(curve, _PANEL)
    first, last = curve[0][0], curve[-1][0]
    steps = Axis(first, max(last, first + 1), _PANEL.left, _PANEL.right)
    parts = list(panels.levels(_PANEL, values))
    for tick in steps.ticks(8):
        if not tick % 1:
            parts.append(_PANEL.label(steps(tick), f"step {tick:.0f}"))
    dots = panels.dots(curve, steps, values) if len(curve) <= _MOST_DOTS else []
    return [*parts, panels.loss_line(curve, steps, values, LINE), *dots]
