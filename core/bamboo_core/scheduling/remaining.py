"""The rest of an interrupted step, from what the stopped agents hold; input of the work map.

A leaf stays with the agent that has begun it, since activations and partial sums cannot be sent.
Every other leaf may go to any holder; its weight is the time that it still costs. A holder that has
computed forwards of it ahead, as a replica, gets credit for their time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bamboo_core.graph.holdings import HoldingsIndex
from bamboo_core.model.ids import AgentId, Range
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Op
from bamboo_core.scheduling.costs import Costs
from bamboo_core.scheduling.sharing.step_work import Credit, Work


@dataclass(frozen=True)
class Remaining:
    """The rest of the target step."""

    weight: dict[Work, float]  # time that the leaf still costs
    pinned: dict[Work, AgentId]  # the agent that has begun the leaf
    credit: Credit  # time that a leaf costs less on an agent

    @property
    def is_begun(self) -> bool:
        """Whether any result of the step exists."""
        return len(set(self.weight.values())) > 1 or bool(self.pinned)


def remaining(
    index: HoldingsIndex,
    *,
    batch: BatchShape,
    cut: Sequence[Range],
    holders: Sequence[Collection[AgentId]],
    costs: Costs,
) -> Remaining:
    """The rest of the target step. ``holders``: stage -> agents that may compute it."""
    left = _Left(index, batch, costs)
    if not index.is_begun:
        whole = [left.of(span, 0, None) for span in cut]
        stages, leaves = range(len(cut)), range(batch.leaves)
        return Remaining({(s, leaf): whole[s] for s in stages for leaf in leaves}, {}, {})
    weight: dict[Work, float] = {}
    pinned: dict[Work, AgentId] = {}
    credit: dict[tuple[Work, AgentId], float] = {}
    for stage, span in enumerate(cut):
        able = frozenset(holders[stage])
        for leaf in range(batch.leaves):
            done = index.done.get((*span, leaf), {})
            begun = sorted(a for a in done if a in able)
            if begun:
                pinned[stage, leaf] = max(begun, key=done.__getitem__)
            weight[stage, leaf] = left.of(span, leaf, pinned.get((stage, leaf)))
            if weight[stage, leaf] and not begun:
                for agent, saved in left.done_ahead(span, leaf).items():
                    credit[(stage, leaf), agent] = saved
    return Remaining(weight, pinned, credit)


def stage_weights(*, batch: BatchShape, cut: Sequence[Range], costs: Costs) -> dict[Work, float]:
    """Time that every leaf costs in a step that has not begun."""
    durations = costs.rounded().durations()
    of_stage = [sum(durations[op][hi] - durations[op][lo] for op in (Op.F, Op.B)) for lo, hi in cut]
    return {
        (stage, leaf): batch.leaf_size * time
        for stage, time in enumerate(of_stage)
        for leaf in range(batch.leaves)
    }


class _Left:
    """Time that leaves still cost."""

    def __init__(self, index: HoldingsIndex, batch: BatchShape, costs: Costs) -> None:
        self._index, self._batch = index, batch
        self._durations = costs.rounded().durations()
        self._summed: dict[Range, frozenset[int]] = {}

    def of(self, span: Range, leaf: int, agent: AgentId | None) -> float:
        """The time of one leaf of a stage, if ``agent`` continues it."""
        if self._is_summed(span, leaf):
            return 0.0
        part = self._index.count(agent, Kind.PART, span, leaf) if agent is not None else 0
        first = leaf * self._batch.leaf_size
        held = self._index.held[agent] if agent is not None else frozenset[Item]()
        return sum(
            self._microbatch(span, m, held)
            for m in range(first + part, first + self._batch.leaf_size)
        )

    def done_ahead(self, span: Range, leaf: int) -> dict[AgentId, float]:
        """Agent -> time of the forwards of the leaf that it has computed ahead."""
        sums, lo = self._durations[Op.F], span[0]
        out: dict[AgentId, float] = {}
        for m in self._batch.microbatches_of(leaf):
            for agent, layers in self._index.counts(Kind.PREFIX, span, m).items():
                out[agent] = out.get(agent, 0.0) + sums[lo + layers] - sums[lo]
        return out

    def _microbatch(self, span: Range, m: int, held: Collection[Item]) -> float:
        lo, _ = span
        needs_both = not lo or Item.ingrad(0, lo, m) not in self._index.where
        total = self._cost(Op.B if needs_both else Op.W, span)
        if Item.act(0, span, m) not in held:
            total += self._cost(Op.F, span)
        return total

    def _cost(self, op: Op, span: Range) -> float:
        sums = self._durations[op]
        return sums[span[1]] - sums[span[0]]

    def _is_summed(self, span: Range, leaf: int) -> bool:
        """Whether a sum exists that contains the leaf's."""
        if span not in self._summed:
            self._summed[span] = self._index.summed(span)
        return leaf in self._summed[span]
