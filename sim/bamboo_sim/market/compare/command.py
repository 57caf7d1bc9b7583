"""`bamboo sim compare`: prints all systems on fleets, with one model and one network."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bamboo_sim.market.compare import progress, record, text
from bamboo_sim.market.compare.comparison import Comparison, compared
from bamboo_sim.market.compare.profiled import fewest_stages, profiled
from bamboo_sim.market.compare.setting import Setting, assumptions, fleets, models
from bamboo_sim.market.compare.several import standings
from bamboo_sim.market.markets.parameters import MarketError
from bamboo_sim.market.step_times.models import ModelProfile
from bamboo_sim.market.step_times.networks import NAMED, Network
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
    parser.add_argument("--model", choices=sorted(models()))
    parser.add_argument("--profile", type=Path, metavar="FILE")
    parser.add_argument("--global-batch", type=at_least(1), metavar="SAMPLES")
    parser.add_argument("--network", choices=list(NAMED), default=NETWORK)
    parser.add_argument("--stages", type=at_least(2), default=None)
    parser.add_argument("--hours", type=amount, default=HOURS)
    parser.add_argument("--notice", type=amount, default=0.0, metavar="SECONDS")
    parser.add_argument("--price", type=amount, metavar="DOLLARS")
    parser.add_argument("--on-demand-price", type=amount, metavar="DOLLARS")
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
    """The setting that the options of :func:`add_setting` ask for. Errors as above."""
    hours, price = options.hours, options.price
    network = NAMED[options.network]
    model, fewest, device = _model(options, network)
    return Setting(
        fleets(source, seeds=seeds, hours=hours, price=price, first=first),
        model,
        network,
        fewest,
        options.stages or 0,
        round(1000 * options.notice),
        device=device,
        on_demand_price=options.on_demand_price,
    )


def _model(options: argparse.Namespace, network: Network) -> tuple[ModelProfile, int, str]:
    """The model, its fewest stages, and the device of a user's own."""
    if options.profile is None:
        if options.global_batch is not None:
            raise MarketError("--global-batch is for your own model; give --profile, too.")
        name = options.model or MODEL
        return models()[name], assumptions()["models"][name]["value"], ""
    if options.model is not None:
        raise MarketError("--model and --profile name two models; give one of them.")
    model, device = profiled(options.profile, options.global_batch)
    return model, fewest_stages(model, network), device


def _as_text(found: list[Comparison]) -> str:
    """Each comparison, and then all of them."""
    parts = [text.as_text(each) for each in found]
    if len(found) > 1:
        names = [each.setting.fleets.name for each in found]
        parts.append(text.several_as_text(standings(found), names))
    return "\n\n".join(parts)
