"""Byte-level text that every machine has: the sources of Python's standard library.

The files are read in sorted order up to a number of bytes and cut into windows of ``context`` + 1
bytes. Every tenth window belongs to the validation set. Machines with another Python version have
other data, and the fingerprint excludes them.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch

_EVERY = 10
_SPLITS = ("train", "validation")


class Windows:
    """Windows of bytes: item i is (context bytes, the same shifted by one), both int64."""

    def __init__(self, text: bytes, context: int, split: str) -> None:
        self._text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._context = context
        windows = range((len(text) - 1) // context)
        self._windows = [w for w in windows if (w % _EVERY == 0) == (split == "validation")]

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = self._windows[index] * self._context
        piece = self._text[first : first + self._context + 1].long()
        return piece[:-1], piece[1:]


def read_sources(limit_bytes: int) -> bytes:
    """The first ``limit_bytes`` of the standard library's top-level sources, in sorted order."""
    found = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        if len(found) >= limit_bytes:
            break
        found += path.read_bytes()
    return bytes(found[:limit_bytes])


def build(*, split: str = "train", context: int = 64, limit_bytes: int = 2_000_000) -> Windows:
    """The training or validation windows."""
    if split not in _SPLITS:
        raise ValueError(f"split {split!r} must be one of {', '.join(_SPLITS)}")
    if context < 1:
        raise ValueError(f"context {context} must be positive")
    return Windows(read_sources(limit_bytes), context, split)
