"""Which agents a job can use, and what a refusal says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.arbiter.fleet import spec

from bamboo_core.api import limits
from bamboo_core.api.reasons import Reason
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol import admission
from bamboo_core.protocol.messages import Fingerprint, Ready

FIT = Ready(Fingerprint(), 4, 100, 10)
JOB = spec(stages=2)


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


def test_what_a_job_does_not_use_may_be_absent() -> None:
    job = replace(JOB, data=replace(JOB.data, validation=None), checkpoint=None)
    assert admission.check(job, replace(FIT, validation_samples=0, storage_error="full")) is None


def test_a_validation_set_may_be_as_large_as_can_be_planned() -> None:
    left = limits.MOST_TASKS // JOB.pipelines.stages - limits.tasks(JOB) // JOB.pipelines.stages
    most = left * JOB.training.micro_batch_size
    assert admission.check(JOB, replace(FIT, validation_samples=most)) is None
    assert admission.check(JOB, replace(FIT, validation_samples=most + 1)) is not None


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
