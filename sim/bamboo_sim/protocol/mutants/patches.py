"""A planted fault: a patch of the product, and the histories that must detect it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from bamboo_core.model import rules
from bamboo_sim.protocol.control import operators as operators_module
from bamboo_sim.protocol.control.plans import Plans
from bamboo_sim.protocol.world.job import Job


@dataclass(frozen=True)
class Planted:
    """A rule of the protocol that a patch removes."""

    name: str
    row: str
    plant: Callable[[ExitStack], None]
    searches: tuple[tuple[str, Job], ...]  # (family, job) whose histories must detect it

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Apply the patch inside the block, with an empty cache of plans."""
        with ExitStack() as stack:
            stack.enter_context(patch.object(operators_module, "PLANS", Plans()))
            self.plant(stack)
            for cache in (rules.prepare, rules._prepared):
                cache.cache_clear()
                stack.callback(cache.cache_clear)
            yield


def patched(owner: Any, name: str, new: Any) -> Callable[[ExitStack], None]:
    return lambda stack: stack.enter_context(patch.object(owner, name, new))


def both(*plants: Callable[[ExitStack], None]) -> Callable[[ExitStack], None]:
    def plant_all(stack: ExitStack) -> None:
        for plant in plants:
            plant(stack)

    return plant_all
