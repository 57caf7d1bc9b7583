"""The closure: which tasks are still missing so that the goals of a step hold (DESIGN section 4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from bamboo_core.ids import AgentId
from bamboo_core.items import Item
from bamboo_core.program import Instruction


class TaskId(NamedTuple):
    """An instruction (steps relative to the target step) on an agent. Never SEND or RECV."""

    agent: AgentId
    instruction: Instruction


class Transfer(NamedTuple):
    """An item that goes from ``source`` to ``target``; ``producer``: the task on the source that
    makes it, None if the source holds it already."""

    item: Item
    source: AgentId
    target: AgentId
    producer: TaskId | None


@dataclass
class TaskGraph:
    """task -> what it waits for: other tasks of the same agent, transfers to its agent.

    Acyclic. A transfer that several tasks of one agent need appears in each; it is sent once.
    """

    agents: tuple[AgentId, ...]
    tasks: dict[TaskId, tuple[TaskId | Transfer, ...]] = field(default_factory=dict)
