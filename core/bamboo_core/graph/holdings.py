"""An index of all that agents hold: who can send which item, which versions are usable."""

from __future__ import annotations

from collections.abc import Mapping, Set

from bamboo_core.graph.tasks import Holdings
from bamboo_core.model.ids import AgentId, Range
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.numerics import BatchShape

_BOUND = frozenset({Kind.ACT, Kind.PART, Kind.FOLDED, Kind.PREFIX})
"""A staying agent never sends these: it may be writing them, or it needs them itself."""


_NOT_BEGUN: dict[AgentId, int] = {}
_new = tuple.__new__  # thousands of items are read after a loss: this spares Item.__new__


class HoldingsIndex:
    """Index over the holdings of all members. Steps are relative to the target step."""

    def __init__(
        self,
        holdings: Mapping[AgentId, Holdings],
        *,
        batch: BatchShape,
        target: int,
        short_notice: Set[AgentId],
    ) -> None:
        self._batch = batch
        self.target, self.short_notice = target, short_notice
        self.held: dict[AgentId, set[Item]] = {}
        self.where: dict[Item, list[AgentId]] = {}  # agents that can send the item
        self._commits: set[int] = set()  # steps whose commit record an agent knows
        # unfinished sum -> agent -> how much its sum contains
        self._counts: dict[tuple[Kind, Range, int], dict[AgentId, int]] = {}
        self._slices: dict[tuple[int, int, int], set[int]] = {}
        self.is_begun = False  # something of the target step exists
        self.has_slices = False  # some agent holds a CHUNK, of whatever step
        # (lo, hi, leaf) -> agent -> how much of the leaf it has done, in half micro-batches
        self.done: dict[tuple[int, int, int], dict[AgentId, int]] = {}
        for agent in sorted(holdings):
            self._read(agent, holdings[agent])
        self.reduced_in = self._reduced_ranges()
        self.have = {a: self._usable(h.versions) for a, h in holdings.items()}
        self.sources = self._sources()

    def _read(self, agent: AgentId, holdings: Holdings) -> None:
        target = self.target
        items = {_new(Item, (i[0], i[1] - target, *i[2:])) for i in holdings.items}
        self.held[agent] = items
        for step in holdings.commits:
            self._commits.add(step - target)
            items.add(Item.commit(step - target))
        for item in items:
            if item.step >= 0:
                self.is_begun = True
            if item.kind in _BOUND:
                self._read_unfinished(agent, item)
                if agent not in self.short_notice or item.kind is Kind.PREFIX:
                    continue
            if item.kind is not Kind.VOTE:
                self.where.setdefault(item, []).append(agent)
            if item.kind is Kind.CHUNK:
                self.has_slices = True
            if item.kind is Kind.RED:
                self._slices.setdefault(item[1:4], set()).add(item.part)

    def _read_unfinished(self, agent: AgentId, item: Item) -> None:
        if item.step != 0:
            return
        if item.part:  # PREFIX: layers done of a micro-batch
            counts = self._counts.setdefault((item.kind, (item.lo, item.hi), item.index), {})
            counts[agent] = max(item.part, counts.get(agent, 0))
        if item.kind in (Kind.ACT, Kind.PART) and agent not in self.short_notice:
            leaf = item.index if item.part else self._batch.leaf_of(item.index)
            done = self.done.setdefault((item.lo, item.hi, leaf), {})
            done[agent] = done.get(agent, 0) + (2 * item.part or 1)

    def _reduced_ranges(self) -> dict[tuple[int, int], Range]:
        """(step, layer) -> a range with the layer whose reduced gradient exists in full."""
        found: dict[tuple[int, int], Range] = {}
        for (step, lo, hi), slices in sorted(self._slices.items()):
            if len(slices) == self._batch.chunks:
                for layer in range(lo, hi):
                    found.setdefault((step, layer), (lo, hi))
        return found

    def _usable(self, versions: Mapping[int, int]) -> dict[int, int]:
        """layer -> version, for the layers that can be brought to the target version."""
        return {
            layer: version - self.target
            for layer, version in versions.items()
            if version <= self.target
            and all(
                (step, layer) in self.reduced_in and step in self._commits
                for step in range(version - self.target, 0)
            )
        }

    def _sources(self) -> dict[int, tuple[AgentId, ...]]:
        """layer -> its best holders: staying agents first, then those with the newest version."""
        ranked: dict[int, dict[tuple[bool, int], list[AgentId]]] = {}
        for agent, have in self.have.items():
            for layer, version in have.items():
                rank = (agent in self.short_notice, -version)
                ranked.setdefault(layer, {}).setdefault(rank, []).append(agent)
        return {layer: tuple(by[min(by)]) for layer, by in ranked.items()}

    def count(self, agent: AgentId, kind: Kind, span: Range, index: int) -> int:
        """How much the agent's unfinished sum (PART of a leaf, FOLDED of a chunk) contains.

        PREFIX of a micro-batch: how many layers of the stage are done.
        """
        return self.counts(kind, span, index).get(agent, 0)

    def counts(self, kind: Kind, span: Range, index: int) -> Mapping[AgentId, int]:
        """The same for every agent that has begun the sum."""
        return self._counts.get((kind, span, index), _NOT_BEGUN)

    def short_notice_count(self, kind: Kind, span: Range, index: int) -> int:
        """The same for the most complete unfinished sum of a leaver on short notice."""
        counts = self.counts(kind, span, index)
        return max((n for a, n in counts.items() if a in self.short_notice), default=0)
