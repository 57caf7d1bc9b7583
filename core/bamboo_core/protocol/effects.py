"""What the executor asks its shell to do."""

from __future__ import annotations

from dataclasses import dataclass

from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item
from bamboo_core.model.program import Instruction
from bamboo_core.protocol.messages import AgentReport, CommitRecord, Finished, Left


@dataclass(frozen=True)
class Run:
    """Perform the instruction (steps are absolute here), then call :meth:`Executor.done`."""

    instruction: Instruction


@dataclass(frozen=True)
class Transmit:
    """Send the item to the peer, in this fence; VER travels with the commit record before it."""

    item: Item
    peer: AgentId
    fence: Fence
    commit: CommitRecord | None = None


@dataclass(frozen=True)
class Drop:
    """Forget these payloads (VER: the layer's whole state)."""

    items: tuple[Item, ...]


@dataclass(frozen=True)
class Say:
    """Tell the operator."""

    message: AgentReport | Finished | Left


@dataclass(frozen=True)
class StepEnded:
    """END of a step has run; in the epilogue: its scores are folded (record.step == last)."""

    commit: CommitRecord


Effect = Run | Transmit | Drop | Say | StepEnded


class ProtocolError(Exception):
    """An instruction met a state that no correct program leads to: the worker must end."""
