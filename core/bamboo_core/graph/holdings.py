"""An index of all that agents hold: who can send which item, which versions are usable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from bamboo_core.graph.tasks import Holdings
from bamboo_core.model.ids import AgentId, Range
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.ties import Ties, partners

_BOUND = frozenset({Kind.ACT, Kind.PART, Kind.SUM, Kind.PREFIX})
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
        ties: Ties = (),
    ) -> None:
        self._batch, self._partners = batch, partners(ties)
        self.target, self.short_notice = target, short_notice
        self.held: dict[AgentId, set[Item]] = {}
        self.where: dict[Item, list[AgentId]] = {}  # agents that can send the item
        self._commits: set[int] = set()  # steps whose commit record an agent knows
        # what is unfinished -> agent -> how much of it is done
        self._counts: dict[tuple[Kind, Range, int], dict[AgentId, int]] = {}
        # (step, lo, hi) -> number of slices -> those of the reduced gradient that exist
        self._reduced: dict[tuple[int, int, int], dict[int, set[int]]] = {}
        # (lo, hi) -> number of slices -> run of leaves -> those of its sum that exist
        self._pieces: dict[Range, dict[int, dict[Range, set[int]]]] = {}
        self._sums: dict[Range, dict[Range, list[AgentId]]] = {}  # (lo, hi) -> run -> holders
        self.is_begun = False  # something of the target step exists
        self.has_slices = False  # some agent holds a PIECE, of whatever step
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
            if item.kind is Kind.PIECE:
                self._read_piece(item)
            if item.kind is Kind.RED:
                found = self._reduced.setdefault(item[1:4], {})
                found.setdefault(item.slices, set()).add(item.part)

    def _read_piece(self, item: Item) -> None:
        self.has_slices = True
        if item.step == 0:
            found = self._pieces.setdefault((item.lo, item.hi), {}).setdefault(item.slices, {})
            found.setdefault(item.run, set()).add(item.part)

    def _read_unfinished(self, agent: AgentId, item: Item) -> None:
        if item.step != 0:
            return
        if item.kind is Kind.SUM:
            sums = self._sums.setdefault((item.lo, item.hi), {})
            sums.setdefault(item.run, []).append(agent)
            return
        if item.part:  # PREFIX: layers done of a micro-batch
            counts = self._counts.setdefault((item.kind, (item.lo, item.hi), item.index), {})
            counts[agent] = max(item.part, counts.get(agent, 0))
        if item.kind in (Kind.ACT, Kind.PART) and agent not in self.short_notice:
            leaf = item.index if item.part else self._batch.leaf_of(item.index)
            done = self.done.setdefault((item.lo, item.hi, leaf), {})
            done[agent] = done.get(agent, 0) + (2 * item.part or 1)

    def _reduced_ranges(self) -> dict[tuple[int, int], tuple[Range, int]]:
        """(step, layer) -> a range with the layer whose reduced gradient exists in full, and the
        number of its slices."""
        found: dict[tuple[int, int], tuple[Range, int]] = {}
        for (step, lo, hi), each in sorted(self._reduced.items()):
            for slices, known in sorted(each.items()):
                if len(known) == slices:
                    for layer in range(lo, hi):
                        found.setdefault((step, layer), ((lo, hi), slices))
        return found

    def slices(self, span: Range) -> int:
        """Into how many slices the stage's gradient is cut in the target step; 0: it is not yet.

        A step keeps the number with which it has begun. If agents that had been lost come back with
        another one, the number with most results counts.
        """
        reduced = self._reduced.get((0, *span), {})
        pieces = self._pieces.get(span, {})
        return max(
            sorted({*reduced, *pieces}),
            key=lambda n: (
                len(reduced.get(n, ())) / n,
                sum(map(len, pieces.get(n, {}).values())) / n,
            ),
            default=0,
        )

    def lacking(self, span: Range) -> Sequence[int]:
        """The slices of the stage's reduced gradient that nobody has, if it is cut in slices."""
        slices = self.slices(span)
        known = self._reduced.get((0, *span), {}).get(slices, ())
        return [z for z in range(slices) if z not in known]

    def sliced(self, span: Range) -> Set[Range]:
        """Runs of leaves of which every slice exists that is still to be added up."""
        pieces = self._pieces.get(span, {}).get(self.slices(span), {})
        lacking = frozenset(self.lacking(span))
        return {run for run, known in pieces.items() if lacking <= known}

    def sums(self, span: Range) -> Mapping[Range, Sequence[AgentId]]:
        """Run of leaves -> agents that hold its sum in one piece."""
        return self._sums.get(span, {})

    def summed(self, span: Range) -> frozenset[int]:
        """Leaves that some sum contains which can be used."""
        if self.slices(span) and not self.lacking(span):
            return frozenset(range(self._batch.leaves))
        runs = {*self.sliced(span), *self.sums(span)}
        return frozenset(leaf for run in runs for leaf in range(*run))

    def _usable(self, versions: Mapping[int, int]) -> dict[int, int]:
        """layer -> version, for the layers that can be brought to the target version."""
        return {
            layer: version - self.target
            for layer, version in versions.items()
            if version <= self.target
            and all(
                step in self._commits and self._is_reduced(step, layer)
                for step in range(version - self.target, 0)
            )
        }

    def _is_reduced(self, step: int, layer: int) -> bool:
        """Whether all reduced gradients exist that an update of the layer needs."""
        needed = (layer, *self._partners.get(layer, ()))
        return all((step, x) in self.reduced_in for x in needed)

    def _sources(self) -> dict[int, tuple[AgentId, ...]]:
        """layer -> its best holders: staying agents first, then those with the newest version."""
        ranked: dict[int, dict[tuple[bool, int], list[AgentId]]] = {}
        for agent, have in self.have.items():
            for layer, version in have.items():
                rank = (agent in self.short_notice, -version)
                ranked.setdefault(layer, {}).setdefault(rank, []).append(agent)
        return {layer: tuple(by[min(by)]) for layer, by in ranked.items()}

    def count(self, agent: AgentId, kind: Kind, span: Range, index: int) -> int:
        """How many micro-batches the agent's PART of a leaf contains.

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
