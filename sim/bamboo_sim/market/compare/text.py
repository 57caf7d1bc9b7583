"""A comparison as text: its tables, where ours stands, and all that is assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bamboo_sim.market.compare.comparison import (
    BOUND,
    DEFAULT,
    FIXED_BOUND,
    ON_DEMAND_ROW,
    Comparison,
    Row,
    Table,
)
from bamboo_sim.market.compare.intervals import LEVEL
from bamboo_sim.market.compare.setting import SPOT, Setting, assumptions
from bamboo_sim.market.compare.several import Standing
from bamboo_sim.market.compare.verdict import verdict
from bamboo_sim.market.policies.base.parameters import parameters
from bamboo_sim.market.simulation.outcome import Activity
from bamboo_sim.market.simulation.step_times import Pauses

_COLUMNS = (
    *("samples/s", "hours", "dollars", "samples/$", f"{LEVEL:.0%} from", "to"),
    *(str(activity) for activity in Activity),
    *("fatal", "rank"),
)
TITLES: Mapping[Table, str] = {
    Table.COMMON: "All with the common parameters:",
    Table.OWN: "With the parameters that their authors published; rank as in the first table:",
    Table.ASSUMED: "Assumed: only prose is known of these; rank as in the first table:",
}


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
    for table, title in TITLES.items():
        rows = in_order(found, table)
        lines += ["", f"{title} ({network})", _line(("", *_COLUMNS))]
        lines += [_line((row.name, *_cells(row))) for row in rows]
    lines += ["", "Where ours stands:", *(f"  {line}" for line in verdict(found))]
    return "\n".join(
        [*lines, "", *notes(found), "", "Assumed:", *(f"  {x}" for x in assumed(found))]
    )


def in_order(found: Comparison, table: Table) -> list[Row]:
    """The rows of a table by rank; those without one come first."""
    rows = [row for row in found.rows if row.table is table]
    return sorted(rows, key=lambda row: (row.rank, -row.samples_per_dollar))


def several_as_text(standings: Sequence[Standing], sources: Sequence[str]) -> str:
    """All systems on all fleets: samples per dollar over those of the bound, and their mean."""
    names = [Path(source).name for source in sources]
    width = max(map(len, (*names, "mean"))) + 2
    lines = [
        f"All fleets: samples per dollar over those of the {BOUND!r} of each; the mean is the"
        " geometric one.",
        "".join([" " * 22, *(f"{name:>{width}}" for name in (*names, "mean", "rank"))]),
    ]
    for each in standings:
        cells = [*(f"{ratio:.3f}" for ratio in (*each.ratios, each.mean)), str(each.rank)]
        lines.append("".join([f"{each.name:<22}", *(f"{cell:>{width}}" for cell in cells)]))
    return "\n".join(lines)


def rules(setting: Setting) -> tuple[str, ...]:
    """Rules that hold for all systems."""
    nodes = (
        f"Nodes are the device of the profile, {setting.device},"
        if setting.device
        else "Nodes are V100s by the costs of the model,"
    )
    return (
        "The start is free for all. All pay the same network, boot, detection and restart.",
        "A rival's step is the planner's dry run of its undisturbed grid, times the formula of its"
        " state over that of the grid. Ours is the dry run of the state itself.",
        f"A step of ours with empty seats is the mean over patterns ({setting.patterns}) of as"
        " many, as losses lead to them.",
        f"{nodes} whatever was recorded. The network is each node's own: zones cost no more.",
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
        *(f"{value:.0f}" for value in row.interval),
        *(f"{row.share[activity]:.1%}" for activity in Activity),
        f"{row.fatal:g}",
        str(row.rank or "-"),
    )


def notes(found: Comparison) -> list[str]:
    """The meaning of the figures."""
    bound = found.row(BOUND)
    lines = [
        f"{BOUND}: the fastest whole grid of the nodes there at each instant, without any pause"
        " (pipelines of unequal depth may have more);"
        f" {FIXED_BOUND}: of the common depth. {ON_DEMAND_ROW}: {found.setting.fleets.nodes} nodes"
        " that are never lost. None of them has a rank.",
        f"A job that does not say its mode has {DEFAULT!r}:"
        f" {found.row(DEFAULT).samples_per_dollar / bound.samples_per_dollar:.3f} of the bound.",
        f"{LEVEL:.0%} from, to: samples/$ in that share of the histories that are drawn from blocks"
        " of this one, and from its seeds.",
    ]
    if len(found.setting.fleets.events) > 1:
        spread = ", ".join(
            f"{name} {found.row(name).least:.2f} to {found.row(name).most:.2f}"
            for name in (DEFAULT, BOUND)
        )
        lines.append(f"Samples/s of the runs, least to most: {spread}.")
    return lines


def assumed(found: Comparison) -> list[str]:
    """All that is assumed, with sources."""
    return [*rules(found.setting), *values(found.setting, found.pauses)]


def prices_of(setting: Setting) -> list[str]:
    """Prices with date and source."""
    fleet, prices = setting.fleets, assumptions()["prices"]
    told = {(zone, kind): price for (zone, kind), price in fleet.prices.items()}
    if fleet.are_prices_recorded:
        shown = ", ".join(f"{kind} in {zone} {price:.4g}" for (zone, kind), price in told.items())
        lines = [f"prices = {shown} dollars per node-hour [{Path(fleet.name).name}]"]
    else:
        of = prices[SPOT]
        price = next(iter(told.values()))
        source = f"{of['date']}; {of['source']}" if price == of["value"] else "given"
        lines = [f"price of spot = {price:g} {of['unit']} [{source}]"]
    of, price = prices["on-demand"], setting.steady_price
    source = f"{of['date']}; {of['source']}" if price == of["value"] else "given"
    lines.append(f"price of on-demand = {price:g} {of['unit']} [{source}]")
    return lines


def values(setting: Setting, pauses: Pauses) -> list[str]:
    """Prices and common parameters with their sources. ``pauses``: of ours."""
    lines = prices_of(setting)
    common, sources = vars(setting.common), {x.name: x for x in parameters("base")}
    follows = {
        "notice_ms": "given; no recorded fleet has notices",
        "bytes_per_s": "the network",
        "state_bytes": f"the model, {assumptions()['state']['bytes_per_parameter']['value']}"
        " bytes for each parameter",
        "mean_gap_ms": "this fleet; told to those who set intervals by it",
        "fewest_stages": "every mode fits the device from there on, by the planner's estimate"
        if setting.device
        else assumptions()["models"][setting.profile.name]["source"],
        "stages": "the fastest undisturbed grid of the fleet's nodes, or --stages",
        "nodes": "the most that are ready at once",
    }
    for name, value in common.items():
        if name != "seats_seed":
            source = follows.get(name, sources[name].source)
            lines.append(f"{name} = {value:g} {sources[name].unit} [{source}]")
    ours = ", ".join(f"{name} {ms:.0f}" for name, ms in pauses._asdict().items())
    lines.append(f"pauses of ours = {ours} [measured in virtual time; restore: that of all]")
    return lines
