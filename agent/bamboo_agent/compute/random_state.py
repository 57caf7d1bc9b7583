"""Random state that depends on the computation, never on the agent that runs it.

The generators are seeded before every layer's forward by (seed, step, micro-batch, layer), so a
forward that is repeated on any agent draws the same numbers. Initial weights: by (seed, layer).
"""

from __future__ import annotations

import hashlib

import torch


def key(*parts: int | str) -> int:
    """A 64-bit hash of the parts."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def seed_forward(seed: int, step: int, microbatch: int, layer: int, device: torch.device) -> None:
    """Seed the generators that the layer may use: the CPU's and the device's."""
    _set(key("forward", seed, step, microbatch, layer), device)


def seed_weights(seed: int, layer: int, device: torch.device) -> None:
    """Seed the generators before a layer is built."""
    _set(key("weights", seed, layer), device)


def _set(value: int, device: torch.device) -> None:
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(value)
