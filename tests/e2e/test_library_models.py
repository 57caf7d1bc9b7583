"""The jobs of docs/library-models.md in the cluster, as a user has them who has tried them with
`bamboo train --local`: a library's weights, memory-mapped data, checkpoints in a bucket, two nodes
that are lost, TensorBoard, and weights that load into the library with the same bits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.agent.local.page_jobs import LIBRARIES, bamboo

from bamboo_cli.job.pods import seats
from bamboo_cli.job.state import Job
from bamboo_cli.quickstart.final_state import digest, final_hashes
from bamboo_cli.quickstart.local_cluster import LocalCluster
from bamboo_core.controller.view import Slot
from bamboo_devcluster.object_store import ObjectStore

from .buckets import give_keys
from .conftest import CHECKOUT
from .jobs import Gate, User, eventually

pytestmark = [pytest.mark.timeout(900), pytest.mark.rotating(2)]

LAST = 40
"""With its gate closed, a job takes half a minute for them."""

_TOLD_S = 240.0
"""A process of a hook imports torch with low priority, whatever else the machine does."""

TRACKERS = CHECKOUT / "examples/trackers"
USER_CODE = Path(__file__).with_name("user_code")
PYTHONPATH = f"{TRACKERS}:{USER_CODE}"


def job_of(spec: dict[str, Any], gate: Gate, folder: Path) -> dict[str, Any]:
    """The job of a page, with figures that a test has time for."""
    spec = gate.slowed(spec)
    spec["training"] |= {"steps": LAST, "globalBatchSize": 8, "microBatchSize": 2}
    spec["pipelines"] = {"count": 2, "stages": 2}
    spec["redundancy"] = {"mode": "Replica"}
    spec["worker"] = {
        "image": "bamboo-agent:test",
        "gracePeriodSeconds": 5,
        "resources": {"limits": {"nvidia.com/gpu": 1}},
        "env": [{"name": "PYTHONPATH", "value": PYTHONPATH}],
    }
    spec["hooks"] = [{"factory": "to_tensorboard:tracker", "args": {"folder": str(folder)}}]
    metadata = {"name": "library"}
    kind = {"apiVersion": "bamboo.dev/v1alpha1", "kind": "BambooJob"}
    return {**kind, "metadata": metadata, "spec": spec}


def train_locally(folder: Path, job: Mapping[str, Any], gate: Gate, board: Path) -> str:
    """The digest of the final state of one agent that nothing disturbs."""
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    train = ("train", "-f", "job.yaml", "--local", "--pipelines", "1", "--stages", "1")
    env = {"PYTHONPATH": PYTHONPATH}
    with ThreadPoolExecutor() as pool:
        running = pool.submit(bamboo, folder, *train, "--out", "alone", env=env)
        until_told(board, lambda: running.done())
        gate.open()
        shown = running.result()
    (found,) = re.findall(r"^final state: (\w+)", shown, re.M)
    return str(found)


def until_told(board: Path, is_over: Callable[[], bool] = lambda: False) -> None:
    """Wait until the tracker's process has been told steps, or the job is over."""
    eventually(lambda: is_over() or any(board.glob("*")), timeout_s=_TOLD_S)


def losses(folder: Path) -> dict[int, float]:
    """The losses that TensorBoard shows, by step."""
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return {x.step: x.value for x in reader.Scalars("loss")}


def lose_node(user: User, local: LocalCluster, slot: Slot, lost: list[str]) -> None:
    """Kill the node of a seat, and wait until the others train on without it."""
    node = seats("library", user.pods("library"), {})[slot].node
    lost.append(node)
    local.cluster.kill_node(node)
    step = user.until("library", lambda job: job.lost >= len(lost)).step
    user.until("library", lambda job: job.has("Running") and job.step > step)


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_job_that_a_user_has_tried_locally_ends_in_the_cluster_with_the_same_bits(
    name: str,
    user: User,
    local: LocalCluster,
    store: ObjectStore,
    lost_nodes: list[str],
    gate: Gate,
    tmp_path: Path,
) -> None:
    library = LIBRARIES[name]
    spec, load = library.spec(tmp_path)
    board, board_of_cluster = tmp_path / "board", tmp_path / "board-of-cluster"
    job = job_of(spec, gate, board)
    wanted = train_locally(tmp_path, job, gate, board)
    gate.path.unlink()
    seen = losses(board)

    job["spec"]["hooks"][0]["args"]["folder"] = str(board_of_cluster)
    uri = store.make_bucket(name)
    job["spec"]["checkpoint"] = {"uri": f"{uri}/team", "everySteps": 4}
    worker = job["spec"]["worker"]
    keys = give_keys(user, store.environment)
    worker["env"] += keys.pop("env")
    user.apply({**job, "spec": {**job["spec"], "worker": worker | keys}})
    user.until("library", lambda job: job.step >= 1, timeout_s=200)
    for slot in (Slot(0, 0), Slot(1, 1)):
        lose_node(user, local, slot, lost_nodes)
    until_told(board_of_cluster)
    gate.open()
    done = user.until_ended("library")
    assert (done.ended, done.step, done.attempt, done.lost) == ("Complete", LAST, 0, 2)
    assert digest(hashes_in(store, done)) == wanted

    assert seen.keys() == set(range(LAST))
    # the tracker's process closes its files some time after the job has ended
    eventually(lambda: losses(board_of_cluster) == seen, timeout_s=_TOLD_S, poll_s=1.0)
    env = {**store.environment, "KUBECONFIG": str(user.programs.kubeconfig)}
    where = ("-n", user.namespace, "--format", library.kind)
    bamboo(tmp_path, "export", "library", *where, "--out", "weights", env=env)
    bamboo(tmp_path, "export", "alone", "--format", library.kind, "--out", "weights-alone")
    one, other = load(tmp_path / "weights"), load(tmp_path / "weights-alone")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def hashes_in(store: ObjectStore, job: Job) -> tuple[str, ...]:
    """The final state in the bucket: the server keeps plain files."""
    here = store.data / job.checkpoint_path.removeprefix("s3://")
    assert json.loads(here.read_text())["files"]
    return final_hashes(replace(job, checkpoint_path=str(here)))
