"""Agents that connect and are then ended by somebody else, as the operator sees them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ..harness import Harness
from ..objects import Object
from .test_failed_starts import MANY, SEATS, ended, report, runs

STARTS_S, LIVES_S = 10, 30


def finished(harness: Harness, code: int) -> Object:
    """The status of a pod whose agent ends now."""
    status = ended(code)
    at = datetime.fromtimestamp(harness.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    status["state"]["terminated"]["finishedAt"] = at
    return {"phase": "Succeeded" if code == 0 else "Failed", "containerStatuses": [status]}


@pytest.mark.parametrize("code", [0, 3, 137])
async def test_agents_that_end_without_an_order_come_more_and_more_slowly(
    code: int, harness: Harness
) -> None:
    """A liveness probe, and a command that ends before its agent does."""
    harness.apply(**MANY)
    made: dict[str, float] = {}
    for _ in range(300):
        await harness.reconcile()
        await harness.settle()
        for name in harness.pods():
            age_s = harness.now - made.setdefault(name, harness.now)
            if age_s == 0:
                report(harness, name, {"phase": "Running", "containerStatuses": [runs("agent")]})
            elif age_s == STARTS_S:
                harness.hear(name)
            elif age_s == STARTS_S + LIVES_S:
                report(harness, name, finished(harness, code))
        harness.now += 2.0
    assert SEATS < len(made) <= 6 * SEATS
    assert sorted(made) == harness.pods(), "their logs are kept"
    said = harness.condition("Stalled")
    assert (said["status"], said["reason"]) == ("True", "StartsFail")
    assert f"exit code {code}" in said["message"]


@pytest.mark.parametrize("code", [1, 137, 143])
async def test_the_only_agent_that_ends_beside_a_sidecar_is_replaced_and_frees_its_node(
    code: int, harness: Harness
) -> None:
    """Nobody else tells of its loss, and its pod runs on."""
    harness.apply(pipelines={"count": 1, "stages": 1})
    await harness.reconcile()
    (first,) = harness.pods()
    both = {"phase": "Running", "containerStatuses": [runs("agent"), runs("proxy")]}
    report(harness, first, both)
    harness.hear(first)
    await harness.reconcile()
    await harness.settle()
    assert harness.pods() == [first]
    ended_here = finished(harness, code) | {"phase": "Running"}
    ended_here["containerStatuses"].append(runs("proxy"))
    report(harness, first, ended_here)
    for _ in range(60):
        await harness.reconcile()
        await harness.settle()
        harness.now += 1.0
    (second,) = harness.pods()
    assert second == "job-p0-s0-i1"
