"""The report of a run for a terminal, without charts. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bamboo_cli.run.cost import costs, money_text
from bamboo_cli.run.figures import facts, head
from bamboo_cli.run.model import Run, clock

_MOST_ROWS = 10


def text_report(run: Run, prices: Mapping[str, float]) -> RenderableType:
    """Figures, cost, the newest losses, and what is not known."""
    title = f"{run.job.namespace}/{run.job.name}"
    parts: list[RenderableType] = [Text(title, style="bold"), Text(head(run))]
    figures = Table.grid(padding=(0, 2))
    for name, value in facts(run):
        figures.add_row(name, value)
    parts += [figures, _cost_table(run, prices), Text(money_text(run, prices))]
    if run.gone:
        parts.append(_loss_table(run))
    parts += [Text(note, style="yellow") for note in run.notes]
    return Group(*parts)


def _cost_table(run: Run, prices: Mapping[str, float]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("pool or zone")
    for heading in ("agent-hours", "USD per hour", "USD"):
        table.add_column(heading, justify="right")
    for cost in costs(run, prices):
        price = "not given" if cost.price is None else f"{cost.price:g}"
        usd = "" if cost.usd is None else f"{cost.usd:.2f}"
        table.add_row(cost.name, f"{cost.hours:.2f}", price, usd)
    return table


def _loss_table(run: Run) -> Table:
    rest = len(run.gone) - _MOST_ROWS
    caption = f"and {rest} before" if rest > 0 else None
    table = Table(box=box.SIMPLE, pad_edge=False, caption=caption)
    for heading in ("lost at", "agent", "zone", "notice"):
        table.add_column(heading, overflow="fold")
    for gone in run.gone[-_MOST_ROWS:]:
        table.add_row(clock(gone.at), gone.agent, gone.zone, "yes" if gone.is_noticed else "no")
    return table
