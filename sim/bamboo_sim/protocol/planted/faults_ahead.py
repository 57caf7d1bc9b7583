"""Planted faults of what replicas compute ahead (rows: E), and of devices that complete what they
are given later (rows: I)."""

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
from bamboo_core.protocol.execution.issued import ON_DEVICE, Issued
from bamboo_core.protocol.execution.lane import Lane
from bamboo_core.protocol.executor import Executor
from bamboo_core.protocol.messages import Stop
from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.planted.patches import Planted, both, patched

RING = Job(1, 3, 2, eager=True, layers=6)
TIGHT = Job(2, 2, 4, eager=True, layers=4, room=1)
"""Of a lost stage, its copy's agent continues some forwards and computes others ahead."""
OLDER = Job(1, 3, 4, eager=True, layers=6, kept=(4, 1))
PAIR = Job(2, 2, 2, eager=True, layers=4)
LATE = Job(2, 2, 2, issues=2)
COMPARED = Job(2, 2, 2, eager=True, layers=4, checked=True, issues=3)
LATER = Job(1, 2, 4, issues=3)

_start, _may, _is_spent = Executor._start, Executor._may, Executor._is_spent
_surplus, _lane_of = Lane.surplus, Lane.of
_issued, _stop, _lets = Executor.issued, Executor.stop, Issued.lets
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


# ---------------------------------------------------------------- devices that complete later


def facts_at_issue(self: Executor) -> list[Effect]:
    """The results of an instruction are facts once it is issued."""
    task = self._running
    effects = _issued(self)
    if task is not None:
        self.held.update(dict.fromkeys(task.items_made, False))
        self.versions.update(task.versions_made)
    return effects


def frees_at_issue(self: Executor) -> list[Effect]:
    """Received inputs are freed once their reader is issued."""
    task = self._running
    effects = _issued(self)
    return effects if task is None else self._drop([*task.releases]) + effects


def sends_at_issue(self: Executor, task: Prepared, effects: list[Any]) -> bool:
    """A transfer does not wait for what makes its item."""
    if task.instruction.op is not Op.SEND or not self._issued or not self._may(task):
        return _start(self, task, effects)
    self.at += 1
    effects.append(self._transmit(task.instruction))
    return True


def reports_at_once(self: Executor, stop: Stop) -> list[Effect]:
    """A STOP waits for no device."""
    issued, self._issued = self._issued, Issued()
    effects = _stop(self, stop)
    self._issued = issued
    return effects


def any_arrival(
    self: Issued, task: Prepared, held: Collection[Item], versions: Mapping[int, int]
) -> bool:
    """Inputs from other agents count as here once the program has come so far."""
    is_due = task.instruction.op in ON_DEVICE or task.instruction.op is Op.RECV
    return is_due or _lets(self, task, held, versions)


def peers_copy_counts(self: Issued, item: Item) -> bool:
    """A copy that comes from a peer is taken, though the device is about to make the item."""
    return False


PLANTS: tuple[Planted, ...] = (
    Planted("a forward continues after a layer that is not done", "E1",
            patched(HoldingsIndex, "counts", one_layer_more), (("singles", RING),)),
    Planted("the lane goes before the program", "E2",
            patched(Executor, "_start", lane_first), (("singles", PAIR),)),
    Planted("what was computed ahead outlives its step", "E3",
            patched(Executor, "_is_spent", kept_for_ever), (("singles", PAIR),)),
    Planted("a forward of a replica counts as the owner's", "E4",
            patched(Gradients, "_act_exists", whole_prefix_is_activation),
            (("singles", RING),)),
    Planted("a slice uses a layer of another step", "E5",
            patched(Executor, "_may", any_version), (("resets", RING),)),
    Planted("what the program continues is dropped for room", "E6",
            patched(Lane, "surplus", staticmethod(whatever_is_oldest)),
            (("singles", TIGHT),)),
    Planted("a backward of a lost stage is computed twice", "E7",
            patched(Gradients, "_summed", last_one_again), (("singles", OLDER),)),
    Planted("a slice that has failed counts as done", "E8",
            patched(Executor, "skip", failed_is_done), (("slices", RING),)),
    Planted("slices of a forward are run in another order", "E9",
            both(patched(Lane, "of", staticmethod(deepest_first)),
                 patched(Executor, "_may", any_order)), (("singles", RING),)),
    Planted("what is issued is a fact", "I1",
            both(patched(Executor, "issued", facts_at_issue),
                 patched(Executor, "stop", reports_at_once)), (("singles", LATE),)),
    Planted("an input is freed before its reader has completed", "I2",
            patched(Executor, "issued", frees_at_issue), (("singles", LATE),)),
    Planted("an item is sent before it is complete", "I3",
            patched(Executor, "_start", sends_at_issue), (("singles", LATE),)),
    Planted("a report does not wait for the device", "I4",
            patched(Executor, "stop", reports_at_once), (("singles", LATE),)),
    Planted("a reader is issued before its input has come", "I5",
            patched(Issued, "lets", any_arrival), (("singles", LATER),)),
    Planted("a peer's copy replaces what the device makes", "I6",
            patched(Issued, "makes", peers_copy_counts), (("singles", COMPARED),)),
)  # fmt: skip
