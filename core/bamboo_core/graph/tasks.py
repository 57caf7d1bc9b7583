"""Task graphs: what must still be done, on whom, after what. Built by bamboo_core.graph.closure."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.program import Instruction
from bamboo_core.protocol.messages import AgentReport


class TaskId(NamedTuple):
    """An instruction (steps relative to the target step) on an agent. Never SEND or RECV."""

    agent: AgentId
    instruction: Instruction


class Transfer(NamedTuple):
    """An item (step relative to the target step) that goes from ``source`` to ``target``.

    producer: the task on the source that makes it, None if the source holds it already. The
    SEND stands directly behind its producer (or first in the program), with its ``every``.
    """

    item: Item
    source: AgentId
    target: AgentId
    producer: TaskId | None


Dependency = TaskId | Transfer


@dataclass
class TaskGraph:
    """task -> what it waits for: other tasks of the same agent, transfers to its agent.

    Acyclic. A transfer that several tasks of one agent need appears in each; it is sent once.
    """

    agents: tuple[AgentId, ...]
    tasks: dict[TaskId, tuple[Dependency, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Holdings:
    """Facts about one agent, with absolute steps: see
    :class:`bamboo_core.protocol.messages.AgentReport`.

    commits: steps whose commit records it knows.
    """

    versions: Mapping[int, int] = field(default_factory=dict)
    items: Set[Item] = frozenset()
    commits: frozenset[int] = frozenset()
    ended: int = -1

    @staticmethod
    def of(report: AgentReport) -> Holdings:
        """What a report says."""
        known = {c.step for c in report.commits}
        known |= {i.step for i in report.items if i.kind is Kind.COMMIT}
        return Holdings(report.versions, report.items, frozenset(known), report.ended)


class LayersLost(Exception):  # noqa: N818 - a verdict, not a fault
    """Fatal: these layers have neither a usable holder nor a file of exactly the needed version."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        super().__init__(f"layers {list(layers)} have no usable copy and no file: restore")
        self.layers = layers
