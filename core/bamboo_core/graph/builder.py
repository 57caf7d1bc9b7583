"""The task graph under construction, and how an agent gets an item."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bamboo_core.graph.holdings import HoldingsIndex
from bamboo_core.graph.tasks import Dependency, TaskId, Transfer
from bamboo_core.model.ids import AgentId, Range
from bamboo_core.model.items import Item
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Instruction
from bamboo_core.model.ties import Ties

_new = tuple.__new__  # large grids have a hundred thousand transfers: this spares __new__


@dataclass
class GraphBuilder:
    """The graph so far, which all parts of the closure extend."""

    batch: BatchShape
    cut: tuple[Range, ...]  # stage -> layers, for the target step
    index: HoldingsIndex
    computing: tuple[AgentId, ...]  # agents that compute and vote, sorted
    takes_part: Mapping[AgentId, tuple[int, ...]]  # layers that the agent brings to the target
    files: frozenset[int]  # layers that a checkpoint has at the target version
    initial: bool  # the target version is 0: any agent can build any layer
    ties: Ties = ()
    prefers_files: bool = False  # read a file even if an agent could send the layer
    tasks: dict[TaskId, tuple[Dependency, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.layers = self.cut[-1][1]
        self._ordinal = {a: i for i, a in enumerate(sorted(self.index.held))}
        self._moves: dict[tuple[Item, AgentId], Transfer] = {}

    def add(
        self, agent: AgentId, instruction: Instruction, waits: Iterable[Dependency | None]
    ) -> TaskId:
        """Add a task with its dependencies, which must differ; None is skipped."""
        task = _new(TaskId, (agent, instruction))
        self.tasks[task] = tuple([w for w in waits if w is not None])
        return task

    def held(self, agent: AgentId, item: Item) -> bool:
        """Whether the agent holds the item; for items of the target step only."""
        return self.index.is_begun and item in self.index.held[agent]

    def exists(self, item: Item) -> bool:
        """Whether some agent can send the item; for items of the target step only."""
        return self.index.is_begun and item in self.index.where

    def fetch(self, item: Item, agent: AgentId) -> Transfer | None:
        """The transfer that brings an existing item; None if the agent holds it already."""
        if item in self.index.held[agent]:
            return None
        key = (item, agent)
        if key not in self._moves:
            source = self.nearest(self.index.where[item], agent)
            self._moves[key] = Transfer(item, source, agent, None)
        return self._moves[key]

    def nearest(self, holders: Iterable[AgentId], agent: AgentId) -> AgentId:
        """A holder, chosen to spread receivers; one on short notice only as a last resort."""
        able = tuple(holders)
        if self.index.short_notice:
            able = tuple(a for a in able if a not in self.index.short_notice) or able
        return able[self._ordinal[agent] % len(able)]

    def deliver(self, item: Item, producer: TaskId, agent: AgentId) -> Dependency:
        """How the agent gets the output of a task: the task itself if it runs there."""
        source = producer[0]
        if source == agent:
            return producer
        return _new(Transfer, (item, source, agent, producer))
