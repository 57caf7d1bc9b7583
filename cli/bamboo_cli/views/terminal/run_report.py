"""The report of a run for a terminal, without charts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bamboo_cli.job.diagnosis import failure
from bamboo_cli.run.cost import costs, has_amounts, money_text
from bamboo_cli.run.figures import (
    facts,
    hazard_text,
    head,
    pause_text,
    unlisted_losses,
    unlisted_pauses,
)
from bamboo_cli.run.model import Run, amount_text, clock, hours_text

_MOST_ROWS = 10


def text_report(run: Run, prices: Mapping[str, float]) -> RenderableType:
    """Why it failed, figures, cost, hazard, the newest losses and pauses, configuration, and what
    is not known."""
    title = f"{run.job.namespace}/{run.job.name}"
    parts: list[RenderableType] = [Text(title, style="bold"), Text(head(run))]
    parts += [Text(line, style="bold red") for line in failure(run.job)]
    figures = Table.grid(padding=(0, 2))
    for name, value in facts(run):
        figures.add_row(name, value)
    parts += [figures, _cost_table(run, prices), Text(money_text(run, prices))]
    if run.hazards():
        parts.append(_hazard_table(run))
    parts += _losses(run)
    parts += _pauses(run)
    if run.job.configuration:
        parts.append(_configuration(run))
    parts += [Text(note, style="yellow") for note in run.notes]
    return Group(*parts)


def _cost_table(run: Run, prices: Mapping[str, float]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("pool or zone")
    shown = has_amounts(run)
    for heading in ("agent-hours", "USD per hour", *(["USD"] if shown else [])):
        table.add_column(heading, justify="right")
    for cost in costs(run, prices):
        price = "not given" if cost.price is None else f"{cost.price:g}"
        usd = "" if cost.usd is None else amount_text(cost.usd)
        table.add_row(cost.name, hours_text(cost.hours), price, *([usd] if shown else []))
    return table


def _hazard_table(run: Run) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("zone")
    for heading in ("agent-hours", "losses", "losses per agent-hour"):
        table.add_column(heading, justify="right")
    for each in run.hazards():
        table.add_row(each.zone, hours_text(each.hours), str(each.lost), hazard_text(each))
    return table


def _losses(run: Run) -> Iterator[RenderableType]:
    if run.gone:
        table = Table(box=box.SIMPLE, pad_edge=False, caption=_before(run.gone))
        for heading in ("lost at", "agent", "zone", "notice"):
            table.add_column(heading, overflow="fold")
        for gone in run.gone[-_MOST_ROWS:]:
            notice = "yes" if gone.is_noticed else "no"
            table.add_row(clock(gone.at), gone.agent, gone.zone, notice)
        yield table
    if rest := unlisted_losses(run):
        yield Text(f"losses: {rest}")


def _pauses(run: Run) -> Iterator[RenderableType]:
    if run.pauses:
        table = Table(box=box.SIMPLE, pad_edge=False, caption=_before(run.pauses))
        table.add_column("paused at")
        table.add_column("seconds", justify="right")
        table.add_column("why", overflow="fold")
        for pause in run.pauses[-_MOST_ROWS:]:
            table.add_row(clock(pause.begin), f"{pause.seconds:.2f}", pause_text(pause))
        yield table
    if rest := unlisted_pauses(run):
        yield Text(f"pauses: {rest}")


def _before(rows: Sequence[object]) -> str | None:
    rest = len(rows) - _MOST_ROWS
    return f"and {rest} before" if rest > 0 else None


def _configuration(run: Run) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("configuration", ""):
        table.add_column(heading, overflow="fold")
    for name, value in run.job.configuration:
        table.add_row(name, value)
    return table
