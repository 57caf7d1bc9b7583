"""The recorded fleets: the shape of what another prototype of the same rules has printed, as far as
both have the same rules (rivals.md 4.13)."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from bamboo_sim.market.policies.base.job import formula_job
from bamboo_sim.market.policies.rows import ours, rivals
from bamboo_sim.market.simulation.engine import Terms, run
from bamboo_sim.market.simulation.outcome import Activity, Outcome
from bamboo_sim.market.simulation.policy import Policy
from bamboo_sim.market.traces import event_files
from bamboo_sim.market.traces.records import fleet

PRINTED = {
    "bound": 35.0, "checkpoint": 20.9, "varuna": 21.0, "torchft": 27.8, "bamboo, eager": 24.7,
    "oobleck": 33.8, "recycle, fixed depth": 31.4, "recycle": 33.3, "parcae": 32.4,
    "ours, Eager, Diffuse": 34.2, "ours, Replica, Diffuse": 35.1,
}  # fmt: skip
"""Samples per second on p3. Rivals have 1F1B there, and diffusion split backwards."""


@pytest.fixture(scope="module")
def p3() -> Path:
    folders = (folder / "shared" / "traces" for folder in Path(__file__).resolve().parents)
    found = next((folder for folder in folders if (folder / "summary.json").is_file()), None)
    if found is None:
        pytest.skip("no shared/traces with summary.json beside this checkout: nothing to read")
    return found / "bamboo" / "p3-trace.csv"


@pytest.fixture(scope="module")
def outcomes(p3: Path) -> dict[str, Outcome]:
    job, split = (formula_job(is_split=is_split) for is_split in (False, True))
    rows: dict[str, Policy] = {**rivals(job), **ours(split)}
    seen = event_files.read_csv(p3)
    events = list(fleet(seen, boot_ms=job.common.boot_ms, zone="a", capacity="spot"))
    terms = Terms(
        prices={("a", "spot"): 0.918},
        best_per_node=split.best_per_node,
        until_ms=seen[-1].at_ms,
    )
    return {name: run(policy, events, terms) for name, policy in rows.items() if name in PRINTED}


def per_second(outcome: Outcome) -> float:
    return outcome.samples / outcome.end_ms * 1000


def test_ratios_to_the_bound_are_within_a_tenth(outcomes: dict[str, Outcome]) -> None:
    bound = per_second(outcomes["bound"])
    off = {
        name: per_second(outcomes[name]) / bound / (printed / PRINTED["bound"]) - 1
        for name, printed in PRINTED.items()
    }
    assert {name: ratio for name, ratio in off.items() if abs(ratio) > 0.1} == {}
    assert bound == pytest.approx(PRINTED["bound"], rel=0.01)


def test_systems_that_are_a_tenth_apart_come_in_the_same_order(
    outcomes: dict[str, Outcome],
) -> None:
    apart = [pair for pair in combinations(PRINTED, 2) if is_apart(*(PRINTED[x] for x in pair))]
    assert len(apart) > 20
    wrong = [
        (first, second)
        for first, second in apart
        if (PRINTED[first] < PRINTED[second])
        != (per_second(outcomes[first]) < per_second(outcomes[second]))
    ]
    assert wrong == []


def is_apart(first: float, second: float) -> bool:
    return max(first, second) > 1.1 * min(first, second)


def test_restarts_pause_a_quarter_of_the_time_and_reroutes_hardly_ever(
    outcomes: dict[str, Outcome],
) -> None:
    paused = {name: outcome.share(Activity.PAUSED) for name, outcome in outcomes.items()}
    assert 0.2 < paused["checkpoint"] < paused["varuna"] < 0.4
    assert paused["bound"] == 0
    assert all(
        paused[name] < 0.05 for name in paused if name.startswith(("ours", "recycle", "oobleck"))
    )


def test_fatal_failures_are_those_of_bamboo(outcomes: dict[str, Outcome]) -> None:
    fatal = {name: outcome.fatal for name, outcome in outcomes.items()}
    assert fatal["bamboo, eager"] >= 5
    assert fatal["ours, Replica, Diffuse"] == fatal["checkpoint"] == fatal["varuna"] == 0
