"""Objects to views."""

from __future__ import annotations

import logging
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.controller.builders import JOB

from bamboo_agent.logs import JsonFormatter
from bamboo_core.api import texts
from bamboo_core.api.spec import PlacementSpec, WorkerSpec
from bamboo_core.controller.view import NodeView, PodPhase, Slot, parse_pod_name, pod_name
from bamboo_core.evidence.pod_troubles import PodTrouble
from bamboo_core.model.ids import Fence
from bamboo_core.placement import fitting
from bamboo_operator.kube import object_views
from bamboo_operator.kube.timestamps import timestamp

from ..objects import Object, node_object, pod_object


def seen(node: Object, worker: WorkerSpec) -> NodeView:
    """An empty node as a job sees it."""
    return object_views.node_view(node, fitting.needs(worker, PlacementSpec()), {})


def test_a_pod() -> None:
    ended = {"terminated": {"exitCode": 2, "reason": "Error", "message": " boom\n"}}
    body = pod_object(phase="Failed", state=ended)
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:10Z"
    (view,) = object_views.pod_views([body], JOB)
    assert (view.slot, view.incarnation, view.phase) == (Slot(0, 0), 0, PodPhase.FAILED)
    assert (view.exit_code, view.exit_reason, view.trouble) == (2, "Error", "boom")
    assert (view.node, view.zone) == ("node-a", "a")
    assert view.deleting_at == view.created_at + 10
    assert view.has_ended
    assert not view.is_alive


def test_hooks_that_were_not_told_all_steps_are_no_last_words() -> None:
    """Last words are those of a failure."""
    untold = "mine:build was not told 3 records, from step 5 on, when the agent ended"
    ended = {"terminated": {"exitCode": 0, "message": f"StepsReached{texts.UNTOLD}{untold}"}}
    (view,) = object_views.pod_views([pod_object(phase="Succeeded", state=ended)], JOB)
    assert (view.trouble, view.untold) == ("StepsReached", untold)
    ended = {"terminated": {"exitCode": 0, "message": "StepsReached"}}
    (view,) = object_views.pod_views([pod_object(phase="Succeeded", state=ended)], JOB)
    assert (view.trouble, view.untold) == ("StepsReached", "")


def test_only_pods_that_the_job_controls_count() -> None:
    """A job of the same name may have been deleted and created again."""
    stranger = pod_object(owner_uid="uid-0")
    orphan = pod_object("job-p0-s1-i0")
    del orphan["metadata"]["ownerReferences"]
    odd = pod_object("job-extra")
    assert object_views.pod_views([stranger, orphan, odd], JOB) == ()


def test_a_pod_without_status() -> None:
    body = pod_object(node="")
    body["status"] = {}
    (view,) = object_views.pod_views([body], JOB)
    assert (view.phase, view.node, view.exit_code) == (PodPhase.PENDING, "", None)
    body["status"] = {"phase": "Dreaming"}
    assert object_views.pod_views([body], JOB)[0].phase is PodPhase.UNKNOWN


def test_a_waiting_container() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no image"}}
    (view,) = object_views.pod_views([pod_object(phase="Pending", state=waiting)], JOB)
    assert (view.waiting, view.trouble) == ("ImagePullBackOff", "no image")


def test_a_long_message_is_cut_by_bytes() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "层" * 700}}
    (view,) = object_views.pod_views([pod_object(phase="Pending", state=waiting)], JOB)
    assert view.trouble == "层" * 332 + "..."


def test_the_last_line_of_a_log_is_kept() -> None:
    """It is the error, as of a program that is not installed."""
    log = "".join(f"  File {n}\n" for n in range(200)) + "ModuleNotFoundError: No module named 'x'"
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": log}}
    (view,) = object_views.pod_views([pod_object(phase="Failed", state=ended)], JOB)
    assert view.trouble.endswith("File 199\nModuleNotFoundError: No module named 'x'")
    assert view.trouble.startswith("...")
    assert len(view.trouble) == 500


def log_line(level: str, message: str) -> str:
    """As an agent writes it."""
    formatter = JsonFormatter(job="ns/job", agent="job-p0-s0-i0", fence=Fence)
    number = logging.getLevelNamesMapping()[level]
    return formatter.format(logging.LogRecord("agent", number, "x", 1, message, None, None))


