"""Checkpoints without a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bamboo_agent.compute.layers import Layer, LayerBuilder
from bamboo_agent.storage.checkpoint import Checkpoints, Header
from bamboo_agent.user_code import build_model
from bamboo_core.api.spec import JobSpec, ModelSpec, batch_shape
from bamboo_sim.workers.jobs import tiny_gpt

GPT2 = "tests.agent.weights.gpt2:build"
Write = Callable[..., list[Layer]]


@pytest.fixture
def spec() -> JobSpec:
    return replace(tiny_gpt(), model=ModelSpec(GPT2))


@pytest.fixture
def write(spec: JobSpec, tmp_path: Path) -> Write:
    """Writes a checkpoint of the job and returns its layers."""

    def write(
        *,
        step: int = 5,
        attempt: int = 0,
        uid: str = "uid",
        seals: bool = True,
        model_spec: ModelSpec = spec.model,
    ) -> list[Layer]:
        model = build_model(model_spec, seed=step)
        builder = LayerBuilder(model, torch.optim.AdamW, seed=step, device=torch.device("cpu"))
        layers = [builder.build(index) for index in range(len(model.layers))]
        for parameter in (p for layer in layers for p in layer.parameters):
            parameter.grad = torch.ones_like(parameter)
        for layer in layers:
            if layer.optimizer is not None:
                layer.optimizer.step()
        checkpoints = Checkpoints((tmp_path / "checkpoints").as_uri(), uid)
        files = [
            checkpoints.write_layer(attempt=attempt, step=step, layer=i, record=layer.record())
            for i, layer in enumerate(layers)
        ]
        if seals:
            checkpoints.seal(Header(attempt, step, spec.seed, batch_shape(spec)), files)
        return layers

    return write
