"""The chain of a model's layers: what flows from each to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from bamboo_agent.compute import stage
from bamboo_agent.compute.layers import LayerBuilder
from bamboo_agent.compute.optim import grouping, optimizer_factory
from bamboo_agent.data.batches import Data
from bamboo_agent.payloads.flow import Flow, shapes_of
from bamboo_agent.user_code import build_model
from bamboo_core.api import local_run
from bamboo_core.api.spec import JobSpec


def run_through(
    spec: JobSpec, device: torch.device, note: Callable[[str], None]
) -> Iterator[local_run.Layer]:
    """Run the first micro-batch through one layer after another, and tell each output. Raises what
    the user's code raises: the set-up says it better. note: is told what runs next of the user's
    code, which may end this process."""
    note(f"spec.model.factory {spec.model.factory}")
    model = build_model(spec.model, seed=spec.seed)
    make = optimizer_factory(spec.training.optimizer, seed=spec.seed)
    precision = spec.training.precision
    group = grouping(spec.training.optimizer)
    builder = LayerBuilder(
        model, make, seed=spec.seed, device=device, group=group, precision=precision
    )
    note(f"spec.data.factory {spec.data.factory}, its first samples")
    values = Flow.of(Data(spec, device).training(0, 0)[0])
    yield local_run.Layer(-1, "input", 0, shapes_of(values))
    for index in range(len(model.layers)):
        note(f"layer {index}")
        layer = builder.build(index)
        note(f"layer {index}, {type(layer.module).__name__}")
        with torch.no_grad():
            values = stage.run_layers([layer], values, lambda _: None)
        count = sum(p.numel() for p in layer.module.parameters())
        yield local_run.Layer(index, type(layer.module).__name__, count, shapes_of(values))
