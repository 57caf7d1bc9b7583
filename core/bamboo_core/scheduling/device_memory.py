"""The memory of the fullest agent: how much of its device and of the host, and what is kept where.

One pure function, :func:`need`. The planner, ``Auto`` and ``bamboo plan`` ask it, so they agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.model.ids import Range
from bamboo_core.protocol.messages import LayerCost

USABLE = 0.8  # share of the device's memory; the rest is for temporaries and fragmentation
STATES = 3  # times the parameters' bytes: weight, Adam's two. What a copy of a layer has
BEYOND = 8  # most activations in flight beyond P (measured: more gains nothing)
_REDUCED = 1  # times the parameters' bytes: a replica's update needs the reduced gradient
_MOMENTS = STATES - 1  # without the weight
_FEWER = 2  # what is copied to host memory takes so many times as long to compute, about


@dataclass(frozen=True)
class Sizes:
    """Bytes of the largest stage, layer and boundary tensor, for one micro-batch."""

    stages: int  # P
    microbatches: int  # M of one pipeline in a step
    parameter_bytes: int
    layer_bytes: int  # parameters of the largest layer
    activation_bytes: int  # kept from a forward to its backward
    boundary_bytes: int  # the output
    sums: int = 2  # of gradients that an agent holds at once: see sharing.orders

    @property
    def resident(self) -> int:
        """How many times the parameters' bytes an agent needs for a stage that it computes."""
        return STATES + _REDUCED + self.sums

    @staticmethod
    def of(
        cut: Sequence[Range], costs: Sequence[LayerCost], *, microbatches: int, sums: int = 2
    ) -> Sizes:
        """The sizes of a cut. costs: one per layer, at least one."""
        stages = [costs[lo:hi] for lo, hi in cut]
        return Sizes(
            len(cut),
            microbatches,
            parameter_bytes=max(sum(c.parameter_bytes for c in s) for s in stages),
            layer_bytes=max(c.parameter_bytes for c in costs),
            activation_bytes=max(sum(c.activation_bytes for c in s) for s in stages),
            boundary_bytes=max(c.output_bytes for c in costs),
            sums=sums,
        )


@dataclass(frozen=True)
class Need:
    """Bytes of the fullest agent."""

    after_loss_bytes: int  # of the device, once the agent computes its replicas' work, too
    replica_bytes: int = 0  # weights and optimizer state in host memory; 0: on the device
    ahead: int = 0  # forwards computed ahead that are kept at once; 0: there is no room for any
    ahead_bytes: int = 0  # of what they keep for their backwards in host memory; 0: on the device
    spare: int = 0  # activations in flight beyond P for which the device has room besides

    @property
    def host_bytes(self) -> int:
        """Bytes in host memory."""
        return self.replica_bytes + self.ahead_bytes


def need(sizes: Sizes, mode: RedundancyMode, *, memory_bytes: int, host_memory_bytes: int) -> Need:
    """Memory under a mode. memory_bytes: of the smallest device; 0: unknown, everything fits.

    What is computed ahead and the replicas stay on the device as long as it suffices after a loss,
    with one forward ahead at least. If not, or if host memory keeps more than twice as many
    forwards, what is computed ahead goes there. Replicas follow if the device still does not
    suffice, if ``host_memory_bytes`` has room for them, and if the device then has to hold less.
    """
    usual = _placed(sizes, mode, memory_bytes, host_memory_bytes, hosts=False)
    if not mode.keeps_copies or fits(usual, memory_bytes):
        return usual
    hosted = _placed(sizes, mode, memory_bytes, host_memory_bytes, hosts=True)
    has_room = hosted.replica_bytes <= host_memory_bytes
    return hosted if has_room and hosted.after_loss_bytes < usual.after_loss_bytes else usual


def fits(found: Need, memory_bytes: int) -> bool:
    """Whether the device suffices, after a loss, too. memory_bytes: 0 if unknown."""
    return not memory_bytes or found.after_loss_bytes <= USABLE * memory_bytes


