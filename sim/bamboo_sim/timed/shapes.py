"""Models of the Bamboo paper (NSDI 2023), as costs of layers on a device of a given speed.

Times follow from the arithmetic of each layer. A backward takes twice the time of its forward, and
its halves together 1.12 times as much (docs/adr/0017). The paper's table gives D and P; the batch
sizes are those of its released simulator, the sizes of micro-batches are our choice.
"""

from __future__ import annotations

from dataclasses import dataclass

from bamboo_core.protocol.messages import LayerCost

_FLOAT = 4  # bytes of a number
_BACKWARD, _HALVES = 2.0, 1.12


@dataclass(frozen=True)
class _Layer:
    """Of one micro-batch: operations of the forward, and numbers."""

    operations: float
    parameters: float
    output: float
    activation: float

    def cost(self, speed: float) -> LayerCost:
        forward_s = self.operations / speed
        backward_s = _BACKWARD * forward_s
        half_s = _HALVES * backward_s / 2
        return LayerCost(
            forward_s,
            backward_s,
            parameter_bytes=round(_FLOAT * self.parameters),
            output_bytes=round(_FLOAT * self.output),
            input_gradient_s=half_s,
            weight_gradient_s=half_s,
            can_split=True,
            activation_bytes=round(_FLOAT * self.activation),
        )


@dataclass(frozen=True)
class Shape:
    """A model on its grid."""

    name: str
    pipelines: int
    stages: int
    microbatches: int  # of each pipeline
    arithmetic: tuple[_Layer, ...]

    def layers(self, speed: float) -> tuple[LayerCost, ...]:
        """Costs on a device that does so many operations per second."""
        return tuple(x.cost(speed) for x in self.arithmetic)


def transformer(
    *, blocks: int, width: int, context: int, vocabulary: int, samples: int
) -> list[_Layer]:
    """Embedding, blocks, and the projection to the vocabulary (no embedding if it is 0).

    samples: of a micro-batch. Operations and activations as in "Reducing Activation Recomputation
    in Large Transformer Models": 17 s b h numbers, without the weights of attention, which fused
    attention does not keep.
    """
    tokens, weights = samples * context, 12 * width * width
    attention = 4 * context * width * tokens
    block = _Layer(
        2 * weights * tokens + attention,
        weights + 13 * width,
        tokens * width,
        17 * tokens * width,
    )
    if not vocabulary:
        return [block] * blocks
    table = vocabulary * width
    first = _Layer(tokens * width, table + context * width, tokens * width, tokens)
    last = _Layer(2 * table * tokens, table, tokens, tokens * (width + vocabulary))
    return [first, *[block] * blocks, last]


def _convolution(side: int, inputs: int, outputs: int, samples: int, kernel: int = 3) -> _Layer:
    """side: of the output."""
    weights, pixels = kernel * kernel * inputs * outputs, side * side * samples
    return _Layer(2 * weights * pixels, weights, outputs * pixels, 2 * outputs * pixels)


def _full(inputs: int, outputs: int, samples: int) -> _Layer:
    weights = inputs * outputs
    return _Layer(2 * weights * samples, weights, outputs * samples, 2 * outputs * samples)


def _resnet(samples: int) -> list[_Layer]:
    """ResNet-152: stem, 3 + 8 + 36 + 3 bottlenecks, classifier."""
    out = [_convolution(112, 3, 64, samples, kernel=7)]
    for count, side, width in ((3, 56, 64), (8, 28, 128), (36, 14, 256), (3, 7, 512)):
        weights, pixels = 17 * width * width, side * side * samples
        output = 4 * width * pixels
        out += [_Layer(2 * weights * pixels, weights, output, 4 * output)] * count
    return [*out, _full(2048, 1000, samples)]


def _vgg(samples: int) -> list[_Layer]:
    """VGG-19: 16 convolutions, 3 full layers."""
    out, inputs = [], 3
    for side, outputs, count in (
        (224, 64, 2),
        (112, 128, 2),
        (56, 256, 4),
        (28, 512, 4),
        (14, 512, 4),
    ):
        for _ in range(count):
            out.append(_convolution(side, inputs, outputs, samples))
            inputs = outputs
    return [
        *out,
        _full(25088, 4096, samples),
        _full(4096, 4096, samples),
        _full(4096, 1000, samples),
    ]


def _alexnet(samples: int) -> list[_Layer]:
    """AlexNet: 5 convolutions, 3 full layers."""
    return [
        _convolution(55, 3, 64, samples, kernel=11),
        _convolution(27, 64, 192, samples, kernel=5),
        _convolution(13, 192, 384, samples),
        _convolution(13, 384, 256, samples),
        _convolution(13, 256, 256, samples),
        _full(9216, 4096, samples),
        _full(4096, 4096, samples),
        _full(4096, 1000, samples),
    ]


def _gnmt(samples: int) -> list[_Layer]:
    """GNMT-16: embedding, 16 LSTM layers of width 1024, 256 tokens, 32,000 words."""
    width, tokens, words = 1024, 256 * samples, 32_000
    weights = 8 * width * width
    lstm = _Layer(2 * weights * tokens, weights, width * tokens, 6 * width * tokens)
    table = words * width
    first = _Layer(width * tokens, table, width * tokens, tokens)
    last = _Layer(2 * table * tokens, table, tokens, tokens * (width + words))
    return [first, *[lstm] * 16, last]


def uniform(pipelines: int, stages: int, microbatches: int) -> Shape:
    """Equal stages: 4 blocks of BERT-Large each, 50 M parameters, on 2 samples of 512 tokens."""
    blocks = transformer(blocks=4 * stages, width=1024, context=512, vocabulary=0, samples=2)
    name = f"d{pipelines}_p{stages}_m{microbatches}"
    return Shape(name, pipelines, stages, microbatches, tuple(blocks))


BERT = Shape(
    "bert_large", 4, 12, 33,
    tuple(transformer(blocks=24, width=1024, context=512, vocabulary=30_522, samples=2)),
)  # fmt: skip
GPT2 = Shape(
    "gpt2_xl", 4, 12, 8,
    tuple(transformer(blocks=48, width=1600, context=1024, vocabulary=50_257, samples=1)),
)  # fmt: skip
RESNET = Shape("resnet_152", 4, 12, 24, tuple(_resnet(4)))
VGG = Shape("vgg_19", 4, 6, 12, tuple(_vgg(8)))
ALEXNET = Shape("alexnet", 4, 6, 12, tuple(_alexnet(8)))
GNMT = Shape("gnmt_16", 4, 6, 18, tuple(_gnmt(4)))
PAPER = (BERT, RESNET, GNMT, VGG, ALEXNET, GPT2)
"""The models of the paper's table, on its grids."""
