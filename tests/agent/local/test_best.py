"""The best checkpoint of a run is there at its end, on every grid and through kills."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.local.runs import Run, written

from bamboo_agent.local.operator import JOB_UID
from bamboo_agent.storage.checkpoint import Checkpoints
from bamboo_core.api import local_run
from bamboo_core.api.events import EventReason
from bamboo_core.api.spec import BestMode, BestSpec, CheckpointSpec, JobSpec, ModelSpec
from bamboo_core.protocol.messages import Manifest
from bamboo_sim.fleet.runs.jobs import tiny_gpt

pytestmark = [pytest.mark.timeout(600), pytest.mark.rotating(2)]

CODE = """
import torch
from torch.nn import functional
from bamboo_agent.model import Model
from bamboo_agent.models import gpt

def loss(output, target):
    found = functional.cross_entropy(output.flatten(0, -2), target.flatten())
    return {"loss": found, "wave": torch.sin(20 * found.detach())}  # it rises and falls

def build(**arguments):
    return Model(gpt.build(**arguments).layers, loss)
"""


def job(
    folder: Path, pipelines: int, stages: int, *, metric: str = "wave", keep: int = 2
) -> JobSpec:
    spec = tiny_gpt(folder, pipelines=pipelines, stages=stages, steps=8, microbatches=8)
    return replace(
        spec,
        model=ModelSpec("mine:build", spec.model.args),
        training=replace(spec.training, validate_every=1),
        checkpoint=CheckpointSpec(
            (folder / "checkpoints").as_uri(), keep=keep, best=BestSpec(metric, BestMode.MAX)
        ),
    )


def files(spec: JobSpec) -> tuple[Checkpoints, list[Manifest]]:
    assert spec.checkpoint is not None
    found = Checkpoints(spec.checkpoint.uri, JOB_UID)
    return found, found.scan().good


def sealed(run: Run) -> set[int]:
    told = [x for x in run.all_of(local_run.Happened) if x.reason == EventReason.CHECKPOINT_SEALED]
    return {int(x.message.split("step ")[1].split(" ")[0]) for x in told}


def test_the_best_step_is_kept_with_equal_bits_through_kills(tmp_path: Path) -> None:
    code = written(tmp_path / "code", CODE)
    still = job(tmp_path / "a", 1, 1, keep=20)
    run = Run(still, tmp_path / "a", code=code)
    assert run.to_end() == 0, run.told
    checkpoints, every = files(still)
    told = {x.step: x.validation_metrics["wave"] for x in run.all_of(local_run.Step)}
    values = {m.step: m.value for m in every if m.value is not None}
    assert {step: told[step] for step in range(1, 8)} | {8: values[8]} == values
    wanted = max(values, key=lambda step: values[step])
    assert run.ended.best.startswith(f"step {wanted}, wave {values[wanted]:.6g}, in /")

    shaken = job(tmp_path / "b", 2, 2)
    run = Run(shaken, tmp_path / "b", "--kill", "1", code=code)
    assert run.to_end() == 0, run.told
    assert run.all_of(local_run.Killed)
    others, left = files(shaken)
    found = others.best(left)
    assert found is not None
    assert found.value == values[found.step] == max(values[step] for step in sealed(run))
    assert len({m.step for m in left} - {found.step}) <= 2
    assert left[-1].step == 8
    for manifest in left:
        (same,) = (m for m in every if m.step == manifest.step)
        assert others.hashes(manifest) == checkpoints.hashes(same)


def test_a_metric_that_the_loss_does_not_report_is_refused(tmp_path: Path) -> None:
    code = written(tmp_path / "code", CODE)
    run = Run(job(tmp_path / "a", 1, 1, metric="accuracy"), tmp_path / "a", code=code)
    assert run.to_end() != 0
    assert (
        "spec.checkpoint.best.metric 'accuracy': the loss reports no such metric; it reports loss,"
        " wave" in run.ended.message
    )
    assert not run.all_of(local_run.Step)
