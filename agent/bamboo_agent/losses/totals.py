"""Adds up what the losses of a step's micro-batches have returned.

A mean counts as a sum with the count 1, so the mean over micro-batches is their sum over their
number. The order of the additions is that of the micro-batches, whoever adds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bamboo_agent.losses.forms import LossForm
from bamboo_agent.payloads.kinds import Losses


@dataclass(frozen=True)
class Totals:
    """The figures of a batch. targets: how many its loss is a mean over, None: they are not
    counted. A mean over no targets is NaN."""

    loss: float
    metrics: dict[str, float]
    targets: int | None


def total(losses: Losses, form: LossForm) -> Totals | None:
    """The figures of all these micro-batches. None: there are none."""
    if not losses:
        return None
    sums, counts = [0.0] * (1 + len(form.metrics)), [0] * (1 + len(form.metrics))
    for microbatch in sorted(losses):
        found = losses[microbatch]
        pairs = ((found, 1),) if isinstance(found, float) else found.pairs
        for place, (part, count) in enumerate(pairs):
            sums[place] += part
            counts[place] += count
    means = [part / count if count else math.nan for part, count in zip(sums, counts, strict=True)]
    metrics = dict(zip(form.names, means[1:], strict=True))
    return Totals(means[0], metrics, counts[0] if form.is_counted else None)


def rescale(targets: int | None, nominal: int) -> float:
    """The factor from the summed gradient to that of the mean over all targets of the step.

    targets: of the step, None: not counted; nominal: what the loss of each micro-batch was divided
    by.
    """
    return 1.0 if targets is None or not targets else nominal / targets
