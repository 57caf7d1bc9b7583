"""Losses with counts and metrics have equal bits on every grid, and through kills."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.local.runs import Run, check_restore, written

from bamboo_core.api import local_run
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import CheckpointSpec, JobSpec, ModelSpec, OnNonFinite, RedundancySpec
from bamboo_sim.fleet.runs.jobs import tiny_gpt

pytestmark = [pytest.mark.timeout(600), pytest.mark.rotating(3)]

CODE = """
import torch
from torch.nn import functional
from bamboo_agent.model import Model
from bamboo_agent.models import gpt

SPACE = 32  # stands for padding: never equally often in two micro-batches

def counted(output, target):
    logits, labels = output.flatten(0, -2), target.flatten()
    total = functional.cross_entropy(logits, labels, reduction="sum", ignore_index=SPACE)
    is_right = (logits.argmax(-1) == labels) & (labels != SPACE)
    targets = (labels != SPACE).sum()
    return {"loss": (total, targets), "right": (is_right.sum(), targets), "scale": logits.std()}

def plain(output, target):
    return functional.cross_entropy(output.flatten(0, -2), target.flatten())

def named(output, target):
    return {"loss": plain(output, target), "scale": output.std()}

def empty(output, target):
    return output.sum() * 0, 0

def build(loss, **arguments):
    return Model(gpt.build(**arguments).layers, globals()[loss])
"""


def job(folder: Path, loss: str, pipelines: int, stages: int, steps: int = 6) -> JobSpec:
    spec = tiny_gpt(folder, pipelines=pipelines, stages=stages, most=3, steps=steps, microbatches=6)
    return replace(
        spec,
        model=ModelSpec("mine:build", {**spec.model.args, "loss": loss}),
        training=replace(spec.training, validate_every=2),
        checkpoint=CheckpointSpec((folder / "checkpoints").as_uri()),
    )


def trained(folder: Path, code: Path, loss: str, grid: tuple[int, int], *options: str) -> Run:
    run = Run(job(folder, loss, *grid), folder, *options, code=code)
    assert run.to_end() == 0, run.told
    return run


def figures(run: Run) -> list[tuple[object, ...]]:
    return [
        (x.step, x.loss, x.grad_norm, x.metrics, x.validation_loss, x.validation_metrics)
        for x in run.all_of(local_run.Step)
    ]


def test_sums_with_counts_have_equal_bits_on_every_grid(tmp_path: Path) -> None:
    code = written(tmp_path / "code", CODE)
    one = trained(tmp_path / "1x1", code, "counted", (1, 1), "--check")
    (compared,) = one.all_of(local_run.Compared)
    assert compared.differs == ""
    steps = one.all_of(local_run.Step)
    assert [x.step for x in steps] == list(range(6))
    assert all(x.metrics.keys() == {"right", "scale"} for x in steps)
    validated = [x.step for x in steps if x.validation_metrics]
    assert validated == [x.step for x in steps if x.validation_loss is not None]
    assert validated
    for grid in ((2, 2), (3, 2)):
        run = trained(tmp_path / str(grid[0]), code, "counted", grid, "--kill", "1")
        assert len(run.all_of(local_run.Killed)) == 1
        assert run.ended.digest == one.ended.digest
        assert figures(run) == figures(one)


def test_a_restored_job_counts_as_before(tmp_path: Path) -> None:
    code = written(tmp_path / "code", CODE)
    spec = job(tmp_path / "run", "counted", 1, 2)
    saved = CheckpointSpec((tmp_path / "run" / "checkpoints").as_uri(), every_steps=2)
    alone = replace(spec, checkpoint=saved, redundancy=RedundancySpec())
    check_restore(alone, tmp_path / "run", code)


def test_metrics_beside_a_mean_change_no_bit(tmp_path: Path) -> None:
    code = written(tmp_path / "code", CODE)
    plain = trained(tmp_path / "plain", code, "plain", (1, 1))
    named = trained(tmp_path / "named", code, "named", (2, 2), "--check")
    assert named.all_of(local_run.Compared)[0].differs == ""
    assert named.ended.digest == plain.ended.digest
    both = zip(named.all_of(local_run.Step), plain.all_of(local_run.Step), strict=True)
    assert all((x.loss, x.grad_norm) == (y.loss, y.grad_norm) for x, y in both)
    assert not any(x.metrics for x in plain.all_of(local_run.Step))


def test_batches_without_targets_end_the_job_and_say_so(tmp_path: Path) -> None:
    code = written(tmp_path / "code", CODE)
    spec = job(tmp_path / "run", "empty", 1, 2, steps=30)
    training = replace(spec.training, on_non_finite=OnNonFinite(2))
    run = Run(replace(spec, training=training), tmp_path / "run", code=code)
    assert run.to_end() == 1
    assert run.ended.outcome is Outcome.FAILED
    assert "the global batch of step 2 has no targets: its loss counted none" in run.ended.message
    told = [x.message for x in run.all_of(local_run.Happened) if x.reason == "StepSkipped"]
    assert told[0].startswith("the global batch of step 0 has no targets")
