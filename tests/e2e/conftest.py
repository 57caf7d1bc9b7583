"""One development cluster with Bamboo installed from its chart, for all end-to-end tests.

The values are those for GKE, with what the development cluster needs on top.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bamboo_agent.setup.channel import GROUP_FLOOR_VARIABLE
from bamboo_cli.job.state import Job
from bamboo_cli.quickstart import local_cluster
from bamboo_devcluster import object_store
from bamboo_devcluster.cluster import Cluster, Options
from bamboo_devcluster.object_store import ObjectStore
from bamboo_devcluster.programs import binaries
from bamboo_devcluster.spec import NodeSpec
from bamboo_sim.fleet.logs.event_logs import divergences, non_empty_logs

from .jobs import STEPS, Gate, User, tiny_job

CHECKOUT = Path(__file__).resolve().parents[2]
CHART = CHECKOUT / "charts/bamboo"
SPOT = {"cloud.google.com/gke-spot": "true"}
"""The label of GKE's spot nodes."""
PRICES = [{"labels": SPOT, "dollarsPerHour": 1.25, "onDemandDollarsPerHour": 4}]


@dataclass
class RecordedCluster(local_cluster.LocalCluster):
    """A local cluster whose agents record their events below ``records``."""

    records: Path = Path()
    values: tuple[Path, ...] = ()  # files with values of the chart
    services: Path = Path()  # a file with the addresses of the pods behind all Services

    def install(self) -> None:
        """Install the chart."""
        local_cluster.install(self.programs, CHART, self.values)

    @contextmanager
    def user(self) -> Iterator[User]:
        """A user with a temporary namespace. AssertionError at the end if an agent in it has
        answered differently from the core's state machines."""
        name = f"e2e-{uuid.uuid4().hex[:6]}"
        self.programs.kubectl("create", "namespace", name)
        yield User(self.programs, name, self.records / name)
        self.programs.kubectl("delete", "namespace", name, "--wait=false")
        for folder in (self.records / name).glob("*/*"):
            if non_empty_logs(folder) and non_empty_logs(folder / "supervisors"):
                assert divergences(folder) == []


def machines() -> list[NodeSpec]:
    """Nine GPU nodes in three zones, one node for the operator."""
    system, *gpu = local_cluster.gpu_nodes(9, 3)
    return [system, *(replace(spec, labels=SPOT) for spec in gpu)]


RESOLVER = """
import socket
usual = socket.getaddrinfo
def getaddrinfo(host, *more, **options):
    hosts = open(SERVICES).read().split() if str(host).endswith(".svc") else [host]
    return [each for host in hosts for each in usual(host, *more, **options)]
socket.getaddrinfo = getaddrinfo
"""


def images(services: Path) -> Mapping[str, Any]:
    """The commands of the images. Python in the operator's image finds Services in a file, since
    the development cluster has no DNS. Process groups carry tensors of any size: these jobs have
    small ones, and a module of the user's."""
    folder = services.with_suffix(".path")
    folder.mkdir()
    text = RESOLVER.replace("SERVICES", repr(str(services)))
    (folder / "sitecustomize.py").write_text(text)
    found = dict(local_cluster.image_map())
    operator, agent = found["images"]
    operator = operator | {"env": {"PYTHONPATH": str(folder)}}
    ours = {GROUP_FLOOR_VARIABLE: "1", "PYTHONPATH": str(Path(__file__).with_name("user_code"))}
    return {"images": [operator, agent | {"env": agent["env"] | ours}]}


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedCluster]:
    """The cluster; the chart is installed."""
    binaries.ensure(print)
    home = tmp_path_factory.mktemp("e2e")
    services = home / "services"
    options = Options(images=images(services), audit=True)
    with Cluster.up(home / "cluster", nodes=machines(), options=options) as cluster:
        programs = local_cluster.make_programs(cluster, home)
        records, ours = home / "records", home / "values.yaml"
        ours.write_text(
            json.dumps({"prices": PRICES, "agents": {"eventLogDirectory": str(records)}})
        )
        found = RecordedCluster(
            cluster, programs, home / "checkpoints",
            records=records, values=(CHART / "values/gke-spot.yaml", ours), services=services,
        )  # fmt: skip
        found.install()
        yield found


@pytest.fixture
def user(local: RecordedCluster) -> Iterator[User]:
    """A user for one test."""
    with local.user() as user:
        yield user


@pytest.fixture(scope="module")
def guest(local: RecordedCluster) -> Iterator[User]:
    """A user shared by the tests of a module."""
    with local.user() as user:
        yield user


@pytest.fixture(scope="session")
def spec(local: RecordedCluster) -> dict[str, Any]:
    """The spec of a job that loses agents."""
    return {
        "training": {"steps": STEPS, "validateEvery": 50},
        "pipelines": {"count": 2, "stages": 2},
        "redundancy": {"mode": "Replica"},
        "checkpoint": {"uri": f"file://{local.checkpoints}"},
    }


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """It is closed."""
    return Gate(tmp_path / "gate")


@pytest.fixture(scope="session")
def calm(local: RecordedCluster, spec: dict[str, Any]) -> Iterator[Job]:
    """The same job, undisturbed; the others must end with its bits."""
    with local.user() as user:
        user.apply(tiny_job("calm", **spec))
        job = user.until_ended("calm")
        assert (job.ended, job.lost) == ("Complete", 0), user.news(job)
        yield job


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """The server, with a user who has no rights."""
    with object_store.running(tmp_path_factory.mktemp("s3") / "server") as store:
        store.add_user("guest", "a-secret-of-a-guest")
        yield store


@pytest.fixture
def lost_nodes(local: RecordedCluster) -> Iterator[list[str]]:
    """Nodes that the test kills; they are replaced after the test."""
    lost: list[str] = []
    yield lost
    for spec in machines():
        if spec.name in lost:
            local.cluster.add_node(spec)
