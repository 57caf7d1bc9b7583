"""The report of a run as one HTML file without external resources. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

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
from bamboo_cli.views.svg.elements import LOST, NOTICED
from bamboo_cli.views.svg.page_charts import PAUSED, Chart, charts, zone_colours

_TEMPLATES = Path(__file__).with_name("templates")
_MOST_ROWS = 10


def page(run: Run, prices: Mapping[str, float] | None, verdicts: Sequence[str] = ()) -> str:
    """The HTML document. prices: None leaves money out; verdicts: further sentences, at its end."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    drawn = [Chart(chart.title, Markup(chart.svg)) for chart in charts(run)]
    return environment.get_template("report.html.j2").render(
        run=run,
        head=head(run),
        failure=failure(run.job),
        facts=facts(run),
        charts=drawn,
        colours=zone_colours(run),
        marks={"lost": LOST, "noticed": NOTICED, "paused": PAUSED},
        most_rows=_MOST_ROWS,
        costs=costs(run, prices or {}),
        money="" if prices is None else money_text(run, prices),
        has_amounts=has_amounts(run),
        hazard_text=hazard_text,
        hours_text=hours_text,
        amount_text=amount_text,
        pause_text=pause_text,
        unlisted_losses=unlisted_losses(run),
        unlisted_pauses=unlisted_pauses(run),
        verdicts=verdicts,
        clock=clock,
    )
