"""The pages of the market simulator as text: one file each, without external resources. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from bamboo_cli.views.market.drawings import ACTIVITIES, of_advice, of_comparison, of_run

_TEMPLATES = Path(__file__).parents[1].joinpath("templates")
_ROWS = 12
"""How many lines a table over time has."""

Record = Mapping[str, Any]
"""The JSON that a command of the simulator prints."""


def compare_html(found: Record) -> str:
    """The page of `bamboo sim compare`."""
    drawn = [(each, of_comparison(each)) for each in found["comparisons"]]
    return _rendered("market_compare.html.j2", found, drawn=drawn)


def compare_markdown(found: Record) -> str:
    """The same as Markdown: tables for drawings."""
    told = [(each, _over_time(each)) for each in found["comparisons"]]
    return _rendered("market_compare.md.j2", found, told=told)


def run_html(found: Record) -> str:
    """The page of `bamboo sim run`."""
    return _rendered("market_run.html.j2", found, drawings=of_run(found))


def advise_html(found: Record) -> str:
    """The page of `bamboo sim advise`."""
    return _rendered("market_advise.html.j2", found, drawing=of_advice(found))


def _rendered(template: str, found: Record, **more: Any) -> str:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=lambda name: name is not None and ".html" in name,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters["cell"] = _cell
    shown = environment.get_template(template).render(
        found=found, activities=list(ACTIVITIES), **more
    )
    return shown


def _cell(text: str) -> str:
    """A text in a cell of a Markdown table."""
    return str(text).replace("|", "\\|")


def _over_time(found: Record) -> list[tuple[Any, ...]]:
    """Hours, nodes, dollars per hour, and throughput and value of ours and of the best other, for
    each of some equal parts of the time."""
    over = found["over_time"]
    width = len(over["dollars_per_h"]) // _ROWS

    def part(number: int) -> Callable[[list[float]], float]:
        return lambda series: fmean(series[number * width : (number + 1) * width])

    rows = []
    for number in range(_ROWS):
        mean = part(number)
        followed = [over["systems"][found[who]] for who in ("default", "best_other")]
        rows.append(
            (
                over["bin_hours"] * width * (number + 1),
                sum(mean(each) for each in over["nodes"].values()),
                mean(over["dollars_per_h"]),
                *(mean(each["samples_per_s"]) for each in followed),
                *(mean(each["samples_per_dollar"]) for each in followed),
            )
        )
    return rows
