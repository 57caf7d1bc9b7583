"""Task graphs: what must still be done, by which agent, after what."""

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

    Its SEND follows its producer directly (or comes first in the program) and has its ``every``.
    """

    item: Item
    source: AgentId
    target: AgentId
    producer: TaskId | None  # the task on the source that makes it; None: the source holds it


@dataclass(frozen=True, eq=False, slots=True)
class Gather:
    """Items of many agents that a task needs: in place of a transfer of each.

    An item that the task's own agent makes is not sent. ``makers``: the task that makes each item;
    one object for all gathers of these tasks' results, by which they are known. None has ``every``.
    """

    items: tuple[Item, ...]
    makers: tuple[TaskId, ...]


Dependency = TaskId | Transfer | Gather


@dataclass
class TaskGraph:
    """Task -> its dependencies: other tasks of the same agent, and what is sent to the agent.

    Acyclic. If several tasks of one agent need a transfer or gather, all name it; it is sent once.
    """

    agents: tuple[AgentId, ...]
    tasks: dict[TaskId, tuple[Dependency, ...]]


@dataclass(frozen=True)
class Holdings:
    """All that one agent holds, with absolute steps; from its AgentReport."""

    versions: Mapping[int, int] = field(default_factory=dict)  # layer -> version
    items: Set[Item] = frozenset()  # without VER
    commits: frozenset[int] = frozenset()  # steps whose commit records it knows
    ended: int = -1  # last step whose END it has run

    @staticmethod
    def of(report: AgentReport) -> Holdings:
        known = {c.step for c in report.commits}
        known |= {i.step for i in report.items if i.kind is Kind.COMMIT}
        return Holdings(report.versions, report.items, frozenset(known), report.ended)


class LayersLost(Exception):  # noqa: N818 - a verdict, not an error
    """Fatal: these layers have no usable copy and no file of exactly the needed version."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        super().__init__(f"layers {list(layers)} have no usable copy and no file: restore")
        self.layers = layers
