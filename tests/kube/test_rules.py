"""Every CEL rule of the resource definition, accepted and rejected by a real API server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from bamboo_devcluster.kube.client import ApiError, KubeApi

from .jobs import job
from .rule_cases import CASES, CHECKPOINT, REST, Case

CHANGING = [case for case in CASES if REST in case.rule]
STATELESS = [case for case in CHANGING if "whether or not they run" in case.rule]
AT_REST = {"agents": "- -\n+ ", "outcome": "Suspended"}
JOBS = "/apis/bamboo.dev/v1alpha1/namespaces/{}/bamboojobs"


@dataclass
class Server:
    """Tries manifests; every one under a name of its own."""

    api: KubeApi
    namespace: str

    async def create(self, spec: dict[str, Any], name: str = "") -> str:
        name = name or f"job-{uuid.uuid4().hex[:8]}"
        await self.api.post(JOBS.format(self.namespace), job(self.namespace, name, **spec))
        return name

    async def plan(self, name: str, phase: str = "", **facts: Any) -> None:
        """The status as the operator writes it once the first plan is durable."""
        facts = {"term": 1, "agents": "a b\n+ "} | facts
        await self.show(name, {"arbiter": facts} | ({"phase": phase} if phase else {}))

    async def show(self, name: str, status: dict[str, Any]) -> None:
        path = f"{JOBS.format(self.namespace)}/{name}/status"
        await self.api.patch(path, {"status": status})

    async def change(self, name: str, spec: dict[str, Any]) -> None:
        await self.api.patch(f"{JOBS.format(self.namespace)}/{name}", {"spec": spec})

    async def refuses(self, name: str, spec: dict[str, Any], words: str) -> None:
        """The change, in one sentence with these words."""
        with pytest.raises(ApiError) as refusal:
            await self.change(name, spec)
        assert refusal.value.code == 422
        _, _, lines = str(refusal.value).partition(" is invalid: ")  # several stand in brackets
        assert lines.startswith("spec: Invalid value")
        assert words in lines


@pytest.fixture
def server(devcluster_api: KubeApi, definition: dict[str, Any]) -> Server:
    """All cases share a namespace that is there: making one takes longer than a case."""
    return Server(devcluster_api, "default")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule[:40]}: {case.words[-30:]}")
async def test_accepted_and_rejected(server: Server, case: Case) -> None:
    if case.before is None:
        await server.create(case.accepted, case.name)
        with pytest.raises(ApiError) as refusal:
            await server.create(case.rejected, case.rejected_name)
    else:
        name = await server.create(case.before)
        await server.plan(name, case.phase)
        await server.change(name, case.accepted)
        with pytest.raises(ApiError) as refusal:
            await server.change(name, case.rejected)
    assert refusal.value.code == 422
    assert case.words in str(refusal.value)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"training": {"microBatchSize": 0}}, "spec.training.microBatchSize"),
        ({"training": {"microBatchSize": -2}}, "spec.training.microBatchSize"),
        ({"training": {"microBatchSize": 0}, "pipelines": {"max": 4}}, "spec.training.microBatch"),
        ({"training": {"globalBatchSize": 0}}, "spec.training.globalBatchSize"),
        ({"training": {"steps": 0}}, "spec.training.steps"),
        ({"pipelines": {"count": 0}}, "spec.pipelines.count"),
        ({"pipelines": {"max": 0}}, "spec.pipelines.max"),
        ({"pipelines": {"min": 0}}, "spec.pipelines.min"),
        ({"pipelines": {"stages": 0}}, "spec.pipelines.stages"),
        ({"pipelines": {"stages": 0}, "redundancy": {"mode": "Replica"}}, "spec.pipelines.stages"),
    ],
)
async def test_a_number_that_is_too_small_is_one_line(
    server: Server, spec: dict[str, Any], field: str
) -> None:
    """The rules do not add what follows from it, least of all that they cannot divide by zero."""
    with pytest.raises(ApiError) as refusal:
        await server.create(spec)
    _, _, lines = str(refusal.value).partition(" is invalid: ")  # several would stand in brackets
    assert lines.startswith(field)
    assert lines.endswith("should be greater than or equal to 1")


@pytest.mark.parametrize("facts", [AT_REST, None], ids=["at rest", "no plan yet"])
@pytest.mark.parametrize("case", CHANGING, ids=lambda case: case.rule[:40])
async def test_a_suspended_job_may_change(
    server: Server, case: Case, facts: dict[str, Any] | None
) -> None:
    assert case.before is not None
    name = await server.create(case.before | {"suspend": True})
    if facts is not None:
        await server.plan(name, **facts)
    await server.change(name, case.rejected)
    await server.change(name, {"suspend": False})


@pytest.mark.parametrize("case", CHANGING, ids=lambda case: case.rule[:40])
async def test_a_job_whose_agents_still_leave_may_not_change(server: Server, case: Case) -> None:
    """It could be told to go on, with agents of the old spec beside those of the new one."""
    assert case.before is not None
    name = await server.create(case.before | {"suspend": True})
    await server.plan(name)
    for resumed in ({}, {"suspend": False}):
        await server.refuses(name, case.rejected | resumed, case.words)


@pytest.mark.parametrize("case", CHANGING, ids=lambda case: case.rule[:40])
@pytest.mark.parametrize("phase", ["Complete", "Failed"])
async def test_an_ended_job_may_not_change(server: Server, case: Case, phase: str) -> None:
    """Nothing would come of it, whether it is suspended, or has never had a plan."""
    assert case.before is not None
    words = f"the job has ended (status.phase is {phase}), and what its agents were made from"
    for facts in ({"outcome": phase}, {"agents": None}, AT_REST):
        name = await server.create(case.before | {"suspend": facts == AT_REST})
        await server.plan(name, phase, **facts)
        await server.refuses(name, case.rejected, words)


@pytest.mark.parametrize("case", CHANGING, ids=lambda case: case.rule[:40])
async def test_a_spec_that_cannot_be_read_may_change(server: Server, case: Case) -> None:
    """An operator that has begun anew knows no spec by which it could lead the job to its rest."""
    assert case.before is not None
    name = await server.create(case.before)
    await server.plan(name)
    accepted = {"type": "Accepted", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    await server.show(
        name, {"conditions": [accepted | {"status": "False", "reason": "SpecInvalid"}]}
    )
    await server.refuses(name, case.rejected, case.words)
    await server.change(name, {"suspend": True})
    for status, reason in (("False", "PodRejected"), ("True", "Valid")):
        await server.show(name, {"conditions": [accepted | {"status": status, "reason": reason}]})
        await server.refuses(name, case.rejected, case.words)
    await server.show(
        name, {"conditions": [accepted | {"status": "False", "reason": "SpecInvalid"}]}
    )
    await server.change(name, case.rejected)


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.before is not None], ids=lambda case: case.rule[:40]
)
async def test_a_running_job_refuses_a_change_in_one_sentence(server: Server, case: Case) -> None:
    """The message must not advise to suspend the job where that does not help."""
    assert case.before is not None
    name = await server.create(case.before | {"suspend": False})
    await server.plan(name, case.phase)
    await server.refuses(name, case.rejected, case.words)


@pytest.mark.parametrize(
    "facts",
    [
        None,  # no operator has written anything
        {"agents": None, "batch": [16, 1, 4]},  # a plan is being made; or none since a restore
        {"agents": "- -\n+ ", "outcome": "Suspended"},  # resumed, and nobody has seen that yet
        {"outcome": "Suspended", "agents": None},
    ],
)
@pytest.mark.parametrize("case", STATELESS, ids=lambda case: case.rule[:40])
async def test_a_job_without_a_plan_may_change(
    server: Server, case: Case, facts: dict[str, Any] | None
) -> None:
    """One update mends it."""
    assert case.before is not None
    name = await server.create(case.before)
    if facts is not None:
        await server.plan(name, **facts)
    await server.change(name, case.rejected)


async def test_the_facts_that_the_rules_read_do_not_hide_others(server: Server) -> None:
    """The operator keeps more there than the definition names."""
    name = await server.create({})
    await server.plan(name, cut=[[0, 2], [2, 4]], outcome="Suspended", message="m")
    body = await server.api.get(f"{JOBS.format(server.namespace)}/{name}")
    assert body["status"]["arbiter"] == {
        "term": 1, "agents": "a b\n+ ", "cut": [[0, 2], [2, 4]], "outcome": "Suspended",
        "message": "m",
    }  # fmt: skip


async def test_changes_of_checkpoint_while_the_job_runs(server: Server) -> None:
    """Whether there is one at all; and how the folder's rule goes with the others."""
    bare, saved = await server.create({}), await server.create(CHECKPOINT)
    await server.plan(bare)
    await server.plan(saved)
    for name, change, sentence in (
        (bare, CHECKPOINT, "spec.checkpoint cannot change while agents have a plan"),
        (saved, {"checkpoint": None}, "holds the job's state and cannot change"),
        (saved, {"checkpoint": {"uri": "file:///d", "keep": 9}}, "holds the job's state and"),
    ):
        with pytest.raises(ApiError) as refusal:
            await server.change(name, change)
        assert str(refusal.value).count("cannot change") == 1
        assert sentence in str(refusal.value)


