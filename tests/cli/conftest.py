"""Manifests as the API server returns them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from bamboo_core.arbiter_state.durable import Durable, to_json
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import Manifest

if TYPE_CHECKING:
    from tests.cli.fake_api import Server

Object = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def manifest() -> Object:
    """A running job of 2 x 3 agents that has lost two."""
    return {
        "metadata": {"namespace": "team", "name": "gpt", "uid": "u1"},
        "spec": {"pipelines": {"count": 2, "stages": 3}, "training": {"steps": 80}},
        "status": {
            "phase": "Running",
            "activePipelines": 2,
            "planEpoch": 3,
            "progress": {
                "step": 20, "steps": 80, "loss": "2.5", "validationLoss": "3.25",
                "samplesPerSecond": "64.5",
            },
            "losses": {"total": 2, "noticed": 1},
            "totals": {
                "repeatedSteps": 7,
                "pauses": [
                    {"cause": "Loss", "count": 3, "seconds": {"Stop": 1.25, "Plan": 1.0}},
                    {"cause": "Notice", "count": 1, "seconds": {"Resume": 2.0}},
                ],
            },
            "lastCheckpoint": {"step": 10, "path": "file:///tmp/x/10"},
            "conditions": [
                {"type": "Running", "status": "True", "reason": "TrainingStep", "message": ""},
                {"type": "Complete", "status": "False", "reason": "Idle"},
            ],
        },
    }  # fmt: skip


def make_node(name: str, zone: str, *, ready: bool = True) -> Object:
    return {
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
        "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}]},
    }


def make_pod(name: str, node: str = "", phase: str = "Running", **metadata: Any) -> Object:
    return {
        "metadata": {"name": name, "ownerReferences": [{"uid": "u1"}], **metadata},
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase},
    }


@pytest.fixture
def server(manifest: Object) -> Iterator[Server]:
    """An API server with the job ``manifest`` in namespace team."""
    from tests.cli.fake_api import serving

    with serving(manifest) as found:
        yield found


@pytest.fixture
def kubeconfig(server: Server, tmp_path: Path) -> Path:
    from tests.cli.fake_api import write_kubeconfig

    return write_kubeconfig(tmp_path / "config", server.server_address[1])


@pytest.fixture
def training(manifest: Object) -> Object:
    """A running job of 2 x 4 agents in mode Replica, whose plan is in its status; step 20."""
    spec = yaml.safe_load((ROOT / "examples/quickstart.yaml").read_text())["spec"]
    rows = [[AgentId(f"gpt-p{d}-s{s}-i0") for s in range(4)] for d in range(2)]
    agents = tuple(agent for row in rows for agent in row)
    durable = Durable(
        attempt=0,
        plan=Fence(0, 1, 3),
        members=agents,
        voters=agents,
        pipelines=tuple(tuple(row) for row in rows),
        cut=((0, 2), (2, 4), (4, 6), (6, 8)),
        step_cut=((0, 2), (2, 4), (4, 6), (6, 8)),
        target=5,
        manifests=(Manifest(0, 10, "file:///tmp/x/10", "d"),),
        committed=4,
    )
    found = copy.deepcopy(manifest)
    found["spec"] = spec | {"redundancy": {"mode": "Replica"}}
    found["status"]["arbiter"] = to_json(durable)
    return found


def zoned_pods(*zones: str) -> list[Object]:
    """The agents of ``training``, pipeline by pipeline, in these zones."""
    pods = []
    for n, zone in enumerate(zones):
        pod = make_pod(f"gpt-p{n // 4}-s{n % 4}-i0", f"n{n}")
        pod["spec"]["nodeSelector"] = {"topology.kubernetes.io/zone": zone}
        pods.append(pod)
    return pods
