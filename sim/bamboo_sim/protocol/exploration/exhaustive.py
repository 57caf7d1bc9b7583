"""Exhaustive exploration of small grids.

Every single kill on every small grid; on the grids of ``PAIRS`` every pair of kills, at one event
and with the second during the recovery from the first; all other families as a whole. The work is
divided into units for a pool of processes. Each event of the run without faults belongs to one
unit.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, count, islice, product
from math import inf
from time import time

from bamboo_core.model.ids import AgentId
from bamboo_sim.protocol.exploration.tally import Tally
from bamboo_sim.protocol.exploration.time_budget import PAIRS, grids, is_chosen, runs
from bamboo_sim.protocol.families.by_name import FAMILIES
from bamboo_sim.protocol.families.losses import replaced
from bamboo_sim.protocol.histories.branching import Histories, inject, prefixes, run_on, snapshot
from bamboo_sim.protocol.histories.history import History
from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.world.state import World

_EVERY = {
    "every single": tuple(grids()),
    "every pair": PAIRS,
    "every second": (*PAIRS, replace(PAIRS[2], spares=1)),
}
_WEIGHT = {"every pair": 3, "every second": 10}
_UNLIMITED = {"fuzz": 5000, "sources": 200}  # histories per job of families without an end


@dataclass(frozen=True)
class Unit:
    """A family on a job, at the events of one of ``parts`` parts of the run."""

    family: str
    job: Job
    seed: int
    part: int = 0
    parts: int = 1

    def __str__(self) -> str:
        part = f" {self.part + 1}/{self.parts}" if self.parts > 1 else ""
        return f"{self.row}{part}"

    @property
    def row(self) -> str:
        """The name under which its histories are counted."""
        return f"{self.family} {self.job}"

    @property
    def weight(self) -> float:
        """A rough measure of its duration."""
        job = self.job
        work = (job.pipelines * job.stages * job.microbatches) ** 2
        return work * _WEIGHT.get(self.family, 1) / self.parts


def units(seed: int, only: str = "") -> list[Unit]:
    """All units, shortest first, so that an interrupted run has complete rows."""
    out = []
    for family, jobs in _EVERY.items():
        for job in jobs:
            parts = max(1, len(job.agents) * job.microbatches // 4)
            out += [Unit(family, job, seed, part, parts) for part in range(parts)]
    out += [Unit(f, j, seed) for f, j, _ in runs() if f not in ("singles", "pairs")]
    return sorted((u for u in out if is_chosen(str(u), only)), key=lambda u: u.weight)


def fates(world: World, name: AgentId) -> list[int]:
    """The distinct fates of a victim's messages in flight: all delivered, all lost, or one lost
    with the later ones of its stream."""
    network = world.network
    under_way = sum(m[0] == name for m in network.messages)
    tails = [3 + i for i in range(under_way) if len(network.tail(name, i)) < under_way]
    return [0, *([1] if under_way else []), *tails]


def every_single(unit: Unit) -> Histories:
    """Every event x every live agent x every fate."""
    for at in _events(unit, begun=False):
        for name in sorted(at[1].nodes):
            for fate in fates(at[1], name):
                yield inject(at, 0, ("kill", name, fate))


def every_pair(unit: Unit) -> Histories:
    """Every event x every pair of live agents x every fate of both; with and without new agents."""
    for at in _events(unit, begun=True):
        for a, b in combinations(sorted(at[1].nodes), 2):
            for x, y in product(fates(at[1], a), fates(at[1], b)):
                found = inject(inject(at, 0, ("kill", a, x)), 0, ("kill", b, y))
                yield snapshot(found)
                yield replaced(found, 2)


def every_second(unit: Unit) -> Histories:
    """Every event x every agent, then every event of the recovery x every agent that is left.

    New agents replace both; a spare, if there is one, replaces the first at once.
    """
    for at in _events(unit, begun=True):
        for a in sorted(at[1].nodes):
            ready = at
            for spare in unit.job.agents[len(unit.job.at_start) :]:
                ready = inject(ready, 0, ("start", spare))
            history, world = inject(ready, 0, ("kill", a, 0))
            for gap in count():
                first = history.then(gap, ()), world
                for n, b in enumerate(sorted(world.nodes)):
                    yield replaced(inject(first, 0, ("kill", b, (gap + n) % 2)), 2)
                if _has_recovered(world, at[1]) or not run_on((history, world), 1):
                    break


def _has_recovered(world: World, before: World) -> bool:
    """Whether a step was committed under a newer plan than before."""
    return world.operators.durable.plan > before.operators.durable.plan and (
        world.newest > before.newest
    )


def _events(unit: Unit, *, begun: bool) -> Histories:
    base = History(unit.job, unit.seed)
    return islice(prefixes(base, begun=begun), unit.part, None, unit.parts)


def _branches(unit: Unit) -> Histories:
    if unit.family == "every single":
        return every_single(unit)
    if unit.family == "every pair":
        return every_pair(unit)
    if unit.family == "every second":
        return every_second(unit)
    found = FAMILIES[unit.family](History(unit.job, unit.seed))
    return islice(found, _UNLIMITED.get(unit.family))


def run(unit: Unit) -> tuple[Unit, Tally]:
    """Run all histories of a unit."""
    tally = Tally()
    tally.run(_branches(unit), History(unit.job, unit.seed), until=inf)
    return unit, tally


def run_all(todo: list[Unit], processes: int) -> Iterator[tuple[Unit, Tally]]:
    """Yield results as they come, and print a line for each."""
    began, done = time(), 0
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=8) as pool:
        for unit, tally in pool.imap_unordered(run, todo):
            done += 1
            print(
                f"{done}/{len(todo)} after {time() - began:.0f} s: {unit}: {tally.cases} cases,"
                f" {tally.cpu_s:.0f} s of a core, {len(tally.violations)} violations",
                flush=True,
            )
            yield unit, tally
