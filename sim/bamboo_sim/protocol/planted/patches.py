"""A planted fault: a patch of the product, and the histories that must detect it.

A patch of a name that is gone raises AttributeError. One of a function that nothing calls any more
shows in ``Executions``: how often the functions of a planted fault have run.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any
from unittest.mock import patch

from bamboo_core.model import rules
from bamboo_sim.protocol.control import operators as operators_module
from bamboo_sim.protocol.control.plans import Plans
from bamboo_sim.protocol.parts.job import Job

Executions = Counter[str]
"""Patched function -> how often it has run in the planted block."""
Plant = Callable[[ExitStack, Executions], None]


@dataclass(frozen=True)
class Planted:
    """A rule of the protocol that a patch removes."""

    name: str
    row: str
    plant: Plant
    searches: tuple[tuple[str, Job], ...]  # (family, job) whose histories must detect it

    @contextmanager
    def planted(self) -> Iterator[Executions]:
        """Apply the patch inside the block, with an empty cache of plans; how often its functions
        have run."""
        executions = Executions()
        with ExitStack() as stack:
            stack.enter_context(patch.object(operators_module, "PLANS", Plans()))
            self.plant(stack, executions)
            for cache in (rules.prepare, rules._prepared):
                cache.cache_clear()
                stack.callback(cache.cache_clear)
            yield executions


def patched(owner: Any, name: str, new: Any) -> Plant:
    """Put ``new`` in the place of an attribute. AttributeError, when it is planted, if there is no
    such attribute."""
    place = f"{getattr(owner, '__name__', owner)}.{name}"

    def plant(stack: ExitStack, executions: Executions) -> None:
        stack.enter_context(patch.object(owner, name, _counted(new, place, executions)))

    return plant


def _counted(new: Any, place: str, executions: Executions) -> Any:
    """The same function or property, which counts its calls. Other values are as they were."""
    if isinstance(new, property):
        return property(_counted(new.fget, place, executions))
    if isinstance(new, staticmethod):
        return staticmethod(_counted(new.__func__, place, executions))
    if not isinstance(new, FunctionType):
        return new
    executions[place] = 0

    @functools.wraps(new)
    def counting(*arguments: Any, **options: Any) -> Any:
        executions[place] += 1
        return new(*arguments, **options)

    return counting


def both(*plants: Plant) -> Plant:
    """Plant all of them."""

    def plant_all(stack: ExitStack, executions: Executions) -> None:
        for plant in plants:
            plant(stack, executions)

    return plant_all
