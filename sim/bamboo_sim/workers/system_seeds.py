"""Other random numbers for each worker, as in agents on nodes of their own.

Workers that are forked from one process, or built in one, share its generators: a model that draws
from them before anything seeds them would be equal in all workers of a test, and in no real job.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def draw() -> None:
    """Seed the global generators of torch, numpy and ``random`` with bits of the system's.

    This does not change the order of sets. A process has one hash seed from its start, and a fork
    inherits it, as it does the addresses of objects. Only another interpreter orders sets anew.
    """
    torch.seed()
    np.random.seed()
    random.seed()


def told() -> dict[str, int]:
    """A number for each generator's state, and the hash of a text. Nothing is drawn."""
    numpys: Any = np.random.get_state(legacy=True)
    return {  # the first word of a new state of numpy's and ``random``'s is always the same
        "torch": torch.initial_seed(),
        "numpy": int(numpys[1][1]),
        "random": random.getstate()[1][1],
        "hash": hash("bamboo"),
    }
