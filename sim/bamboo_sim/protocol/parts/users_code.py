"""Where code of the user's may fail."""

from __future__ import annotations

from typing import NamedTuple

from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.program import Op

FORWARDS = frozenset({Op.F, Op.V})
"""Of these one fails, and its agent keeps its state. A slice ahead would be left out."""
READING = frozenset({Op.F, Op.R})
"""They read samples of the training."""


class Crash(NamedTuple):
    """The first process of an attempt, under one leader, that the user's code has ended. fence: of
    its plan; step: how many steps the others had then, as a whole."""

    agent: AgentId
    fence: Fence
    step: int


class BadCode(NamedTuple):
    """The first micro-batch of a step, which fails in these instructions of layer 0 on every agent.
    is_fatal: it ends the process."""

    step: int
    ops: frozenset[Op]
    is_fatal: bool
