"""Digests of tensors: one number that differs if one word differs, or words change places."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch

_MASK = (1 << 52) - 1  # JSON numbers keep it whole
_PART = 1 << 18  # words that are summed at once
_FIRST, _SECOND, _THIRD = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # SplitMix64


def digest(tensors: Iterable[torch.Tensor | None], start: int = 0) -> int:
    """Equal for equal bits in equal order. None stands for a gradient that does not exist. start:
    of what precedes the tensors. Below 2**52.

    Each 32-bit word counts with an odd weight that depends on its place. So one wrong word always
    changes the digest, and several do not compensate each other.
    """
    total = start
    for tensor in tensors:
        parts = [1] if tensor is None else _sums(tensor)
        total = combined([total, *parts])
    return total


def combined(digests: Iterable[int]) -> int:
    """One digest of several, in this order."""
    total = 0
    for value in digests:
        total = (total * 31 + value) & _MASK
    return total


def _sums(tensor: torch.Tensor) -> list[int]:
    """The weighted sums of its parts. Integers wrap around, the same on every device."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    words = tensor.contiguous().reshape(-1).view(torch.uint8)
    if words.numel() % 4 == 0:
        words = words.view(torch.int32)
    weights = _weights(words.device)
    sums = [(part * weights[: part.numel()]).sum() for part in torch.split(words, _PART)]
    found: list[int] = torch.stack(sums).tolist()
    return found


@cache
def _weights(device: torch.device) -> torch.Tensor:
    """Odd numbers without a pattern, one for each place in a part."""
    mixed = torch.arange(1, _PART + 1) * _signed(_FIRST)
    mixed = (mixed ^ (mixed >> 30)) * _signed(_SECOND)
    mixed = (mixed ^ (mixed >> 27)) * _signed(_THIRD)
    return ((mixed ^ (mixed >> 31)) | 1).to(device)


def _signed(word: int) -> int:
    return word - (1 << 64)
