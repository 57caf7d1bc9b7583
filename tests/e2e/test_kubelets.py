"""A BambooJob on real kubelets, where they can be had: pods of images, with their own networks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bamboo_cli import local_cluster
from bamboo_devcluster.cluster import Cluster, Options
from bamboo_devcluster.spec import spread_nodes
from bamboo_devcluster.testing import need_kubelets

from .conftest import CHECKOUT, RecordedCluster
from .test_job import from_apply_to_delete

pytestmark = pytest.mark.timeout(300)
_RUN = [sys.executable, "-P", "-m"]
_IMAGES = {
    "bamboo-agent:test": "bamboo_agent",
    "bamboo-operator:test": "bamboo_operator",
}


@pytest.fixture(scope="module")
def kubelets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedCluster]:
    """Three kubelet nodes in three zones; the chart is installed. Images link to this Python."""
    home = tmp_path_factory.mktemp("e2e-kubelets")
    need_kubelets(home)
    images = [
        {"image": name, "command": [*_RUN, module], "user": "65532:65532"}
        for name, module in _IMAGES.items()
    ]
    with Cluster.up(
        home / "cluster",
        nodes=spread_nodes(3, ["zone-a", "zone-b", "zone-c"]),
        images={"images": images},
        options=Options(node_kind="kubelet"),
    ) as cluster:
        programs = local_cluster.make_programs(cluster, home)
        local_cluster.install(
            programs,
            CHECKOUT / "charts/bamboo",
            image__repository="bamboo-operator",
            image__tag="test",
        )
        yield RecordedCluster(cluster, programs, home / "checkpoints", records=Path(home / "none"))


def test_a_job_on_kubelets_from_apply_to_delete(kubelets: RecordedCluster) -> None:
    with kubelets.user() as user:
        from_apply_to_delete(user)
