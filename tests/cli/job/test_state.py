"""Reading a BambooJob, its pods and nodes."""

from __future__ import annotations

import math
from typing import Any

from tests.cli.conftest import make_node, make_pod

from bamboo_cli.job.pods import ready_by_zone, seats, zones_of
from bamboo_cli.job.state import read_job
from bamboo_core.controller.view import Slot


def test_reads_metrics(manifest: dict[str, Any]) -> None:
    assert read_job(manifest).metrics == {}
    metrics = {"top": "0.25", "ease": "1e-07"}
    manifest["status"]["progress"] |= {"metrics": metrics, "validationMetrics": {"top": "nan"}}
    job = read_job(manifest)
    assert job.metrics == {"top": 0.25, "ease": 1e-7}
    assert math.isnan(job.validation_metrics["top"])


def test_reads_spec_and_status(manifest: dict[str, Any]) -> None:
    job = read_job(manifest)
    assert (job.phase, job.step, job.steps, job.loss, job.validation_loss) == (
        "Running", 20, 80, 2.5, 3.25,
    )  # fmt: skip
    assert (job.lost, job.lost_noticed, job.checkpoint_step, job.samples_per_s) == (2, 1, 10, 64.5)
    assert job.ended is None
    assert job.has("Running")


def test_the_steps_are_those_at_which_the_run_ends(manifest: dict[str, Any]) -> None:
    """The user may have raised the number in the spec."""
    manifest["status"]["progress"]["steps"] = 37
    assert read_job(manifest).steps == 37


def test_a_job_without_status_is_pending(manifest: dict[str, Any]) -> None:
    del manifest["status"]
    job = read_job(manifest)
    assert (job.phase, job.step, job.loss, job.checkpoint_step) == ("Pending", 0, None, None)
    assert job.conditions == ()


def test_ended_names_the_condition_that_is_true(manifest: dict[str, Any]) -> None:
    manifest["status"]["conditions"][1]["status"] = "True"
    assert read_job(manifest).ended == "Complete"


def test_nodes_are_counted_by_zone() -> None:
    nodes = [make_node("a", "z2"), make_node("b", "z1", ready=False), make_node("c", "z1")]
    assert ready_by_zone(nodes) == {"z1": (1, 2), "z2": (1, 1)}
    assert zones_of(nodes) == {"a": "z2", "b": "z1", "c": "z1"}


def test_a_node_without_labels_has_no_zone() -> None:
    assert ready_by_zone([{"metadata": {"name": "a"}}]) == {"": (0, 1)}


def test_the_newest_pod_has_the_seat() -> None:
    pods = [
        make_pod("gpt-p0-s1-i2", "a", "Failed"),
        make_pod("gpt-p0-s1-i7", "b"),
        make_pod("gpt-p1-s0-i1"),
        make_pod("another"),
    ]
    found = seats("gpt", pods, {"gpt-p0-s1-i2": "z1", "gpt-p0-s1-i7": "z2"})
    assert set(found) == {Slot(0, 1), Slot(1, 0)}
    assert (found[Slot(0, 1)].pod, found[Slot(0, 1)].zone) == ("gpt-p0-s1-i7", "z2")
    assert found[Slot(1, 0)].zone == ""


def test_a_running_pod_has_the_seat_until_it_is_replaced() -> None:
    pods = [make_pod("gpt-p0-s1-i7", "a"), make_pod("gpt-p0-s1-i8", phase="Pending")]
    assert seats("gpt", pods, {})[Slot(0, 1)].pod == "gpt-p0-s1-i7"


def test_a_deleted_pod_is_terminating() -> None:
    pod = make_pod("gpt-p0-s0-i0", "a", deletionTimestamp="2026-01-01T00:00:00Z")
    assert seats("gpt", [pod], {})[Slot(0, 0)].phase == "Terminating"


def test_the_mode_of_redundancy_is_the_one_that_auto_has_taken(manifest: dict[str, Any]) -> None:
    assert read_job(manifest).redundancy == "None"
    manifest["spec"]["redundancy"] = {"mode": "Eager"}
    assert (read_job(manifest).redundancy, read_job(manifest).redundancy_reason) == ("Eager", "")
    manifest["spec"]["redundancy"] = {"mode": "Auto"}
    assert read_job(manifest).redundancy == ""
    manifest["status"]["protection"] = {"mode": "Replica", "reason": "it is cheap"}
    job = read_job(manifest)
    assert (job.redundancy, job.redundancy_reason) == ("Replica", "it is cheap")


def test_the_channel_is_known_once_an_agent_is_ready(manifest: dict[str, Any]) -> None:
    assert (read_job(manifest).channel, read_job(manifest).channel_reason) == ("", "")
    manifest["status"]["transport"] = {"channel": "Tcp", "reason": "there are no GPUs"}
    job = read_job(manifest)
    assert (job.channel, job.channel_reason) == ("Tcp", "there are no GPUs")
    manifest["status"]["transport"]["encrypted"] = True
    assert read_job(manifest).channel == "Tcp, encrypted"
    assert read_job(manifest).group_share is None
    manifest["status"]["transport"]["groupShare"] = 0
    assert read_job(manifest).group_share == 0


def test_the_network_is_told_once_agents_have_measured_it(manifest: dict[str, Any]) -> None:
    status = manifest["status"]["transport"] = {"channel": "Tcp", "plannedGbps": 10.0}
    manifest["spec"]["transport"] = {"bandwidthGbps": 10.0}
    assert (read_job(manifest).network, read_job(manifest).is_network_slow) == ("", False)
    status["measuredGbps"] = 9.4
    assert not read_job(manifest).is_network_slow
    text = "agents measure 9.4 Gb/s between them, plans count with 10"
    assert read_job(manifest).network == text
    status |= {"measuredGbps": 2.0, "plannedGbps": 2.0}
    status["slowestPair"] = {"from": "a", "to": "b", "gbps": 0.5}
    text = "agents measure 2 Gb/s between them, plans count with 2; slowest: a to b, 0.5 Gb/s"
    assert read_job(manifest).network == text
    assert read_job(manifest).is_network_slow
