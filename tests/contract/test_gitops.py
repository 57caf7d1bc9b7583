"""The health checks and manifests for Argo CD and Flux in docs/installing.md, run and compared with
what the operator writes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import cel
import pytest
import yaml
from lupa import lua51  # the version of Argo CD's interpreter
from tests.core.controller import builders

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import ConditionType, Reason
from bamboo_core.api.records import Problem
from bamboo_core.controller import lifecycle
from bamboo_core.controller.view import (
    ClusterView,
    Condition,
    Memory,
    PodPhase,
    PodView,
    TrainingView,
)
from bamboo_core.model.ids import AgentId
from bamboo_operator.status import statuses

from .chart import CHART, of_kind, render

HEALTH = "resource.customizations.health.bamboo.dev_BambooJob"
PAGE = (CHART.parents[1] / "docs/installing.md").read_text()
SECTION = PAGE[PAGE.index("## Argo CD and Flux") : PAGE.index("## Roll back")]
OBJECTS: list[dict[str, Any]] = [
    body
    for block in re.findall(r"```yaml\n(.*?)```", SECTION, re.S)
    for body in yaml.safe_load_all(block)
]
Object = dict[str, Any]


def named(kind: str, name: str) -> Object:
    """The section's only object of this kind and name."""
    (found,) = [
        body for body in OBJECTS if (body["kind"], body["metadata"]["name"]) == (kind, name)
    ]
    return found


LUA: str = named("ConfigMap", "argocd-cm")["data"][HEALTH]
(CEL,) = named("Kustomization", "jobs")["spec"]["healthCheckExprs"]


# ---------------------------------------------------------------- states of a job

PODS = (builders.pod(0, 0), builders.pod(0, 1, zone="b"))
AGENTS = frozenset(AgentId(pod.name) for pod in PODS)
TRAINING = TrainingView(
    epoch=4,
    planned=True,
    has_state=True,
    pipelines=1,
    connected=AGENTS,
    members=AGENTS,
    copies=(2, 2),
)
YOUNG = Memory()
ENDED = Memory(reason=Reason.STEPS_REACHED, message="all steps are committed")


def conditions(
    *pods: PodView,
    training: TrainingView = TRAINING,
    memory: Memory = YOUNG,
    queued: str = "",
    suspend: bool = False,
) -> tuple[Condition, ...]:
    """Those that the operator writes then."""
    view = ClusterView(builders.nodes(a=4, b=4), pods)
    job = replace(builders.JOB, queued=queued)
    spec = builders.spec(suspend=suspend)
    found = lifecycle.status_of(spec, view, training, memory, job=job, now=50.0)
    return found.conditions


def refused(reason: Reason, *pods: PodView) -> tuple[Condition, ...]:
    """After this refusal of a job that trained, or that was new."""
    before = conditions(*pods) if pods else ()
    return lifecycle.refuse([Problem("spec", "is wrong")], before, now=60.0, reason=reason)


