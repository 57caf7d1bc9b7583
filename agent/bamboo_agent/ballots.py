"""Votes and what is counted from them: the global scalars of a step (DESIGN sections 5 and 6)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bamboo_agent.sums import Losses
from bamboo_core.ids import AgentId
from bamboo_core.messages import CommitRecord


@dataclass(frozen=True)
class Ballot:
    """VOTE: what an agent contributes to the commit.

    norms: layer -> norm of its reduced gradient; losses: micro-batch -> mean loss;
    checksums: layer -> checksum of its weights, in steps in which copies are compared.
    """

    norms: dict[int, float] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    checksums: dict[int, int] = field(default_factory=dict)


class DivergenceError(Exception):
    """Two copies of a layer differ: memory or a device is faulty, or code is not deterministic."""


def compare(step: int, ballots: Mapping[AgentId, Ballot]) -> None:
    """DivergenceError if two agents hold different weights, or reduced gradients, of a layer."""
    known: dict[tuple[str, int], tuple[AgentId, float]] = {}
    for agent, ballot in ballots.items():
        said: dict[tuple[str, int], float] = {}
        said |= {("reduced gradients", layer): x for layer, x in ballot.norms.items()}
        said |= {("weights", layer): x for layer, x in ballot.checksums.items()}
        for (what, layer), value in said.items():
            first, other = known.setdefault((what, layer), (agent, value))
            if value != other and not (math.isnan(value) and math.isnan(other)):
                raise DivergenceError(
                    f"{what} of layer {layer} differ between {first} and {agent} in step {step};"
                    " look for a faulty device or for layers that are not deterministic"
                )


def count(step: int, ballots: Sequence[Ballot], scores: Losses) -> CommitRecord:
    """The step's global scalars: norms folded in layer order, losses in batch order.

    scores: losses of the validation micro-batches; without ballots (the epilogue) nothing else.
    """
    norms: dict[int, float] = {}
    losses: Losses = {}
    for ballot in ballots:
        norms |= ballot.norms
        losses |= ballot.losses
    grad_norm = math.sqrt(sum(norms[layer] ** 2 for layer in sorted(norms)))
    return CommitRecord(
        step=step,
        loss=_mean(losses) or 0.0,
        grad_norm=grad_norm,
        finite=math.isfinite(grad_norm),
        validation_loss=_mean(scores),
    )


def _mean(values: Losses) -> float | None:
    if not values:
        return None
    total = 0.0
    for index in sorted(values):
        total += values[index]
    return total / len(values)