async def test_count_and_limits_may_change_while_the_job_runs(server: Server) -> None:
    name = await server.create({})
    await server.change(name, {"pipelines": {"count": 3}, "runPolicy": {"backoffLimit": 9}})
    await server.change(name, {"transport": {"bandwidthGbps": 2.5}})


def rules(node: Any) -> Iterator[dict[str, str]]:
    """Every CEL rule in a schema."""
    if isinstance(node, dict):
        yield from node.get("x-kubernetes-validations", [])
        for value in node.values():
            yield from rules(value)
    elif isinstance(node, list):
        for value in node:
            yield from rules(value)


def test_no_rule_is_without_a_case(definition: dict[str, Any]) -> None:
    messages = [rule["message"] for rule in rules(definition)]
    assert len(messages) >= 25
    for message in messages:
        assert any(message.startswith(case.rule) for case in CASES), message
    for case in CASES:
        assert any(message.startswith(case.rule) for message in messages), case.rule


async def test_another_order_has_another_id(server: Server) -> None:
    name = await server.create(CHECKPOINT | {"restore": {"id": "1", "fromStep": 2}})
    for order in ({"id": "2", "fromStep": 4}, None, {"id": "1", "fromStep": 4}):
        await server.change(name, {"restore": order})  # the operator refuses the last one
