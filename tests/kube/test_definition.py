"""What the API server makes of our resource: defaults, columns, scale, status, bounds."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.core.protection.job import usual

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.progress import TrainingProgress
from bamboo_core.api.reasons import FailureCause
from bamboo_core.api.spec import JobSpec, RunPolicy, to_json
from bamboo_core.arbiter_state import durable
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.controller import failures
from bamboo_core.controller import turn as turns
from bamboo_core.controller.failures import MOST_RECENT, Failure, Failures
from bamboo_core.controller.reconcile import CreatePod, step
from bamboo_core.controller.view import ClusterView, JobView, Memory, Slot, TrainingView, pod_name
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protection.choice import choose
from bamboo_core.validation.reading import from_manifest
from bamboo_devcluster.cluster import Cluster
from bamboo_devcluster.kube.client import ApiError, KubeApi
from bamboo_devcluster.programs import binaries
from bamboo_operator.kube import api, object_views
from bamboo_operator.kube.client import Kube
from bamboo_operator.pods import manifests
from bamboo_operator.status import durable_facts, statuses

from .jobs import job

ROOT = Path(__file__).resolve().parents[2]


async def test_defaults_are_those_of_the_core(kube: Kube, devcluster_namespace: str) -> None:
    """A rule that exists twice is a defect; where it must, the two are equal."""
    stored = await kube.create(api.jobs(devcluster_namespace), job(devcluster_namespace))
    with_defaults, without = from_manifest(stored), from_manifest(job(devcluster_namespace))
    assert isinstance(with_defaults, JobSpec)
    assert isinstance(without, JobSpec)
    assert to_json(with_defaults) == to_json(without)


@pytest.mark.parametrize(
    ("outcome", "copies", "degraded"),
    [
        (None, (2, 1, 1), "True"),
        (None, (), "Unknown"),
        (Outcome.COMPLETE, (), "False"),
    ],
)
async def test_status_is_not_pruned(
    kube: Kube,
    devcluster_namespace: str,
    outcome: Outcome | None,
    copies: tuple[int, ...],
    degraded: str,
) -> None:
    body = await kube.create(
        api.jobs(devcluster_namespace), job(devcluster_namespace, runPolicy={"backoffLimit": 99})
    )
    view, spec = object_views.job_view(body), from_manifest(body)
    assert isinstance(spec, JobSpec)
    verdict = choose(usual(host_memory_bytes=0, memory_bytes=16 << 30)) if copies else None
    training = TrainingView(
        epoch=3, attempt=1, planned=True, has_state=True, has_begun=True, pipelines=2,
        progress=TrainingProgress(5, loss=-3e38, validation_loss=1.0, step_s=2.0, skipped=2),
        checkpoint_step=4, checkpoint_path="/c",
        checkpoint_error="agent x: disk full", outcome=outcome, copies=copies,
        mode=verdict.mode if verdict else None, verdict=verdict,
    )  # fmt: skip
    memory = Memory(incarnation=4, failures=_failures(turns.template(spec)))
    decided = step(spec, ClusterView(), training, memory, job=view, now=1e9)
    new = statuses.to_object(view, spec, decided.status, decided.memory)
    new = statuses.with_times(new, {}, 1e9)
    path = api.job_status(view.namespace, view.name)
    stored = await kube.apply(path, statuses.envelope(view, new), manager=api.STATUS_MANAGER)
    assert stored["status"] == new
    assert ("protection" in new) == bool(copies)
    assert not copies or {"inputs", "estimates"} <= new["protection"].keys()
    assert {c["type"]: c["status"] for c in new["conditions"]}["Degraded"] == degraded
    found = statuses.read_memory(stored)
    assert found.terminal is outcome
    assert found.failures == (memory.failures if outcome is None else decided.memory.failures)


def _failures(template: str) -> Failures:
    """With every field, in a list that has overflowed. template: of the pods that have failed."""
    known = Failures()
    for n in range(MOST_RECENT + 2):
        machine = "01234567-89ab-cdef-0123-456789abcdef/01234567-89ab-cdef-0123-456789abcdef"
        failure = Failure(
            AgentId(f"job-p0-s0-i{n}"), FailureCause.OOM_KILLED, 6, 1e9, "node-a", machine,
            is_user_error=n > 1, is_tolerated=n > MOST_RECENT, template=template,
        )  # fmt: skip
        known = failures.add(known, failure, "boom", RunPolicy(backoff_limit=99))
    return known


async def test_the_two_writers_do_not_touch_each_other(
    kube: Kube, devcluster_namespace: str
) -> None:
    body = await kube.create(api.jobs(devcluster_namespace), job(devcluster_namespace))
    view = object_views.job_view(body)
    known = Durable(term=2, plan=Fence(0, 2, 1), members=(AgentId("job-p0-s0-i0"),))
    leader_facts = durable_facts.LeaderFacts(Durable())
    await durable_facts.write(kube, view, known, leader_facts)
    path = api.job_status(view.namespace, view.name)
    for phase in ("Pending", "Running"):
        status = {"phase": phase, "planEpoch": 1}
        await kube.apply(path, statuses.envelope(view, status), manager=api.STATUS_MANAGER)
    await durable_facts.write(kube, view, known, leader_facts)
    stored = await kube.get(api.job(view.namespace, view.name))
    assert stored is not None
    assert durable_facts.read(stored) == durable.from_json(durable.to_json(known))
    assert stored["status"]["phase"] == "Running"


async def test_a_leader_replaces_only_its_own_facts_or_those_it_began_from(
    kube: Kube, devcluster_namespace: str
) -> None:
    body = await kube.create(api.jobs(devcluster_namespace), job(devcluster_namespace))
    view = object_views.job_view(body)
    old, new = (
        durable_facts.LeaderFacts(durable_facts.read(body)),
        durable_facts.LeaderFacts(durable_facts.read(body)),
    )
    await durable_facts.write(kube, view, Durable(term=5), new)
    for term in (4, 5, 6):
        with pytest.raises(
            durable_facts.OvertakenError, match=f"term 5 has written .*; ours, {term},"
        ):
            await durable_facts.write(kube, view, Durable(term=term), old)
    await durable_facts.write(kube, view, Durable(term=5, committed=3), new)
    await kube.delete(api.job(view.namespace, view.name))
    with pytest.raises(durable_facts.JobGoneError):
        await durable_facts.write(kube, view, Durable(term=6), new)
    status = statuses.envelope(view, {"phase": "Pending"})
    with pytest.raises(api.ApiError) as missing:
        await kube.apply(api.job_status(view.namespace, view.name), status, manager="somebody")
    assert missing.value.is_absence


async def test_columns_and_scale_with_kubectl(
    devcluster: Cluster, devcluster_namespace: str, kube: Kube
) -> None:
    kubectl = binaries.ensure(print)["kubectl"]

    def run(*arguments: str) -> str:
        return subprocess.run(
            [str(kubectl), "--kubeconfig", str(devcluster.kubeconfig), "-n", devcluster_namespace,
             *arguments],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip

    await kube.create(api.jobs(devcluster_namespace), job(devcluster_namespace))
    await asyncio.to_thread(run, "scale", "bj/job", "--replicas=3")
    head = (await asyncio.to_thread(run, "get", "bj")).splitlines()[0].split()
    assert head == ["NAME", "PHASE", "PIPELINES", "STEP", "LEFT", "LOSS", "LOST", "CKPT", "AGE"]
    stored = await kube.get(api.job(devcluster_namespace, "job"))
    assert stored is not None
    assert stored["spec"]["pipelines"]["count"] == 3
    text = await asyncio.to_thread(run, "explain", "bamboojob.spec.pipelines.count")
    assert "Number of pipelines wanted" in text


async def test_bounds_are_enforced(
    devcluster_api: KubeApi, devcluster_namespace: str, kube: Kube
) -> None:
    for spec, words in (
        ({"training": {"steps": 0}}, "spec.training.steps"),
        ({"worker": {"gracePeriodSeconds": 0}}, "spec.worker.gracePeriodSeconds"),
        ({"placement": {"zones": ["a", "a"]}}, "Duplicate value"),
        ({"worker": {"resources": {"limits": {"cpu": "lots"}}}}, "spec.worker.resources.limits"),
        ({"worker": {"resources": {"limits": {"cpu": "1e100"}}}}, "spec.worker.resources.limits"),
        ({"numerics": "Exact"}, 'supported values: "Canonical", "Fast"'),
    ):
        body = job(devcluster_namespace, **spec)
        with pytest.raises(ApiError) as refusal:
            await devcluster_api.post(api.jobs(devcluster_namespace), body)
        assert words in str(refusal.value)


def shown_jobs() -> dict[str, Any]:
    """The jobs that users copy: the examples, the README's, and the one that sets every field."""
    found = {path.name: path.read_text() for path in (ROOT / "examples").glob("*.yaml")}
    readme = (ROOT / "README.md").read_text()
    (found["README.md"],) = re.findall(r"```yaml\n(apiVersion.*?)```", readme, re.S)
    found["every-field.yaml"] = (ROOT / "docs/reference/every-field.yaml").read_text()
    return {name: yaml.safe_load(text) for name, text in found.items()}


async def test_the_examples_are_accepted_with_their_pods(
    devcluster_api: KubeApi, devcluster_namespace: str, kube: Kube
) -> None:
    dry = {"dryRun": "All", "fieldValidation": "Strict"}
    jobs = shown_jobs()
    assert len(jobs) >= 5
    for body in jobs.values():
        body["metadata"]["namespace"] = devcluster_namespace
        stored = await devcluster_api.request(
            "POST", api.jobs(devcluster_namespace), body, params=dry
        )
        spec = from_manifest(stored)
        assert isinstance(spec, JobSpec)
        name = body["metadata"]["name"]
        view = JobView(devcluster_namespace, name, stored["metadata"]["uid"], 1, 0.0)
        avoids = ("node-a", "node-b")
        action = CreatePod(pod_name(name, Slot(0, 0), 0), Slot(0, 0), 0, "zone-a", avoids)
        pod = manifests.pod(spec, view, action, operator_address="op:1")
        await devcluster_api.request("POST", api.pods(devcluster_namespace), pod, params=dry)


def test_the_definition_is_small(definition: dict[str, Any]) -> None:
    assert (ROOT / "crds/bamboojobs.yaml").stat().st_size < 200_000
