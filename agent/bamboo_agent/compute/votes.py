"""Votes, and the global scalars of a step that are computed from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bamboo_agent.compute.sums import Losses
from bamboo_core.model.claims import Claims
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import CommitRecord


class DivergenceError(Exception):
    """Agents hold different reduced gradients: a faulty device, or nondeterministic code."""


@dataclass(frozen=True)
class Vote:
    """VOTE: what an agent contributes to the commit."""

    norms: dict[int, float] = field(default_factory=dict)  # layer -> norm of its reduced gradient
    losses: dict[int, float] = field(default_factory=dict)  # micro-batch -> mean loss
    claims: Claims = field(default_factory=dict)  # forwards, and copies of layers in some steps


def compare(step: int, votes: Mapping[AgentId, Vote]) -> None:
    """DivergenceError if two agents hold different reduced gradients of a layer."""
    known: dict[int, tuple[AgentId, float]] = {}
    for agent, vote in votes.items():
        for layer, norm in vote.norms.items():
            first, other = known.setdefault(layer, (agent, norm))
            if norm != other and not (math.isnan(norm) and math.isnan(other)):
                raise DivergenceError(
                    f"reduced gradients of layer {layer} differ between {first} and {agent} in"
                    f" step {step};"
                    " look for a faulty device or for layers that are not deterministic"
                )


def count(
    step: int, votes: Sequence[Vote], scores: Losses, before: CommitRecord | None = None
) -> CommitRecord:
    """The step's global scalars. Norms are summed in layer order, losses in batch order.

    scores: losses of the validation micro-batches. The final program has no votes. before: the
    commit of the step before; None: there is none in this attempt.
    """
    norms: dict[int, float] = {}
    losses: Losses = {}
    for vote in votes:
        norms |= vote.norms
        losses |= vote.losses
    squares = {layer: norms[layer] * norms[layer] for layer in sorted(norms)}
    grad_norm = math.sqrt(sum(squares.values()))
    is_finite = math.isfinite(grad_norm)
    known = before or CommitRecord(step - 1)
    # a loss that is not finite does not enter the update, so it alone does not prevent it
    return CommitRecord(
        step=step,
        loss=_mean(losses) or 0.0,
        grad_norm=grad_norm,
        finite=is_finite,
        validation_loss=_mean(scores),
        culprit=next((layer for layer, square in squares.items() if not math.isfinite(square)), -1),
        skipped=known.skipped + (not is_finite),
        skipped_in_row=0 if is_finite else known.skipped_in_row + 1,
    )


def _mean(values: Losses) -> float | None:
    if not values:
        return None
    total = 0.0
    for index in sorted(values):
        total += values[index]
    return total / len(values)
