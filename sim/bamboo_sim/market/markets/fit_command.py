"""`bamboo sim fit`: prints what a recorded fleet says, and writes the market that follows."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bamboo_sim.market.markets import market_files
from bamboo_sim.market.markets.fit import (
    LEVEL,
    Figure,
    Fit,
    FitError,
    Spread,
    as_json,
    fit,
    market,
)
from bamboo_sim.market.traces import shapes
from bamboo_sim.programs.arguments import amount

WITHIN_S = 30.0
"""The longest gap within a burst, unless the user says another one. Files with times of whole
minutes have none that is shorter than 60 s, so there only losses of one minute are a burst."""


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("trace", type=Path)
    parser.add_argument("--within", type=amount, default=WITHIN_S, metavar="SECONDS")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--refill-minutes", type=amount, metavar="MINUTES")


def run(options: argparse.Namespace) -> int:
    """Print the figures of a trace, and write its market if that is asked for; the exit code.
    TraceError, FitError, MarketError or OSError if a file or an option is wrong."""
    if options.write is not None and options.write.resolve() == options.trace.resolve():
        raise FitError("--write names the trace itself; name another file.")
    found = fit(shapes.read(options.trace), round(options.within * 1000))
    if options.write is not None:
        made = market(found, options.trace.name, options.refill_minutes)
        options.write.write_text(market_files.text(made), encoding="utf-8")
    elif options.refill_minutes is not None:
        raise FitError("--refill-minutes is for the market that is written; give --write, too.")
    print(json.dumps(as_json(found), indent=1) if options.json else _text(found))
    return 0


def _text(found: Fit) -> str:
    in_hours = f"{found.hours:.2f} h, {found.node_hours:.1f} node-hours of spot nodes"
    lines = [f"{found.shape}: {in_hours}.", ""]
    width = max(len(name) for name, _ in _rows(found))
    lines += [f"{name:<{width}}  {shown}" for name, shown in _rows(found)]
    within = (
        "A burst is a drop from one count to the next."
        if found.refill_mean is None
        else f"A burst is a chain of losses with gaps of at most {found.within_ms / 1000:g} s."
    )
    lines += ["", f"In brackets: {LEVEL:.0%} intervals, from blocks of time. {within}"]
    return "\n".join([*lines, *(f"Note: {note}" for note in found.notes)])


def _rows(found: Fit) -> list[tuple[str, str]]:
    nodes = f"{_figure(found.nodes, '.1f')}, range {found.least_nodes} to {found.most_nodes}"
    sizes = ", ".join(f"{size}: {times}" for size, times in found.sizes.items())
    rows = [
        ("nodes, mean over time", nodes),
        ("losses", f"{found.losses} nodes; bursts: {found.bursts}"),
        ("hazard", f"{_figure(found.hazard, '.3f')} losses per node-hour"),
        ("gaps between bursts", _spread(found.gap, "none: fewer than two bursts")),
        ("gaps in node-hours, sd over mean", f"{_figure(found.gap_cv, '.2f')}; 1: no memory"),
        (
            "nodes per burst",
            f"{_figure(found.size_mean, '.2f')}, most {max(found.sizes, default=0)}",
        ),
        ("bursts by their size", sizes or "none"),
        (
            "chance that a burst is a bulk",
            f"{_figure(found.bulk_chance, '.1%')} take 2 nodes or more",
        ),
        ("share of losses in bulks", _figure(found.share_in_bulks, ".1%")),
    ]
    if found.refill_mean is None:
        rows.append(("time to refill", "none: a count series has no names"))
    else:
        missing = f"not replaced: {found.unfilled}"
        mean = f"{_figure(found.refill_mean, '.1f')} minutes missing per refill"
        rows += [
            ("time to refill", f"{_spread(found.refill, 'none: nothing was replaced')}; {missing}"),
            ("time to refill, mean", mean),
            ("from a burst to the next node", _spread(found.next_addition, "none came")),
        ]
    rows.append(("zones", ", ".join(found.zones) or "none: the file names no zone"))
    for (zone, capacity), price in found.prices.items():
        shown = f"{price.mean:.4g} dollars per hour, mean over time"
        rows.append(
            (f"{capacity} in {zone}", f"{shown}, range {price.least:.4g} to {price.most:.4g}")
        )
    return rows


def _figure(figure: Figure, form: str) -> str:
    if figure.value is None:
        return "none"
    if figure.low is None or figure.high is None:
        return f"{figure.value:{form}}"
    return f"{figure.value:{form}} ({figure.low:{form}} to {figure.high:{form}})"


def _spread(spread: Spread | None, otherwise: str) -> str:
    if spread is None:
        return otherwise
    return f"median {spread.p50:.1f}, 90 % within {spread.p90:.1f}, most {spread.most:.1f} minutes"
