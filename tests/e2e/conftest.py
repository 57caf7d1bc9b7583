"""One development cluster with Bamboo installed from its chart, for all end-to-end tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bamboo_cli import local_cluster
from bamboo_cli.job import Job
from bamboo_devcluster import binaries
from bamboo_devcluster.cluster import Cluster
from bamboo_sim.protocol.fleet.logs import divergences, non_empty_logs

from .jobs import STEPS, User, tiny_job

CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass
class RecordedCluster(local_cluster.LocalCluster):
    """A local cluster whose agents record their events below ``records``."""

    records: Path = Path()

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


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedCluster]:
    """Nine GPU nodes in three zones, one node for the operator; the chart is installed."""
    binaries.ensure(print)
    home = tmp_path_factory.mktemp("e2e")
    nodes = local_cluster.gpu_nodes(9, 3)
    with Cluster.up(home / "cluster", nodes=nodes, images=local_cluster.image_map()) as cluster:
        programs = local_cluster.make_programs(cluster, home)
        records = home / "records"
        local_cluster.install(
            programs, CHECKOUT / "charts/bamboo", agents__eventLogDirectory=str(records)
        )
        yield RecordedCluster(cluster, programs, home / "checkpoints", records=records)


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


@pytest.fixture(scope="session")
def calm(local: RecordedCluster, spec: dict[str, Any]) -> Iterator[Job]:
    """The same job, undisturbed; the others must end with its bits."""
    with local.user() as user:
        user.apply(tiny_job("calm", **spec))
        job = user.until_ended("calm")
        assert (job.ended, job.lost) == ("Complete", 0), user.news(job)
        yield job
