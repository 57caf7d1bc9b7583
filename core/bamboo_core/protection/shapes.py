"""Models whose layers' costs are known without running them, by the arithmetic of each layer.

Times are for a device that does ``speed`` operations per second, all the time. A backward takes
twice the time of its forward, and its halves together 1.12 times as much (docs/adr/0017).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bamboo_core.api import records
from bamboo_core.api.records import Limits
from bamboo_core.api.spec import JobSpec
from bamboo_core.protocol.messages import LayerCost

GPT = "bamboo_agent.models.gpt:build"
"""The factory whose arguments say the shape."""

_FLOAT = 4  # bytes of a number
_BACKWARD, _HALVES = 2.0, 1.12
_ARGS = "spec.model.args"
_SIZE = Limits(1, 1 << 24)  # no machine holds more
_LIMITS = {
    f"{_ARGS}.vocab": _SIZE,
    f"{_ARGS}.layers": Limits(1, 16_000),  # an agent may announce 16,384 layers
    f"{_ARGS}.width": _SIZE,
    f"{_ARGS}.heads": _SIZE,
    f"{_ARGS}.context": _SIZE,
    f"{_ARGS}.dropout": Limits(0, 1),
}


@dataclass(frozen=True)
class Layer:
    """The work of one layer for a micro-batch: operations of the forward, and counts of numbers."""

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

    @property
    def layer_count(self) -> int:
        """With embedding and projection."""
        return self.blocks + (2 if self.vocabulary else 0)


NAMED: Mapping[str, Transformer] = {
    "bert-large": Transformer(24, 1024, 512, 30_522),
    "gpt2": Transformer(12, 768, 1024, 50_257),
    "gpt2-medium": Transformer(24, 1024, 1024, 50_257),
    "gpt2-xl": Transformer(48, 1600, 1024, 50_257),
}
"""For models of any factory that are as large as these."""


@dataclass(frozen=True)
class GptArguments:
    """Arguments of the built-in model's factory, with its defaults."""

    vocab: int = 256
    layers: int = 6  # blocks; embedding and head are two more
    width: int = 128
    heads: int = 4
    context: int = 64  # tokens of a sample
    dropout: float = 0.1


def gpt_arguments(arguments: Mapping[str, Any]) -> GptArguments:
    """For the model and for those who have no torch. ValueError names each wrong argument."""
    found = records.decode(GptArguments, arguments, path=_ARGS, limits=_LIMITS, is_strict=True)
    if isinstance(found, list):
        raise ValueError("; ".join(str(problem) for problem in found))
    if found.width % found.heads:
        text = f"{found.width} is not divisible by heads {found.heads}; set a multiple of it"
        raise ValueError(f"{_ARGS}.width: {text}")
    return found


def shape_of(spec: JobSpec) -> Transformer | None:
    """The shape of the model that comes with Bamboo; None for any other. ValueError names an
    argument that its factory refuses."""
    if spec.model.factory != GPT:
        return None
    given = gpt_arguments(spec.model.args)
    return Transformer(given.layers, given.width, given.context, given.vocab)


def costs(shape: Transformer, *, samples: int, speed: float) -> tuple[LayerCost, ...]:
    """One per layer, for a micro-batch of so many samples."""
    return tuple(x.cost(speed) for x in layers(shape, samples=samples))


def layers(shape: Transformer, *, samples: int) -> list[Layer]:
    """The layers of the model, with their work for a micro-batch of so many samples.

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
