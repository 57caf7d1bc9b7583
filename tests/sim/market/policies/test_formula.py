"""The base function: what it was fitted to, and the slots that a list scheduler has found."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sim.market.policies.systems import small

from bamboo_sim.market.policies.base.formula import Formula, FormulaTimes, Grid, Way
from bamboo_sim.market.policies.base.job import formula_job, rate
from bamboo_sim.market.policies.base.seats import dealt
from bamboo_sim.market.policies.rivals.recycle import ReCycle, Rules

MEASURED = {
    (4, 8): 43.5, (2, 16): 41.4, (4, 7): 40.3, (2, 14): 40.2, (3, 7): 35.7, (4, 6): 35.4,
    (2, 10): 35.1, (2, 8): 29.5, (1, 16): 25.2, (1, 8): 17.3,
}  # fmt: skip
"""Samples per second of GPT-2 1.5B on V100 nodes, in Parcae's repository."""


@pytest.mark.parametrize("grid", MEASURED)
def test_it_is_within_a_tenth_of_what_was_measured(grid: tuple[int, int]) -> None:
    job = formula_job(is_split=False)
    found = 1000 * rate(job.pace(Grid(*grid)))
    assert found == pytest.approx(MEASURED[grid], rel=0.105)


def test_the_best_grids_of_the_calibration() -> None:
    job = formula_job(is_split=False)
    best = {nodes: job.best(nodes) for nodes in (5, 8, 12, 16, 20, 24, 28, 30, 32)}
    assert best == {
        5: None, 8: (1, 8), 12: (2, 6), 16: (2, 8), 20: (2, 10), 24: (3, 8), 28: (4, 7),
        30: (3, 10), 32: (4, 8),
    }  # fmt: skip
    assert 1000 * rate(job.pace(Grid(4, 8))) == pytest.approx(42.5, abs=0.05)


SLOTS = [
    (2, 4, 8, (1,), 48), (4, 4, 8, (2,), 48), (4, 4, 16, (1,), 66), (4, 8, 16, (1,), 66),
    (4, 8, 16, (2,), 96), (4, 8, 32, (1,), 129), (4, 8, 32, (2,), 192), (4, 8, 32, (1, 1), 129),
    (8, 8, 16, (1,), 57), (8, 8, 32, (1,), 111), (8, 8, 32, (2,), 129), (4, 12, 24, (1,), 96),
    (4, 12, 48, (1,), 192), (4, 12, 48, (2,), 288),
]  # fmt: skip
"""D, P, M, losses of the first stages, and thirds of a slot that a list scheduler has found for
ReCycle with split backwards and a staggered optimizer."""


@pytest.mark.parametrize(("pipelines", "stages", "share", "lost", "thirds"), SLOTS)
def test_rerouted_steps_are_those_of_a_list_scheduler(
    pipelines: int, stages: int, share: int, lost: tuple[int, ...], thirds: int
) -> None:
    formula = Formula(
        layers=stages, microbatches=pipelines * share, layer_ms=0, wait_ms=3, gradient_bytes=0,
        bytes_per_s=1, is_split=True,
    )  # fmt: skip
    times = FormulaTimes(formula, (1, stages), formula.microbatches)
    job = formula_job(is_split=True)
    job = type(job)(times, formula, replace(job.common, stages=stages))
    seats = dealt(Grid(pipelines, stages), range(pipelines * stages), 0)
    gone = {d * stages + stage for stage, count in enumerate(lost) for d in range(count)}
    pace = ReCycle(job, Rules(0, 0, 0, 1), regrids=False).rate(seats.without(gone))
    assert pace is not None
    assert pace.step_ms == pytest.approx(thirds, abs=1.0)


def test_steps_with_empty_seats_are_no_faster_than_live_nodes() -> None:
    """All sets of empty seats of a grid of 3 x 2, in all ways. A further loss makes diffused steps
    no shorter; in the other ways it may, where others take over from a shadow that had the work of
    two."""
    seats = [(d, s) for d in range(3) for s in range(2)]
    formula = small(is_split=True).formula
    best = formula.microbatches * formula.slot_ms(2) / formula.microbatches
    for way in ("Shadow", "Peers", "Diffuse"):
        for has_copies in (True, False):
            times = FormulaTimes(formula, (1, 4), 8, Way(way, has_copies=has_copies))
            found = {
                frozenset(holes): times.degraded_ms(3, 2, frozenset(holes))
                for count in range(6)
                for holes in combinations(seats, count)
            }
            for holes, step_ms in found.items():
                live = [sum((d, s) not in holes for d in range(3)) for s in range(2)]
                is_known = sum(live) > 0 if has_copies else min(live) > 0
                assert (step_ms is not None) == is_known
                if step_ms is None:
                    continue
                assert step_ms * (6 - len(holes)) >= 2 * 8 * best
                fewer = [found[holes - {seat}] for seat in holes]
                if way == "Diffuse" and has_copies:
                    assert all(ms is not None and ms <= step_ms for ms in fewer)


@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 60))
def test_empty_seats_are_dealt_evenly(pipelines: int, stages: int, nodes: int) -> None:
    seats = dealt(Grid(pipelines, stages), range(nodes), 0)
    assert len(seats.holders) == pipelines * stages
    assert seats.serving == set(range(min(nodes, pipelines * stages)))
    assert max(seats.empty) - min(seats.empty) <= 1
    assert sum(seats.empty) == len(seats.holes) == pipelines * stages - len(seats.serving)


def test_neighbours_are_empty_last() -> None:
    holes = dealt(Grid(4, 8), range(28), 0).holes
    assert len(holes) == 4
    assert not any((d, (s + 1) % 8) in holes for d, s in holes)
