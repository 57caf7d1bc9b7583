"""Prices of the chart, and the cost of a job in its status."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_operator.kube import api
from bamboo_operator.money import cost, prices
from bamboo_operator.money.prices import Pool

from ..harness import AGENTS, Harness
from ..objects import node_object
from ..status.test_totals import LABELS, exported

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
