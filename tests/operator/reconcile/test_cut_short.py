"""Agents that connect and are then ended by somebody else, as the operator sees them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from bamboo_core.api.events import EventReason
from bamboo_core.protocol.messages import Notice
from bamboo_operator.kube import api

from ..harness import Harness
from ..objects import Object, node_object
from .test_failed_starts import MANY, SEATS, ended, report, runs

STARTS_S, LIVES_S = 10, 30


def finished(harness: Harness, code: int) -> Object:
    """The status of a pod whose agent ends now."""
    status = ended(code)
    at = datetime.fromtimestamp(harness.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    status["state"]["terminated"]["finishedAt"] = at
    return {"phase": "Succeeded" if code == 0 else "Failed", "containerStatuses": [status]}


async def live(
    harness: Harness,
    code: int,
    *words: Notice,
    starts_s: int = STARTS_S,
    lives_s: int = LIVES_S,
    seconds: int = 600,
    is_heard: Callable[[str], bool] = lambda _: True,
) -> list[str]:
    """Every agent runs at once, is heard after ``starts_s``, says this, and ends. is_heard: which
    are. Names of the pods that were made."""
    made: dict[str, float] = {}
    for _ in range(seconds // 2):
        await harness.reconcile()
        await harness.settle()
        for name in harness.pods():
            age_s = harness.now - made.setdefault(name, harness.now)
            if age_s == 0:
                report(harness, name, {"phase": "Running", "containerStatuses": [runs("agent")]})
            elif age_s == starts_s and is_heard(name):
                harness.hear(name, *words)
            elif age_s == starts_s + lives_s:
                report(harness, name, finished(harness, code))
        harness.now += 2.0
    return sorted(made)


@pytest.mark.parametrize("code", [0, 3, 137])
async def test_agents_that_end_without_an_order_come_more_and_more_slowly(
    code: int, harness: Harness
) -> None:
    """A liveness probe, and a command that ends before its agent does."""
    harness.apply(**MANY)
    made = await live(harness, code)
    assert SEATS < len(made) <= 6 * SEATS
    assert made == harness.pods(), "their logs are kept"
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
    for _ in range(64):  # a killed one is judged after a minute
        await harness.reconcile()
        await harness.settle()
        harness.now += 1.0
    (second,) = harness.pods()
    assert second == "job-p0-s0-i1"


@pytest.mark.parametrize("code", [0, 137, 143])
@pytest.mark.parametrize("source", ["Gce", "Ec2", ""])
async def test_a_notice_that_no_node_confirms_excuses_no_start(
    source: str, code: int, harness: Harness
) -> None:
    """An agent says before the first plan that it leaves, and is killed."""
    harness.apply(**MANY)
    made = await live(harness, code, Notice(30.0, "it says so", source))
    assert SEATS < len(made) <= 6 * SEATS
    assert made == harness.pods(), "their logs are kept"
    said = harness.condition("Stalled")
    assert (said["status"], said["reason"]) == ("True", "StartsFail")
    assert any(x.reason is EventReason.START_FAILED for x in harness.records)


@pytest.mark.parametrize("code", [0, 137, 143])
async def test_a_probe_that_ends_agents_now_before_and_now_after_they_are_heard(
    code: int, harness: Harness
) -> None:
    """Every second round of agents is heard, gets SIGTERM at once, and ends 2 s later."""
    harness.apply(**MANY)
    signal = Notice(30.0, "the agent got SIGTERM", "")
    made = await live(
        harness, code, signal, starts_s=2, lives_s=2, is_heard=lambda name: int(name[-1]) % 2 == 0
    )
    assert 3 * SEATS <= len(made) <= 6 * SEATS
    said = harness.condition("Stalled")
    assert (said["status"], said["reason"]) == ("True", "StartsFail")


async def test_a_notice_that_nodes_confirm_costs_no_pause(harness: Harness) -> None:
    """The taint comes after the agents' word, and the node goes later than they."""
    harness.apply(**MANY)
    await live(harness, 143, Notice(30.0, "preempted", "Gce"), seconds=STARTS_S + 4)
    for zone in "abc":
        node = node_object(f"node-{zone}", zone)
        taint = {"key": "cloud.google.com/impending-node-termination", "effect": "NoSchedule"}
        node["spec"]["taints"] = [taint]
        harness.kube.put(f"{api.nodes()}/node-{zone}", node)
    harness.nodes.changed()
    for name in harness.pods()[:SEATS]:
        report(harness, name, finished(harness, 143))
    for _ in range(130):
        await harness.reconcile()
        harness.now += 2.0
    assert harness.status["failures"]["total"] == 0


@pytest.mark.parametrize("code", [0, 3, 137, 143])
async def test_an_agent_that_an_earlier_operator_has_heard_did_not_fail_to_start(
    code: int, harness: Harness
) -> None:
    """It is ended while nobody leads, before the first plan: the durable facts do not name it."""
    harness.apply(**MANY)
    await harness.reconcile()
    first, second = harness.pods()
    harness.hear(first)
    await harness.reconcile()
    fresh = Harness()
    fresh.kube.objects, fresh.now = harness.kube.objects, harness.now + 30.0
    for name in (first, second):
        report(fresh, name, finished(fresh, code))
    fresh.now += 10.0
    await fresh.reconcile()
    assert fresh.status["failures"]["total"] == 1
    assert fresh.status["failures"]["starts"]["slots"] == "0-1", "nobody has heard this one"
    fresh.now += 1.0
    await fresh.reconcile()
    assert "job-p0-s0-i1" in fresh.pods()
    assert "job-p0-s1-i1" not in fresh.pods()
