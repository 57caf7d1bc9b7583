"""The kinds of payloads that are more than a tuple of tensors or a number, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch

from bamboo_agent.device.buffer_pool import Buffer
from bamboo_core.model.claims import Claims


@dataclass(frozen=True)
class Figures:
    """The loss of a micro-batch, then its metrics in the order of their names: (sum, count) each.
    The count of a mean is 1."""

    pairs: tuple[tuple[float, int], ...]


@runtime_checkable
class Unread(Protocol):
    """Figures that the device may not have computed yet."""

    def read(self) -> float | Figures:
        """Wait for the device, and copy them to the host. LossError if the loss may not return
        them."""


Losses = dict[int, float | Figures]
"""micro-batch -> what its loss gave; a mean without metrics is a number."""

LateLosses = dict[int, float | Figures | Unread]
"""The same as parts of the sums of the last stage."""


def figures_of(found: float | Figures | Unread) -> float | Figures:
    """The figures, read if need be."""
    return found if isinstance(found, float | Figures) else found.read()


@dataclass
class Sum:
    """PART or SUM: either ``parts``, one tensor per parameter, or a flat ``buffer``.

    A part that is None stands for zeros: no micro-batch has used the parameter.
    """

    losses: LateLosses = field(default_factory=dict)
    buffer: Buffer | None = None
    parts: list[torch.Tensor | None] | None = None


@dataclass(frozen=True)
class Slice:
    """PIECE or RED: one of k slices of a buffer. Only slice 0 has losses."""

    tensor: torch.Tensor
    losses: LateLosses
    buffer: Buffer | None = None


@dataclass(frozen=True)
class Vote:
    """VOTE: what an agent contributes to the commit."""

    norms: dict[int, float] = field(default_factory=dict)  # layer -> norm of its reduced gradient
    losses: Losses = field(default_factory=dict)
    claims: Claims = field(default_factory=dict)  # forwards, and copies of layers in some steps
    # layer -> norm of each group of its parameters; only if groups are clipped by themselves
    group_norms: dict[int, tuple[float, ...]] = field(default_factory=dict)


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
