"""Random state keyed by what is computed, never by who computes it.

Before every layer's forward the generators are set from (seed, step, micro-batch, layer), so a
forward that is repeated anywhere draws the same numbers; initial weights from (seed, layer).
"""

from __future__ import annotations

import hashlib

import torch


def key(*parts: int | str) -> int:
    """64 bits that depend on the parts only."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def seed_forward(seed: int, step: int, microbatch: int, layer: int, device: torch.device) -> None:
    """Set the generators that the layer may draw from: the CPU's and the device's."""
    _set(key("forward", seed, step, microbatch, layer), device)


def seed_weights(seed: int, layer: int, device: torch.device) -> None:
    """Set the generators before a layer is built."""
    _set(key("weights", seed, layer), device)


def _set(value: int, device: torch.device) -> None:
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(value)