INFO, OTHER = log_line("INFO", "admitted to team/probe"), log_line("DEBUG", "connected")
ERROR = log_line("ERROR", "no route to operator")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (INFO, ""),
        (f"{INFO}\n{OTHER}\n", ""),
        (f"{INFO[40:]}\n{OTHER}\n", ""),
        (f"{INFO[40:]}\n{ERROR}\n", "no route to operator"),
        (f"{INFO}\nSegmentation fault\n{OTHER}", "Segmentation fault"),
        (f"Traceback:\n  x\n{INFO}\nKeyError: 1", "Traceback:\n  x\nKeyError: 1"),
        ("{}", "{}"),
        ('{"level": "info"}', '{"level": "info"}'),
        ('{"level": 1, "time": 2, "logger": 3, "message": 4}\nx',) * 2,
        ("{" * 9, "{" * 9),
    ],
)
def test_ordinary_lines_of_an_agents_log_are_no_last_words(said: str, expected: str) -> None:
    """As of an agent that a probe kills: nothing in its log says why."""
    ended = {"terminated": {"exitCode": 137, "reason": "Error", "message": said}}
    (view,) = object_views.pod_views([pod_object(state=ended)], JOB)
    assert view.trouble == expected


def test_what_containers_say_changes_no_terminal() -> None:
    ended = {"terminated": {"exitCode": 1, "message": "\x1b[2Jfake\u202e\n\x1b]0;x\x07"}}
    (view,) = object_views.pod_views([pod_object(state=ended)], JOB)
    assert view.trouble == "\\x1b[2Jfake\\u202e\n\\x1b]0;x\\x07"


def test_words_that_are_too_deep_for_a_parser_are_kept() -> None:
    ended = {"terminated": {"exitCode": 137, "message": '{"a":' * 9999}}
    (view,) = object_views.pod_views([pod_object(state=ended)], JOB)
    assert view.trouble.startswith('{"a":{"a":')


def test_a_message_that_the_kubelet_has_cut_by_bytes() -> None:
    """It keeps the last 2048 bytes of a log, and the first 4096 of a message's file."""
    words = ("层" * 700).encode()
    tail = words[-2048:].decode(errors="replace")
    for said, begins, ends in ((tail, "层", "层..."), ("层" + "\ufffd", "层", "层")):
        ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": said}}
        body = pod_object(phase="Failed", state=ended)
        (view,) = object_views.pod_views([body], JOB)
        assert view.trouble.startswith(begins)
        assert view.trouble.endswith(ends)
        other = {"name": "logs", "state": ended}
        body = pod_object()
        body["status"]["containerStatuses"].append(other)
        (view,) = object_views.pod_views([body], JOB)
        assert view.beside.words.startswith(f"it ended with exit code 1: {begins}")
        assert view.beside.words.endswith(ends)


def test_a_pod_that_the_scheduler_refuses() -> None:
    body = pod_object(phase="Pending", node="")
    words = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    condition = {
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words,
        "lastTransitionTime": "2026-01-01T00:00:05Z",
    }  # fmt: skip
    body["status"]["conditions"] = [{"type": "Ready", "status": "False"}, condition]
    (view,) = object_views.pod_views([body], JOB)
    assert (view.refused_at, view.refusal) == (view.created_at + 5, words)
    condition["reason"] = "SchedulingGated"
    (view,) = object_views.pod_views([body], JOB)
    assert (view.refused_at, view.refusal) == (None, "")


def test_a_node_for_others() -> None:
    body = node_object()
    body["spec"] = {"taints": [{"key": "team", "value": "x", "effect": "NoSchedule"}]}
    view = seen(body, WorkerSpec("i"))
    assert (view.suits, view.agents, view.schedulable) == (False, 0, True)
    assert view.lacks == "taint team=x:NoSchedule"
    wanted = WorkerSpec("i", resources={"limits": {"nvidia.com/gpu": 2}})
    assert (view.is_held_back, seen(body, wanted).is_held_back) == (True, False), "it has one GPU"


def test_a_taint_that_will_pass_says_nothing_about_the_nodes_purpose() -> None:
    body = node_object()
    taint = {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}
    body["spec"] = {"taints": [taint]}
    view = seen(body, WorkerSpec("i"))
    assert (view.suits, view.schedulable) == (True, False)


def test_an_evicted_pod_has_the_pods_reason() -> None:
    body = pod_object(phase="Failed")
    body["status"] = {"phase": "Failed", "reason": "Evicted", "message": "too much"}
    (view,) = object_views.pod_views([body], JOB)
    assert view.beside == PodTrouble("Evicted", "too much")
    assert (view.has_ended, view.exit_code) == (True, None)


