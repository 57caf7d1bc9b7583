"""The layers that a job's model builds, without training them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bamboo_agent.compute.layers import LayerBuilder
from bamboo_agent.model import FactoryError, Model
from bamboo_agent.user_code import build_model
from bamboo_agent.weight_files.outlines import LayerOutline, WeightsError
from bamboo_core.api.spec import JobSpec

_CPU = torch.device("cpu")


def model_of(spec: JobSpec) -> Model:
    """The job's model. WeightsError if its factory fails."""
    try:
        return build_model(spec.model, seed=spec.seed)
    except FactoryError as error:
        raise WeightsError(
            f"{error} (factories are imported from the current folder and from PYTHONPATH)"
        ) from error


def outlines(model: Model, spec: JobSpec) -> Iterator[LayerOutline]:
    """Each layer is built and dropped. WeightsError if its factory fails."""
    builder = LayerBuilder(model, lambda _: None, seed=spec.seed, device=_CPU)
    for index in range(len(model.layers)):
        try:
            outline = builder.outline(index)
        except FactoryError as error:
            raise WeightsError(str(error)) from error
        yield outline
