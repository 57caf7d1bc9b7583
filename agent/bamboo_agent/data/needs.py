"""What an agent needs of a micro-batch, and who may read it instead of the agent itself."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntFlag
from typing import Any, NamedTuple, Protocol


class Part(IntFlag):
    """The parts of a micro-batch: a first stage needs the inputs, a last one the targets."""

    INPUT = 1
    TARGET = 2


BOTH = Part.INPUT | Part.TARGET


class Need(NamedTuple):
    """Parts of a micro-batch of a step. step None: of the validation set."""

    step: int | None
    microbatch: int
    parts: Part = BOTH


class Source(Protocol):
    """Reads micro-batches instead of the process that needs them."""

    def take(self, need: Need) -> Mapping[Part, Any]:
        """The parts that are needed, or more, on the CPU. Raises what reading them has raised."""
