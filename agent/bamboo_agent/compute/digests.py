"""Digests of tensors: one number that differs if one word differs."""

from __future__ import annotations

from collections.abc import Iterable

import torch

_MASK = (1 << 52) - 1  # JSON numbers keep it whole


def digest(tensors: Iterable[torch.Tensor | None], start: int = 0) -> int:
    """Equal for equal bits in equal order: a sum of 32-bit words for each tensor. None stands for
    a gradient that does not exist. start: of what precedes the tensors. Below 2**52."""
    total = start
    for tensor in tensors:
        total = (total * 31 + (1 if tensor is None else _words(tensor))) & _MASK
    return total


def combined(digests: Iterable[int]) -> int:
    """One digest of several, in this order."""
    total = 0
    for value in digests:
        total = (total * 31 + value) & _MASK
    return total


def _words(tensor: torch.Tensor) -> int:
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    words = tensor.contiguous().reshape(-1).view(torch.uint8)
    if words.numel() % 4 == 0:
        words = words.view(torch.int32)
    return int(words.sum(dtype=torch.int64))
