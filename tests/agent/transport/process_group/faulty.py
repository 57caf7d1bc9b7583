"""Groups of gloo that hang, fail or write late, on order."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from bamboo_agent.transport.process_group.groups import Gloo, GroupError, Recipe

NEVER_S = 60.0


MADE: list[Orders] = []
"""All orders of the present test: each must have acted at its end (see conftest.py)."""


class Orders:
    """Say what the groups of one end do. ``factory`` is for its Maker.

    hangs, fails: from this operation on, counted over all groups (-1: never). ``go_on`` ends what
    hangs. writes_late: an operation that hung writes junk into its memory before it ends. after:
    what fails waits until an operation of these orders hangs.
    """

    def __init__(
        self,
        *,
        hangs: int = -1,
        fails: int = -1,
        writes_late: bool = False,
        after: Orders | None = None,
    ) -> None:
        self.hangs, self.fails, self.writes_late, self.after = hangs, fails, writes_late, after
        self.go_on, self.is_hanging = threading.Event(), threading.Event()
        self.may_make = threading.Event()
        self.may_make.set()
        self.operations = self.acted = 0
        MADE.append(self)
        self.written: list[torch.Tensor] = []

    @property
    def is_idle(self) -> bool:
        """Whether it was to hang or fail, and never did."""
        return max(self.hangs, self.fails) >= 0 and not self.acted

    def factory(self, recipe: Recipe) -> Faulty:
        assert self.may_make.wait(NEVER_S)
        return Faulty(Gloo(recipe), self)


class Faulty:
    """A group that obeys."""

    def __init__(self, group: Gloo, orders: Orders) -> None:
        self._group, self._orders = group, orders

    def send(self, memory: torch.Tensor) -> Callable[[], None]:
        return self._ordered(self._group.send, memory)

    def receive(self, memory: torch.Tensor) -> Callable[[], None]:
        return self._ordered(self._group.receive, memory)

    def discard(self) -> None:
        self._group.discard()

    def _ordered(self, start: Callable, memory: torch.Tensor) -> Callable[[], None]:
        orders, number = self._orders, self._orders.operations
        orders.operations += 1
        if 0 <= orders.fails <= number:

            def fail() -> None:
                orders.acted += 1
                assert orders.after is None or orders.after.is_hanging.wait(NEVER_S)
                raise GroupError(f"operation {number} fails by order")

            return fail
        if 0 <= orders.hangs <= number:

            def hang() -> None:
                orders.acted += 1
                orders.is_hanging.set()
                assert orders.go_on.wait(NEVER_S)
                if orders.writes_late:
                    memory.fill_(255)
                    orders.written.append(memory)

            return hang
        return start(memory)
