"""Models whose layers' costs are known without running them, by the arithmetic of each layer.

Times are for a device that does ``speed`` operations per second, all the time. A backward takes
twice the time of its forward, and its halves together 1.12 times as much (docs/adr/0017).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bamboo_core.api.spec import JobSpec
from bamboo_core.protocol.messages import LayerCost

GPT = "bamboo_agent.models.gpt:build"
"""The factory whose arguments say the shape."""

_FLOAT = 4  # bytes of a number
_BACKWARD, _HALVES = 2.0, 1.12


@dataclass(frozen=True)
class Transformer:
    """Blocks between an embedding and a projection to the vocabulary."""

    blocks: int
    width: int
    context: int  # tokens of a sample
    vocabulary: int


NAMED: Mapping[str, Transformer] = {
    "bert-large": Transformer(24, 1024, 512, 30_522),
    "gpt2": Transformer(12, 768, 1024, 50_257),
    "gpt2-medium": Transformer(24, 1024, 1024, 50_257),
    "gpt2-xl": Transformer(48, 1600, 1024, 50_257),
}
"""For models of any factory that are as large as these."""


def shape_of(spec: JobSpec) -> Transformer | None:
    """The shape of the model that comes with Bamboo; None for any other. ValueError names an
    argument that is not a positive integer."""
    if spec.model.factory != GPT:
        return None
    usual = {"layers": 6, "width": 128, "context": 64, "vocab": 256}
    found = {name: _count(spec.model.args, name, default) for name, default in usual.items()}
    return Transformer(found["layers"], found["width"], found["context"], found["vocab"])


def _count(arguments: Mapping[str, Any], name: str, default: int) -> int:
    value = arguments.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"spec.model.args.{name} is {value!r}; it must be a positive integer")
    return value


def costs(shape: Transformer, *, samples: int, speed: float) -> tuple[LayerCost, ...]:
    """One per layer, for a micro-batch of so many samples.

    Operations and activations as in "Reducing Activation Recomputation in Large Transformer Models"
    (Korthikanti and others, 2022): 17 s b h numbers, without the weights of attention, which fused
    attention does not keep.
    """
    tokens, width = samples * shape.context, shape.width
    weights, table = 12 * width * width, shape.vocabulary * width
    block = _cost(
        operations=2 * weights * tokens + 4 * shape.context * width * tokens,
        parameters=weights + 13 * width,
        output=tokens * width,
        activation=17 * tokens * width,
        speed=speed,
    )
    first = _cost(
        operations=tokens * width,
        parameters=table + shape.context * width,
        output=tokens * width,
        activation=tokens,
        speed=speed,
    )
    last = _cost(
        operations=2 * table * tokens,
        parameters=table,
        output=tokens,
        activation=tokens * (width + shape.vocabulary),
        speed=speed,
    )
    return (first, *(block,) * shape.blocks, last)


def _cost(
    *, operations: int, parameters: int, output: int, activation: int, speed: float
) -> LayerCost:
    forward_s = operations / speed
    half_s = _HALVES * _BACKWARD * forward_s / 2
    return LayerCost(
        forward_s,
        _BACKWARD * forward_s,
        parameter_bytes=_FLOAT * parameters,
        output_bytes=_FLOAT * output,
        input_gradient_s=half_s,
        weight_gradient_s=half_s,
        can_split=True,
        activation_bytes=_FLOAT * activation,
    )
