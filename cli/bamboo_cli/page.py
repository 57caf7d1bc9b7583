"""The report of a run: one HTML file without external resources, or text. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bamboo_cli.charts import PAUSED, Chart, charts, zone_colours
from bamboo_cli.job import Job, duration
from bamboo_cli.money import costs, money_text
from bamboo_cli.record import Account, Run, clock
from bamboo_cli.svg import LOST, NOTICED
from bamboo_core.model.counts import counted

_MOST_ROWS = 10
_LONG_S = 600.0


def page(run: Run, prices: Mapping[str, float] | None, verdicts: Sequence[str] = ()) -> str:
    """The HTML document. prices: None leaves money out; verdicts: further sentences, at its end."""
    environment = Environment(
        loader=PackageLoader("bamboo_cli"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    drawn = [Chart(chart.title, Markup(chart.svg)) for chart in charts(run)]
    return environment.get_template("report.html.j2").render(
        run=run,
        head=head(run),
        facts=facts(run),
        charts=drawn,
        colours=zone_colours(run),
        marks={"lost": LOST, "noticed": NOTICED, "paused": PAUSED},
        most_rows=_MOST_ROWS,
        costs=costs(run, prices or {}),
        money="" if prices is None else money_text(run, prices),
        verdicts=verdicts,
        clock=clock,
    )


def head(run: Run) -> str:
    """What, and when."""
    job, span = run.job, run.span
    grid = f"{_number(job.pipelines, 'pipeline')} x {_number(job.stages, 'stage')}"
    return (
        f"{grid}, {job.phase}. Shown:"
        f" {clock(span.begin)} to {clock(span.end)} ({duration(span.seconds)})."
    )


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def facts(run: Run) -> list[tuple[str, str]]:
    """(name, value) of the figures that come first."""
    job = run.job
    rate = run.rate
    shown = [
        ("steps", f"{job.step} of {job.steps}"),
        ("training loss", f"{job.loss:.4f}" if job.loss is not None else ""),
        ("validation loss", f"{job.validation_loss:.4f}" if job.validation_loss else ""),
        ("samples/s, pauses included", f"{rate:.1f}" if rate is not None and run.batch else ""),
        ("agents lost since the start", f"{job.lost} ({job.lost_noticed} with notice)"),
        ("pauses since the start", _pauses(job)),
        ("restores", _restores(job)),
        *_account(run.account),
    ]
    return [(name, value) for name, value in shown if value]


def _pauses(job: Job) -> str:
    if not job.pauses:
        return "0"
    causes = ", ".join(f"{each.count} {each.cause}" for each in job.paused if each.count)
    return f"{job.pauses}, {_pause_text(job.paused_s)} in all ({causes})"


def _restores(job: Job) -> str:
    again = f", {counted(job.repeated_steps, 'step')} repeated" if job.repeated_steps else ""
    return f"{job.attempt}{again}"


def _account(account: Account | None) -> list[tuple[str, str]]:
    if account is None:
        return []
    missing = ""
    if account.unpriced:
        nodes = counted(account.unpriced, "node")
        missing = f", without {nodes} of no pool in the chart's prices"
    rows = []
    if any(account.per_hour) or account.unpriced:
        rows.append(("USD per hour now", _usd(account.per_hour) + missing))
    if account.spent is not None:
        rows.append(("USD since the start", _usd(account.spent) + missing))
    return rows


def _usd(found: tuple[float, float]) -> str:
    paid, on_demand = found
    return f"{paid:.2f}, on demand {on_demand:.2f}"


def _pause_text(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < _LONG_S else duration(seconds)


def text_report(run: Run, prices: Mapping[str, float]) -> RenderableType:
    """The same for a terminal, without the charts."""
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
