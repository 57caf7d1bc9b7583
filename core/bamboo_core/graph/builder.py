"""The task graph while it is built: tasks so far, and how an agent gets an item that exists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bamboo_core.graph.holdings import HoldingsIndex
from bamboo_core.graph.tasks import Dependency, TaskId, Transfer
from bamboo_core.model.ids import AgentId, Range
from bamboo_core.model.items import Item
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Instruction


@dataclass
class GraphBuilder:
    """What all parts of the closure share.

    cut: ranges under which the target step is computed; computing: agents that compute and vote,
    sorted; takes_part: agent -> layers that it holds at the target version, has or gets; files:
    layers that can be read at the target version; initial: they can be built anew (version 0);
    prefers_files: they are read even where somebody could send them.
    """

    batch: BatchShape
    cut: tuple[Range, ...]
    index: HoldingsIndex
    computing: tuple[AgentId, ...]
    takes_part: Mapping[AgentId, tuple[int, ...]]
    files: frozenset[int]
    initial: bool
    prefers_files: bool = False
    tasks: dict[TaskId, tuple[Dependency, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.layers = self.cut[-1][1]
        self._ordinal = {a: i for i, a in enumerate(sorted(self.index.held))}
        self._moves: dict[tuple[Item, AgentId], Transfer] = {}

    def add(
        self, agent: AgentId, instruction: Instruction, waits: Iterable[Dependency | None]
    ) -> TaskId:
        """A task that waits for these, all different (None: for nothing)."""
        task = TaskId(agent, instruction)
        self.tasks[task] = tuple([w for w in waits if w is not None])
        return task

    def held(self, agent: AgentId, item: Item) -> bool:
        """Whether the agent holds the item (of the target step)."""
        return self.index.is_begun and item in self.index.held[agent]

    def exists(self, item: Item) -> bool:
        """Whether somebody holds the item (of the target step) and may send it."""
        return self.index.is_begun and item in self.index.where

    def fetch(self, item: Item, agent: AgentId) -> Transfer | None:
        """How the agent gets an item that it holds (None) or that somebody can send."""
        if item in self.index.held[agent]:
            return None
        key = (item, agent)
        if key not in self._moves:
            source = self.nearest(self.index.where[item], agent)
            self._moves[key] = Transfer(item, source, agent, None)
        return self._moves[key]

    def nearest(self, holders: Iterable[AgentId], agent: AgentId) -> AgentId:
        """One of them, spread over the receivers; those in a hurry only if there is no other."""
        able = tuple(holders)
        if self.index.short_notice:
            able = tuple(a for a in able if a not in self.index.short_notice) or able
        return able[self._ordinal[agent] % len(able)]

    def deliver(self, item: Item, producer: TaskId, agent: AgentId) -> Dependency:
        """How the agent gets what a task makes: the task itself if it is its own."""
        if producer.agent == agent:
            return producer
        return Transfer(item, producer.agent, agent, producer)
