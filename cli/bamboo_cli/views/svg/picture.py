"""A run as one SVG drawing: seats over time, committed steps, and the loss curve. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bamboo_cli.run.model import Run
from bamboo_cli.views.svg import panels
from bamboo_cli.views.svg.elements import (
    AGENT,
    FONT,
    MUTED,
    PAUSE,
    Axis,
    cross,
    dot,
    line,
    rect,
    ring,
    text,
    triangle,
)
from bamboo_cli.views.svg.panels import Panel, mark
from bamboo_core.controller.view import Slot
from bamboo_core.model.counts import counted, grid_of

_WIDTH, _LEFT, _RIGHT = 860, 130, 24
_TOP, _GAP, _PANEL = 104, 62, 120
_MOST_ROWS_HEIGHT, _ROW = 320, 17
_REFERENCE = "#c8cdd3"
_PAUSE_OPACITY = 0.35


def picture(run: Run, verdict: str = "") -> str:
    """The SVG document; verdict: a sentence below the title."""
    slots = [Slot(d, s) for d in range(run.job.pipelines) for s in range(run.job.stages)]
    height = min(_ROW * len(slots), _MOST_ROWS_HEIGHT)
    seats = Panel(_LEFT, _WIDTH - _RIGHT, _TOP, _TOP + height, labels_below=16)
    steps = replace(seats, top=seats.bottom + 36, bottom=seats.bottom + 36 + _PANEL)
    loss = replace(seats, top=steps.bottom + _GAP, bottom=steps.bottom + _GAP + _PANEL)
    parts = [
        *_heading(run, verdict),
        *panels.seats(run, seats, slots),
        *_pauses(run, replace(seats, top=_TOP - 4, bottom=steps.bottom)),
        *panels.losses_of_seats(run, seats, slots),
        *_steps(run, steps),
        *_loss_curve(run, loss),
    ]
    whole = loss.bottom + 50
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {whole:.0f}"'
        f' width="{_WIDTH}" height="{whole:.0f}" font-family="{FONT}" font-size="12">\n'
        f'<rect width="100%" height="100%" rx="8" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _heading(run: Run, verdict: str) -> Iterator[str]:
    job = run.job
    lost = counted(len(run.injected), "agent") if run.injected else "no agents"
    heading = f"{job.name}: {grid_of(job.pipelines, job.stages)}, {lost} lost in"
    yield text(20, 30, f"{heading} {counted(job.steps, 'step')}", size=17, weight=600)
    yield text(20, 51, verdict, fill=MUTED, size=13)
    x = 20.0
    yield rect(x, 69, 16, 10, AGENT)
    yield text(x + 22, 78, "agent runs")
    yield cross(x + 118, 74)
    yield text(x + 130, 78, "lost without notice")
    yield triangle(x + 268, 74)
    yield text(x + 280, 78, "reclaimed with notice")
    yield rect(x + 426, 69, 10, 10, PAUSE, opacity=_PAUSE_OPACITY)
    yield text(x + 442, 78, "training paused (seconds)")


def _pauses(run: Run, panel: Panel) -> Iterator[str]:
    """The pauses, with their seconds above where there is room."""
    yield from panels.pauses(run, panel, PAUSE, opacity=_PAUSE_OPACITY, least=1.0)
    time, free_from = panel.time(run), 0.0
    for pause in run.pauses:
        middle = (time(pause.begin) + time(pause.end)) / 2
        if middle >= free_from:
            label = f"{pause.seconds:.1f}"
            yield text(middle, panel.top - 4, label, anchor="middle", fill=MUTED, size=11)
            free_from = middle + 24


def _steps(run: Run, panel: Panel) -> Iterator[str]:
    steps = panel.values(*run.reached)
    yield from _frame("committed steps", panel, steps)
    yield from panels.time_labels(run, panel)
    yield panels.committed(run, panel, steps)


def _loss_curve(run: Run, panel: Panel) -> Iterator[str]:
    both = sorted({*run.undisturbed_loss, *run.loss})
    if not both:
        return
    loss = panels.loss_range(both, panel)
    seen = [step for step, _ in both]
    steps = Axis(min(0, *seen), max(1, *seen, run.job.step), panel.left, panel.right)
    yield from _frame("training loss", panel, loss)
    for tick in steps.ticks(8):
        yield panel.label(steps(tick), f"step {tick:g}")
    # Each run was seen at other steps, so that only the points can be compared.
    yield panels.loss_line(both, steps, loss, _REFERENCE)
    yield from panels.rings(run.undisturbed_loss, steps, loss)
    yield from panels.dots(run.loss, steps, loss)
    for lost in run.injected:
        yield mark(steps(lost.step), panel.bottom, is_noticed=lost.is_noticed)
    yield from _loss_legend(panel.bottom + 38, is_compared=bool(run.undisturbed_loss))


def _loss_legend(y: float, *, is_compared: bool) -> Iterator[str]:
    yield dot(_LEFT + 6, y - 4)
    yield text(_LEFT + 16, y, "this run")
    if is_compared:
        yield ring(_LEFT + 92, y - 4)
        yield text(_LEFT + 102, y, "the same job, undisturbed")


def _frame(title: str, panel: Panel, values: Axis) -> Iterator[str]:
    """Title, grid lines and labels of a panel."""
    yield text(panel.left, panel.top - 8, title, weight=600)
    yield from panels.levels(panel, values, count=4)
    yield line([(panel.left, panel.bottom), (panel.right, panel.bottom)], MUTED, 1)
