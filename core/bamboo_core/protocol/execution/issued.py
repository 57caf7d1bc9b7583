"""Instructions that a device has been given and has not completed.

A device completes in the order in which it was given work. So a program can run ahead of it, and
what follows from an instruction waits for its completion: facts, transfers, frees, and the end of a
step. They happen in the order of the program, as if each instruction had completed at once.

A reader may follow what its own agent has issued, since the device orders the two. What comes from
another agent has no such order: it must be here. A copy that comes of what the device makes is not
taken: it would be a fact too early, and could replace what the device still writes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from bamboo_core.model.items import Item, Kind
from bamboo_core.model.program import COMPUTE, Op
from bamboo_core.model.rules import Prepared

ON_DEVICE = COMPUTE | {Op.FOLD, Op.SLICE, Op.REDUCE, Op.UPDATE}
"""Instructions that a device may complete after their issue. Every other one waits until all before
it have completed, and nothing is issued before it has: it reads what they made, or needs files."""

BETWEEN = frozenset({Op.SEND, Op.END})
"""They wait for the completion of what is before them, and hold up nothing behind them."""


@dataclass(frozen=True)
class Issued:
    """These instructions, in order of issue, and what is known of the time after them."""

    tasks: tuple[Prepared, ...] = ()
    _items: Mapping[Item, bool] = field(default_factory=dict)  # made (True) or consumed
    _versions: Mapping[int, int] = field(default_factory=dict)  # layer -> version

    @staticmethod
    def of(tasks: tuple[Prepared, ...]) -> Issued:
        """All that follows from the instructions."""
        items, versions = dict[Item, bool](), dict[int, int]()
        for task in tasks:
            items.update(dict.fromkeys(task.gone, False))
            items.update(dict.fromkeys(task.items_made, True))
            versions.update(task.versions_made)
        return Issued(tasks, items, versions)

    def __bool__(self) -> bool:
        return bool(self.tasks)

    @property
    def first(self) -> Prepared:
        """The instruction that completes next."""
        return self.tasks[0]

    @property
    def on_device(self) -> int:
        """How many of them the device has."""
        return sum(task.instruction.op in ON_DEVICE for task in self.tasks)

    def then(self, task: Prepared) -> Issued:
        """With one more."""
        return Issued.of((*self.tasks, task))

    def without_first(self) -> Issued:
        """Once the first has completed."""
        return Issued.of(self.tasks[1:])

    def makes(self, item: Item) -> bool:
        """Whether the item will be here, or a newer version of the layer."""
        if not self.tasks:
            return False
        if item.kind is Kind.VER:
            return self._versions.get(item.lo, -1) >= item.step
        return self._items.get(item, False)

    def lets(self, task: Prepared, held: Collection[Item], versions: Mapping[int, int]) -> bool:
        """Whether an instruction may follow them. held, versions: what has completed."""
        op = task.instruction.op
        if op is Op.RECV:
            return all(item in held for item in task.items)
        if op not in ON_DEVICE and op not in BETWEEN:
            return False
        return all(self._items.get(item, item in held) for item in task.items) and all(
            self._versions.get(layer, versions.get(layer)) == version
            for layer, version in task.versions
        )
