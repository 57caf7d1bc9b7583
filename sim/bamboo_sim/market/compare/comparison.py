"""Runs all systems on the same fleets, and ranks them by samples per dollar."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from pathlib import Path

from bamboo_core.api.spec import RedundancyMode
from bamboo_sim.market.compare.intervals import NO_INTERVAL, Interval, Resampled, resampled
from bamboo_sim.market.compare.setting import ON_DEMAND, Setting, on_demand
from bamboo_sim.market.compare.timeline import Timeline
from bamboo_sim.market.compare.times import Tables, Times, Told, choice
from bamboo_sim.market.policies.base.job import Job
from bamboo_sim.market.policies.base.seats import Seats
from bamboo_sim.market.policies.ours.auto import Auto, Choice, Record
from bamboo_sim.market.policies.ours.modes import Mode, policies
from bamboo_sim.market.policies.rivals.on_demand import OnDemand
from bamboo_sim.market.policies.rows import assumed, rivals, with_own
from bamboo_sim.market.simulation.audit import Audited
from bamboo_sim.market.simulation.engine import Terms, run
from bamboo_sim.market.simulation.events import FleetEvent
from bamboo_sim.market.simulation.outcome import HOUR_MS, Activity, Outcome
from bamboo_sim.market.simulation.policy import Policy
from bamboo_sim.market.simulation.step_times import Pauses

BOUND, FIXED_BOUND, ON_DEMAND_ROW = "bound", "bound, fixed depth", "on demand"
OURS = "ours, "
DEFAULT = "ours, None"
"""The mode of a job that says nothing (``spec.redundancy.mode``)."""
UNRANKED = (BOUND, FIXED_BOUND, ON_DEMAND_ROW)
"""Rows that are no system on spot nodes."""


class Table(StrEnum):
    """Where a row stands."""

    COMMON = "common"
    OWN = "own"
    ASSUMED = "assumed"


Key = tuple[Table, str]
"""A system in a table."""


@dataclass(frozen=True)
class Row:
    """A system on all fleets. ``samples_per_s``, ``hours``, ``dollars`` and ``fatal``: means of a
    fleet; ``least`` and ``most``: samples per second of one fleet; ``share``: of the time;
    ``rank``: by samples per dollar among the first table, 0 for what is no system on spot nodes;
    ``interval``: of samples per dollar.
    """

    table: Table
    name: str
    samples_per_s: float
    least: float
    most: float
    hours: float
    dollars: float
    samples_per_dollar: float
    share: Mapping[Activity, float]
    fatal: float
    rank: int = 0
    interval: Interval = NO_INTERVAL

    @property
    def key(self) -> Key:
        """The table and the name."""
        return self.table, self.name


@dataclass(frozen=True)
class Comparison:
    """All rows, and what they rest on. ``pauses``: of ours; ``timelines``: of each row, one for
    each fleet; ``resampled``: each row in the same other histories."""

    setting: Setting
    rows: tuple[Row, ...]
    pauses: Pauses
    timelines: Mapping[Key, Sequence[Timeline]]
    resampled: Mapping[Key, Resampled]

    def row(self, name: str, table: Table = Table.COMMON) -> Row:
        """KeyError: there is no such row."""
        for row in self.rows:
            if (row.name, row.table) == (name, table):
                return row
        raise KeyError(f"there is no row {name!r} in the table {table!r}")


def compared(
    setting: Setting,
    place: Path | None = None,
    processes: int | None = None,
    told: Told | None = None,
) -> Comparison:
    """Compare all systems. ``place`` and ``processes``: as in :class:`StepTable`; ``told``: called
    while step times are computed.

    Equal settings give equal rows, however many processes there are and whatever was kept.
    InventedWorkError: a policy has more samples than its nodes can train.
    """
    ready = prepared(setting, place, processes, told)
    ready.until_known(lambda systems: _runs(systems, inf, ready.told))
    setting = ready.setting
    timelines: dict[Key, list[Timeline]] = {}
    found = _runs(ready.systems, setting.best_per_node, ready.told, timelines)
    rows = _ranked([_row(*key, outcomes) for key, outcomes in found.items()])
    again = resampled(timelines)
    rows = [replace(row, interval=again[row.key].interval()) for row in rows]
    return Comparison(setting, tuple(rows), ready.systems.pauses, timelines, again)


@dataclass(frozen=True)
class Ready:
    """What runs need: a setting with a depth, step times of all whole grids, and pauses."""

    setting: Setting
    systems: Systems
    tables: Tables
    told: Told

    def until_known(self, run: Callable[[Systems], object | None]) -> None:
        """Run until no step time that was asked for is guessed."""

        def sketched(times: Times) -> None:
            run(replace(self.systems, times=times))

        self.tables.until_known(sketched, self.told)


def prepared(
    setting: Setting,
    place: Path | None = None,
    processes: int | None = None,
    told: Told | None = None,
) -> Ready:
    """Compute what all systems need. Arguments as in :func:`compared`."""
    told = told or _silent
    tables = Tables(setting, place, processes)
    tables.grids(setting, told)
    if not setting.stages:
        setting = _deepened(setting, tables)
        tables = Tables(setting, place, processes)
    tables.fixed_grids(setting, told)
    pauses = tables.pauses(setting, told)
    systems = Systems(setting, tables.means, pauses, choice(setting))
    return Ready(setting, systems, tables, told)


def systems_of(setting: Setting) -> list[Key]:
    """The systems that a setting compares. Nothing is computed."""
    nothing = Pauses(0.0, 0.0, 0.0, 0.0)

    def undecided(record: Record, seats: Seats, mode: RedundancyMode) -> RedundancyMode:
        del record, seats
        return mode

    return list(Systems(setting, Tables(setting).means, nothing, undecided).of(0))


def _silent(what: str, done: int, total: int) -> None:
    del what, done, total


def _deepened(setting: Setting, tables: Tables) -> Setting:
    """Systems that keep their depth have that of the fastest grid of the whole fleet."""
    grid = setting.job(tables.bare).best(setting.fleets.nodes)
    assert grid is not None, "the fewest stages fit"
    return setting.at_depth(grid.stages)


@dataclass(frozen=True)
class Systems:
    """All policies of a seed, with these step times."""

    setting: Setting
    times: Times
    pauses: Pauses
    choose: Choice

    def of(self, seed: int) -> dict[Key, Policy]:
        """Policies are made for one run. ``seed``: deals nodes to seats; 0: as they come."""
        bare = self.times[RedundancyMode.NONE]
        job = self.setting.job(bare, seed)
        fixed = self.setting.job(bare, seed, is_fixed=True)
        first: dict[str, Policy] = {ON_DEMAND_ROW: OnDemand(job), FIXED_BOUND: OnDemand(fixed)}
        tables: dict[Table, dict[str, Policy]] = {
            Table.COMMON: first | rivals(job) | self._ours(job),
            Table.OWN: with_own(job),
            Table.ASSUMED: assumed(job),
        }
        return {(table, name): x for table, of in tables.items() for name, x in of.items()}

    def _ours(self, job: Job) -> dict[str, Policy]:
        """Each mode, and Auto. Pauses, measured in virtual time, have what a loss repeats."""
        modes = policies(
            job, {mode: Mode(times, self.pauses, 0.0) for mode, times in self.times.items()}
        )
        found: dict[str, Policy] = {f"{OURS}{mode}": policy for mode, policy in modes.items()}
        return found | {f"{OURS}Auto": Auto(modes, self.choose)}


def terms_of(setting: Setting, best: float) -> Terms:
    """The end and the prices of a run. ``best``: samples per second that no node exceeds."""
    steady = {("on demand", ON_DEMAND): setting.steady_price}
    prices = {**setting.fleets.prices, **steady}
    return Terms(prices=prices, best_per_node=best, until_ms=setting.fleets.until_ms)


def fleet_of(setting: Setting, name: str, events: tuple[FleetEvent, ...]) -> tuple[FleetEvent, ...]:
    """The fleet that a row meets: what is on demand has one of its own."""
    if name != ON_DEMAND_ROW:
        return events
    return tuple(on_demand(setting.fleets.nodes, setting.common.boot_ms))


def _runs(
    systems: Systems,
    best: float,
    told: Told,
    timelines: dict[Key, list[Timeline]] | None = None,
) -> dict[Key, list[Outcome]]:
    """All systems on all fleets. ``timelines``: gets what happens over time."""
    fleets, found = systems.setting.fleets, dict[Key, list[Outcome]]()
    terms = terms_of(systems.setting, best)
    for number, events in enumerate(fleets.events):
        for key, policy in systems.of(number).items():
            of = fleet_of(systems.setting, key[1], events)
            audited, watch = Audited(policy, best), None
            if timelines is not None:
                watch = Timeline(fleets.until_ms)
                timelines.setdefault(key, []).append(watch)
            found.setdefault(key, []).append(audited.ended(run(audited, of, terms, watch)))
        told("fleets run", number + 1, len(fleets.events))
    return found


def _row(table: Table, name: str, outcomes: list[Outcome]) -> Row:
    samples, ms = sum(x.samples for x in outcomes), sum(x.end_ms for x in outcomes)
    dollars = sum(sum(x.dollars.values()) for x in outcomes)
    rates = [1000 * x.samples / x.end_ms for x in outcomes]
    return Row(
        table,
        name,
        samples_per_s=1000 * samples / ms,
        least=min(rates),
        most=max(rates),
        hours=ms / HOUR_MS / len(outcomes),
        dollars=dollars / len(outcomes),
        samples_per_dollar=samples / dollars,
        share={x: sum(o.activity_ms[x] for o in outcomes) / ms for x in Activity},
        fatal=sum(x.fatal for x in outcomes) / len(outcomes),
    )


def _ranked(rows: list[Row]) -> list[Row]:
    """A row of another table has the rank that it would have instead of its own common row."""
    first = [x for x in rows if x.table is Table.COMMON and x.name not in UNRANKED]

    def rank(row: Row) -> int:
        ahead = [x for x in first if x.samples_per_dollar > row.samples_per_dollar]
        return 1 + sum(x.name != row.name for x in ahead)

    is_steady = [row.table is Table.COMMON and row.name in UNRANKED for row in rows]
    return [
        row if steady else replace(row, rank=rank(row))
        for row, steady in zip(rows, is_steady, strict=True)
    ]
