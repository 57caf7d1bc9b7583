"""A run drawn as SVG: the agents, the progress and the loss curve, with faults and pauses. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bamboo_cli.history import History, Loss
from bamboo_cli.svg import (
    AGENT,
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
    ring,
    text,
    triangle,
)
from bamboo_core.controller.view import Slot
from bamboo_core.model.counts import counted, grid_of

_WIDTH, _LEFT, _RIGHT = 860, 130, 24
_TOP, _GAP, _PANEL = 104, 62, 120
_MOST_ROWS_HEIGHT, _ROW = 320, 17
_REFERENCE = "#c8cdd3"


def picture(run: History, verdict: str = "") -> str:
    """The SVG document; verdict: a sentence below the title."""
    pipelines, stages = run.job.pipelines, run.job.stages
    slots = [Slot(d, s) for d in range(pipelines) for s in range(stages)]
    row = min(_ROW, _MOST_ROWS_HEIGHT / len(slots))
    fleet_end = _TOP + row * len(slots)
    steps_end = fleet_end + 36 + _PANEL
    loss_end = steps_end + _GAP + _PANEL
    time = Axis(0.0, run.seconds, _LEFT, _WIDTH - _RIGHT)
    parts = [
        *_heading(run, verdict),
        *_agents(run, time, slots, row),
        *_pauses(run, time, steps_end),
        *_faults(run, time, slots, row),
        *_steps(run, time, fleet_end + 36, steps_end),
        *_loss_curve(run, steps_end + _GAP, loss_end),
    ]
    height = loss_end + 50
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}"'
        f' width="{_WIDTH}" height="{height:.0f}" font-family="{FONT}" font-size="12">\n'
        f'<rect width="100%" height="100%" rx="8" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _heading(run: History, verdict: str) -> Iterator[str]:
    job = run.job
    lost = counted(len(run.losses), "agent") if run.losses else "no agents"
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
    yield rect(x + 426, 69, 10, 10, PAUSE, opacity=0.35)
    yield text(x + 442, 78, "training paused (seconds)")


def _pauses(run: History, time: Axis, bottom: float) -> Iterator[str]:
    free_from = 0.0  # labels must not overlap
    for pause in run.pauses:
        begin, end = time(pause.begin), time(pause.end)
        yield rect(begin, _TOP - 4, max(end - begin, 1.0), bottom - _TOP + 4, PAUSE, opacity=0.35)
        middle = (begin + end) / 2
        if middle >= free_from:
            label = f"{pause.seconds:.1f}"
            yield text(middle, _TOP - 8, label, anchor="middle", fill=MUTED, size=11)
            free_from = middle + 24


def _agents(run: History, time: Axis, slots: Sequence[Slot], row: float) -> Iterator[str]:
    for n, slot in enumerate(slots):
        top = _TOP + n * row
        if row >= 11:
            name = f"pipeline {slot.pipeline}, stage {slot.stage}"
            yield text(_LEFT - 8, top + row / 2 + 4, name, anchor="end", fill=MUTED, size=11)
        for span in run.agents.get(slot, ()):
            x, end = time(span.begin), time(span.end)
            yield rect(x, top + row * 0.12, end - x, row * 0.76, AGENT)


def _faults(run: History, time: Axis, slots: Sequence[Slot], row: float) -> Iterator[str]:
    middles = {slot: _TOP + (n + 0.5) * row for n, slot in enumerate(slots)}
    for loss in run.losses:
        if loss.slot in middles:
            yield _mark(loss, time(loss.at_s), middles[loss.slot])


def _mark(loss: Loss, x: float, y: float) -> str:
    return triangle(x, y) if loss.noticed else cross(x, y)


def _steps(run: History, time: Axis, top: float, bottom: float) -> Iterator[str]:
    steps = Axis(0, run.job.steps, bottom, top)
    yield from _frame("committed steps", steps, bottom, top)
    for tick in time.ticks(8):
        yield text(time(tick), bottom + 16, f"{tick:g} s", anchor="middle", fill=MUTED, size=11)
    yield line([(time(at), steps(step)) for at, step in run.progress], LINE, 2)


def _loss_curve(run: History, top: float, bottom: float) -> Iterator[str]:
    values = [value for _, value in (*run.loss, *run.undisturbed_loss)]
    if not values:
        return
    margin = 0.06 * (max(values) - min(values))
    loss = Axis(min(values) - margin, max(values) + margin, bottom, top)
    steps = Axis(0, run.job.steps, _LEFT, _WIDTH - _RIGHT)
    yield from _frame("training loss", loss, bottom, top)
    for tick in steps.ticks(8):
        label = f"step {tick:g}"
        yield text(steps(tick), bottom + 16, label, anchor="middle", fill=MUTED, size=11)

    def points(curve: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
        return [(steps(step), loss(value)) for step, value in curve]

    # Each run was seen at other steps, so that only the points can be compared.
    yield line(points(sorted({*run.undisturbed_loss, *run.loss})), _REFERENCE, 1.5)
    yield from (ring(x, y) for x, y in points(run.undisturbed_loss))
    yield from (dot(x, y) for x, y in points(run.loss))
    yield from (_mark(lost, steps(lost.step), bottom) for lost in run.losses)
    yield from _loss_legend(bottom + 38, is_compared=bool(run.undisturbed_loss))


def _loss_legend(y: float, *, is_compared: bool) -> Iterator[str]:
    yield dot(_LEFT + 6, y - 4)
    yield text(_LEFT + 16, y, "this run")
    if is_compared:
        yield ring(_LEFT + 92, y - 4)
        yield text(_LEFT + 102, y, "the same job, undisturbed")


def _frame(title: str, axis: Axis, bottom: float, top: float) -> Iterator[str]:
    """Title, grid lines and labels of a panel."""
    yield text(_LEFT, top - 8, title, weight=600)
    for tick in axis.ticks(4):
        y = axis(tick)
        yield line([(_LEFT, y), (_WIDTH - _RIGHT, y)], GRID, 1)
        yield text(_LEFT - 8, y + 4, f"{tick:g}", anchor="end", fill=MUTED, size=11)
    yield line([(_LEFT, bottom), (_WIDTH - _RIGHT, bottom)], MUTED, 1)
