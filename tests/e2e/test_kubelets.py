"""BambooJobs on real kubelets, where they can be had: pods of images, with their own networks.

The images link to this machine's Python, or are those of the Dockerfiles: `scripts/images FOLDER`
builds these, and BAMBOO_IMAGES names the folder.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bamboo_cli.job.state import Job
from bamboo_cli.quickstart import local_cluster
from bamboo_cli.quickstart.local_cluster import LocalCluster
from bamboo_core import __version__
from bamboo_devcluster.cluster import Cluster, Options
from bamboo_devcluster.spec import spread_nodes
from bamboo_devcluster.testing import need_kubelets

from .conftest import RecordedCluster
from .jobs import STEPS, Object, User, merge, tiny_job
from .operators import Operator
from .test_job import from_apply_to_delete
from .test_losses import LossChecks, check_equal

FOLDER = "BAMBOO_IMAGES"
USER = 65532  # of both images
pytestmark = pytest.mark.timeout(900)  # kubelet nodes import archives of some GB


@dataclass
class KubeletCluster(RecordedCluster):
    """A cluster of kubelet nodes. agent: the agents' image."""

    agent: str = ""

    def spec(self, **more: Any) -> Object:
        """The spec of a job whose agents have this cluster's image."""
        spec: Object = {"worker": {"image": self.agent}}
        merge(spec, more)
        return spec


@dataclass(frozen=True)
class Images:
    """The images of a cluster: links to this machine, or archives."""

    tag: str
    links: tuple[Object, ...] = ()
    archives: tuple[Path, ...] = ()


def linked() -> Images:
    """Images that link to this Python and its packages."""
    run = [sys.executable, "-P", "-m"]
    return Images(
        tag="test",
        links=tuple(
            {
                "image": f"bamboo-{part}:test",
                "command": [*run, f"bamboo_{part}"],
                "user": f"{USER}:{USER}",
            }
            for part in ("operator", "agent")
        ),
    )


def built() -> Images:
    """The images of the Dockerfiles; skips where there are none."""
    folder = os.environ.get(FOLDER)
    if not folder:
        pytest.skip(f"{FOLDER} names no folder with images; `scripts/images FOLDER` builds them")
    archives = tuple(Path(folder) / f"bamboo-{part}.tar" for part in ("operator", "agent"))
    return Images(tag=__version__, archives=archives)


@pytest.fixture(scope="module", params=[linked, built], ids=["linked", "built"])
def kubelets(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KubeletCluster]:
    """Three kubelet nodes in three zones; the chart is installed."""
    home = tmp_path_factory.mktemp("e2e-kubelets")
    need_kubelets(home)
    images: Images = request.param()
    values = home / "values.yaml"
    values.write_text(json.dumps({"image": {"tag": images.tag}}))
    with Cluster.up(
        home / "cluster",
        nodes=spread_nodes(3, ["zone-a", "zone-b", "zone-c"]),
        images={"images": list(images.links)},
        options=Options(node_kind="kubelet", image_archives=images.archives),
    ) as cluster:
        programs = local_cluster.make_programs(cluster, home)
        found = KubeletCluster(
            cluster, programs, home / "checkpoints",
            records=home / "none", values=(values,), agent=f"bamboo-agent:{images.tag}",
        )  # fmt: skip
        found.install()
        yield found


def shared_folder(user: User, local: LocalCluster) -> Object:
    """A pod template whose agents share this machine's folder for checkpoints, through a claim."""
    folder = local.checkpoints
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)  # for the user of the image
    amount = {"storage": "1Gi"}
    volume = {
        "capacity": amount,
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "hostPath": {"path": str(folder)},
    }
    claim = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "volumeName": user.namespace,
        "resources": {"requests": amount},
    }
    for kind, spec in (("PersistentVolume", volume), ("PersistentVolumeClaim", claim)):
        metadata = {"name": user.namespace}
        user.apply({"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec})
    mount = {"name": "shared", "mountPath": str(folder)}
    source = {"persistentVolumeClaim": {"claimName": user.namespace}}
    return {
        "spec": {
            "containers": [{"name": "agent", "volumeMounts": [mount]}],
            "volumes": [{"name": "shared", **source}],
        }
    }


def test_a_job_on_kubelets_from_apply_to_delete(kubelets: KubeletCluster) -> None:
    with kubelets.user() as user:
        from_apply_to_delete(user, **kubelets.spec())


@dataclass(frozen=True)
class Pair:
    """A job of two agents, and the undisturbed job that it must equal."""

    user: User
    checks: LossChecks
    calm: Job

    def ends_equal(self) -> None:
        """It completes, and no bit differs."""
        check_equal(self.user.until_ended("hit", timeout_s=200), self.calm)


@pytest.fixture
def pair(kubelets: KubeletCluster) -> Iterator[Pair]:
    """The undisturbed job has ended, and the other is training."""
    with kubelets.user() as user:
        spec = kubelets.spec(
            training={"steps": STEPS, "validateEvery": 50},
            redundancy={"mode": "Replica"},
            checkpoint={"uri": f"file://{kubelets.checkpoints}"},
            worker={"podTemplate": shared_folder(user, kubelets)},
        )
        user.apply(tiny_job("calm", **spec))
        calm = user.until_ended("calm", timeout_s=200)
        assert (calm.ended, calm.lost) == ("Complete", 0), user.news(calm)
        user.apply(tiny_job("hit", **spec))
        checks = LossChecks(user, Operator(kubelets), "hit")
        checks.await_first_step()
        yield Pair(user, checks, calm)


def test_a_node_that_does_not_reach_another_changes_no_bit(
    kubelets: KubeletCluster, pair: Pair
) -> None:
    """Packets from one agent's node to the other's are lost, and those in return are not."""
    one, other = (pair.checks.seat(0, stage).node for stage in (0, 1))
    kubelets.cluster.cut_node(one, other)
    pair.user.until("hit", lambda job: job.lost > 0 or job.ended is not None)
    kubelets.cluster.heal_node(one, other)
    job = pair.user.job("hit")
    assert job.lost, pair.user.news(job)
    pair.ends_equal()


def test_a_lost_kubelet_changes_no_bit(kubelets: KubeletCluster, pair: Pair) -> None:
    """The node of one of two agents vanishes; its replacement starts on the third node."""
    (pod,) = Operator(kubelets).pods()
    both = (pair.checks.seat(0, 0), pair.checks.seat(0, 1))
    victim = next(seat for seat in both if seat.node != pod["spec"]["nodeName"])
    kubelets.cluster.kill_node(victim.node)
    pair.checks.check(victim.pod, "AgentLost", noticed=False)
    pair.ends_equal()
