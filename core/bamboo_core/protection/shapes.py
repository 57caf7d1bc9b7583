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
_MOST = 1 << 24  # of a size
_MOST_BLOCKS = 16_000  # an agent may announce 16,384 layers


@dataclass(frozen=True)
class Layer:
    """What one micro-batch takes: operations of the forward, and how many numbers."""

    operations: int
    parameters: int
    output: int
    activation: int  # kept for the backward

    def cost(self, speed: float) -> LayerCost:
        """On a device that does so many operations per second."""
        forward_s = self.operations / speed
        backward_s = _BACKWARD * forward_s
        half_s = _HALVES * backward_s / 2
        return LayerCost(
            forward_s,
            backward_s,
            parameter_bytes=_FLOAT * self.parameters,
            output_bytes=_FLOAT * self.output,
            input_gradient_s=half_s,
            weight_gradient_s=half_s,
            can_split=True,
            activation_bytes=_FLOAT * self.activation,
        )


@dataclass(frozen=True)
class Transformer:
    """Blocks between an embedding and a projection to the vocabulary; vocabulary 0: blocks only."""

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
    argument that is not a positive integer, or too large for any machine."""
    if spec.model.factory != GPT:
        return None
    usual = {"layers": 6, "width": 128, "context": 64, "vocab": 256}
    found = {name: _count(spec.model.args, name, default) for name, default in usual.items()}
    return Transformer(found["layers"], found["width"], found["context"], found["vocab"])


def _count(arguments: Mapping[str, Any], name: str, default: int) -> int:
    value = arguments.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"spec.model.args.{name} is {value!r}; it must be a positive integer")
    most = _MOST_BLOCKS if name == "layers" else _MOST
    if value > most:
        raise ValueError(f"spec.model.args.{name} is {value}; it must be at most {most}")
    return value


def costs(shape: Transformer, *, samples: int, speed: float) -> tuple[LayerCost, ...]:
    """One per layer, for a micro-batch of so many samples."""
    return tuple(x.cost(speed) for x in layers(shape, samples=samples))


def layers(shape: Transformer, *, samples: int) -> list[Layer]:
    """Of a micro-batch of so many samples.

    Operations and activations as in "Reducing Activation Recomputation in Large Transformer Models"
    (Korthikanti and others, 2022): 17 s b h numbers, without the weights of attention, which fused
    attention does not keep.
    """
    tokens, width = samples * shape.context, shape.width
    weights, table = 12 * width * width, shape.vocabulary * width
    block = Layer(
        operations=2 * weights * tokens + 4 * shape.context * width * tokens,
        parameters=weights + 13 * width,
        output=tokens * width,
        activation=17 * tokens * width,
    )
    blocks = [block] * shape.blocks
    if not table:
        return blocks
    first = Layer(
        operations=tokens * width,
        parameters=table + shape.context * width,
        output=tokens * width,
        activation=tokens,
    )
    last = Layer(
        operations=2 * table * tokens,
        parameters=table,
        output=tokens,
        activation=tokens * (width + shape.vocabulary),
    )
    return [first, *blocks, last]
