"""Which share of a job's work is checked: the same rule on all agents, without randomness."""

from __future__ import annotations


def is_due(step: int, index: int, every: int) -> bool:
    """Whether this one is checked. index: micro-batch, leaf, slice or layer; every: 0 means never.

    Each index is due once in ``every`` steps, whatever their number is, so that no agent and no
    layer is left out.
    """
    return every > 0 and (step + index) % every == 0