def most_sums(found: Need, sizes: Sizes, memory_bytes: int) -> float:
    """Sums of a stage's gradient for which an agent with two stages has memory. memory_bytes: of
    the smallest device; 0: unknown."""
    if not memory_bytes:
        return inf
    taken = found.after_loss_bytes + found.spare * sizes.activation_bytes
    left = max(0, int(USABLE * memory_bytes) - taken) // max(1, sizes.parameter_bytes)
    return 2 * sizes.sums + left


def shortage(
    sizes: Sizes, mode: RedundancyMode, *, memory_bytes: int, host_memory_bytes: int
) -> str:
    """Why the device does not suffice for a mode, with remedies; empty: it does, or is not known.

    An agent must have room for the sums of its replicas, since it needs them as soon as it takes
    over.
    """
    found = need(sizes, mode, memory_bytes=memory_bytes, host_memory_bytes=host_memory_bytes)
    if fits(found, memory_bytes):
        return ""
    when = " after a loss" if mode.keeps_copies else ""
    *others, last = [
        "raise spec.pipelines.stages",
        "lower spec.training.microBatchSize",
        "use larger devices",
        *_host(sizes, mode, memory_bytes, host_memory_bytes),
    ]
    return (
        f"it needs {_mib(found.after_loss_bytes)}{when}, and {USABLE:.0%} of the device's"
        f" {memory_bytes // 2**20} MiB can be used: {', '.join(others)}, or {last}"
    )


def not_even_none(found: str) -> str:
    """A shortage of mode None as a warning, since memory is an estimate, and there is no mode that
    needs less."""
    return f"training may fail for want of memory, since by an estimate not even None fits: {found}"


def held_bytes(
    stages: Sequence[Sequence[LayerCost]],
    mode: RedundancyMode,
    found: Need,
    *,
    leaf_size: int,
    sums: Sequence[Sequence[int]],
    in_flight: Sequence[int],
    ahead: Sequence[float],
) -> int:
    """The bytes on the fullest device in an undisturbed step.

    stages: costs of each stage's layers; found: what is where; leaf_size: micro-batches in a leaf;
    sums: pipeline -> sums of gradients that its agents hold at each of their leaves, in turn. For
    each stage, in_flight: most activations of its agent at once; ahead: forwards that it computes
    ahead and keeps.

    Most sums wait at the last leaves, when hardly any activation is left in flight.
    """
    microbatches = leaf_size * max(map(len, sums))
    sizes = [Sizes.of(((0, len(x)),), x, microbatches=microbatches) for x in stages]
    outputs = [x[-1].output_bytes for x in stages]
    left = [(count, leaf_size * (len(x) - at)) for x in sums for at, count in enumerate(x)]

    def own(s: int) -> int:
        size, activation = sizes[s].parameter_bytes, sizes[s].activation_bytes
        boundaries = outputs[s] + (outputs[s - 1] if s else 0)
        return (
            (STATES + _REDUCED) * size
            + max(count * size + min(in_flight[s], after) * activation for count, after in left)
            + microbatches * boundaries
        )

    def copy(s: int, ahead: float) -> int:
        if not mode.keeps_copies:
            return 0
        idle, _ = _replica(sizes[s], mode, hosts=found.replica_bytes > 0)
        if mode is not RedundancyMode.EAGER:
            return idle
        on_device = 0 if found.ahead_bytes else ahead
        return idle + int((1 + on_device) * sizes[s].activation_bytes + ahead * outputs[s])

    return max(own(s) + copy((s + 1) % len(stages), ahead[s]) for s in range(len(stages)))


def _host(
    sizes: Sizes, mode: RedundancyMode, memory_bytes: int, host_memory_bytes: int
) -> list[str]:
    """More host memory as a remedy, if with it the mode would fit onto the device."""
    ahead, replicas = sizes.activation_bytes, STATES * sizes.parameter_bytes
    for least in sorted({ahead, replicas, ahead + replicas}):
        found = need(sizes, mode, memory_bytes=memory_bytes, host_memory_bytes=least)
        if least > host_memory_bytes and fits(found, memory_bytes):
            return [f"raise spec.redundancy.hostMemory to {_mib(least)}"]
    return []


