"""The pods that the operator makes, as the real scheduler understands them: from zero nodes, out of
a full zone, and on on-demand nodes."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from bamboo_core.controller import dry_zones, reconcile
from bamboo_core.controller.pod_zones import ZONE_LABEL
from bamboo_devcluster.cluster import Cluster
from bamboo_devcluster.spec import NodeSpec
from bamboo_operator.kube.labels import JOB_LABEL, ON_DEMAND_ANNOTATION

from .operators import Running, until

POOL = "pool"
PAUSE_S = 1.0
"""A pod waits so long in vain before it moves."""


@dataclass
class Machines:
    """Nodes of one GPU each, which no other test uses."""

    cluster: Cluster
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:6])
    names: list[str] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def pool(self, name: str = "spot") -> dict[str, str]:
        """Labels of the nodes of a pool."""
        return {POOL: f"{name}-{self.name}"}

    def zone(self, name: str) -> str:
        return f"{name}-{self.name}"

    async def add(self, zone: str, pool: str = "spot") -> str:
        """The name of the new node."""
        name = f"node-{self.name}-{next(self._numbers)}"
        node = NodeSpec(
            name, zone=self.zone(zone), spot=pool == "spot", gpus=1, labels=self.pool(pool)
        )
        await asyncio.to_thread(self.cluster.add_node, node)
        self.names.append(name)
        return name

    async def remove(self, name: str) -> None:
        await asyncio.to_thread(self.cluster.remove_node, name)
        self.names.remove(name)


@pytest_asyncio.fixture
async def machines(devcluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Machines]:
    monkeypatch.setattr(reconcile, "MOVE_AFTER_S", PAUSE_S)
    monkeypatch.setattr(dry_zones, "REFUSED_S", PAUSE_S)
    found = Machines(devcluster)
    yield found
    for name in list(found.names):
        await found.remove(name)


def agent(**spec: Any) -> dict[str, Any]:
    """The worker of a job: one GPU for each agent."""
    template = {"podTemplate": {"spec": spec}} if spec else {}
    return {"resources": {"limits": {"nvidia.com/gpu": 1}}} | template


async def placed(operator: Running) -> dict[str, dict[str, Any]]:
    """Node -> the pod that the scheduler has put there."""
    pods = [pod for pod in await operator.pods() if "deletionTimestamp" not in pod["metadata"]]
    return {pod["spec"]["nodeName"]: pod for pod in pods if pod["spec"].get("nodeName")}


async def until_placed(operator: Running, *nodes: str) -> dict[str, dict[str, Any]]:
    async def are_there() -> dict[str, dict[str, Any]] | None:
        found = await placed(operator)
        return found if found.keys() == set(nodes) else None

    found: dict[str, dict[str, Any]] = await until(are_there, timeout_s=60.0)
    return found


async def test_from_zero_nodes_without_names_of_zones(
    operator: Running, machines: Machines
) -> None:
    """Two pods show zones, and the others follow. Later one goes where a neighbour is: agents take
    seats by their zones, so two of four may share one."""
    worker = agent(nodeSelector=machines.pool())
    await operator.apply(pipelines={"count": 1, "stages": 4}, worker=worker)

    async def two() -> bool:
        return len(await operator.pods()) == 2

    await until(two)
    first = await machines.add("a")
    await until_placed(operator, first)
    zones = {first: "a"} | {await machines.add(zone): zone for zone in "abc"}
    await until_placed(operator, *zones)

    lost = next(node for node, zone in zones.items() if zone == "a" and node != first)
    await machines.remove(lost)
    came = await machines.add("b")  # the only room
    await until_placed(operator, *{*zones} - {lost}, came)


@pytest.mark.rotating(2)
async def test_a_pod_moves_to_the_zone_of_its_neighbours_if_only_that_one_has_room(
    operator: Running, machines: Machines
) -> None:
    """The ring runs in a, b, a, c. One node of a goes, and one of b comes."""
    nodes = [await machines.add(zone) for zone in "aabc"]
    zones = [machines.zone(zone) for zone in "abc"]
    await operator.apply(
        pipelines={"count": 1, "stages": 4},
        worker=agent(nodeSelector=machines.pool()),
        placement={"zones": zones},
    )
    await until_placed(operator, *nodes)
    await machines.remove(nodes[0])
    await until_placed(operator, *nodes[1:])
    came = await machines.add("b")
    found = await until_placed(operator, *nodes[1:], came)
    assert found[came]["spec"]["nodeSelector"][ZONE_LABEL] == machines.zone("b")


@pytest.mark.rotating(2)
async def test_agents_use_on_demand_nodes_of_another_pool_when_spot_is_dry(
    operator: Running, machines: Machines
) -> None:
    spot, plain = await machines.add("a"), await machines.add("b", "plain")
    zones = [machines.zone(zone) for zone in "ab"]
    await operator.apply(
        pipelines={"count": 1, "stages": 2},
        worker=agent(),
        placement={
            "pools": [{"zones": zones, "nodeSelector": machines.pool()}],
            "onDemand": {
                "afterSeconds": 2,
                "maxShare": 0.5,
                "nodeSelector": machines.pool("plain"),
            },
        },
    )
    await until_placed(operator, spot)
    found = await until_placed(operator, spot, plain)
    marks = [found[x]["metadata"].get("annotations", {}).get(ON_DEMAND_ANNOTATION)
             for x in (spot, plain)]  # fmt: skip
    assert marks == [None, "true"]

    async def is_enough() -> bool:
        return (await operator.condition("CapacityAvailable")).get("status") == "True"

    await until(is_enough)


@pytest.mark.rotating(2)
async def test_a_job_that_gives_its_pods_back_leaves_the_room_to_the_one_that_needs_it(
    operator: Running, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler would give the room to whoever makes pods first, again and again."""
    monkeypatch.undo()
    await machines.add("b")
    await machines.add("b")
    await machines.add("c")
    where = {"placement": {"zones": [machines.zone(zone) for zone in "abc"]}}
    worker = agent(nodeSelector=machines.pool())
    await operator.apply(pipelines={"count": 4, "stages": 2, "min": 3}, worker=worker, **where)
    await until_placed(operator, *machines.names)
    urgent = f"urgent-{machines.name}"
    await operator.admin.create(
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {"metadata": {"name": urgent}, "value": 1000, "preemptionPolicy": "Never"},
    )
    worker = agent(nodeSelector=machines.pool(), priorityClassName=urgent)
    pipelines = {"count": 1, "stages": 2}
    await operator.apply(name="small", pipelines=pipelines, worker=worker, **where)

    async def owners() -> list[str]:
        found = (await placed(operator)).values()
        return sorted(pod["metadata"]["labels"][JOB_LABEL] for pod in found)

    async def has_started() -> bool:
        return (await owners()).count("small") == 2

    await until(has_started, timeout_s=60.0)

    async def asks_again() -> bool:
        return await owners() == ["job", "small", "small"]

    await until(asks_again, timeout_s=60.0)
    numbers = [int(pod["metadata"]["name"].rpartition("i")[2]) for pod in await operator.pods()]
    assert max(numbers) < 8  # pods are moved, but not made and deleted over and over