PROGRESSING, DEGRADED = ("Progressing", "InProgress"), ("Degraded", "Failed")
HEALTHY, SUSPENDED = ("Healthy", "Current"), ("Suspended", "Current")
STUCK = replace(TRAINING, stall="agents wait for each other")
QUEUED = "Kueue has not admitted it"
NOTHING = TrainingView()
CASES: dict[str, tuple[tuple[Condition, ...], tuple[str, str], str]] = {
    "pending": (conditions(training=NOTHING), PROGRESSING, "WaitingForNodes: no pod yet"),
    "starting": (conditions(*PODS, training=NOTHING), PROGRESSING, "WaitingForAgents: 0 of 2"),
    "training": (conditions(*PODS), HEALTHY, "TrainingStep: step 0 of 10"),
    "with fewer agents": (
        conditions(*PODS, training=replace(TRAINING, members=frozenset(list(AGENTS)[:1]))),
        HEALTHY, "FewerAgents: 1 agent instead of 2",
    ),
    "with a new plan": (
        conditions(*PODS, training=replace(TRAINING, recovering=True)), HEALTHY, "",
    ),
    "after a loss": (
        conditions(*PODS, training=NOTHING, memory=Memory(trained=True)), PROGRESSING, "",
    ),
    "stuck": (
        conditions(*PODS, training=STUCK), DEGRADED, "NoProgress: agents wait for each other",
    ),
    "without an image": (
        conditions(replace(PODS[0], phase=PodPhase.PENDING, waiting="ErrImagePull"), PODS[1],
                   training=NOTHING),
        DEGRADED, "ImagePullFailed: 1 agent cannot start",
    ),
    "suspending": (conditions(*PODS, suspend=True), PROGRESSING, ""),
    "suspended": (
        conditions(training=TrainingView(outcome=Outcome.SUSPENDED), suspend=True),
        SUSPENDED, "UserRequested: ",
    ),
    "queued": (
        conditions(training=NOTHING, queued=QUEUED, suspend=True), SUSPENDED,
        f"QueuedByKueue: {QUEUED}",
    ),
    "complete": (
        conditions(memory=replace(ENDED, terminal=Outcome.COMPLETE)), HEALTHY,
        "StepsReached: all steps are committed",
    ),
    "failed": (
        conditions(memory=Memory(terminal=Outcome.FAILED, reason=Reason.BACKOFF_LIMIT_EXCEEDED,
                                 message="too many")),
        DEGRADED, "BackoffLimitExceeded: too many",
    ),
    "new and refused": (refused(Reason.SPEC_INVALID), DEGRADED, "SpecInvalid: spec: is wrong"),
    "refused while it trains": (refused(Reason.SPEC_CHANGED, *PODS), DEGRADED, "SpecChanged: "),
    "refused with its pods": (refused(Reason.POD_REJECTED, *PODS), DEGRADED, "PodRejected: "),
    "not led for want of memory": (refused(Reason.OPERATOR_FULL), PROGRESSING, "OperatorFull: "),
    "complete, and changed afterwards": (
        lifecycle.refuse(
            [Problem("spec", "is wrong")],
            conditions(memory=replace(ENDED, terminal=Outcome.COMPLETE)),
            now=60.0, reason=Reason.SPEC_INVALID,
        ),
        HEALTHY, "StepsReached: ",
    ),
    "in an error of the operator": (
        lifecycle.stalled((), "boom", now=50.0), DEGRADED, "ReconcileError: ",
    ),
}  # fmt: skip


def stored(found: Sequence[Condition], *, generation: int = 1, observed: int = 1) -> Object:
    """The job as the API server has it."""
    return {
        "metadata": {"name": "job", "generation": generation},
        "spec": {"pipelines": {"count": 1, "stages": 2}},
        "status": {
            "observedGeneration": observed,
            "conditions": statuses.conditions(found, observed),
        },
    }


# ---------------------------------------------------------------- the two checks


def argo(job: Object) -> tuple[str, str]:
    """Health and message, as Argo CD computes them: with the libraries base, table, package and a
    part of os."""
    lua = lua51.LuaRuntime(unpack_returned_tuples=True)
    for library in ("string", "math", "io", "debug", "coroutine", "python"):
        lua.execute(f"{library} = nil")
    lua.globals().obj = lua.table_from(job, recursive=True)
    found = lua.execute(LUA)
    assert set(found.keys()) == {"status", "message"}
    return found["status"], found["message"]


def flux(job: Object) -> str:
    """The result of RFC 9 of Flux. RuntimeError or ValueError: an expression cannot be computed."""
    if job["status"]["observedGeneration"] != job["metadata"]["generation"]:
        return "InProgress"
    for name, word in (("inProgress", "InProgress"), ("failed", "Failed"), ("current", "Current")):
        if name in CEL:
            answer = cel.evaluate(CEL[name], job)
            assert isinstance(answer, bool)
            if answer:
                return word
    return "InProgress"


@pytest.mark.parametrize("name", CASES)
def test_argo_cd_shows_the_state_of_a_job(name: str) -> None:
    found, (health, _), words = CASES[name]
    status, message = argo(stored(found))
    assert (status, message) == (health, message)
    assert message.startswith(words), message


@pytest.mark.parametrize("name", CASES)
def test_flux_shows_the_state_of_a_job(name: str) -> None:
    found, (_, result), _ = CASES[name]
    assert flux(stored(found)) == result


def test_an_older_status_says_nothing_about_a_new_spec() -> None:
    for name in ("training", "failed", "complete"):
        job = stored(CASES[name][0], generation=2)
        assert argo(job)[0] == "Progressing"
        assert flux(job) == "InProgress"


def test_a_job_that_no_operator_has_seen_is_not_healthy() -> None:
    job = stored(())
    del job["status"]
    assert argo(job)[0] == "Progressing"
    for name in ("failed", "current"):
        with pytest.raises((RuntimeError, ValueError)):
            cel.evaluate(CEL[name], job)
    assert argo(stored(()))[0] == "Progressing"
    assert flux(stored(())) == "InProgress"


