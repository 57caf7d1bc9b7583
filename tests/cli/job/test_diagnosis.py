"""Why a job does not run, and what the loss of a zone would do."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console
from tests.cli.conftest import make_node, make_pod, zoned_pods
from tests.cli.fake_api import PODS_PATH, Server

from bamboo_cli.errors import CommandError
from bamboo_cli.job.diagnosis import Explanation, explain
from bamboo_cli.job.remedies import REMEDIES
from bamboo_cli.job.state import read_job
from bamboo_cli.job.what_if import Fate, Outlook, held, loss
from bamboo_cli.main import cli
from bamboo_cli.views.terminal.diagnosis import explain_view
from bamboo_core.api.reasons import Reason
from bamboo_core.api.spec import PipelinesSpec, RedundancySpec
from bamboo_core.model.counts import duration
from bamboo_core.planning.requests import PlannerFault
from bamboo_core.validation.reading import from_manifest

NOW = 1767254400.0  # 2026-01-01T08:00:00Z
SPREAD = ("a", "b", "a", "b", "b", "c", "b", "c")  # of both pipelines, stage by stage


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, str]:
    since = "2026-01-01T07:50:00Z"
    return {"type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": since}  # fmt: skip


def shown(found: Explanation) -> str:
    out = io.StringIO()
    Console(file=out, width=160).print(explain_view(found))
    return out.getvalue()


def texts(found: Explanation) -> str:
    return "\n".join(f"{each.text} -> {each.remedy}" for each in found.findings)


def test_a_job_that_trains_has_nothing_wrong(training: dict[str, Any]) -> None:
    found = explain(training, zoned_pods(*SPREAD), [], NOW)
    assert list(found.findings) == []
    assert "Nothing is wrong with it." in shown(found)


def test_a_network_that_gives_less_than_the_spec_says_is_found(training: dict[str, Any]) -> None:
    transport = {"channel": "Tcp", "plannedGbps": 2.0, "measuredGbps": 2.1}
    training["status"]["transport"] = transport
    training["spec"]["transport"] = {"bandwidthGbps": 10.0}
    found = texts(explain(training, zoned_pods(*SPREAD), [], NOW))
    assert "less than spec.transport.bandwidthGbps: agents measure 2.1 Gb/s" in found
    transport["plannedGbps"] = 10.0
    assert explain(training, zoned_pods(*SPREAD), [], NOW).findings == []


def test_the_loss_of_each_zone_is_what_the_planner_decides(training: dict[str, Any]) -> None:
    outlooks = explain(training, zoned_pods(*SPREAD), [], NOW).outlooks
    assert {zone: (x.fate, len(x.agents)) for zone, x in outlooks.items()} == {
        "a": (Fate.CONTINUES, 2), "b": (Fate.CONTINUES, 4), "c": (Fate.CONTINUES, 2),
    }  # fmt: skip
    assert "with 6 agents" in outlooks["a"].text
    assert "no step repeated" in outlooks["a"].text


def test_a_loss_that_redundancy_does_not_cover_costs_a_restore(training: dict[str, Any]) -> None:
    training["spec"]["redundancy"] = {"mode": "None"}
    pods = zoned_pods("a", "b", "a", "b", "a", "c", "b", "c")  # both copies of stage 0
    found = explain(training, pods, [], NOW)
    assert found.outlooks["a"].fate is Fate.RESTORES
    assert found.outlooks["a"].text == (
        "no copy of layers 0-1 is left: 10 steps are repeated from the checkpoint of step 10"
    )
    assert found.outlooks["c"].fate is Fate.CONTINUES
    said = " ".join(shown(found).split())
    assert "redundancy None" in said
    assert "pipeline 0: stages 0, 2" in said


def test_before_the_first_step_no_checkpoint_is_named(training: dict[str, Any]) -> None:
    """There is none: a layer without a copy is built again."""
    status = training["status"]
    training["spec"]["redundancy"] = {"mode": "None"}
    status["progress"]["step"] = 0
    status["arbiter"] |= {"committed": -1, "target": 0}
    del status["arbiter"]["manifests"], status["lastCheckpoint"]
    pods = zoned_pods("a", "b", "a", "b", "a", "c", "b", "c")  # both copies of stage 0
    found = explain(training, pods, [], NOW)
    assert found.outlooks["a"].fate is Fate.CONTINUES
    assert "1 layer built anew, no step repeated" in found.outlooks["a"].text
    assert "checkpoint" not in shown(found)


def test_without_a_checkpoint_everything_is_repeated(training: dict[str, Any]) -> None:
    before = held(training)
    assert before is not None
    outlook = loss(before, before.durable.members, {})
    assert outlook.text == (
        "no agent is left: 10 steps are repeated from the checkpoint of step 10"
    )
    training["status"]["arbiter"].pop("manifests")
    everything = held(training)
    assert everything is not None
    every = set(everything.durable.members)
    outlook = loss(everything, every, {})
    assert (outlook.fate, len(outlook.agents)) == (Fate.RESTORES, 8)
    assert outlook.text == (
        "no agent is left, and no checkpoint is complete: 20 steps are repeated"
    )
    for step, words in ((1, "1 step is repeated"), (0, "no step is repeated")):
        found = loss(replace(everything, step=step), every, {})
        assert found.text.endswith(f"no checkpoint is complete: {words}")


@pytest.mark.parametrize(
    ("age_s", "samples_per_s", "is_stale"),
    [(70.0, 32.0, True), (60.0, 32.0, False), (300.0, 0.1, False), (500.0, None, False),
     (700.0, None, True)],
)  # fmt: skip
def test_a_status_that_nobody_writes(
    training: dict[str, Any], age_s: float, samples_per_s: float | None, is_stale: bool
) -> None:
    """A step has 32 samples. The operator may be gone, and the job stand still."""
    written = datetime.fromtimestamp(NOW - age_s, UTC).isoformat().replace("+00:00", "Z")
    progress = training["status"]["progress"]
    progress["reportTime"] = written
    del progress["samplesPerSecond"]
    if samples_per_s is not None:
        progress["samplesPerSecond"] = str(samples_per_s)
    found = explain(training, zoned_pods(*SPREAD), [], NOW)
    said = [each for each in found.findings if "has told nothing new for" in each.text]
    assert bool(said) is is_stale
    if said:
        assert "app.kubernetes.io/name=bamboo-operator" in said[0].remedy
        assert f"team/gpt was Running at step 20 of 80 {duration(age_s)} ago." in shown(found)
        training["status"]["conditions"][1]["status"] = "True"
        assert not any("nothing new" in f.text for f in explain(training, [], [], NOW).findings)


@pytest.mark.parametrize(
    ("reason", "age_s", "since_s", "silent_s"),
    [
        ("NoProgress", 3500.0, 3500.0, 0.0),  # it stands still, and says so
        ("NoProgress", 3700.0, 3700.0, 3700.0),
        ("CheckpointUnreachable", 3500.0, 3500.0, 0.0),
        ("LastWriteWaits", 7200.0, 7200.0, 0.0),
        ("LastWriteWaits", 7300.0, 7300.0, 7300.0),
        ("ContainerCannotStart", 900.0, 900.0, 900.0),  # of one pod, while the job trains
        ("ContainerCannotStart", 900.0, 30.0, 0.0),  # somebody has just written that
    ],
)
def test_a_status_that_tells_of_a_stall_is_new(
    training: dict[str, Any], reason: str, age_s: float, since_s: float, silent_s: float
) -> None:
    def at(seconds: float) -> str:
        return datetime.fromtimestamp(NOW - seconds, UTC).isoformat()

    status = training["status"]
    training["spec"]["runPolicy"] = {"lastWriteDeadlineSeconds": 7200}
    status["progress"]["reportTime"] = at(age_s)
    stalled = condition("Stalled", "True", reason) | {"lastTransitionTime": at(since_s)}
    status["conditions"].append(stalled)
    assert read_job(training, NOW).silent_s == silent_s
    for odd in ("yesterday", 5, None):
        status["progress"]["reportTime"] = stalled["lastTransitionTime"] = odd
        assert read_job(training, NOW).silent_s == 0.0


def test_too_few_agents_wait(training: dict[str, Any]) -> None:
    training["spec"]["pipelines"]["min"] = 2
    pods = zoned_pods("a", "b", "a", "b", "a", "c", "a", "a")
    found = explain(training, pods, [], NOW)
    assert found.outlooks["a"].fate is Fate.WAITS
    assert found.outlooks["a"].text.startswith("3 agents are too few to go on; they keep the state")
    plan = held(training)
    assert plan is not None
    *most, _ = plan.durable.members
    assert loss(plan, most, {}) == Outlook(
        tuple(most),
        Fate.RESTORES,
        "no copy of layers 2-5 is left: 10 steps are repeated from the checkpoint of step 10, once"
        " there are 4 agents",
    )


def test_one_agent_with_all_layers_waits(training: dict[str, Any]) -> None:
    """In a grid of two stages, Replica gives every agent both."""
    plan = held(training)
    assert plan is not None
    agents = plan.durable.members[:4]
    small = replace(
        plan,
        spec=replace(plan.spec, pipelines=PipelinesSpec(count=2, stages=2, min=2)),
        durable=replace(
            plan.durable,
            members=agents,
            voters=agents,
            pipelines=(agents[:2], agents[2:]),
            cut=((0, 4), (4, 8)),
            step_cut=((0, 4), (4, 8)),
        ),
    )
    found = loss(small, agents[1:], {})
    assert (found.fate, found.text) == (
        Fate.WAITS,
        "1 agent is too few to go on; it keeps the state until there are 2",
    )


def test_a_job_that_kueue_has_admitted_with_fewer_needs_no_more(training: dict[str, Any]) -> None:
    training["spec"]["pipelines"]["min"] = 2
    training["status"]["pipelinesSummary"] = "1/1"
    pods = zoned_pods("a", "b", "a", "b", "a", "c", "a", "a")
    found = explain(training, pods, [], NOW).outlooks
    assert found["a"].fate is not Fate.WAITS
    assert found["c"].text.startswith("1 x 4 with ")
    training["status"]["pipelinesSummary"] = "1/2"
    found = explain(training, pods, [], NOW).outlooks
    assert found["a"].fate is Fate.WAITS
    assert found["c"].text.startswith("2 x 4 with ")
    for unknown in ("?", "", "1/"):
        training["status"]["pipelinesSummary"] = unknown
        assert explain(training, pods, [], NOW).outlooks["a"].fate is Fate.WAITS


def test_one_layer_and_one_seat_are_told_in_the_singular(training: dict[str, Any]) -> None:
    plan = held(training)
    assert plan is not None
    zones = dict(zip(plan.durable.members, SPREAD, strict=True))
    text = loss(plan, {plan.durable.members[0]}, zones).text
    assert "1 seat empty" in text
    alone = replace(plan, spec=replace(plan.spec, redundancy=RedundancySpec()))
    alone = replace(alone, durable=replace(alone.durable, cut=((0, 1), (1, 4), (4, 6), (6, 8))))
    lost = {pipeline[0] for pipeline in alone.durable.pipelines if pipeline[0] is not None}
    assert loss(alone, lost, {}).text.startswith("no copy of layer 0 is left: ")


def test_agents_outside_the_plan_cost_nothing(training: dict[str, Any]) -> None:
    plan = held(training)
    assert plan is not None
    assert loss(plan, {"gpt-p7-s7-i7"}, {}).fate is Fate.NOTHING


@pytest.mark.parametrize("missing", ["arbiter", "suspend", "admitted"])
def test_without_a_plan_in_force_there_are_no_outlooks(
    training: dict[str, Any], missing: str
) -> None:
    if missing == "suspend":
        training["spec"]["suspend"] = True
    elif missing == "admitted":  # Kueue has evicted it
        training["status"] |= {"phase": "Suspending", "pipelinesSummary": "2/2"}
    else:
        del training["status"]["arbiter"]
    found = explain(training, zoned_pods(*SPREAD), [], NOW)
    assert (found.training, found.outlooks) == (None, {})
    assert "No plan is in force" in shown(found)


def test_a_status_of_another_version_names_the_remedy(training: dict[str, Any]) -> None:
    training["status"]["arbiter"]["term"] = "x"
    with pytest.raises(CommandError, match=r"status.arbiter .* use the `bamboo` of the operator's"):
        held(training)
    found = explain(training, zoned_pods(*SPREAD), [], NOW)
    assert "use the `bamboo` of the operator's version" in found.findings[0].text
    assert "No plan is in force" not in shown(found)


@pytest.mark.parametrize(
    "extra",
    [
        {"containers": [{"name": "agent", "envFrom": [{"secretRef": {"name": "team-key"}}]}]},
        {"volumes": [{"name": "data", "nfs": {"server": "s", "path": "/"}}]},
    ],
)
def test_a_job_that_trains_with_what_only_some_charts_allow(
    training: dict[str, Any], extra: dict[str, Any]
) -> None:
    usual = explain(training, zoned_pods(*SPREAD), [], NOW).outlooks
    training["spec"]["worker"]["podTemplate"] = {"spec": extra}
    assert isinstance(from_manifest(training), list)
    assert explain(training, zoned_pods(*SPREAD), [], NOW).outlooks == usual


def test_a_spec_that_cannot_be_read_does_not_hide_that_the_job_trains(
    training: dict[str, Any],
) -> None:
    training["spec"]["model"]["args"] = "none"
    found = explain(training, zoned_pods(*SPREAD), [], NOW)
    assert "the spec of the job cannot be read (spec.model.args" in found.findings[0].text
    assert "No plan is in force" not in shown(found)
    assert "What a loss would do is not known." in shown(found)
    del training["status"]["arbiter"]
    assert "No plan is in force" in shown(explain(training, zoned_pods(*SPREAD), [], NOW))


def test_a_planner_without_an_answer_does_not_hide_the_rest(
    training: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bamboo_cli.job.what_if.compute", lambda _: iter([PlannerFault("odd")]))
    found = explain(training, zoned_pods(*SPREAD), [], NOW)
    assert found.outlooks["a"].fate is Fate.UNKNOWN
    assert "odd" in shown(found)


def test_the_mode_that_auto_has_taken_counts(training: dict[str, Any]) -> None:
    training["spec"]["redundancy"] = {"mode": "Auto"}
    training["status"]["arbiter"]["mode"] = "Replica"
    pods = zoned_pods("a", "b", "a", "b", "a", "c", "b", "c")
    assert explain(training, pods, [], NOW).outlooks["a"].fate is Fate.CONTINUES
    del training["status"]["arbiter"]["mode"]
    assert explain(training, pods, [], NOW).outlooks["a"].fate is Fate.RESTORES


@pytest.mark.parametrize("mode", ["Auto", "Replica"])
def test_an_ended_job_says_why_auto_has_taken_its_mode(training: dict[str, Any], mode: str) -> None:
    complete = {"type": "Complete", "status": "True", "reason": "StepsReached", "message": ""}
    training["spec"]["redundancy"] = {"mode": mode}
    training["status"] |= {
        "conditions": [complete],
        "protection": {"mode": "Replica", "reason": "losses are rare"},
    }
    told = "Redundancy Replica, taken by Auto: losses are rare." in shown(
        explain(training, [], [], NOW)
    )
    assert told is (mode == "Auto")


def test_zones_come_from_nodes_or_else_from_the_pods(training: dict[str, Any]) -> None:
    pods = zoned_pods(*SPREAD)
    nodes = [make_node(f"n{n}", f"z{zone}") for n, zone in enumerate(SPREAD)]
    assert list(explain(training, pods, nodes, NOW).outlooks) == ["za", "zb", "zc"]
    for pod in pods:
        del pod["spec"]["nodeSelector"]
    found = explain(training, pods, [], NOW)
    assert "The zones of the agents are not known" in shown(found)


def test_conditions_come_with_age_and_remedy(manifest: dict[str, Any]) -> None:
    manifest["status"]["conditions"] = [
        condition("CapacityAvailable", "False", "WaitingForNodes", "2 of 6 agents wait"),
        condition("Accepted", "True", "SpecResolved", "the spec is usable"),
        condition("Running", "False", "WaitingForAgents", "4 of 6 agents connected"),
        condition("Checkpointed", "False", "NoneYet", "no checkpoint is complete yet"),
    ]
    assert texts(explain(manifest, [], [], NOW)) == (
        "CapacityAvailable has been False for 10 min (WaitingForNodes): 2 of 6 agents wait -> wait"
        " for the autoscaler, add nodes, or lower spec.pipelines.count\n"
        "Running has been False for 10 min (WaitingForAgents): 4 of 6 agents connected -> see the"
        " pods below; if all of them run, read `bamboo logs`"
    )


def test_a_change_of_plan_is_told_without_the_protection_before(training: dict[str, Any]) -> None:
    """A layer was said to have no live copy, and in the next line to have one."""
    degraded = condition("Degraded", "True", "LayersUnprotected", "only one live copy of layers 3")
    lost = condition("Recovering", "True", "Replanning", "no live copy of layers 3")
    training["status"]["conditions"] = [degraded, lost]
    said = texts(explain(training, [], [], NOW))
    assert "no live copy of layers 3" in said
    assert "Degraded" not in said
    training["status"]["conditions"] = [degraded, condition("Recovering", "False", "Idle", "")]
    assert "Degraded" in texts(explain(training, [], [], NOW))


def test_each_remedy_comes_once(training: dict[str, Any]) -> None:
    training["status"]["conditions"] = [
        condition("Suspended", "True", "UserRequested", "suspended after step 10"),
        condition("Recovering", "True", "WaitingForCapacity", "2 agents are missing"),
        condition("Running", "False", "SuspendedByUser", "spec.suspend is true"),
        condition("CapacityAvailable", "False", "WaitingForCapacity", "no room"),
    ]
    found = explain(training, [], [], NOW).findings
    remedies = [each.remedy for each in found if each.remedy]
    assert len(found) > len(remedies) == len(set(remedies)) == 2


def test_a_remedy_does_not_repeat_the_message(training: dict[str, Any]) -> None:
    """How to go on from the last checkpoint stands in the message of a job that has one."""
    said = (
        "x is damaged; 9 committed steps in the checkpoint of step 9: spec.checkpoint.from begins"
        " a job with it, and accept: [Code, Data] there, or one of them, takes what you have"
        " repaired"
    )
    training["status"]["conditions"] = [condition("Failed", "True", "UserCodeFailed", said)]
    (finding,) = explain(training, [], [], NOW).findings
    assert said in finding.text
    assert finding.remedy.startswith("repair the code or the data")
    assert "accept" not in finding.remedy


def test_a_failed_job_shows_only_its_cause(manifest: dict[str, Any]) -> None:
    manifest["status"]["conditions"] = [
        condition("Running", "False", "Finished", "the job has ended"),
        condition("Failed", "True", "NotFinite", "step 7, layer 2"),
    ]
    found = explain(manifest, [make_pod("gpt-p0-s0-i0", phase="Pending")], [], NOW)
    assert [each.text for each in found.findings] == [
        "Failed has been True for 10 min (NotFinite): step 7, layer 2"
    ]
    assert "create a new job" in found.findings[0].remedy
    assert "zone" not in shown(found)


def test_a_suspended_job_is_not_said_to_wait(manifest: dict[str, Any]) -> None:
    manifest["status"]["conditions"] = [
        condition("Suspended", "True", "UserRequested", "spec.suspend is true"),
        condition("Running", "False", "SuspendedByUser", "spec.suspend is true"),
    ]
    found = explain(manifest, [], [], NOW)
    assert [x.remedy for x in found.findings] == ["set spec.suspend to false to continue"]


def test_a_job_that_no_operator_has_seen(manifest: dict[str, Any]) -> None:
    del manifest["status"]
    assert "No operator has looked at the job yet." in texts(explain(manifest, [], [], NOW))


def test_an_older_status_is_said_to_be_older(manifest: dict[str, Any]) -> None:
    manifest["metadata"]["generation"] = 3
    manifest["status"]["observedGeneration"] = 2
    assert "has not read the newest spec" in texts(explain(manifest, [], [], NOW))


def test_pods_without_a_node_are_grouped_by_what_the_scheduler_says(
    manifest: dict[str, Any],
) -> None:
    pods = [
        make_pod(f"gpt-p0-s{n}-i0", phase="Pending", creationTimestamp=f"2026-01-01T07:5{n}:00Z")
        for n in range(4)
    ]
    for pod in pods[:3]:
        pod["status"]["conditions"] = [
            {"type": "PodScheduled", "status": "False", "message": "0/9 nodes are available"}
        ]
    pods.append(make_pod("gpt-p1-s0-i0", phase="Succeeded"))
    assert [x.text for x in explain(manifest, pods, [], NOW).findings] == [
        "3 agents without a node (gpt-p0-s0-i0, gpt-p0-s1-i0, gpt-p0-s2-i0), for up to 10 min: 0/9"
        " nodes are available",
        "1 agent without a node (gpt-p0-s3-i0), for up to 7 min: the scheduler has not looked at"
        " them yet; check that kube-scheduler runs",
    ]


def test_containers_that_wait_are_grouped_by_cause(manifest: dict[str, Any]) -> None:
    pods = [make_pod(f"gpt-p0-s{n}-i0", f"n{n}", phase="Pending") for n in range(4)]
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    pods[0]["status"]["containerStatuses"] = [{"name": "agent", "state": waiting}]
    pods[1]["status"]["containerStatuses"] = [{"name": "agent", "state": waiting}]
    pods[2]["status"]["initContainerStatuses"] = [
        {"name": "data", "state": {"waiting": {"reason": "PodInitializing"}}}
    ]
    assert [x.text for x in explain(manifest, pods, [], NOW).findings] == [
        "2 agents with a node but no running container (gpt-p0-s0-i0, gpt-p0-s1-i0):"
        " ImagePullBackOff: no such image",
        "1 agent with a node but no running container (gpt-p0-s2-i0): container data:"
        " PodInitializing",
        "1 agent with a node but no running container (gpt-p0-s3-i0): the kubelet has not reported"
        " yet",
    ]


def test_a_node_that_does_not_answer_is_named(manifest: dict[str, Any]) -> None:
    pods = [make_pod(f"gpt-p0-s{n}-i0", f"n{n}", phase="Pending") for n in range(2)]
    ready = [{"type": "DiskPressure", "status": "Unknown"}, {"type": "Ready", "status": "Unknown"}]
    nodes = [{"metadata": {"name": "n1"}, "status": {"conditions": ready}}]
    assert [x.text for x in explain(manifest, pods, nodes, NOW).findings] == [
        "1 agent with a node but no running container (gpt-p0-s0-i0): the kubelet has not reported"
        " yet",
        "1 agent with a node but no running container (gpt-p0-s1-i0): node n1 is not ready; if it"
        " stays so for 30 s, the operator replaces the agent",
    ]


_NEED_NOTHING = {
    Reason.SPEC_RESOLVED, Reason.ALL_PLACED, Reason.NEIGHBOURS_SEPARATED, Reason.NOT_WANTED,
    Reason.TRAINING_STEP, Reason.FINISHED, Reason.FULLY_PROTECTED, Reason.NOT_PROTECTED,
    Reason.NO_PLAN, Reason.IDLE, Reason.PROGRESSING, Reason.SEALED, Reason.NONE_YET,
    Reason.RESUMED, Reason.STEPS_REACHED, Reason.NOT_YET, Reason.FINGERPRINT_MISMATCH,
}  # fmt: skip


@pytest.mark.parametrize("reason", [x for x in Reason if x not in _NEED_NOTHING])
def test_every_trouble_has_a_remedy(reason: Reason) -> None:
    assert not REMEDIES[reason].endswith(".")


def test_a_refused_source_of_the_state_has_its_own_remedy(training: dict[str, Any]) -> None:
    """Nothing is wrong with the storage, and all differences are in the message."""
    text = (
        "agent-0: CheckpointFailed: spec.checkpoint.from: /c/a is of a job that computes something"
        " else. If you have changed it on purpose, set spec.checkpoint.from.accept: [Code, Data]"
    )
    training["status"]["conditions"] = [condition("Failed", "True", "CheckpointFailed", text)]
    said = texts(explain(training, [], [], NOW))
    assert text in said
    assert "change the job as the message says, then create a new job" in said
    assert "writable" not in said
    training["status"]["conditions"] = [condition("Failed", "True", "CheckpointFailed", "full")]
    assert "writable" in texts(explain(training, [], [], NOW))


def test_a_job_that_fails_without_a_checkpoint_names_none(training: dict[str, Any]) -> None:
    """Nothing was committed, and it was told to go on from the newest checkpoint."""
    failed = condition("Failed", "True", "UserCodeFailed", "no step was committed")
    training["status"]["conditions"] = [failed]
    said = texts(explain(training, [], [], NOW))
    assert "with spec.checkpoint.from it goes on from the newest checkpoint" in said
    del training["status"]["lastCheckpoint"]
    said = texts(explain(training, [], [], NOW))
    assert "then create a new job, since a failed one stays failed" in said
    assert "checkpoint" not in said


@pytest.mark.parametrize("reason", ["ImagePullFailed", "ContainerCannotStart", "ContainerFailed"])
def test_a_container_beside_an_agent_at_work_is_explained(
    training: dict[str, Any], reason: str
) -> None:
    """It was "Nothing is wrong with it."."""
    stalled = condition("Stalled", "False", reason, "1 agent at work beside a container")
    training["status"]["conditions"] = [stalled]
    said = texts(explain(training, [], [], NOW))
    assert "1 agent at work beside a container" in said
    assert REMEDIES[Reason(reason)] in said


@pytest.mark.parametrize("reason", ["ImagePullFailed", "ContainerCannotStart"])
def test_a_wrong_image_can_be_corrected_though_nothing_runs(
    training: dict[str, Any], reason: str
) -> None:
    """The API server takes it at once as long as agents have no plan."""
    stalled = condition("Stalled", "True", reason, "2 agents cannot start")
    training["status"] |= {"phase": "Pending", "conditions": [stalled]}
    said = texts(explain(training, [], [], NOW))
    assert (
        "correct spec.worker with `kubectl edit` or `kubectl apply`; if the answer is that" in said
    )
    assert "wait with `kubectl wait --for=condition=Suspended`, then correct spec.worker" in said
    assert "the pods start by themselves" in said


def test_a_job_that_has_trained_keeps_its_training_for_another_priority() -> None:
    """A job that is created again begins from the start."""
    remedy = REMEDIES[Reason.WAITS_IN_LINE]
    assert "if it has begun to train, suspend it and wait for its condition Suspended" in remedy
    assert "create" not in remedy


def test_the_command(kubeconfig: Path, server: Server, training: dict[str, Any]) -> None:
    server.answers["/apis/bamboo.dev/v1alpha1/namespaces/team/bamboojobs/gpt"] = (200, training)
    server.answers[PODS_PATH] = (200, {"items": zoned_pods(*SPREAD)})
    server.answers["/api/v1/nodes"] = (403, {"message": "nodes is forbidden"})
    result = CliRunner().invoke(cli, ["explain", "gpt", "--kubeconfig", str(kubeconfig)])
    assert result.exit_code == 0, result.output
    assert "team/gpt is Running at step 20 of 80." in result.output
    assert "Zones come from the pods only" in result.output
    assert "training goes on" in result.output


def test_the_command_names_the_jobs_that_exist(kubeconfig: Path) -> None:
    result = CliRunner().invoke(cli, ["explain", "gtp", "--kubeconfig", str(kubeconfig)])
    assert "it has gpt; give one of them" in str(result.exception)


LAST_WRITE = (
    "all steps are committed, but the checkpoint of step 32 in file:///c is not written (missing:"
    " layers 0-3): agent gpt-p0-s0-i0: writing below /c/u1 failed: No space left on device; 1 agent"
    " (gpt-p0-s0-i0) keeps the state and tries again for 59 minutes, at $7.50 an hour"
)


def test_a_last_write_that_waits_is_explained_with_its_cost_and_the_way_out(
    training: dict[str, Any],
) -> None:
    training["status"]["conditions"].append(
        condition("Stalled", "True", "LastWriteWaits", LAST_WRITE)
    )
    found = explain(training, zoned_pods(*SPREAD), [], NOW)
    (finding,) = (each for each in found.findings if "LastWriteWaits" in each.text)
    assert finding.text.endswith(LAST_WRITE)
    assert "spec.runPolicy.lastWriteDeadlineSeconds" in finding.remedy
    assert "at $7.50 an hour" in " ".join(shown(found).split())
