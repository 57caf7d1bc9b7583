"""The kinds of payloads that are more than a tuple of tensors or a number, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from bamboo_agent.device.buffer_pool import Buffer
from bamboo_core.model.claims import Claims

Losses = dict[int, float]
"""micro-batch -> mean loss. Part of the sums of the last stage."""


@dataclass
class Sum:
    """PART or SUM: either ``parts``, one tensor per parameter, or a flat ``buffer``.

    A part that is None stands for zeros: no micro-batch has used the parameter.
    """

    losses: Losses = field(default_factory=dict)
    buffer: Buffer | None = None
    parts: list[torch.Tensor | None] | None = None


@dataclass(frozen=True)
class Slice:
    """PIECE or RED: one of k slices of a buffer. Only slice 0 has losses."""

    tensor: torch.Tensor
    losses: Losses
    buffer: Buffer | None = None


@dataclass(frozen=True)
class Vote:
    """VOTE: what an agent contributes to the commit."""

    norms: dict[int, float] = field(default_factory=dict)  # layer -> norm of its reduced gradient
    losses: dict[int, float] = field(default_factory=dict)  # micro-batch -> mean loss
    claims: Claims = field(default_factory=dict)  # forwards, and copies of layers in some steps


@dataclass(frozen=True)
class LayerRecord:
    """A layer's state as plain data."""

    tensors: dict[str, torch.Tensor]
    extra: str = "{}"  # JSON: optimizer state that is not a tensor


@dataclass(frozen=True)
class FileRecord:
    """FILE: a layer's file in a checkpoint."""

    path: str = ""
    sha256: str = ""
    num_bytes: int = 0
    error: str = ""  # why it was not written
