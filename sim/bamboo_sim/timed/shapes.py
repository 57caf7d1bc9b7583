"""Models of the Bamboo paper (NSDI 2023), as costs of layers on a device of a given speed.

Times follow from the arithmetic of each layer (bamboo_core.protection.shapes). The paper's table
gives D and P; the batch sizes are those of its released simulator, the sizes of micro-batches are
our choice.
"""

from __future__ import annotations

from dataclasses import dataclass

from bamboo_core.protection import shapes
from bamboo_core.protection.shapes import NAMED, Layer, Transformer
from bamboo_core.protocol.messages import LayerCost


@dataclass(frozen=True)
class Shape:
    """A model on its grid."""

    name: str
    pipelines: int
    stages: int
    microbatches: int  # of each pipeline
    arithmetic: tuple[Layer, ...]

    def layers(self, speed: float) -> tuple[LayerCost, ...]:
        """Costs on a device that does so many operations per second."""
        return tuple(x.cost(speed) for x in self.arithmetic)


def _convolution(side: int, inputs: int, outputs: int, samples: int, kernel: int = 3) -> Layer:
    """side: of the output."""
    weights, pixels = kernel * kernel * inputs * outputs, side * side * samples
    return Layer(2 * weights * pixels, weights, outputs * pixels, 2 * outputs * pixels)


def _full(inputs: int, outputs: int, samples: int) -> Layer:
    weights = inputs * outputs
    return Layer(2 * weights * samples, weights, outputs * samples, 2 * outputs * samples)


def _resnet(samples: int) -> list[Layer]:
    """ResNet-152: stem, 3 + 8 + 36 + 3 bottlenecks, classifier."""
    out = [_convolution(112, 3, 64, samples, kernel=7)]
    for count, side, width in ((3, 56, 64), (8, 28, 128), (36, 14, 256), (3, 7, 512)):
        weights, pixels = 17 * width * width, side * side * samples
        output = 4 * width * pixels
        out += [Layer(2 * weights * pixels, weights, output, 4 * output)] * count
    return [*out, _full(2048, 1000, samples)]


def _vgg(samples: int) -> list[Layer]:
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


def _alexnet(samples: int) -> list[Layer]:
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


def _gnmt(samples: int) -> list[Layer]:
    """GNMT-16: embedding, 16 LSTM layers of width 1024, 256 tokens, 32,000 words."""
    width, tokens, words = 1024, 256 * samples, 32_000
    weights = 8 * width * width
    lstm = Layer(2 * weights * tokens, weights, width * tokens, 6 * width * tokens)
    table = words * width
    first = Layer(width * tokens, table, width * tokens, tokens)
    last = Layer(2 * table * tokens, table, tokens, tokens * (width + words))
    return [first, *[lstm] * 16, last]


def uniform(pipelines: int, stages: int, microbatches: int) -> Shape:
    """Equal stages: 4 blocks of BERT-Large each, 50 M parameters, on 2 samples of 512 tokens."""
    blocks = Transformer(4 * stages, width=1024, context=512, vocabulary=0)
    name = f"d{pipelines}_p{stages}_m{microbatches}"
    return Shape(name, pipelines, stages, microbatches, tuple(shapes.layers(blocks, samples=2)))


BERT = Shape("bert_large", 4, 12, 33, tuple(shapes.layers(NAMED["bert-large"], samples=2)))
GPT2 = Shape("gpt2_xl", 4, 12, 8, tuple(shapes.layers(NAMED["gpt2-xl"], samples=1)))
RESNET = Shape("resnet_152", 4, 12, 24, tuple(_resnet(4)))
VGG = Shape("vgg_19", 4, 6, 12, tuple(_vgg(8)))
ALEXNET = Shape("alexnet", 4, 6, 12, tuple(_alexnet(8)))
GNMT = Shape("gnmt_16", 4, 6, 18, tuple(_gnmt(4)))
PAPER = (BERT, RESNET, GNMT, VGG, ALEXNET, GPT2)
"""The models of the paper's table, on its grids."""
