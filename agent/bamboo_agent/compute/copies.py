"""Compares all copies of a layer: weights, buffers and optimizer state.

An agent that reduces a gradient sends checksums of its own copies of the layers with it. The
receiver compares them with its copies before it votes. So the worker with the deviating copy fails,
and the others continue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bamboo_core.model.ids import AgentId

COMPARE_EVERY = 100
"""Steps between comparisons."""


class DivergenceError(Exception):
    """Two copies of a layer differ: faulty memory or device, or nondeterministic code."""


@dataclass(frozen=True)
class Witness:
    """Checksums of the copies of an agent that reduces a gradient."""

    agent: AgentId
    checksums: dict[int, int]  # layer -> Layer.checksum


def is_due(step: int) -> bool:
    """Whether copies are compared in this step."""
    return step > 0 and step % COMPARE_EVERY == 0


def compare(
    step: int, agent: AgentId, own: Mapping[int, int], witnesses: Iterable[Witness]
) -> None:
    """DivergenceError unless ``agent`` is in the majority of a layer's copies.

    If a replica differs from its only owner, the replica fails. If two owners differ, both fail:
    it is unknown which one is right.
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
