"""`bamboo sim advise`: prints which grid, mode and nodes to take for a job."""

from __future__ import annotations

import argparse
import json
from math import inf
from pathlib import Path

from bamboo_sim.market.advise import shown
from bamboo_sim.market.advise.recommendation import Wish, advice
from bamboo_sim.market.advise.search import Question, searched
from bamboo_sim.market.compare import progress
from bamboo_sim.market.compare.command import add_setting, setting
from bamboo_sim.market.markets.opening import Replay, opened
from bamboo_sim.market.markets.parameters import MarketError
from bamboo_sim.programs.arguments import amount, at_least

SAMPLES, SEEDS, SURE = 1e6, 20, 0.95


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("--trace", required=True, dest="source")
    add_setting(parser)
    parser.add_argument("--samples", type=amount, default=SAMPLES)
    parser.add_argument("--deadline", type=amount, default=inf, metavar="HOURS")
    parser.add_argument("--budget", type=amount, default=inf, metavar="DOLLARS")
    parser.add_argument("--sure", type=amount, default=SURE, metavar="SHARE")
    parser.add_argument("--seeds", type=at_least(1), default=SEEDS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--record", type=Path, metavar="FILE", help="for pages: JSON, beside text")


def run(options: argparse.Namespace) -> int:
    """Print the advice; the exit code. TraceError, MarketError or OSError if a source or an option
    is wrong, or if nothing keeps what is asked for."""
    if options.samples <= 0:
        raise MarketError("--samples is 0; give how many the job trains.")
    if not 0 < options.sure <= 1:
        raise MarketError(f"--sure is {options.sure:g}; give a share above 0 and at most 1.")
    wish = Wish(options.deadline, options.budget, options.sure)
    source = opened(options.source)
    zones = source.trace.zones if isinstance(source, Replay) else tuple(source["zones"])
    asked = Question(
        setting(options, options.source, options.seeds),
        source,
        options.samples,
        options.seeds,
        zones,
    )
    answer = searched(asked, processes=options.processes, told=progress.teller())
    found = advice(answer, wish)
    if options.record is not None or options.json:
        text = json.dumps(shown.as_json(answer, wish, found), indent=1)
        if options.record is not None:
            options.record.write_text(text, encoding="utf-8")
    print(text if options.json else shown.as_text(answer, wish, found))
    return 0