def test_a_node() -> None:
    worker = WorkerSpec("i", {"limits": {"nvidia.com/gpu": 1}, "requests": {"cpu": "3"}})
    view = seen(node_object(**{"karpenter.sh/capacity-type": "spot"}), worker)
    assert (view.zone, view.machine, view.agents) == ("a", "uid-node-a/boot-1", 1)
    assert (view.ready, view.schedulable, view.spot, view.departing) == (True, True, True, False)


@pytest.mark.parametrize(
    ("requests", "fits"),
    [({"cpu": "3"}, 2), ({"memory": "40Gi"}, 0), ({"cpu": "500m"}, 16), ({"tpu": "1"}, 0)],
)
def test_how_many_agents_fit(requests: dict[str, str], fits: int) -> None:
    worker = WorkerSpec("i", {"requests": requests})
    assert seen(node_object(), worker).agents == fits


def test_a_node_that_is_about_to_go() -> None:
    body = node_object()
    body["spec"] = {
        "unschedulable": True,
        "taints": [{"key": "cloud.google.com/impending-node-termination", "effect": "NoSchedule"}],
    }
    since = {"lastTransitionTime": "1970-01-01T00:01:40Z"}
    body["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", **since}]
    view = seen(body, WorkerSpec("i"))
    assert (view.ready, view.schedulable, view.departing) == (False, False, True)
    assert view.unready_since == 100.0
    body["status"]["conditions"] = [{"type": "Ready", "status": "True", **since}]
    assert seen(body, WorkerSpec("i")).unready_since == 0.0


def tainted(*taints: dict[str, str], **spec: bool) -> Object:
    body = node_object()
    body["spec"] = {"taints": list(taints), **spec}
    return body


@pytest.mark.parametrize(
    "key",
    [
        "karpenter.sh/disrupted",
        "aws-node-termination-handler/spot-itn",
        "aws-node-termination-handler/scheduled-maintenance",
        "aws-node-termination-handler/asg-lifecycle-termination",
        "ToBeDeletedByClusterAutoscaler",
        "cloud.google.com/impending-node-termination",
        "remediator.kubernetes.azure.com/unschedulable",
        "remediator.aks.microsoft.com/unschedulable",
        "node.kubernetes.io/unschedulable",
        "node.cloudprovider.kubernetes.io/shutdown",
        "node.kubernetes.io/out-of-service",
        "bamboo.dev/leaving",
    ],
)
def test_a_taint_that_announces_the_end_of_the_node(key: str) -> None:
    view = seen(tainted({"key": key, "effect": "NoSchedule"}), WorkerSpec("i"))
    assert view.departing
    assert (view.schedulable, view.suits, view.lacks) == (False, True, "")  # it is for agents
    assert view.notice is not None
    assert view.notice.reason == f"it has the taint {key}"


@pytest.mark.parametrize(
    "key",
    [
        "node.kubernetes.io/disk-pressure",
        "node.cilium.io/agent-not-ready",
        "ebs.csi.aws.com/agent-not-ready",
        "cni.istio.io/not-ready",
        "karpenter.sh/unregistered",
        "startup-taint.cluster-autoscaler.kubernetes.io/gpu",
        "bamboo.dev/at-risk",
    ],
)
def test_a_taint_that_says_how_the_node_is_at_present(key: str) -> None:
    view = seen(tainted({"key": key, "effect": "NoSchedule"}), WorkerSpec("i"))
    assert (view.schedulable, view.suits, view.departing) == (False, True, False)
    assert view.lacks == f"at present taint {key}:NoSchedule"


def test_a_node_whose_device_plugin_is_not_up_offers_no_device() -> None:
    body = node_object()
    wanted = WorkerSpec("i", {"limits": {"nvidia.com/gpu": 1}})
    full = object_views.node_view(
        body, fitting.needs(wanted, PlacementSpec()), {"nvidia.com/gpu": 1000}
    )
    assert full.lacks == "insufficient nvidia.com/gpu"
    del body["status"]["allocatable"]["nvidia.com/gpu"]
    assert (seen(body, wanted).lacks, seen(body, wanted).suits) == (
        "offers no nvidia.com/gpu",
        False,
    )


def test_karpenter_before_version_1_has_a_value() -> None:
    taint = {"key": "karpenter.sh/disruption", "effect": "NoSchedule"}
    other = seen(tainted(taint | {"value": "other"}), WorkerSpec("i"))
    old = seen(tainted(taint | {"value": "disrupting"}), WorkerSpec("i"))
    assert (other.departing, old.departing) == (False, True)


