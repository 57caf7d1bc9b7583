"""The mode for seats that are empty for minutes and for half an hour, against all patterns.

Every pattern of empty seats of a grid of 2 x 4 is planned and run dry with the job's network, and
counts with its chance. The estimate of the cost model must lead to the same mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations
from statistics import fmean

import pytest
from tests.core.protection.job import layers, spec

from bamboo_core.api.spec import JobSpec, RedundancyMode, TransportSpec, batch_shape
from bamboo_core.planning.step_shape import StepShape
from bamboo_core.protection.choice import NONE, REPLICA, Facts, choose
from bamboo_core.protection.facts import Seen, gather
from bamboo_core.scheduling.costs import Costs

D, P = 2, 4
HAZARD = 0.61
GRIDS = {"slow": (60_000_000, 10.0), "usual": (20_000_000, 10.0), "fast": (20_000_000, 100.0)}
Lost = tuple[tuple[int, int], ...]


def job(name: str) -> tuple[JobSpec, Facts]:
    size, gbps = GRIDS[name]
    found = spec(D, P, transport=TransportSpec(bandwidth_gbps=gbps))
    costs = layers(P, forward_s=0.05, parameter_bytes=size, output_bytes=0)
    return found, gather(found, costs, Seen(HAZARD), pipelines=D)


@cache
def step_s(name: str, mode: RedundancyMode, pipelines: int, lost: Lost) -> float:
    size, gbps = GRIDS[name]
    costs = Costs((0.05,) * P, (0.1,) * P, (0.05,) * P, (0.05,) * P)
    transfer = (size * 8 / gbps / 1e9,) * P
    shape = StepShape(
        pipelines,
        P,
        batch_shape(job(name)[0]),
        lost=lost,
        mode=mode,
        costs=costs,
        transfer=transfer,
    )
    ways = shape, replace(shape, split=True, extra=8)
    return min(x.dry_run(x.build().programs).end for x in ways)


def holders(mode: RedundancyMode, pipelines: int, stage: int) -> set[tuple[int, int]]:
    held = {stage, (stage - 1) % P} if mode.keeps_copies else {stage}
    return {(d, s) for d in range(pipelines) for s in held}


def is_covered(mode: RedundancyMode, pipelines: int, lost: Lost) -> bool:
    return all(holders(mode, pipelines, s) - set(lost) for s in range(P))


def patterns(mode: RedundancyMode, empty: int) -> tuple[int, list[Lost]]:
    """Pipelines of the plan, and all patterns of its empty seats in which no stage is lost. An
    agent that has the work of a lost stage, too, has read it from a checkpoint."""
    used = max(1, -(-(D * P - empty) // P))
    seats = [(d, s) for d in range(used) for s in range(P)]
    found: list[Lost] = list(combinations(seats, used * P - (D * P - empty)))
    return used, [x for x in found if is_covered(mode, used, x)] or found


def ends(mode: RedundancyMode, used: int, lost: Lost) -> float:
    """The chance that the next loss takes the last copy of a stage."""
    live = [(d, s) for d in range(used) for s in range(P) if (d, s) not in lost]
    return fmean(not is_covered(mode, used, (*lost, seat)) for seat in live)


def progress(name: str, mode: RedundancyMode, facts: Facts) -> Iterator[float]:
    """For each number of empty seats, its share of undisturbed steps in mode None."""
    whole_s, redone_s = step_s(name, NONE, D, ()), choose(facts).of(mode).redone_s
    restore_s = facts.stop_s + facts.restart_s + facts.checkpoint_s / 2
    fewest = P // 2 if mode.keeps_copies else P
    for empty in range(D * P - fewest + 1):
        used, lost = patterns(mode, empty)
        count = len(list(combinations(range(D * P), empty)))
        chance = count * facts.share**empty * (1 - facts.share) ** (D * P - empty)
        for one in lost:
            fewer = [step_s(name, mode, d, ()) for d in range(1, used)]
            length_s = min([step_s(name, mode, used, one), *fewer])
            fatal = ends(mode, used, one)
            # a restore begins with a whole pipeline
            missing = max(0, empty + 1 - P) if mode.keeps_copies else 0
            waits_s = sum(facts.refill_s / (empty + 1 - i) for i in range(missing))
            pause_s = fatal * (restore_s + waits_s) + (1 - fatal) * (facts.stop_s + redone_s)
            losses = (D * P - empty) * HAZARD / 3600
            yield chance / len(lost) * whole_s / length_s / (1 + losses * pause_s)


@pytest.mark.parametrize("refill_s", [180.0, 1970.0])
@pytest.mark.parametrize("name", GRIDS)
def test_the_choice_is_that_of_all_patterns(name: str, refill_s: float) -> None:
    facts = replace(job(name)[1], refill_s=refill_s)
    lost = {m: 3600 * (1 - sum(progress(name, m, facts))) for m in (NONE, REPLICA)}
    verdict = choose(facts)
    print(name, refill_s, lost, {m: verdict.of(m).lost_s for m in lost}, verdict.mode)
    assert lost[verdict.mode if verdict.mode is NONE else REPLICA] == min(lost.values())
