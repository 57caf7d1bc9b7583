"""Bytes of items, and times of instructions, from the declared layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.program import Instruction, Op
from bamboo_core.protocol.messages import Directive, LayerCost
from bamboo_core.scheduling.costs import Costs
from bamboo_sim.timed.declared import Device

AHEAD, REPLICA_WEIGHTS, REPLICA_OPTIMIZER = "ahead", "replica_weights", "replica_optimizer"
"""Groups of memory that can be hosted: be in host memory between their uses."""

STATES = 3  # a layer's state: the weight and Adam's two averages
_RECORD = 256  # bytes of a vote or a commit
_FOLD, _VOTE, _UPDATE = 3, 1, 7  # times the parameters' bytes are read or written

_ACTIVATIONS = frozenset({Kind.ACT, Kind.PREFIX})
_BOUNDARIES = frozenset({Kind.OUT, Kind.INGRAD, Kind.EVAL})
_SUMS = frozenset({Kind.PART, Kind.LEAF, Kind.FOLDED})
_SLICES = frozenset({Kind.CHUNK, Kind.RED})


def group_of(kind: Kind) -> str:
    """Under which heading the item's memory counts."""
    if kind is Kind.PREFIX:
        return AHEAD
    if kind is Kind.ACT:
        return "activations"
    if kind in _BOUNDARIES:
        return "boundaries"
    return "gradients" if kind in _SUMS or kind in _SLICES else "records"


def hosted(directive: Directive, mode: RedundancyMode) -> frozenset[str]:
    """Groups in host memory. In mode Eager each step uses the replicas' weights, so they stay."""
    ahead = {AHEAD} if directive.hosts_ahead else set[str]()
    replicas = {REPLICA_OPTIMIZER} if directive.hosted else set[str]()
    if directive.hosted and mode is not RedundancyMode.EAGER:
        replicas.add(REPLICA_WEIGHTS)
    return frozenset(ahead | replicas)


class Sizes:
    """Bytes of every item. ``chunks``: C of the job."""

    def __init__(self, layers: Sequence[LayerCost], chunks: int) -> None:
        self._chunks = chunks
        self._parameters = list(accumulate((x.parameter_bytes for x in layers), initial=0))
        self._activations = list(accumulate((x.activation_bytes for x in layers), initial=0))
        self._outputs = [x.output_bytes for x in layers]

    def parameters(self, lo: int, hi: int) -> int:
        """Of the weights of layers lo..hi-1; gradients have the same size."""
        return self._parameters[hi] - self._parameters[lo]

    def activations(self, lo: int, hi: int) -> int:
        """What a forward of layers lo..hi-1 keeps for one micro-batch."""
        return self._activations[hi] - self._activations[lo]

    def of(self, item: Item) -> int:
        """Bytes of the item, in memory and on the wire. VER: of the layer's whole state."""
        kind, lo, hi = item.kind, item.lo, item.hi
        if kind in _BOUNDARIES:
            return self._outputs[lo - 1]
        if kind is Kind.ACT:
            return self.activations(lo, hi)
        if kind is Kind.PREFIX:
            return self.activations(lo, lo + item.part)
        if kind in _SUMS:
            return self.parameters(lo, hi)
        if kind in _SLICES:
            return -(-self.parameters(lo, hi) // self._chunks)
        return STATES * self.parameters(lo, hi) if kind is Kind.VER else _RECORD


class Times:
    """Seconds of every instruction on the declared device."""

    def __init__(
        self,
        layers: Sequence[LayerCost],
        sizes: Sizes,
        chunks: int,
        device: Device,
    ) -> None:
        self._durations = Costs.measured(layers).durations()
        self._sizes, self._chunks, self._device = sizes, chunks, device

    def of(
        self,
        instruction: Instruction,
        own: range = range(0),
        hosted: frozenset[str] = frozenset(),
    ) -> float:
        """Seconds at the typical speed. own: the layers of the agent's seat; hosted: groups in host
        memory."""
        return (
            self._durations.of(instruction)
            + self._touched(instruction) / self._device.memory_bandwidth
            + self._copied(instruction, own, hosted) / self._device.host_bandwidth
        )

    def _touched(self, task: Instruction) -> float:
        """Bytes of device memory that an instruction without arithmetic reads and writes."""
        match task.op:
            case Op.FOLD:
                return _FOLD * self._sizes.parameters(task.lo, task.hi)
            case Op.REDUCE:
                return (1 + 1 / self._chunks) * self._sizes.parameters(task.lo, task.hi)
            case Op.UPDATE:
                return _UPDATE * self._sizes.parameters(task.lo, task.hi)
            case Op.VOTE:
                held = task.ranges[1::2]
                return _VOTE * sum(self._sizes.parameters(lo, hi) for lo, hi in held)
        return 0.0

    def _copied(self, task: Instruction, own: range, hosted: frozenset[str]) -> float:
        """Bytes that go to or come from the host before the next instruction begins."""
        if task.op is Op.R and AHEAD in hosted:
            return self._sizes.activations(*task.ranges[0])
        if task.op is Op.F and task.ranges and AHEAD in hosted:
            return self._sizes.activations(task.lo, task.ranges[0][0])
        if task.op is Op.UPDATE and task.lo not in own:  # states come from the host and go back
            states = (STATES - 1) * (REPLICA_OPTIMIZER in hosted) + (REPLICA_WEIGHTS in hosted)
            return 2 * states * self._sizes.parameters(task.lo, task.hi)
        return 0.0
