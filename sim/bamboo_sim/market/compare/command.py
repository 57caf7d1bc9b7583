"""`bamboo sim compare`: prints all systems on fleets, with one model and one network."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bamboo_sim.market.compare import progress, record, text
from bamboo_sim.market.compare.comparison import Comparison, compared
from bamboo_sim.market.compare.setting import Setting, assumptions, fleets, models
from bamboo_sim.market.compare.several import standings
from bamboo_sim.market.step_times.networks import NAMED
from bamboo_sim.programs.arguments import amount, at_least

MODEL, NETWORK, SEEDS, HOURS = "bert_large", "10", 1, 24.0


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("sources", nargs="+")
    add_setting(parser)
    parser.add_argument("--seeds", type=at_least(1), default=SEEDS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--record", type=Path, metavar="FILE", help="for pages: JSON, beside text")


def add_setting(parser: argparse.ArgumentParser) -> None:
    """The arguments that say what all systems are given."""
    parser.add_argument("--model", choices=sorted(models()), default=MODEL)
    parser.add_argument("--network", choices=list(NAMED), default=NETWORK)
    parser.add_argument("--stages", type=at_least(2), default=None)
    parser.add_argument("--hours", type=amount, default=HOURS)
    parser.add_argument("--notice", type=amount, default=0.0, metavar="SECONDS")
    parser.add_argument("--price", type=amount, metavar="DOLLARS")
    parser.add_argument("--processes", type=at_least(1), default=None)


def run(options: argparse.Namespace) -> int:
    """Print the tables; the exit code. TraceError, MarketError or OSError if a source or an option
    is wrong."""
    told = progress.teller()
    settings = [setting(options, source, options.seeds) for source in options.sources]
    found = [compared(each, processes=options.processes, told=told) for each in settings]
    if options.record is not None or options.json:
        several = record.several_as_json(found, standings(found))
        shown = json.dumps(several, indent=1)
        if options.record is not None:
            options.record.write_text(shown, encoding="utf-8")
    print(shown if options.json else _as_text(found))
    return 0


def setting(options: argparse.Namespace, source: str, seeds: int, first: int = 1) -> Setting:
    """What the options of :func:`add_setting` ask for. Errors as above."""
    hours, price = options.hours, options.price
    return Setting(
        fleets(source, seeds=seeds, hours=hours, price=price, first=first),
        models()[options.model],
        NAMED[options.network],
        assumptions()["models"][options.model]["value"],
        options.stages or 0,
        round(1000 * options.notice),
    )


def _as_text(found: list[Comparison]) -> str:
    """Each comparison, and then all of them."""
    parts = [text.as_text(each) for each in found]
    if len(found) > 1:
        names = [each.setting.fleets.name for each in found]
        parts.append(text.several_as_text(standings(found), names))
    return "\n\n".join(parts)
