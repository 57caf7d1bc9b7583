"""`bamboo sim compare`: prints all systems on one fleet, with one model and one network."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from time import monotonic
from typing import Any

from bamboo_sim.market.compare.comparison import (
    BOUND,
    DEFAULT,
    FIXED_BOUND,
    ON_DEMAND_ROW,
    Comparison,
    Row,
    Table,
    compared,
)
from bamboo_sim.market.compare.setting import SPOT, Setting, assumptions, fleets, models
from bamboo_sim.market.policies.base.parameters import GROUPS, parameters
from bamboo_sim.market.simulation.outcome import Activity
from bamboo_sim.market.step_times.networks import NAMED
from bamboo_sim.programs.arguments import amount, at_least

MODEL, NETWORK, SEEDS, HOURS = "bert_large", "10", 1, 24.0
_COLUMNS = (
    *("samples/s", "hours", "dollars", "samples/$"),
    *(str(activity) for activity in Activity),
    *("fatal", "rank"),
)
_TITLES = {
    Table.COMMON: "All with the common parameters:",
    Table.OWN: "With the parameters that their authors published; rank as in the first table:",
    Table.ASSUMED: "Assumed: only prose is known of these; rank as in the first table:",
}


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("source")
    parser.add_argument("--model", choices=sorted(models()), default=MODEL)
    parser.add_argument("--network", choices=list(NAMED), default=NETWORK)
    parser.add_argument("--stages", type=at_least(2), default=None)
    parser.add_argument("--hours", type=amount, default=HOURS)
    parser.add_argument("--seeds", type=at_least(1), default=SEEDS)
    parser.add_argument("--notice", type=amount, default=0.0, metavar="SECONDS")
    parser.add_argument("--price", type=amount, metavar="DOLLARS")
    parser.add_argument("--processes", type=at_least(1), default=None)
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace) -> int:
    """Print the tables; the exit code. TraceError, MarketError or OSError if the source or an
    option is wrong."""
    found = compared(
        setting(options),
        processes=options.processes,
        told=_Teller() if sys.stderr.isatty() else _tell_parts,
    )
    print(json.dumps(as_json(found), indent=1) if options.json else as_text(found))
    return 0


def setting(options: argparse.Namespace) -> Setting:
    """The comparison that the options ask for. Errors as above."""
    return Setting(
        fleets(options.source, seeds=options.seeds, hours=options.hours, price=options.price),
        models()[options.model],
        NAMED[options.network],
        assumptions()["models"][options.model]["value"],
        options.stages or 0,
        round(1000 * options.notice),
    )


class _Teller:
    """One line that is written again and again."""

    def __init__(self) -> None:
        self._begun = monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        text = f"{what}: {done} of {total}, {monotonic() - self._begun:.0f} s"
        print(f"\r{text:<79}", end="\n" if done == total else "", file=sys.stderr, flush=True)


def _tell_parts(what: str, done: int, total: int) -> None:
    """Where nobody watches, a line when a part is done."""
    if done == total:
        print(f"{what}: {total}", file=sys.stderr, flush=True)


def as_text(found: Comparison) -> str:
    """The tables and what they rest on."""
    fleet, common = found.setting.fleets, found.setting.common
    network = found.setting.network.name
    ours = found.row(DEFAULT)
    lines = [
        f"{Path(fleet.name).name}: {ours.hours:.2f} h, at most {fleet.nodes} nodes,"
        f" {fleet.removals:g} lost; runs: {len(fleet.events)}.",
        f"Model {found.setting.profile.name}, {found.setting.profile.samples} samples a step;"
        f" fixed depth: {common.stages} stages, that of the fastest grid unless --stages says"
        f" another one. Network: {network}.",
    ]
    for table, title in _TITLES.items():
        rows = [row for row in found.rows if row.table is table]
        rows.sort(key=lambda row: (row.rank, -row.samples_per_dollar))
        lines += ["", f"{title} ({network})", _line(("", *_COLUMNS))]
        lines += [_line((row.name, *_cells(row))) for row in rows]
    return "\n".join([*lines, "", *_notes(found)])


def _rules(patterns: int) -> tuple[str, ...]:
    return (
        "The start is free for all. All pay the same network, boot, detection and restart.",
        "A rival's step is the planner's dry run of its undisturbed grid, times the formula of its"
        " state over that of the grid. Ours is the dry run of the state itself.",
        f"A step of ours with empty seats is the mean over patterns ({patterns}) of as many, as"
        " losses lead to them.",
        "Nodes are V100s by the costs of the model, whatever was recorded. The network is each"
        " node's own: zones cost no more.",
        "Pauses of ours are measured in virtual time in mode Replica, and used for every mode.",
        "torchft and sample dropping train smaller batches while a group is broken; what that"
        " costs in convergence is not counted.",
    )


def _line(cells: tuple[str, ...]) -> str:
    name, *others = cells
    return f"{name:<22}" + "".join(f"{cell:>11}" for cell in others)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        f"{row.samples_per_s:.2f}",
        f"{row.hours:.2f}",
        f"{row.dollars:.2f}",
        f"{row.samples_per_dollar:.0f}",
        *(f"{row.share[activity]:.1%}" for activity in Activity),
        f"{row.fatal:g}",
        str(row.rank or "-"),
    )


def _notes(found: Comparison) -> list[str]:
    """The meaning of the figures, and all that is assumed."""
    bound = found.row(BOUND)
    lines = [
        f"{BOUND}: the fastest whole grid of the nodes there at each instant, without any pause"
        " (pipelines of unequal depth may have more);"
        f" {FIXED_BOUND}: of the common depth. {ON_DEMAND_ROW}: {found.setting.fleets.nodes} nodes"
        " that are never lost. None of them has a rank.",
        f"A job that does not say its mode has {DEFAULT!r}:"
        f" {found.row(DEFAULT).samples_per_dollar / bound.samples_per_dollar:.3f} of the bound.",
        "",
        "Assumed:",
        *(f"  {line}" for line in _rules(found.setting.patterns)),
    ]
    if len(found.setting.fleets.events) > 1:
        spread = ", ".join(
            f"{name} {found.row(name).least:.2f} to {found.row(name).most:.2f}"
            for name in (DEFAULT, BOUND)
        )
        lines.insert(2, f"Samples/s of the runs, least to most: {spread}.")
    lines += [f"  {line}" for line in _values(found)]
    return lines


def _values(found: Comparison) -> list[str]:
    """Prices and common parameters with their sources."""
    fleet, prices = found.setting.fleets, assumptions()["prices"]
    told = {(zone, kind): price for (zone, kind), price in fleet.prices.items()}
    if fleet.are_prices_recorded:
        shown = ", ".join(f"{kind} in {zone} {price:.4g}" for (zone, kind), price in told.items())
        lines = [f"prices = {shown} dollars per node-hour [{Path(fleet.name).name}]"]
    else:
        of = prices[SPOT]
        price = next(iter(told.values()))
        source = f"{of['date']}; {of['source']}" if price == of["value"] else "given"
        lines = [f"price of spot = {price:g} {of['unit']} [{source}]"]
    of = prices["on-demand"]
    lines.append(
        f"price of on-demand = {of['value']:g} {of['unit']} [{of['date']}; {of['source']}]"
    )
    common, sources = vars(found.setting.common), {x.name: x for x in parameters("base")}
    follows = {
        "notice_ms": "given; no recorded fleet has notices",
        "bytes_per_s": "the network",
        "state_bytes": f"the model, {assumptions()['state']['bytes_per_parameter']['value']}"
        " bytes for each parameter",
        "mean_gap_ms": "this fleet; told to those who set intervals by it",
        "fewest_stages": assumptions()["models"][found.setting.profile.name]["source"],
        "stages": "the fastest undisturbed grid of the fleet's nodes, or --stages",
        "nodes": "the most that are ready at once",
    }
    for name, value in common.items():
        if name != "seats_seed":
            source = follows.get(name, sources[name].source)
            lines.append(f"{name} = {value:g} {sources[name].unit} [{source}]")
    ours = ", ".join(f"{name} {ms:.0f}" for name, ms in found.pauses._asdict().items())
    lines.append(f"pauses of ours = {ours} [measured in virtual time; restore: that of all]")
    return lines


def as_json(found: Comparison) -> dict[str, Any]:
    """All figures with all assumptions."""
    fleet = found.setting.fleets
    return {
        "source": Path(fleet.name).name,
        "model": found.setting.profile.name,
        "network": found.setting.network.name,
        "runs": len(fleet.events),
        "nodes": fleet.nodes,
        "removals": fleet.removals,
        "stages": found.setting.common.stages,
        "default": DEFAULT,
        "bound": BOUND,
        "tables": {
            table: [_row_json(row) for row in found.rows if row.table is table] for table in Table
        },
        "assumptions": {
            "rules": list(_rules(found.setting.patterns)),
            "values": _values(found),
            "parameters": [vars(x) for group in GROUPS for x in parameters(group)],
        },
    }


def _row_json(row: Row) -> dict[str, Any]:
    found = {key: value for key, value in vars(row).items() if key != "table"}
    return {**found, "rank": row.rank or None, "share": dict(row.share)}
