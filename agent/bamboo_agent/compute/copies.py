"""Whether all copies of a layer are equal, weights, buffers and optimizer state.

Whoever reduces a gradient says what its own copy of the layers looks like, and who receives the
gradient compares before it votes. So it is the worker with the deviating copy that ends, and the
others train on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bamboo_core.model.ids import AgentId

COMPARE_EVERY = 100
"""Steps between two comparisons."""


class DivergenceError(Exception):
    """Two copies of a layer differ: memory or a device is faulty, or code is not deterministic."""


@dataclass(frozen=True)
class Witness:
    """What an agent that reduces a gradient holds. checksums: layer -> see Layer.checksum."""

    agent: AgentId
    checksums: dict[int, int]


def is_due(step: int) -> bool:
    """Whether copies are compared in this step."""
    return step > 0 and step % COMPARE_EVERY == 0


def compare(
    step: int, agent: AgentId, own: Mapping[int, int], witnesses: Iterable[Witness]
) -> None:
    """DivergenceError if ``agent`` is not with the majority of a layer's copies.

    A replica alone against its owner is wrong, and of two owners who differ both are: nobody can
    tell which of them.
    """
    said = {witness.agent: witness.checksums for witness in witnesses if witness.agent != agent}
    for layer, mine in own.items():
        known = {other: sums[layer] for other, sums in said.items() if layer in sums}
        against = sorted(other for other, checksum in known.items() if checksum != mine)
        if against and 2 * len(against) >= len(known) + 1:
            raise DivergenceError(
                f"layer {layer} on {agent} differs from that on {', '.join(against)} in step {step}"
                " (weights, buffers or optimizer state): look for a faulty device or memory on"
                f" {agent}, or for layers and optimizers that are not deterministic"
            )
