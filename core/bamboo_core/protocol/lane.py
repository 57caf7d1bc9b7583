"""The lane: forwards that a replica computes ahead, in slices, while its agent's program waits.

Each slice (an R) is a layer of one micro-batch. The mandatory programs never refer to the lane, so
it may run any part of it, or nothing. What it makes is a fact like any other, until the step ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from bamboo_core.model.items import Item, Kind
from bamboo_core.model.program import layers_done
from bamboo_core.model.rules import Prepared

Slices = tuple[Prepared, ...]


@dataclass(frozen=True)
class Lane:
    """What is left of the lane in one step: for each micro-batch, its slices in order."""

    forwards: tuple[Slices, ...] = ()

    @staticmethod
    def of(slices: Slices) -> Lane:
        """The whole lane; micro-batches ascending."""
        by_microbatch: dict[int, list[Prepared]] = {}
        for task in slices:
            by_microbatch.setdefault(task.instruction.index, []).append(task)
        return Lane(tuple(tuple(found) for _, found in sorted(by_microbatch.items())))

    def take(self, may_run: Callable[[Prepared], bool]) -> tuple[Prepared, Lane] | None:
        """The first slice that can run, and the lane without it; None if none can."""
        for i, slices in enumerate(self.forwards):
            if may_run(slices[0]):
                rest = (slices[1:],) if len(slices) > 1 else ()
                return slices[0], Lane(self.forwards[:i] + rest + self.forwards[i + 1 :])
        return None

    def without(self, microbatch: int) -> Lane:
        """The rest, once a slice of this micro-batch has made nothing."""
        left = (x for x in self.forwards if x[0].instruction.index != microbatch)
        return Lane(tuple(left))

    @staticmethod
    def room_for(
        begun: Prepared, held: Collection[Item], limit: int, needed: Collection[Item]
    ) -> list[Item] | None:
        """What is dropped so that this slice has room; None: there is none, since the program needs
        the others. Only the first slice of a forward needs room."""
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
