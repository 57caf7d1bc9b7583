"""The record of a committed step, and of the validation after the last one."""

from __future__ import annotations

from bamboo_agent.hooks.record import StepRecord, record_of
from bamboo_core.api.spec import (
    DataSpec,
    FactorySpec,
    JobSpec,
    PipelinesSpec,
    TrainingSpec,
    WorkerSpec,
)
from bamboo_core.model.ids import Fence
from bamboo_core.protocol.messages import CommitRecord, Progress

SPEC = JobSpec(
    model=FactorySpec("m:b"),
    data=DataSpec("d:b"),
    training=TrainingSpec(10, 32, 4, FactorySpec("torch.optim:AdamW")),
    pipelines=PipelinesSpec(1, 2),
    worker=WorkerSpec("image"),
)


def test_a_step() -> None:
    commit = CommitRecord(
        9, 1.5, 0.5, validation_loss=2.5, metrics={"x": 1.0}, validation_metrics={"x": 2.0}
    )
    progress = Progress(commit, Fence(3, 1, 2), step_s=2.0)
    metrics = {"x": 1.0, "validation_x": 2.0}
    wanted = StepRecord("ns/job", 3, 9, 10, 1.5, 0.5, True, 2.5, 2.0, 16.0, 4, metrics)
    assert record_of("ns/job", SPEC, progress, 4) == wanted


def test_the_validation_after_the_last_step_has_no_loss() -> None:
    commit = CommitRecord(10, validation_loss=2.5)
    made = record_of("ns/job", SPEC, Progress(commit, Fence(3, 1, 2), step_s=2.0), 4)
    assert (made.step, made.loss, made.grad_norm, made.validation_loss) == (10, None, None, 2.5)
    assert made.samples_per_s == 0.0


def test_a_step_without_a_known_length_has_no_speed() -> None:
    assert record_of("ns/job", SPEC, Progress(CommitRecord(1)), 4).samples_per_s == 0.0
