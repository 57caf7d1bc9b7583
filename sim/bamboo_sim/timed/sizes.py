"""Groups of memory, and times of instructions, from the declared layers."""

from __future__ import annotations

from collections.abc import Sequence

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.model.items import Kind
from bamboo_core.model.program import Instruction, Op
from bamboo_core.protocol.messages import Directive, LayerCost
from bamboo_core.scheduling.costs import Costs
from bamboo_core.scheduling.device_memory import STATES
from bamboo_core.scheduling.item_bytes import BOUNDARIES, SLICES, SUMS, ItemBytes
from bamboo_sim.timed.declared import Device

AHEAD, REPLICA_WEIGHTS, REPLICA_OPTIMIZER = "ahead", "replica_weights", "replica_optimizer"
"""Groups of memory that can be hosted: be in host memory between their uses."""

_FOLD, _VOTE, _UPDATE = 3, 1, 7  # times the parameters' bytes are read or written


def group_of(kind: Kind) -> str:
    """Under which heading the item's memory counts."""
    if kind is Kind.PREFIX:
        return AHEAD
    if kind is Kind.ACT:
        return "activations"
    if kind in BOUNDARIES:
        return "boundaries"
    return "gradients" if kind in SUMS or kind in SLICES else "records"


def hosted(directive: Directive, mode: RedundancyMode) -> frozenset[str]:
    """Groups in host memory. In mode Eager each step uses the replicas' weights, so they stay."""
    ahead = {AHEAD} if directive.hosts_ahead else set[str]()
    replicas = {REPLICA_OPTIMIZER} if directive.hosted else set[str]()
    if directive.hosted and mode is not RedundancyMode.EAGER:
        replicas.add(REPLICA_WEIGHTS)
    return frozenset(ahead | replicas)


class Times:
    """Seconds of every instruction on the declared device."""

    def __init__(
        self,
        layers: Sequence[LayerCost],
        sizes: ItemBytes,
        device: Device,
    ) -> None:
        self._durations = Costs.measured(layers).durations()
        self._sizes, self._device = sizes, device

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
                (_, slices), *runs = task.ranges
                return (1 + len(runs)) / slices * self._sizes.parameters(task.lo, task.hi)
            case Op.UPDATE:
                return _UPDATE * self._sizes.parameters(task.lo, task.hi)
            case Op.VOTE:
                held = task.ranges[1::3]
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
