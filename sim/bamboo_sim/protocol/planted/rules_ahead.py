"""Rules of what is computed ahead, broken on purpose; :mod:`.faults_ahead` lists them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from bamboo_core.graph.gradients import Gradients
from bamboo_core.graph.holdings import HoldingsIndex
from bamboo_core.model.ids import AgentId, Range
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.program import Op
from bamboo_core.model.rules import Prepared
from bamboo_core.protocol.effects import Effect
from bamboo_core.protocol.executor import Executor
from bamboo_core.protocol.lane import Lane

_start, _may, _is_spent = Executor._start, Executor._may, Executor._is_spent
_surplus, _lane_of = Lane.surplus, Lane.of
_counts, _act_exists, _summed = HoldingsIndex.counts, Gradients._act_exists, Gradients._summed


def lane_first(self: Executor, task: Prepared, effects: list[Any]) -> bool:
    """Run what can be computed ahead before the program."""
    self._fill(effects)
    return True if self._running is not None else _start(self, task, effects)


def any_version(self: Executor, task: Prepared) -> bool:
    """Let what is computed ahead use a layer of any step."""
    if task.instruction.op is not Op.R:
        return _may(self, task)
    layers = (layer for layer, _ in task.versions)
    return all(map(self.versions.__contains__, layers)) and all(
        map(self.held.__contains__, task.items)
    )


def failed_is_done(self: Executor) -> list[Effect]:
    """A slice that has made nothing counts as done."""
    return self.done()


def deepest_first(slices: tuple[Prepared, ...]) -> Lane:
    """The slices of a forward are run from the last layer to the first."""
    return Lane(tuple(found[::-1] for found in _lane_of(slices).forwards))


def any_order(self: Executor, task: Prepared) -> bool:
    """A slice does not wait for the slice before."""
    if task.instruction.op is not Op.R:
        return _may(self, task)
    items = tuple(item for item in task.items if item.kind is not Kind.PREFIX)
    return _may(self, task._replace(items=items))


def kept_for_ever(self: Executor, item: Item, step: int) -> bool:
    return item.kind is not Kind.PREFIX and _is_spent(self, item, step)


def whatever_is_oldest(held: Collection[Item], limit: int, needed: Collection[Item]) -> list[Item]:
    """To make room, drop also what the program continues."""
    del needed
    return _surplus(held, limit, ())


def one_layer_more(
    self: HoldingsIndex, kind: Kind, span: Range, index: int
) -> Mapping[AgentId, int]:
    """More layers count as done than are done."""
    found = _counts(self, kind, span, index)
    if kind is not Kind.PREFIX:
        return found
    return {a: min(n + 1, span[1] - span[0]) for a, n in found.items()}


def whole_prefix_is_activation(self: Gradients, stage: int, m: int) -> bool:
    """A finished forward of a replica counts as the owner's activation."""
    lo, hi = self._cut[stage]
    return self._done(stage, m) == hi - lo or _act_exists(self, stage, m)


def last_one_again(self: Gradients, stage: int, leaf: int) -> int:
    """The backward of a micro-batch that is in its sum already is computed once more."""
    return max(0, _summed(self, stage, leaf) - 1)
