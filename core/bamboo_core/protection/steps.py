"""The undisturbed step of a job in each mode, as the planner would make it, and after a loss.

Stages are taken as equal: each is as long as the costliest one. Memory is that of the real stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log2

from bamboo_core.api.spec import JobSpec, RedundancyMode
from bamboo_core.model.ids import Range
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protection.choice import MODES
from bamboo_core.protection.figures import Figures, figures
from bamboo_core.protection.grids import Shape
from bamboo_core.protection.loss_cost import with_empty
from bamboo_core.protocol.messages import LayerCost
from bamboo_core.scheduling import device_memory
from bamboo_core.scheduling.device_memory import Need, Sizes
from bamboo_core.scheduling.sharing import orders

_GRAIN = 0.25  # of B over F, so that jobs with nearly equal costs share one dry run
_FINE = 1 / 16  # of I and W over B
_LIGHT = 1 / 32  # of a stage's forward over that of the costliest one
_STEPS = 8  # grains from a sum's time to its double
_LEAST, _MOST = 0.5, 4.0
_MOST_COPIED = 16.0  # times a forward
_LEAST_LATENCY = 1 / 64  # of a forward


@dataclass(frozen=True)
class Load:
    """Facts of a job on which its steps depend."""

    spec: JobSpec
    costs: Sequence[LayerCost]  # one per layer
    cut: Sequence[Range]
    pipelines: int  # D
    memory_bytes: int  # of the smallest device; 0: unknown
    host_bytes_per_s: float  # between a device and host memory
    batch: BatchShape  # how the batch is summed

    @property
    def microbatches(self) -> int:
        """M of one pipeline."""
        return microbatches_of(self.spec, self.pipelines)

    @property
    def stages(self) -> list[Sequence[LayerCost]]:
        """Costs of each stage's layers."""
        return [self.costs[lo:hi] for lo, hi in self.cut]

    @property
    def slowest(self) -> Sequence[LayerCost]:
        """The costliest stage."""
        return max(self.stages, key=lambda s: sum(c.forward_s + c.backward_s for c in s))

    @property
    def forward_s(self) -> float:
        """Time of the costliest stage's forward."""
        return sum(c.forward_s for c in self.slowest)

    @property
    def backward_s(self) -> float:
        """Time of the costliest stage's backward."""
        return sum(c.backward_s for c in self.slowest)

    @property
    def sizes(self) -> Sizes:
        """Sizes of the largest stage."""
        return Sizes.of(self.cut, self.costs, microbatches=self.microbatches, sums=self.sums)

    @property
    def sums(self) -> int:
        """Sums of gradients that an agent holds at once."""
        return orders.sums_at_once(self.batch, self.pipelines)


@dataclass(frozen=True)
class Planned:
    """One mode. Times of ``figures`` are in forwards of the costliest stage."""

    figures: Figures
    device_bytes: int  # of the fullest agent, in an undisturbed step


