"""Data sets of one function, as users would write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Samples:
    """Sample i is ``sample(i)``."""

    def __init__(self, sample: Callable[[int], Any], count: int = 100) -> None:
        self.sample, self.count = sample, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.sample(index)
