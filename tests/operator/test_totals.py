"""Counters and times in the job's status: they survive an operator, and never go back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import generate_latest

from bamboo_core.api.progress import Ahead, Hosted, Way
from bamboo_core.api.totals import Pauses, Times, TimeState, Totals
from bamboo_operator import api, cost, prices, totals
from bamboo_operator.metrics.registry import Metrics
from bamboo_operator.prices import Pool
from bamboo_operator.status_writer import PROGRESS_S

from .harness import AGENTS, Harness
from .objects import node_object

LABELS = 'job_namespace="ns",training_job="job"'
FULL = Totals(
    steps=7,
    repeated_steps=2,
    redone_tasks=3,
    busy_s=1.25,
    sent_bytes=1 << 40,
    group_bytes=1 << 39,
    corruptions=1,
    stalls={"WaitCycle": 2},
    pauses={"Loss": Pauses(2, {"Stop": 0.5, "Plan": 0.25}), "Stall": Pauses(1)},
    sent={Way("Sums", "a", "b"): 1 << 40, Way("Copies", "b", "b"): 3},
    ahead=Ahead(1, 2, 3, 4, 0.5, 5, 6),
    hosted=Hosted(5, 6, 7, 0.25),
)


def test_totals_can_be_read_again() -> None:
    status = {"totals": totals.write(FULL)}
    assert totals.read(status) == FULL
    assert totals.read({}) == Totals()
    assert totals.write(Totals()) is None


def test_an_agents_word_fits_into_the_status() -> None:
    """The API server refuses larger integers, and with them the whole status."""
    written = totals.write(Totals(sent={Way("Sums", "a", "b"): 1 << 64}, ahead=Ahead(1 << 64)))
    assert written is not None
    assert written["sent"][0]["bytes"] == written["ahead"]["slices"] == (1 << 63) - 1


def test_times_can_be_read_again() -> None:
    times = Times(TimeState.TRAINING, 1234.5, {"Waiting": 10.0})
    assert totals.read_times({"times": totals.write_times(times)}) == times
    assert totals.read_times({}) == Times()
    assert totals.write_times(Times()) is None
    assert totals.read_times({"times": {"state": "Flying"}}).state is None


def test_time_goes_on_while_no_operator_lives() -> None:
    times = Times(TimeState.TRAINING, 100.0, {"Waiting": 10.0})
    assert times.until(130.0) == {"Waiting": 10.0, "Training": 30.0}
    assert times.until(90.0) == {"Waiting": 10.0, "Training": 0.0}
    after = times.entered(TimeState.ENDED, 130.0)
    assert after.until(1e6) == {"Waiting": 10.0, "Training": 30.0}
    assert times.entered(TimeState.TRAINING, 130.0) is times


async def test_another_operator_goes_on_from_the_status(harness: Harness) -> None:
    harness.apply()
    await harness.reconcile()
    harness.status["totals"] = totals.write(FULL)
    assert 'bamboo_job_time_seconds_total{job_namespace="ns",state="Waiting"' in exported(harness)
    other = Harness()
    other.kube.objects, other.now = harness.kube.objects, harness.now + 50
    await other.reconcile()
    text = exported(other)
    assert f"bamboo_job_steps_total{{{LABELS}}} 7.0" in text
    assert f'bamboo_stalls_total{{cause="WaitCycle",{LABELS}}} 2.0' in text
    assert f'bamboo_job_pauses_total{{cause="Loss",{LABELS}}} 2.0' in text
    assert f"bamboo_job_busy_seconds_total{{{LABELS}}} 1.25" in text
    assert f"bamboo_job_slices_ahead_total{{{LABELS}}} 1.0" in text
    assert f"bamboo_job_replica_copied_bytes_total{{{LABELS}}} 7.0" in text
    assert 'lane="Copies",to_zone="b",training_job="job"} 3.0' in text
    assert 'state="Waiting",training_job="job"} 50.0' in text
    assert other.status["totals"] == totals.write(FULL)


async def test_counters_show_what_is_written(harness: Harness) -> None:
    """Otherwise they would go back when the operator is restarted before the next write."""
    harness.apply()
    await harness.reconcile()
    await harness.reconcile()
    actor = harness.jobs.find("uid-1")
    assert actor is not None
    counting = actor._leadership._counting
    counting.totals = FULL
    harness.now += 1
    await harness.reconcile()
    assert "totals" not in harness.status
    assert f"bamboo_job_steps_total{{{LABELS}}} 0.0" in exported(harness)
    harness.now += PROGRESS_S
    await harness.reconcile()
    assert harness.status["totals"] == totals.write(FULL)
    assert f"bamboo_job_steps_total{{{LABELS}}} 7.0" in exported(harness)


def exported(harness: Harness) -> str:
    figures = harness.reconciler.shown.figures.values()
    metrics = Metrics(lambda: figures, clock=lambda: harness.now)
    return generate_latest(metrics.registry).decode()


GKE = "cloud.google.com/gke-nodepool"
ZONED = {"zone": "a", "topology.kubernetes.io/zone": "z"}
SPOT = Pool({"pool": "spot"}, 1.0, 3.0)
ALL = Pool({"zone": "a"}, 2.0, 2.0)


@pytest.mark.parametrize(
    ("pools", "used", "expected"),
    [
        ((), {"n1"}, None),
        ((SPOT,), (), prices.Rate()),
        ((SPOT,), ("n1", "n1", "n2"), prices.Rate(1.0, 3.0, 1, {"z": 1.0, "spot-a": 1.0})),
        ((SPOT, ALL), ("n1", "n2"), prices.Rate(3.0, 5.0, 0, {"z": 2.0, "spot-a": 1.0})),
        ((ALL, SPOT), ("n1", "n2"), prices.Rate(4.0, 4.0, 0, {"z": 2.0, "spot-a": 2.0})),
        ((SPOT,), ("gone",), prices.Rate()),
    ],
)
def test_a_job_pays_for_the_nodes_that_it_uses(
    pools: tuple[Pool, ...], used: tuple[str, ...], expected: prices.Rate | None
) -> None:
    nodes = [
        {"metadata": {"name": "n1", "labels": {"pool": "spot", **ZONED, GKE: "spot-a"}}},
        {"metadata": {"name": "n2", "labels": ZONED}},
        {"metadata": {"name": "n3"}},
    ]
    assert prices.rate(pools, nodes, used) == expected


def test_a_job_remembers_the_prices_of_the_pools_that_it_has_used() -> None:
    first = cost.write(prices.Rate(3.0, 5.0, 1, {"spot-a": 1.0, "z": 2.0}), {}, 0.0)
    assert first == {
        "dollarsPerHour": 3.0,
        "onDemandDollarsPerHour": 5.0,
        "dollars": 0.0,
        "onDemandDollars": 0.0,
        "since": "1970-01-01T00:00:00.000000Z",
        "unpricedNodes": 1,
        "pools": {"spot-a": 1.0, "z": 2.0},
    }
    ended = cost.write(prices.Rate(pools={"z": 2.5}), first, 0.0)
    assert ended is not None
    assert (ended["dollarsPerHour"], ended["pools"]) == (0.0, {"spot-a": 1.0, "z": 2.5})
    assert cost.write(None, first, 0.0) is None
    many = cost.write(prices.Rate(pools={f"p{n}": 1.0 for n in range(99)}), first, 0.0)
    assert many is not None
    assert len(many["pools"]) == 64  # as the custom resource allows


def test_a_job_adds_up_what_it_has_cost() -> None:
    """Also while no operator looks. Only a change of the rate is written; clocks may go back."""
    rates = {0.0: (3.0, 5.0), 3600.0: (3.0, 5.0), 7200.0: (1.5, 4.0), 9000.0: (0.0, 0.0)}
    written: api.Object = {}
    seen = []
    for at, (spot, on_demand) in rates.items():
        before, found = written, cost.write(prices.Rate(spot, on_demand), written, at)
        assert found is not None
        written = found
        seen.append((written["dollars"], written["onDemandDollars"], written == before))
    assert seen == [(0, 0, False), (0, 0, True), (6.0, 10.0, False), (6.75, 12.0, False)]
    for at in (0.0, 99_999.0):
        later = cost.write(prices.Rate(1.0, 1.0), written, at)
        assert later is not None
        assert (later["dollars"], later["onDemandDollars"]) == (6.75, 12.0)


async def test_the_status_says_what_the_job_costs(harness: Harness) -> None:
    reconciler = harness.reconciler
    reconciler._ports = replace(reconciler._ports, prices=(Pool({}, 1.5, 4.0),))
    harness.apply()
    await harness.reconcile()
    assert harness.status["cost"]["dollarsPerHour"] == 0.0  # no pod has a node yet
    assert f"bamboo_job_cost_dollars_per_hour{{{LABELS}}} 0.0" in exported(harness)


async def test_a_node_that_is_gone_costs_nothing_although_its_pod_is_still_there(
    harness: Harness,
) -> None:
    """The kubelet of a node that is gone ends no pod."""
    reconciler = harness.reconciler
    reconciler._ports = replace(reconciler._ports, prices=(Pool({}, 1.5, 4.0),))
    harness.apply()
    for agent, zone in zip(AGENTS, "ab", strict=True):
        harness.add_pod(agent, zone=zone)
    await harness.reconcile()
    assert harness.status["cost"]["dollarsPerHour"] == 3.0
    actor = harness.jobs.find("uid-1")
    assert actor is not None
    actor._leadership._dismissed.add(AGENTS[0])  # the arbiter goes on without it
    await harness.reconcile()
    assert harness.status["cost"]["dollarsPerHour"] == 1.5
    node = node_object("node-b", "b")
    node["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    harness.kube.put(f"{api.nodes()}/node-b", node)
    harness.nodes.changed()
    await harness.reconcile()
    assert harness.status["cost"]["dollarsPerHour"] == 0.0


def test_prices_of_the_chart() -> None:
    text = '[{"labels": {"pool": "spot"}, "dollarsPerHour": 1, "onDemandDollarsPerHour": 3}]'
    assert prices.parse(text) == (SPOT,)
    (pool,) = prices.parse('[{"labels": {"a": "b"}, "dollarsPerHour": 0.5}]')
    assert pool.on_demand_dollars_per_hour == 0.5
    assert prices.parse("") == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "is no JSON .*; give a list of pools"),
        ("{}", "is no list; give a list of pools"),
        ("[1]", r"prices\[0\] must be an object with dollarsPerHour, labels"),
        ('[{"label": {}}]', "must be an object with"),
        ('[{"labels": {}, "dollarsPerHour": 1}]', r"prices\[0\].labels must be labels"),
        ('[{"labels": {"a": 1}, "dollarsPerHour": 1}]', "labels must be labels"),
        ('[{"labels": {"a": "b"}}]', "dollarsPerHour None must be a number"),
        ('[{"labels": {"a": "b"}, "dollarsPerHour": -1}]', "-1 must be a number of at least 0"),
        ('[{"labels": {"a": "b"}, "dollarsPerHour": true}]', "True must be a number"),
        ('[{"labels": {"a": "b"}, "dollarsPerHour": 1, "onDemandDollarsPerHour": "x"}]', "'x'"),
    ],
)
def test_mistakes_in_prices_name_the_field(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        prices.parse(text)
