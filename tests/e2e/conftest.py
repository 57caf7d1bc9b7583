"""One development cluster with Bamboo installed from its chart, for all end-to-end tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from bamboo_cli import playground as grounds
from bamboo_devcluster import binaries
from bamboo_devcluster.cluster import Cluster

from .jobs import User

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[grounds.Playground]:
    """Nine GPU nodes in three zones, one node for the operator; the chart is installed."""
    binaries.ensure(print)
    home = tmp_path_factory.mktemp("e2e")
    nodes = grounds.gpu_nodes(9, 3)
    with Cluster.up(home / "cluster", nodes=nodes, images=grounds.image_map()) as cluster:
        programs = grounds.make_programs(cluster, home)
        grounds.install(programs, CHECKOUT / "charts/bamboo")
        yield grounds.Playground(cluster, programs, home / "checkpoints")


@pytest.fixture
def user(ground: grounds.Playground) -> Iterator[User]:
    """A user with a namespace of their own, which is gone afterwards."""
    name = f"e2e-{uuid.uuid4().hex[:6]}"
    ground.programs.kubectl("create", "namespace", name)
    yield User(ground.programs, name)
    ground.programs.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def checkpoint(ground: grounds.Playground) -> dict[str, object]:
    """spec.checkpoint that keeps what a test wants to compare."""
    return {"uri": f"file://{ground.checkpoints}"}
