"""A user's data set that is slow until a file exists.

A job with it cannot end before its test is through, however fast the machine is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

PAUSE_S = 0.1


@dataclass(frozen=True)
class Paced:
    """Another data set's items. Each takes PAUSE_S as long as the gate does not exist."""

    items: Any
    gate: Path

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        if not self.gate.exists():
            time.sleep(PAUSE_S)
        return self.items[index]


def build(*, gate: str, factory: str = "bamboo_agent.datasets.text:build", **args: Any) -> Paced:
    """The items of the factory."""
    module, _, name = factory.partition(":")
    return Paced(getattr(import_module(module), name)(**args), Path(gate))
