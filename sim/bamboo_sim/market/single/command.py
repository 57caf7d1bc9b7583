"""`bamboo sim run`: prints one system on one fleet, with its timeline."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bamboo_sim.market.compare import progress
from bamboo_sim.market.compare.command import add_setting, setting
from bamboo_sim.market.single import shown
from bamboo_sim.market.single.run import single
from bamboo_sim.programs.arguments import at_least

POLICY, SEED = "ours-none", 1


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("source")
    parser.add_argument("--policy", default=POLICY)
    add_setting(parser)
    parser.add_argument("--seed", type=at_least(1), default=SEED)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--record", type=Path, metavar="FILE", help="for pages: JSON, beside text")


def run(options: argparse.Namespace) -> int:
    """Print the run; the exit code. TraceError, MarketError or OSError if a source or an option is
    wrong."""
    found = single(
        setting(options, options.source, 1, options.seed),
        options.policy,
        options.seed,
        processes=options.processes,
        told=progress.teller(),
    )
    if options.record is not None or options.json:
        text = json.dumps(shown.as_json(found), indent=1)
        if options.record is not None:
            options.record.write_text(text, encoding="utf-8")
    print(text if options.json else shown.as_text(found))
    return 0
