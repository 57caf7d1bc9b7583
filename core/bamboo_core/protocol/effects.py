"""Effects of the executor: what its shell has to perform."""

from __future__ import annotations

from dataclasses import dataclass

from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item
from bamboo_core.model.program import Instruction
from bamboo_core.protocol.messages import AgentReport, CommitRecord, Finished, Left


@dataclass(frozen=True)
class Run:
    """Run the instruction (its step is absolute), then call :meth:`Executor.done`."""

    instruction: Instruction


@dataclass(frozen=True)
class Transmit:
    """Send the item to the peer in this fence."""

    item: Item
    peer: AgentId
    fence: Fence
    commit: CommitRecord | None = None  # COMMIT: the record; VER: of the step before it


@dataclass(frozen=True)
class Drop:
    """Free these payloads. VER: the layer's whole state."""

    items: tuple[Item, ...]
    for_room: bool = False  # forwards computed ahead, for a newer one


@dataclass(frozen=True)
class Retract:
    """The claims of this agent do not count any more. is_new: nor does anything of the attempt."""

    is_new: bool


@dataclass(frozen=True)
class SendOperator:
    """Send to the operator."""

    message: AgentReport | Finished | Left


@dataclass(frozen=True)
class StepEnded:
    """END of a step has run, or the last validation is complete (commit.step == last)."""

    commit: CommitRecord


Effect = Run | Transmit | Drop | Retract | SendOperator | StepEnded


class ProtocolError(Exception):
    """No correct program leads to this state. The worker must exit."""
