"""The lane: forwards that a replica computes ahead, in slices, while its agent's program waits.

Each slice (an R) is a layer of one micro-batch. The mandatory programs never refer to the lane, so
it may run any part of it, or nothing. What it makes is a fact like any other, until the step ends.

A slice that has begun is not interrupted, so an input that comes meanwhile has to wait. An agent
with a clock begins a slice only if it is likely to end before the input comes: see `Patience`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from bamboo_core.model.ids import Range
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.program import Instruction, layers_done
from bamboo_core.model.rules import Prepared

Slices = tuple[Prepared, ...]

Waits = dict[Item, float]
"""How long a program waited for each of its inputs, in seconds. The items have no step."""

_STEPS = 2  # whose waits count

_LESS = 0.9
"""A layer that no slice has run in a step counts as so much faster from then on. Else a time that
was much too long, as a first run may be, would stay for ever."""

_SAME_S = 1e-9  # sums of equal times differ by rounding errors


@dataclass(frozen=True)
class Lane:
    """The rest of the lane in one step: for each micro-batch, its slices in order."""

    forwards: tuple[Slices, ...] = ()

    @staticmethod
    def of(slices: Slices) -> Lane:
        """The whole lane; micro-batches ascending."""
        by_microbatch: dict[int, list[Prepared]] = {}
        for task in slices:
            by_microbatch.setdefault(task.instruction.index, []).append(task)
        return Lane(tuple(tuple(found) for _, found in sorted(by_microbatch.items())))

    def next(
        self,
        may_run: Callable[[Prepared], bool],
        held: Collection[Item],
        limit: int,
        needed: Collection[Item],
    ) -> tuple[Prepared, Lane, list[Item]] | None:
        """The first slice that can run, the lane without it, and what is dropped so that it has
        room. None: no slice can run, or there is no room, since the program needs what is held."""
        for i, slices in enumerate(self.forwards):
            if may_run(slices[0]):
                dropped = self._room_for(slices[0], held, limit, needed)
                if dropped is None:
                    return None
                rest = (slices[1:],) if len(slices) > 1 else ()
                return slices[0], Lane(self.forwards[:i] + rest + self.forwards[i + 1 :]), dropped
        return None

    def without(self, microbatch: int) -> Lane:
        """The rest, once a slice of this micro-batch has made nothing."""
        left = (x for x in self.forwards if x[0].instruction.index != microbatch)
        return Lane(tuple(left))

    @staticmethod
    def _room_for(
        begun: Prepared, held: Collection[Item], limit: int, needed: Collection[Item]
    ) -> list[Item] | None:
        """Only the first slice of a forward needs room."""
        if layers_done(begun.instruction):
            return []
        dropped = Lane.surplus(held, limit - 1, needed)
        kept = sum(item.kind is Kind.PREFIX for item in held) - len(dropped)
        return dropped if kept < limit else None

    @staticmethod
    def surplus(held: Collection[Item], limit: int, needed: Collection[Item]) -> list[Item]:
        """Forwards computed ahead that are too many, the oldest first.

        held: in the order in which they were made; needed: by the program, so they stay.
        """
        kept = [item for item in held if item.kind is Kind.PREFIX]
        spare = [item for item in kept if item not in needed]
        return spare[: max(0, len(kept) - limit)]


class AnySlice:
    """Every slice may begin: for an agent without a clock. Times are in seconds of one clock."""

    def begin_plan(self) -> None:
        """A plan begins with its first step."""

    def begin_step(self) -> None:
        """The next step of the plan begins."""

    def wait(self, item: Item | None, now: float) -> None:
        """The program waits for the item, since now or since an earlier call."""

    def arrive(self, item: Item, now: float) -> None:
        """An item has come, whether or not the program waits for it."""

    def allows(self, ahead: Instruction, now: float) -> bool:
        """Whether the slice may begin, while the program waits."""
        return True

    def begin(self, now: float) -> None:
        """A slice begins."""

    def end(self, ahead: Instruction, now: float) -> None:
        """The slice has ended."""


@dataclass
class Patience(AnySlice):
    """A slice may begin if it is likely to end before the input comes.

    The steps of a plan repeat. An input is expected after the shorter one of its waits in the last
    two steps, since a slice that was too long makes others wait for longer. A slice takes as long
    as its layer took last. In the first step of a plan nothing is known, and no slice begins.
    """

    _seen: list[Waits] = field(default_factory=list)  # in the last steps of this plan
    _waits: Waits = field(default_factory=dict)  # in this step
    _awaited: tuple[Item, float] | None = None  # an input, and since when
    _slices: dict[Range, float] = field(default_factory=dict)  # by layer
    _ran: set[Range] = field(default_factory=set)  # of these, in this step
    _begun: float = 0.0  # the running slice

    def begin_plan(self) -> None:
        """Another plan has other waits. Layers take as long as before."""
        self._seen, self._waits, self._awaited = [], {}, None
        self._ran = set(self._slices)  # that none runs in the first step says nothing of them

    def begin_step(self) -> None:
        self._seen = [*self._seen, self._waits][-_STEPS:]
        self._waits, self._awaited = {}, None
        for layer in self._slices.keys() - self._ran:
            self._slices[layer] *= _LESS
        self._ran = set()

    def wait(self, item: Item | None, now: float) -> None:
        if item is not None and (self._awaited is None or self._awaited[0] != item):
            self._awaited = item, now

    def arrive(self, item: Item, now: float) -> None:
        if self._awaited is not None and self._awaited[0] == item:
            self._waits[_in_any_step(item)] = now - self._awaited[1]
            self._awaited = None

    def allows(self, ahead: Instruction, now: float) -> bool:
        """Whether the slice ends in time. A layer that has never run is tried in any wait."""
        if self._awaited is None or not self._seen:
            return False
        item, since = self._awaited
        end = now - since + self._slices.get(ahead.ranges[0], 0.0)
        name = _in_any_step(item)
        return all(name in waits and end <= waits[name] + _SAME_S for waits in self._seen)

    def begin(self, now: float) -> None:
        self._begun = now

    def end(self, ahead: Instruction, now: float) -> None:
        layer = ahead.ranges[0]
        self._slices[layer] = now - self._begun
        self._ran.add(layer)


def _in_any_step(item: Item) -> Item:
    return item._replace(step=0)