def test_a_cordoned_node() -> None:
    """``kubectl cordon`` and ``kubectl drain`` set the field; the taint follows."""
    view = seen(tainted(unschedulable=True), WorkerSpec("i"))
    assert (view.departing, view.schedulable) == (True, False)
    assert view.notice is not None
    assert view.notice.reason == "it is cordoned"


@pytest.mark.parametrize(
    "key",
    [
        "DeletionCandidateOfClusterAutoscaler",
        "aws-node-termination-handler/rebalance-recommendation",
        "bamboo.dev/at-risk",
    ],
)
def test_a_hint_sends_nobody_away(key: str) -> None:
    view = seen(tainted({"key": key, "effect": "PreferNoSchedule"}), WorkerSpec("i"))
    assert (view.departing, view.is_usable) == (False, True)
    assert view.notice is not None
    assert view.notice.is_hint


def test_a_hint_hides_no_notice() -> None:
    """Neither says when the node goes."""
    hint, end = {"key": "bamboo.dev/at-risk"}, {"key": "karpenter.sh/disrupted"}
    for taints in ([hint, end], [end, hint]):
        view = seen(tainted(*taints), WorkerSpec("i"))
        assert view.departing
        assert view.notice is not None
        assert not view.notice.is_hint


def test_a_kubelet_that_shuts_the_node_down() -> None:
    """As GKE does with spot nodes. A node that is only not ready is no notice."""
    body = node_object()
    body["status"]["conditions"] = [
        {"type": "Ready", "status": "False", "reason": "KubeletNotReady",
         "message": "[container runtime is down, node is shutting down]"},
    ]  # fmt: skip
    view = seen(body, WorkerSpec("i"))
    assert view.departing
    body["status"]["conditions"][0]["message"] = "container runtime is down"
    view = seen(body, WorkerSpec("i"))
    assert not view.departing


def test_when_the_node_goes() -> None:
    """The end that is known and comes first counts; malformed fields are as good as absent."""
    itn = {"key": "aws-node-termination-handler/spot-itn", "timeAdded": "2026-01-01T00:00:00Z"}
    added = timestamp("2026-01-01T00:00:00Z")
    assert added is not None
    own = {"key": "bamboo.dev/leaving", "value": f"{int(added) + 25}-30"}
    cases: list[tuple[list[dict[str, Any]], float]] = [
        ([itn], 100.0),
        ([{"key": "bamboo.dev/at-risk"}, {"key": "karpenter.sh/disrupted"}, own, itn], 25.0),
        ([itn | {"timeAdded": "yesterday"}], 100.0),  # from when it is seen
        ([itn | {"timeAdded": 7}], 100.0),
        ([own], 25.0),
        ([own | {"value": str(int(added) + 25)}], 25.0),  # an older DaemonSet's
        ([own | {"value": f"{int(added) + 325}-30"}], 30.0),  # our clock is slow
        ([own | {"value": f"{int(added) - 275}-30"}], 0.0),  # or fast, or the time is over
        ([own | {"value": "soon"}], inf),
        ([own | {"value": "1-2-3"}], inf),
        ([itn | {"timeAdded": "2026-01-01T00:05:00Z"}], 100.0),  # our clock is slow
        ([{"key": "karpenter.sh/disrupted"}], inf),
    ]
    for taints, left_s in cases:
        view = seen(tainted(*taints), WorkerSpec("i"))
        assert view.notice is not None
        assert view.notice.left_s(added) == left_s


@given(st.integers(0, 999), st.integers(0, 255), st.integers(0, 10**6))
def test_names_round_trip(pipeline: int, stage: int, incarnation: int) -> None:
    slot = Slot(pipeline, stage)
    name = pod_name("my-p0-s0-job", slot, incarnation)
    assert parse_pod_name("my-p0-s0-job", name) == (slot, incarnation)
    assert len(pod_name("j" * 40, slot, incarnation)) <= 63


@pytest.mark.parametrize("name", ["other-p0-s0-i0", "job", "job-p0-s0", "job-p0-s0-i0-x"])
def test_strange_names(name: str) -> None:
    assert parse_pod_name("job", name) is None


def test_the_instance_type_of_a_node() -> None:
    worker = WorkerSpec("i")
    label = {"node.kubernetes.io/instance-type": "c5.large"}
    assert seen(node_object(**label), worker).instance_type == "c5.large"
    assert seen(node_object(), worker).instance_type == ""
