"""What the fullest agent needs of its device and of host memory, and where replicas are kept.

One pure function, :func:`need`. The planner, ``Auto`` and ``bamboo plan`` ask it, so they agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.model.ids import Range
from bamboo_core.protocol.messages import LayerCost

RESIDENT = 6  # times the parameters' bytes: weight, Adam's two, leaf sum, chunk, reduced gradient
USABLE = 0.8  # share of the device's memory; the rest is for temporaries and fragmentation
STATES = 3  # times the parameters' bytes: weight, Adam's two. What a replica keeps in host memory
_REDUCED = 1  # times the parameters' bytes: a replica's update needs the reduced gradient
_MOMENTS = STATES - 1  # without the weight


@dataclass(frozen=True)
class Sizes:
    """Bytes of the largest stage, layer and boundary tensor, for one micro-batch."""

    stages: int  # P
    microbatches: int  # M of one pipeline in a step
    parameter_bytes: int
    layer_bytes: int  # parameters of the largest layer
    activation_bytes: int  # kept from a forward to its backward
    boundary_bytes: int  # the output

    @staticmethod
    def of(cut: Sequence[Range], costs: Sequence[LayerCost], *, microbatches: int) -> Sizes:
        """Of a cut. costs: one per layer, at least one."""
        stages = [costs[lo:hi] for lo, hi in cut]
        return Sizes(
            len(cut),
            microbatches,
            parameter_bytes=max(sum(c.parameter_bytes for c in s) for s in stages),
            layer_bytes=max(c.parameter_bytes for c in costs),
            activation_bytes=max(sum(c.activation_bytes for c in s) for s in stages),
            boundary_bytes=max(c.output_bytes for c in costs),
        )


@dataclass(frozen=True)
class Need:
    """Bytes of the fullest agent."""

    device_bytes: int
    after_loss_bytes: int  # of the device, once the agent computes its replicas' work, too
    replica_bytes: int = 0  # weights and optimizer state in host memory; 0: on the device
    ahead: int = 0  # forwards computed ahead: the rest of host memory keeps them, the device their
    # outputs
    ahead_bytes: int = 0  # of them

    @property
    def host_bytes(self) -> int:
        """Of host memory."""
        return self.replica_bytes + self.ahead_bytes


def need(sizes: Sizes, mode: RedundancyMode, *, memory_bytes: int, host_memory_bytes: int) -> Need:
    """Memory under a mode. memory_bytes: of the smallest device; 0: unknown.

    Replicas are kept in host memory if the device is too small for them after a loss (in Eager with
    one forward ahead), if ``host_memory_bytes`` suffices for them (and that forward), and if the
    device then has to hold less. Otherwise they are on the device.
    """
    usual = _need(sizes, mode, memory_bytes, host_memory_bytes, hosts=False)
    if not mode.keeps_copies or fits(usual, memory_bytes):
        return usual
    hosted = _need(sizes, mode, memory_bytes, host_memory_bytes, hosts=True)
    has_room = hosted.replica_bytes <= host_memory_bytes
    if mode is RedundancyMode.EAGER:
        has_room = has_room and hosted.ahead > 0
    return hosted if has_room and hosted.after_loss_bytes < usual.after_loss_bytes else usual


def fits(found: Need, memory_bytes: int) -> bool:
    """Whether the device suffices, after a loss, too. memory_bytes: 0 if unknown."""
    return not memory_bytes or found.after_loss_bytes <= USABLE * memory_bytes


def _need(
    sizes: Sizes, mode: RedundancyMode, memory_bytes: int, host_memory_bytes: int, *, hosts: bool
) -> Need:
    """Of the first agent of a pipeline, which has most activations in flight: P of them.

    Outputs and input gradients stay until the step ends. A replica has a reduced gradient, but no
    sums; they come when its work does. In host memory, an update brings one layer to the device at
    a time. Weights come as soon as a forward needs them, and the optimizer's state stays.
    """
    size = sizes.parameter_bytes
    own = (
        RESIDENT * size
        + sizes.stages * sizes.activation_bytes
        + 2 * sizes.microbatches * sizes.boundary_bytes
    )
    if not mode.keeps_copies:
        return Need(own, own)
    is_eager = mode is RedundancyMode.EAGER
    idle, taken = (STATES + _REDUCED) * size, RESIDENT * size
    if hosts:
        moved = _MOMENTS if is_eager else STATES
        idle += moved * (sizes.layer_bytes - size)
        taken += _MOMENTS * (sizes.layer_bytes - size)
    replica_bytes = STATES * size if hosts else 0
    if not is_eager:
        return Need(own + idle, own + max(idle, taken), replica_bytes)
    # what the slice that runs keeps, and the output of each forward ahead, is on the device
    idle, taken = idle + sizes.activation_bytes, taken + sizes.activation_bytes
    ahead = _fitting(sizes.activation_bytes, host_memory_bytes - replica_bytes, sizes.microbatches)
    if memory_bytes:
        left_bytes = int(USABLE * memory_bytes) - own - max(idle, taken)
        # without room for one, the mode does not fit, and the need says by how much
        ahead = _fitting(sizes.boundary_bytes, max(left_bytes, sizes.boundary_bytes), ahead)
    outputs = ahead * sizes.boundary_bytes
    return Need(
        own + idle + outputs,
        own + max(idle, taken) + outputs,
        replica_bytes,
        ahead,
        ahead * sizes.activation_bytes,
    )


def _fitting(each_bytes: int, room_bytes: int, most: int) -> int:
    """How many fit."""
    return max(0, min(most, room_bytes // each_bytes)) if each_bytes else most
