"""Has samples read ahead of the program, and knows when an instruction has to wait for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from bamboo_agent.data.batches import Data
from bamboo_agent.data.needs import Need, Part
from bamboo_agent.loading.loader import Loader
from bamboo_core.model.program import Instruction, Op, layers_done
from bamboo_core.protocol.executor import Executor
from bamboo_core.protocol.upcoming import upcoming

_FORWARDS = frozenset({Op.F, Op.R, Op.V})
_LOOKED_AT = 64
"""Needs of a new plan: what was read before and is none of them is dropped."""
LOOK_S = 1.0
"""A worker that waits for samples looks so often whether one of them is slow."""


class Awaited(NamedTuple):
    """An instruction waits for samples. sample: one of them that is slow; None: none is."""

    task: Instruction
    sample: int | None


class Feeding:
    """loader: None if the worker reads in its own process, when an instruction needs it."""

    def __init__(self, loader: Loader | None, data: Data, executor: Executor) -> None:
        self._loader, self._data, self._executor = loader, data, executor
        self._rest: Iterator[tuple[tuple[int, int], Need]] = iter(())
        self._waits_since: float | None = None
        self.waited_s = 0.0  # in all, with nothing else to do

    @property
    def sources(self) -> list[Loader]:
        """Objects whose descriptors can wake the worker."""
        return [] if self._loader is None else [self._loader]

    @property
    def due_in_s(self) -> float | None:
        """See :attr:`Loader.due_in_s`."""
        found = None if self._loader is None else self._loader.due_in_s
        if self._waits_since is None:
            return found
        return LOOK_S if found is None else min(found, LOOK_S)

    def begin_plan(self) -> None:
        """The executor has other programs, or more of them: what they do not need is dropped."""
        if self._loader is None or self._executor.directive is None:
            return
        self._loader.keep_only(need for _, need in islice(self._needs(), _LOOKED_AT))
        self._rest = self._needs()
        self._refill()

    def hear(self) -> bool:
        """Hear of the loader, and want more if there is room. Whether something has come."""
        if self._loader is None:
            return False
        has_news = self._loader.poll()
        self._refill()
        return has_news

    def waits(self, task: Instruction | None) -> bool:
        """Whether the instruction waits for samples, which come first from now on."""
        need = None if self._loader is None or task is None else self._need(task)
        if need is None or self._data.has(need):
            return self._waited()
        assert self._loader is not None
        if self._loader.is_here(need):
            return self._waited()
        if self._waits_since is None:
            self._waits_since = time.perf_counter()
            self._loader.want(need, first=True)
        elif not self._loader.is_wanted(need):
            self._loader.want(need, first=True)
        return True

    def awaited(self, task: Instruction | None) -> Awaited | None:
        """Return what the instruction waits for; None: it waits for no samples."""
        if task is None or not self.waits(task):
            return None
        need = self._need(task)
        assert self._loader is not None
        assert need is not None
        return Awaited(task, self._loader.slow_sample(need))

    def _waited(self) -> bool:
        if self._waits_since is not None:
            self.waited_s += time.perf_counter() - self._waits_since
            self._waits_since = None
        return False

    def close(self) -> None:
        """End the loader."""
        if self._loader is not None:
            self._loader.close()

    def _refill(self) -> None:
        loader, executor = self._loader, self._executor
        assert loader is not None
        loader.forget_before(executor.step)
        while loader.has_room and (found := next(self._rest, None)) is not None:
            place, need = found
            is_over = place < (executor.step, executor.at)
            if not (is_over or self._data.has(need) or loader.is_wanted(need)):
                loader.want(need)

    def _needs(self) -> Iterator[tuple[tuple[int, int], Need]]:
        """All that is read from now on, each with its (step, place in the program)."""
        executor = self._executor
        assert executor.directive is not None
        ahead = upcoming(executor.directive, executor.continuation, executor.step, executor.at)
        for step, at, task in ahead:
            need = self._need(task)
            if need is not None:
                yield (step, at), need

    def _need(self, task: Instruction) -> Need | None:
        """The parts that a forward reads; None: none."""
        if task.op not in _FORWARDS:
            return None
        end = task.ranges[0][1] if task.op is Op.R else task.hi
        parts = Part(0)
        if task.lo == 0 and not layers_done(task):
            parts |= Part.INPUT
        if end == self._executor.layers:
            parts |= Part.TARGET
        if not parts:
            return None
        return Need(None if task.op is Op.V else task.step, task.index, parts)
