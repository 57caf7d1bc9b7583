"""The paper's table, computed: BERT to completion for each chance of a preemption."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from statistics import fmean
from typing import NamedTuple

from bamboo_sim.market.paper import assumptions
from bamboo_sim.market.policies.bamboo_published import BambooPublished
from bamboo_sim.market.simulation.engine import run
from bamboo_sim.market.simulation.outcome import Activity, Outcome

WITHIN = 0.03
"""How near to the slide a cell is to be."""
_AT_ONCE = 25


class Sample(NamedTuple):
    """One run in figures. Throughput in samples per second, cost in dollars per hour."""

    throughput: float
    cost: float
    value_time_mean: float
    value: float
    removals: float
    fatal: float
    paused: float


@dataclass(frozen=True)
class Row:
    """Means over seeds. ``slide``: throughput, cost and value there."""

    loss_chance: float
    seeds: int
    mean: Sample
    slide: tuple[float, float, float]

    @property
    def off(self) -> tuple[float, float, float]:
        """How far throughput, cost and the time mean of value are from the slide, as shares."""
        throughput, cost, value, *_ = self.mean
        of_slide = zip((throughput, cost, value), self.slide, strict=True)
        first, second, third = (ours / theirs - 1 for ours, theirs in of_slide)
        return first, second, third


def table(
    seeds: int, processes: int | None = None, told: Callable[[int, int], None] | None = None
) -> tuple[Row, ...]:
    """All rows, each with seeds 1 to ``seeds``; the same for any number of processes (None: one for
    each core). ``told``: called with runs done and runs in all."""
    tasks = [
        (chance, first, min(first + _AT_ONCE, seeds + 1))
        for chance in assumptions.loss_chances()
        for first in range(1, seeds + 1, _AT_ONCE)
    ]
    # the longest first, so that no process is alone with them at the end
    tasks.sort(key=itemgetter(0), reverse=True)
    found: list[tuple[float, list[Sample]]] = []
    done = 0
    for task, samples in zip(tasks, _mapped(tasks, processes or os.cpu_count() or 1), strict=True):
        found.append((task[0], samples))
        done += len(samples)
        if told is not None:
            told(done, seeds * len(assumptions.loss_chances()))
    rows = [
        _row(chance, [sample for _, samples in group for sample in samples])
        for chance, group in groupby(found, key=itemgetter(0))
    ]
    return tuple(reversed(rows))


def _row(loss_chance: float, samples: list[Sample]) -> Row:
    mean = Sample(*map(fmean, zip(*samples, strict=True)))
    return Row(loss_chance, len(samples), mean, assumptions.slide(loss_chance))


def _mapped(tasks: list[tuple[float, int, int]], processes: int) -> Iterator[list[Sample]]:
    if processes == 1:
        yield from map(_samples, tasks)
        return
    with ProcessPoolExecutor(processes, initializer=gc.disable) as pool:
        yield from pool.map(_samples, tasks)


def _samples(task: tuple[float, int, int]) -> list[Sample]:
    chance, first, end = task
    market, terms = assumptions.market(chance), assumptions.terms()
    policy = BambooPublished(assumptions.published())
    return [_sample(run(policy, market.events(seed), terms)) for seed in range(first, end)]


def _sample(outcome: Outcome) -> Sample:
    return Sample(
        throughput=outcome.samples_per_second,
        cost=outcome.dollars_per_hour,
        value_time_mean=outcome.value_time_mean,
        value=outcome.value,
        removals=outcome.removals,
        fatal=outcome.fatal,
        paused=outcome.share(Activity.PAUSED),
    )
