"""Which agents a job can use, and what a refusal says."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from tests.core.arbiter.fleet import spec

from bamboo_core.api import limits
from bamboo_core.api.reasons import Reason
from bamboo_core.api.spec import CheckpointSpec
from bamboo_core.controller.failures import LONGEST_MESSAGE
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol import admission
from bamboo_core.protocol.messages import LANGUAGE, Fingerprint, Hello, Ready

FIT = Ready(Fingerprint(), 4, 100, 10)
JOB = spec(stages=2)
HELLO = Hello(AgentId("a"), "uid", "node", "zone", "machine", "h:1", "h:2")


def test_an_agent_that_fits_is_not_refused() -> None:
    least = Ready(Fingerprint(), 2, JOB.training.global_batch_size, JOB.training.micro_batch_size)
    assert admission.check(JOB, FIT) is None
    assert admission.check(JOB, least) is None


@pytest.mark.parametrize(
    ("ready", "reason", "names"),
    [
        (replace(FIT, layers=1), Reason.TOO_FEW_LAYERS, "spec.pipelines.stages 2"),
        (replace(FIT, training_samples=3), Reason.DATA_TOO_SMALL, "globalBatchSize 4"),
        (replace(FIT, validation_samples=0), Reason.DATA_TOO_SMALL, "spec.data.validation"),
        (replace(FIT, validation_samples=10**6), Reason.DATA_TOO_LARGE, "gives 1000000 samples"),
        (replace(FIT, storage_error="full"), Reason.CHECKPOINT_FAILED, "written: full"),
    ],
)
def test_a_refusal_has_a_reason_and_names_the_field(
    ready: Ready, reason: Reason, names: str
) -> None:
    refusal = admission.check(JOB, ready)
    assert refusal is not None
    assert refusal.reason is reason
    assert names in refusal.message


@pytest.mark.parametrize(
    ("uri", "remedy"),
    [
        ("file:///c", "mount a folder there that all agents can write, "),
        ("s3://bucket/c", "written: why: nothing could be saved; then create the job again"),
    ],
)
def test_the_remedy_fits_the_storage(uri: str, remedy: str) -> None:
    job = replace(JOB, checkpoint=CheckpointSpec(uri))
    refusal = admission.check(job, replace(FIT, storage_error="why"))
    assert refusal is not None
    assert remedy in refusal.message


def test_what_a_job_does_not_use_may_be_absent() -> None:
    job = replace(JOB, data=replace(JOB.data, validation=None), checkpoint=None)
    assert admission.check(job, replace(FIT, validation_samples=0, storage_error="full")) is None


def test_a_validation_set_may_be_as_large_as_can_be_planned() -> None:
    left = limits.MOST_TASKS // JOB.pipelines.stages - limits.tasks(JOB) // JOB.pipelines.stages
    most = left * JOB.training.micro_batch_size
    assert admission.check(JOB, replace(FIT, validation_samples=most)) is None
    assert admission.check(JOB, replace(FIT, validation_samples=most + 1)) is not None


@pytest.mark.parametrize(
    ("language", "remedy"),
    [
        (0, "rebuild the image that spec.worker.image names with the bamboo-train of the operator"),
        (LANGUAGE + 1, "upgrade the chart to the version of the agents' bamboo-train"),
    ],
)
def test_an_agent_of_another_language_is_told_the_remedy(language: int, remedy: str) -> None:
    text = admission.foreign(replace(HELLO, language=language))
    assert text.startswith(f"agent a speaks language {language} of programs")
    assert f"this operator {LANGUAGE}: {remedy}" in text
    assert not admission.foreign(HELLO)


def test_agents_that_differ_are_told_in_what() -> None:
    a, b = AgentId("a"), AgentId("b")
    mine = Fingerprint(torch="2.1")
    assert admission.compare(a, mine, b, mine) is None
    refusal = admission.compare(a, mine, b, Fingerprint(torch="2.2"))
    assert refusal is not None
    assert refusal.reason is Reason.FINGERPRINT_MISMATCH
    assert "torch of agent a is '2.1', of agent b '2.2'" in refusal.message
    refusal = admission.compare(a, mine, b, replace(mine, spec="1"))
    assert refusal is not None
    assert "args of model, data or optimizer have changed" in refusal.message


FULL = Fingerprint("code", "data", "2.8", "cpu:AVX2", 1, "spec", "w1", "o1", "p1", "s1")
A, B = AgentId("a"), AgentId("b")
ORDER = (
    "spec",
    "code",
    "torch",
    "device",
    "products",
    "threads",
    "data",
    "samples",
    "weights",
    "outputs",
)


def changed(*names: str) -> Fingerprint:
    return replace(FULL, **{name: 2 if name == "threads" else "other" for name in names})


def test_every_property_is_compared_and_the_nearest_cause_comes_first() -> None:
    assert {field.name for field in fields(Fingerprint)} == set(ORDER)
    for number, name in enumerate(ORDER):
        refusal = admission.compare(A, FULL, B, changed(*ORDER[number:]))
        assert refusal is not None
        assert refusal.message.startswith(f"{name} of agent a")


def test_every_property_has_a_remedy_of_its_own() -> None:
    told = [admission.compare(A, FULL, B, changed(name)) for name in ORDER]
    remedies = {refusal.message.partition(": ")[2] for refusal in told if refusal is not None}
    assert len(remedies) == len(ORDER)
    assert "factories must draw from torch's, numpy's or random's generators only" in str(told)


@pytest.mark.parametrize("name", ["weights", "outputs", "products", "samples"])
def test_an_empty_digest_equals_any(name: str) -> None:
    """Agents of the version before do not know it, and are not refused in mid-job."""
    before = replace(FULL, **{name: ""})
    assert admission.compare(A, before, B, FULL) is None
    assert admission.compare(A, FULL, B, before) is None
    assert admission.compare(A, FULL, B, changed(name)) is not None


@pytest.mark.parametrize("name", ["code", "data", "torch", "device", "spec"])
def test_what_every_version_knows_is_never_unknown(name: str) -> None:
    assert admission.compare(A, FULL, B, replace(FULL, **{name: ""})) is not None


@pytest.mark.parametrize("name", ORDER)
def test_only_another_processor_is_no_failure(name: str) -> None:
    refusal = admission.compare(A, FULL, B, changed(name))
    assert refusal is not None
    is_device = name in ("device", "products")
    assert (refusal.reason is Reason.DEVICE_DIFFERS) is is_device
    assert ("nodeSelector" in refusal.message) is is_device


def test_products_that_differ_are_told_with_both_kinds() -> None:
    digests = ("0" * 64, "f" * 64)
    mine, theirs = (replace(FULL, products=digest) for digest in digests)
    refusal = admission.compare(A, mine, B, theirs)
    assert refusal is not None
    assert refusal.message.startswith(
        "products of agent a (cpu:AVX2) is '000000000000...', of agent b (cpu:AVX2)"
        " 'ffffffffffff...': the same sums give other bits"
    )


def test_every_remedy_fits_into_the_status() -> None:
    """With the longest names of pods and long names of devices."""
    agent, other = AgentId("a" * 63), AgentId("b" * 63)
    long = replace(FULL, device="cuda:NVIDIA H100 80GB HBM3 MIG 1g.10gb", data="0" * 64)
    for name in ORDER:
        value = 2 if name == "threads" else "f" * 64
        if name == "device":
            value = "cuda:NVIDIA A100-SXM4-80GB MIG 1g.10gb"
        refusal = admission.compare(agent, long, other, replace(long, **{name: value}))
        assert refusal is not None
        assert len(refusal.message) <= LONGEST_MESSAGE, name
