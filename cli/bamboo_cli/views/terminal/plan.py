"""Renders a job's plan for a terminal. Pure."""

from __future__ import annotations

from math import isfinite

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bamboo_cli.estimate.plan import JobPlan
from bamboo_core.api.spec import RedundancyMode
from bamboo_core.model.counts import counted, grid_of
from bamboo_core.planning.displays import preview

_MOST_STAGES, _MOST_MICROBATCHES, _MOST_AGENTS = 12, 16, 64
_LEFT = ("mode", "layers", "way")
_WHOLE = {"overhead": 8, "device": 8, "host": 8}  # width of what must not be cut at 80 columns
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def plan_view(plan: JobPlan) -> RenderableType:
    """Grid, cut, schedule, modes, verdict."""
    parts: list[RenderableType] = [_grid(plan), _cut(plan), _schedule(plan)]
    if drawn := _drawing(plan):
        parts.append(Text(drawn, style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(
        *parts,
        *_one_loss(plan),
        _modes(plan),
        *_device(plan),
        *_hosted(plan),
        *_excluded(plan),
        _verdict(plan),
    )


def _grid(plan: JobPlan) -> Text:
    found = plan.verdict.facts
    return Text(
        f"{plan.name}: {grid_of(found.pipelines, found.stages)}, {counted(found.agents, 'agent')},"
        f" {found.microbatches} micro-batch{'' if found.microbatches == 1 else 'es'} in each"
        f" pipeline\ncosts {plan.costs.source}"
    )


def _cut(plan: JobPlan) -> Table:
    table = _table("stage", "layers", "forward", "backward", "parameters", "activation")
    for stage, (lo, hi) in enumerate(plan.cut):
        layers = plan.layers_of(stage)
        table.add_row(
            str(stage),
            f"{lo}-{hi - 1}",
            seconds(sum(x.forward_s for x in layers)),
            seconds(sum(x.backward_s for x in layers)),
            size(sum(x.parameter_bytes for x in layers)),
            size(sum(x.activation_bytes for x in layers)),
        )
    return table


def _schedule(plan: JobPlan) -> Text:
    found = plan.verdict.facts
    return Text(
        f"schedule: a step takes {seconds(plan.step_s)}; between its first and its last"
        f" computation an agent waits {seconds(found.idle_s)}. With Eager it would compute"
        f" {seconds(found.ahead_s)} of its successor's forwards ahead, in a step that is"
        f" {seconds(found.delay_s)} longer"
    )


def _drawing(plan: JobPlan) -> str:
    """One pipeline, slot by slot, if it fits on a screen and is soon planned."""
    found = plan.verdict.facts
    if found.stages > _MOST_STAGES or found.microbatches > _MOST_MICROBATCHES:
        return ""
    if found.agents > _MOST_AGENTS:
        return ""
    costs = plan.costs
    return preview.draw(plan.planned_spec, costs.layers, memory_bytes=costs.memory_bytes).rstrip()


def _one_loss(plan: JobPlan) -> list[RenderableType]:
    """The cost of one loss in each way to share the work, or why it is not known."""
    found = plan.one_loss
    if found is None:
        return [Text(plan.why_no_loss)]
    gbps = plan.spec.transport.bandwidth_gbps
    text = (
        f"without the agent of pipeline {found.seat[0]}, stage {found.seat[1]}, over {gbps:g} Gb/s"
        f" (recovery.policy {plan.spec.recovery.value}; where outputs of stages cost nothing, a"
        f" step without a loss takes {seconds(found.usual_s)}):"
    )
    table = _table("way", "step", "over a step without a loss")
    for x in (found.ways.taken, *found.ways.others):
        table.add_row(
            Text(x.way, style="bold green" if x is found.ways.taken else ""),
            f"{x.bound} {seconds(x.step_s)}".lstrip(),
            f"{x.bound} {x.step_s / found.usual_s:.2f}".lstrip(),
        )
    return [Text(text), table]


def _modes(plan: JobPlan) -> Table:
    table = _table(
        "mode",
        "overhead",
        "step / none",
        "pause per loss",
        "fatal losses / h",
        "lost / h",
        "device",
        "host",
    )
    for e in plan.verdict.estimates:
        table.add_row(
            Text(e.mode.value, style="bold green" if e.mode is plan.verdict.mode else ""),
            f"{100 * (e.overhead - 1):.2f} %",
            f"{e.step:.3f}" if isfinite(e.step) else "-",
            seconds(e.pause_s),
            f"{e.fatal_per_hour:.2g}" if isfinite(e.fatal_per_hour) else "-",
            seconds(e.lost_s),
            size(e.device_bytes),
            size(e.host_bytes),
        )
    return table


def _device(plan: JobPlan) -> list[Text]:
    """The device whose memory counts, or how to name it."""
    if unknown := plan.unknown_device:
        return [Text(unknown, style="yellow")]
    costs = plan.costs
    return [Text(f"device: {costs.device}; {size(costs.memory_bytes)}")] if costs.device else []


def _hosted(plan: JobPlan) -> list[Text]:
    """A sentence for each mode that keeps something in host memory, as the device is too small."""
    found: list[Text] = []
    for e in plan.verdict.estimates:
        if e.replica_host_bytes and not e.excluded:
            text = (
                f"{e.mode.value} keeps replicas in host memory: the device is too small for them"
                f" after a loss, so {size(e.replica_host_bytes)} of weights and optimizer state"
                " wait there"
            )
            found.append(Text(text))
        if e.ahead_host_bytes and not e.excluded:
            text = (
                f"{e.mode.value} keeps what is computed ahead in host memory: the device is short,"
                f" so {size(e.ahead_host_bytes)} wait there"
            )
            found.append(Text(text))
    return found


def _excluded(plan: JobPlan) -> list[Text]:
    return [
        Text(f"{e.mode.value} {_does_not_fit(e.mode)}: {e.excluded}", style="yellow")
        for e in plan.verdict.estimates
        if e.excluded
    ]


def _does_not_fit(mode: RedundancyMode) -> str:
    """None can be used even so."""
    return "cannot be used" if mode.keeps_copies else "does not fit"


def _verdict(plan: JobPlan) -> Text:
    requested, found = plan.spec.redundancy.mode, plan.verdict
    text = Text("spec.redundancy.mode is ")
    text.append(requested.value, style="bold")
    text.append("; Auto takes ")
    text.append(found.mode.value, style="bold")
    text.append(f": {found.reason}")
    return text


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    for heading in headings:
        width = _WHOLE.get(heading)
        table.add_column(heading, justify="left" if heading in _LEFT else "right", min_width=width)
    return table


def seconds(value: float) -> str:
    """Three digits with a unit; "-" if there is no such time."""
    if not isfinite(value):
        return "-"
    if value >= 1 or not value:
        return f"{value:.3g} s" if value < 1000 else f"{value:.0f} s"
    return f"{1000 * value:.3g} ms" if value >= 1e-3 else f"{1e6 * value:.3g} us"


def size(count: int) -> str:
    """Three digits with a binary unit."""
    value, unit = float(count), 0
    while value >= 1000 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    return f"{value:.3g} {_UNITS[unit]}"