def _mib(count: int) -> str:
    return f"{-(-count // 2**20)} MiB"


def _placed(
    sizes: Sizes, mode: RedundancyMode, memory_bytes: int, host_memory_bytes: int, *, hosts: bool
) -> Need:
    """With what is computed ahead in the better place. hosts: replicas are in host memory."""
    replica_bytes = STATES * sizes.parameter_bytes if hosts else 0
    usual = _need(sizes, mode, memory_bytes, replica_bytes)
    left_bytes = host_memory_bytes - replica_bytes
    most = _fitting(sizes.activation_bytes, left_bytes, sizes.microbatches)
    if mode is not RedundancyMode.EAGER or not most or not sizes.activation_bytes:
        return usual
    hosted = _need(sizes, mode, memory_bytes, replica_bytes, ahead_in_host=most)
    is_enough = fits(usual, memory_bytes) and _FEWER * usual.ahead >= hosted.ahead
    return usual if is_enough else hosted


def _need(
    sizes: Sizes,
    mode: RedundancyMode,
    memory_bytes: int,
    replica_bytes: int,
    *,
    ahead_in_host: int = 0,
) -> Need:
    """replica_bytes: in host memory; ahead_in_host: forwards for which it has room; 0: what is
    computed ahead stays on the device.

    Outputs of forwards ahead always stay on the device, and are small. What else these keep there
    comes after activations in flight, since it must change no program.
    """
    is_eager, activation = mode is RedundancyMode.EAGER, sizes.activation_bytes
    taken = _without_lane(sizes, mode, hosts=replica_bytes > 0)
    each = sizes.boundary_bytes + (0 if ahead_in_host else activation) if is_eager else 0
    ahead, spare = (ahead_in_host or sizes.microbatches) if is_eager else 0, BEYOND
    if memory_bytes:
        left_bytes = int(USABLE * memory_bytes) - taken
        first = _fitting(each, left_bytes, ahead if ahead_in_host else 1)
        spare = _fitting(activation, left_bytes - first * each, BEYOND)
        ahead = _fitting(each, left_bytes - spare * activation, ahead)
    # without room for one, the mode does not fit, and the need says by how much
    lane = max(1, ahead) * each
    return Need(
        taken + lane,
        replica_bytes,
        ahead,
        ahead_in_host and ahead * activation,
        spare,
    )


def _without_lane(sizes: Sizes, mode: RedundancyMode, *, hosts: bool) -> int:
    """Bytes of the device after a loss.

    Of the first agent of a pipeline, which has most activations in flight: P of them. Outputs and
    input gradients stay until the step ends. In Eager, what the slice that runs keeps is on the
    device.
    """
    own = (
        sizes.resident * sizes.parameter_bytes
        + sizes.stages * sizes.activation_bytes
        + 2 * sizes.microbatches * sizes.boundary_bytes
    )
    if not mode.keeps_copies:
        return own
    own += sizes.activation_bytes if mode is RedundancyMode.EAGER else 0
    return own + max(_replica(sizes, mode, hosts=hosts))


def _replica(sizes: Sizes, mode: RedundancyMode, *, hosts: bool) -> tuple[int, int]:
    """Bytes of the device that a replica takes, and those of the same stage after a loss.

    A replica has a reduced gradient, but no sums; they come when its work does. In host memory, an
    update brings one layer to the device at a time. Weights come as soon as a forward needs them,
    and the optimizer's state stays.
    """
    size = sizes.parameter_bytes
    idle, taken = (STATES + _REDUCED) * size, sizes.resident * size
    if hosts:
        moved = _MOMENTS if mode is RedundancyMode.EAGER else STATES
        idle += moved * (sizes.layer_bytes - size)
        taken += _MOMENTS * (sizes.layer_bytes - size)
    return idle, taken


def _fitting(each_bytes: int, room_bytes: int, most: int) -> int:
    """How many fit."""
    return max(0, min(most, room_bytes // each_bytes)) if each_bytes else most