def microbatches_of(spec: JobSpec, pipelines: int) -> int:
    """M of one pipeline."""
    return max(1, -(-spec.training.microbatches // pipelines))


def planned(load: Load) -> dict[RedundancyMode, Planned]:
    """The steps of a job in each mode."""
    return {mode: _planned(load, mode) for mode in MODES}


@dataclass(frozen=True)
class SeveralEmpty:
    """How long steps are with empty seats. What is asked is computed then, and remembered."""

    load: Load

    def slower(self, mode: RedundancyMode, pipelines: int, empty: int) -> float:
        """As :class:`bamboo_core.protection.choice.Steps` says."""
        if pipelines == self.load.pipelines and not empty:
            return 1.0
        return with_empty(_shape(self.load, _need(self.load, mode)), mode, pipelines, empty)

    def prepare(self, is_wanted: Callable[[], bool]) -> None:
        for pipelines in range(self.load.pipelines, 0, -1):
            for mode in MODES[:2]:  # Eager is as Replica
                if is_wanted():
                    self.slower(mode, pipelines, len(self.load.cut) - 1)


def _need(load: Load, mode: RedundancyMode) -> Need:
    return device_memory.need(
        load.sizes,
        mode,
        memory_bytes=load.memory_bytes,
        host_memory_bytes=load.spec.redundancy.host_memory_bytes,
    )


def _planned(load: Load, mode: RedundancyMode) -> Planned:
    need = _need(load, mode)
    found = figures(_shape(load, need), mode)
    return Planned(
        found,
        device_memory.held_bytes(
            load.stages,
            mode,
            need,
            leaf_size=load.batch.leaf_size,
            sums=orders.sums_in_turn(load.batch, load.pipelines),
            in_flight=found.in_flight,
            ahead=[min(count, need.ahead) for count in found.kept],
        ),
    )


def _shape(load: Load, need: Need) -> Shape:
    forward_s, backward_s, stages = load.forward_s, load.backward_s, load.stages
    halves_s = sum(c.input_gradient_s + c.weight_gradient_s for c in load.slowest)
    sizes, bytes_per_s = load.sizes, load.spec.transport.bytes_per_s
    copied_s = need.ahead_bytes and sizes.activation_bytes / load.host_bytes_per_s
    shape = Shape(
        load.pipelines,
        len(load.cut),
        load.microbatches,
        _grains(backward_s, forward_s, otherwise=2.0),
        latency=_latency(sizes.boundary_bytes / bytes_per_s, forward_s),
        slices=_slices(load.slowest, forward_s),
        copied=_copied(copied_s, forward_s),
        spare=need.spare if load.memory_bytes else None,
        policy=load.spec.recovery,
        loads=tuple(_load(sum(c.forward_s for c in s), forward_s) for s in stages),
        boundaries=tuple(_transfer(s[-1].output_bytes / bytes_per_s, forward_s) for s in stages),
        sums=tuple(
            _transfer(sum(c.parameter_bytes for c in s) / bytes_per_s, forward_s) for s in stages
        ),
        leaf_size=load.batch.leaf_size,
        room=need.ahead,
        most_sums=device_memory.most_sums(need, sizes, load.memory_bytes),
    )
    if not all(c.can_split for c in load.costs):
        return shape
    halves = _grains(halves_s, backward_s, grain=_FINE, otherwise=1.0)
    return replace(shape, can_split=True, halves=halves)


def _grains(part: float, whole: float, *, grain: float = _GRAIN, otherwise: float) -> float:
    """A ratio in grains. otherwise: if the whole is nothing."""
    ratio = part / whole if whole > 0 else otherwise
    return min(_MOST, max(_LEAST, round(ratio / grain) * grain))


def _load(stage_s: float, forward_s: float) -> float:
    """A forward of a stage in those of the costliest one, in grains."""
    return max(_LIGHT, round(stage_s / forward_s / _LIGHT) * _LIGHT) if forward_s > 0 else 1.0


def _transfer(transfer_s: float, forward_s: float) -> float:
    """The time of something large to another agent, in forwards, in grains that grow with it."""
    if forward_s <= 0 or transfer_s <= _LEAST_LATENCY * forward_s:
        return 0.0
    return 2 ** (round(log2(transfer_s / forward_s) * _STEPS) / _STEPS)


def _copied(copied_s: float, forward_s: float) -> float:
    """The time of a forward's activations to host memory, in forwards, in grains."""
    ratio = copied_s / forward_s if forward_s > 0 else 0.0
    return min(_MOST_COPIED, round(ratio / _GRAIN) * _GRAIN)


def _latency(transfer_s: float, forward_s: float) -> float:
    """The time of a boundary tensor, in forwards, as a power of two from 1/64 to 1. Never 0: then
    slices would just fill each wait."""
    latency = _LEAST_LATENCY
    while latency < 1 and forward_s > 0 and latency * forward_s < transfer_s:
        latency *= 2
    return latency


def _slices(stage: Sequence[LayerCost], forward_s: float) -> int:
    """Into how many slices of equal length the forward is cut, by its longest layer."""
    longest_s = max(c.forward_s for c in stage)
    return max(1, int(forward_s / longest_s)) if longest_s > 0 else len(stage)
