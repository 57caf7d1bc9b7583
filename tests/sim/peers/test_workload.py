"""All systems train the same: model, batch, optimizer, and number of workers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benchmarks.peers import workload
from benchmarks.peers.bamboo_fleet import job

from bamboo_agent.user_code import build_model


@pytest.mark.parametrize("pipeline", [False, True])
def test_bamboo_gets_the_job_of_the_peers(tmp_path: Path, pipeline: bool) -> None:
    spec, training = job(tmp_path, pipeline=pipeline), workload.Training(0)
    assert spec.pipelines.count * spec.pipelines.stages == workload.WORKERS
    assert spec.training.global_batch_size == workload.BATCH
    assert spec.training.clip_norm == 0
    model = build_model(spec.model, seed=spec.seed)
    assert spec.pipelines.stages <= len(model.layers)
    ours = sum(p.numel() for build in model.layers for p in build().parameters())
    assert ours == sum(p.numel() for p in training.module.parameters())
    group = training.optimizer.param_groups[0]
    assert {key: group[key] for key in workload.ADAMW} == spec.training.optimizer.args
    assert isinstance(training.optimizer, torch.optim.AdamW)
    every = workload.CHECKPOINT_EVERY if pipeline else 0
    assert spec.checkpoint is not None
    assert spec.checkpoint.every_steps == every