def test_every_state_is_in_the_pages_table() -> None:
    rows = re.findall(r"^\| ([^|]+) \| (\w+) \| ([\w ]+) \|$", SECTION, re.M)
    told = {(argo_, flux_.replace(" ", "").lower()) for _, argo_, flux_ in rows}
    assert {(a, f.lower()) for _, (a, f), _ in CASES.values()} == told


def quoted(text: str) -> Iterator[str]:
    yield from re.findall(r"['\"](\w+)['\"]", text)


@pytest.mark.parametrize("text", [LUA, CEL["failed"], CEL["current"]])
def test_a_renamed_condition_or_reason_breaks_a_check(text: str) -> None:
    """So that these pages are changed with it."""
    words = {"True", "False", "Healthy", "Degraded", "Progressing", "Suspended"}
    known = {kind.value for kind in ConditionType} | {reason.value for reason in Reason} | words
    assert [word for word in quoted(text) if word not in known] == []
    assert {"Complete", "Accepted"} & set(quoted(text))


# ---------------------------------------------------------------- the manifests


def test_the_operator_writes_nothing_into_the_spec() -> None:
    """So Argo CD and Flux find no difference that it has made."""
    rules = [
        rule for role in (*of_kind(render(), "ClusterRole"), *of_kind(render(), "Role"))
        if not re.fullmatch("bamboo-(view|edit|admin)", role["metadata"]["name"])
        for rule in role["rules"]
    ]  # fmt: skip
    verbs = {
        resource: set(rule["verbs"])
        for rule in rules
        for resource in rule["resources"]
        if resource.startswith("bamboojobs")
    }
    assert verbs.keys() == {"bamboojobs", "bamboojobs/status"}
    assert verbs["bamboojobs"] & {"update", "patch", "create"} == set()


def definition() -> Object:
    found: Object = yaml.safe_load((CHART / "crds/bamboojobs.yaml").read_text())
    return found


def test_what_others_write_is_ignored() -> None:
    (rule,) = named("Application", "jobs")["spec"]["ignoreDifferences"]
    crd = definition()
    assert (rule["group"], rule["kind"]) == (crd["spec"]["group"], crd["spec"]["names"]["kind"])
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for pointer in rule["jsonPointers"]:
        node = schema
        for name in pointer.strip("/").split("/"):
            node = node["properties"][name]
        assert f"`{pointer.strip('/').replace('/', '.')}`" in SECTION
    scale = crd["spec"]["versions"][0]["subresources"]["scale"]["specReplicasPath"]
    assert scale.replace(".", "/") in rule["jsonPointers"]


def test_neither_deletes_the_resource_definition() -> None:
    """All jobs would go with it."""
    annotations = definition()["metadata"]["annotations"]
    options = annotations["argocd.argoproj.io/sync-options"].split(",")
    assert sorted(options) == ["Delete=false", "Prune=false"]
    assert annotations["kustomize.toolkit.fluxcd.io/prune"] == "disabled"


def test_the_operator_comes_before_jobs() -> None:
    operator, jobs = named("Application", "bamboo"), named("Application", "jobs")
    waves = [
        int(body["metadata"]["annotations"]["argocd.argoproj.io/sync-wave"])
        for body in (operator, jobs)
    ]
    assert waves == sorted(set(waves))
    for body in (operator, jobs):
        assert "ServerSideApply=true" in body["spec"]["syncPolicy"]["syncOptions"]
    options = jobs["spec"]["syncPolicy"]["syncOptions"]
    assert {"RespectIgnoreDifferences=true", "SkipDryRunOnMissingResource=true"} <= set(options)
    spec = named("Kustomization", "jobs")["spec"]
    (before,) = spec["dependsOn"]
    assert named("Kustomization", before["name"])["spec"]["wait"] is True
    assert (CEL["apiVersion"], CEL["kind"]) == ("bamboo.dev/v1alpha1", "BambooJob")


def test_the_chart_and_its_values_exist() -> None:
    root = CHART.parents[1]
    source = named("Application", "bamboo")["spec"]["source"]
    for file in source["helm"]["valueFiles"]:
        assert (root / source["path"] / file).is_file()
    release = named("HelmRelease", "bamboo")["spec"]
    chart = release["chart"]["spec"]
    assert (root / chart["chart"]).is_dir()
    assert [file for file in chart["valuesFiles"] if not (root / file).is_file()] == []
    assert release["install"]["crds"] == release["upgrade"]["crds"] == "CreateReplace"
    for values in (release["values"], source["helm"]["valuesObject"]):
        render("--set", f"image.repository={values['image']['repository']}")
