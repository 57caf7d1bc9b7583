"""Models whose steps are timed: the costs of their layers, their batch and their device."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bamboo_core.api.spec import RedundancySpec
from bamboo_core.model.ids import Range
from bamboo_core.model.numerics import BatchShape, choose
from bamboo_core.placement import partition
from bamboo_core.protocol.messages import LayerCost
from bamboo_sim.timed import shapes
from bamboo_sim.timed.hardware import V100, V100_SPEED, of_size
from bamboo_sim.timed.shapes import Shape


@dataclass(frozen=True)
class ModelProfile:
    """A model, its batch and its devices.

    ``layers``: their costs for one micro-batch; ``microbatches``: of the global batch (G);
    ``samples_each``: of a micro-batch; ``pipelines``: the most that the job has, on which the order
    of its sums depends; ``memory_bytes``: of a device (0: unlimited); ``host_memory_bytes``: for
    copies; ``stage_s``: what each stage takes for a micro-batch beyond its layers, a third of it in
    the forward. ValueError names a field that is out of range.
    """

    name: str
    layers: tuple[LayerCost, ...]
    microbatches: int
    samples_each: int
    pipelines: int
    memory_bytes: int = 0
    host_memory_bytes: int = RedundancySpec().host_memory_bytes
    stage_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError("model.layers is empty; give the costs of at least one layer.")
        for name in ("microbatches", "samples_each", "pipelines"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"model.{name} is {value}; give 1 or more.")
        for name in ("memory_bytes", "host_memory_bytes", "stage_s"):
            if (value := getattr(self, name)) < 0:
                raise ValueError(f"model.{name} is {value}; give 0 or more.")
        _ = self.batch  # ValueError: fewer micro-batches than pipelines

    @property
    def samples(self) -> int:
        """The samples of a step."""
        return self.microbatches * self.samples_each

    @property
    def batch(self) -> BatchShape:
        """How gradients are summed: it depends on the job, and on no grid."""
        return choose(microbatches=self.microbatches, pipelines_max=self.pipelines)

    def cut(self, stages: int) -> tuple[Range, ...]:
        """Stage -> its layers, as the planner cuts. ValueError: fewer layers than stages."""
        return partition.split([x.forward_s + x.backward_s for x in self.layers], stages)

    def stages(self, stages: int) -> tuple[LayerCost, ...]:
        """The costs of each stage, as those of one layer. ValueError as in :meth:`cut`."""
        return tuple(self._stage(self.layers[lo:hi]) for lo, hi in self.cut(stages))

    def _stage(self, layers: tuple[LayerCost, ...]) -> LayerCost:
        third_s = self.stage_s / 3
        return LayerCost(
            sum(x.forward_s for x in layers) + third_s,
            sum(x.backward_s for x in layers) + 2 * third_s,
            sum(x.parameter_bytes for x in layers),
            layers[-1].output_bytes,
            sum(x.input_gradient_s for x in layers) + third_s,
            sum(x.weight_gradient_s for x in layers) + third_s,
            all(x.can_split for x in layers),
            sum(x.activation_bytes for x in layers),
        )


def paper(shape: Shape, samples_each: int) -> ModelProfile:
    """A model of Bamboo's table on V100s of 32 GiB, on which every mode fits. Its grid is that of
    the table, and its times follow from arithmetic, as in timed/shapes.py."""
    return ModelProfile(
        shape.name,
        shape.layers(V100_SPEED),
        shape.microbatches * shape.pipelines,
        samples_each,
        shape.pipelines,
        of_size(V100, 32).memory_bytes,
    )


_SAMPLES = {
    shapes.BERT: 2, shapes.RESNET: 4, shapes.GNMT: 4, shapes.VGG: 8, shapes.ALEXNET: 8,
    shapes.GPT2: 1,
}  # fmt: skip

PAPER = {shape.name: paper(shape, samples) for shape, samples in _SAMPLES.items()}
"""The six models of the paper, by name."""

_TAU_S, _STAGE_S, _GLOBAL_BATCH = 6.21e-3, 16.8e-3, 128
_BLOCK = shapes.GPT2.layers(V100_SPEED)[1]
_MEASURED = replace(
    _BLOCK,
    forward_s=_TAU_S / 3,
    backward_s=2 * _TAU_S / 3,
    input_gradient_s=_TAU_S / 3,
    weight_gradient_s=_TAU_S / 3,
    output_bytes=0,  # what sending it takes is in the time of a stage
)

GPT2_P3 = ModelProfile(
    "gpt2_1.5b_p3",
    (_MEASURED,) * 48,
    _GLOBAL_BATCH,
    1,
    4,
    of_size(V100, 32).memory_bytes,
    host_memory_bytes=32 * 10**9,
    stage_s=_STAGE_S,
)
"""GPT-2 with 1.5 billion parameters, as fast as on p3.2xlarge nodes, for comparisons on recorded
fleets; but with V100s of 32 GiB, on which every mode fits.

6.21 ms for a block and a micro-batch, and 16.8 ms more for a stage, fitted to the throughput that
Parcae (github.com/JF-D/Parcae) published for 1 to 4 pipelines of 6 to 16 stages. Their sending and
receiving over 10 Gb/s is part of it, so outputs of stages have no size of their own here. Embedding
and head are taken as part of the blocks. Memory follows from arithmetic.
"""

GPT2_P3_16 = replace(GPT2_P3, name="gpt2_1.5b_p3_16gib", memory_bytes=V100.memory_bytes)
"""The same with 16 GiB, as a p3.2xlarge has. With 8 stages no copies fit by the planner's estimate,
which takes numbers of 4 bytes and keeps all activations."""
