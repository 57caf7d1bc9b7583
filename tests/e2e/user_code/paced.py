"""A user's data set that is slow until a file exists.

A job with it cannot end before its test is through, however fast the machine is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bamboo_agent.datasets import text

PAUSE_S = 0.1


@dataclass(frozen=True)
class Paced:
    """Another data set's items. Each takes PAUSE_S as long as the gate does not exist."""

    items: text.Windows
    gate: Path

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        if not self.gate.exists():
            time.sleep(PAUSE_S)
        return self.items[index]


def build(*, gate: str, **arguments: Any) -> Paced:
    """The items of ``bamboo_agent.datasets.text:build``."""
    return Paced(text.build(**arguments), Path(gate))
