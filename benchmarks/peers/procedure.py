"""One loss, the same for every system: wait, SIGKILL, watch, replace, watch."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable
from typing import Protocol

from . import workload
from .commits import Commit
from .gaps import STEADY, Cost, Kill, cost, new_steps
from .variants import Newcomer

POLL_S = 0.05
"""Short enough: all times come from logs."""
AFTER = 3
"""New steps by the survivors, or by all, that show that a pause is over."""
START_S, RECOVERY_S = 180.0, 300.0
"""Deadlines: until all workers train; from the loss until they do again."""


class Fleet(Protocol):
    """Eight workers that train. Times are of time.monotonic(); infinity: not yet."""

    async def start(self) -> None:
        """Start all workers."""

    async def close(self) -> None:
        """End all processes."""

    def commits(self) -> list[Commit]:
        """All steps so far."""

    def counted(self) -> list[Commit]:
        """The same with the samples of each step, which may take long to find out."""

    def is_full(self) -> bool:
        """Whether all eight workers take part in the newest step."""

    def workers(self) -> list[str]:
        """Those that take part now."""

    def kill(self, worker: str) -> float:
        """SIGKILL a worker; when."""

    async def replace(self, worker: str) -> None:
        """Start another worker in the place of the lost one."""

    def survived_at(self) -> float:
        """First commit after the loss that did not need the lost worker."""

    def full_at(self) -> float:
        """First commit after the loss in which eight workers took part again."""

    def record(self) -> str:
        """The last lines that the processes logged."""


async def one_kill(fleet: Fleet, newcomer: Newcomer, chance: random.Random) -> Cost:
    """Start a fleet, kill one worker at a random moment, and end the fleet.

    TimeoutError with the fleet's record if it does not start or does not recover in time.
    """
    try:
        await fleet.start()
        step_s = await _undisturbed(fleet, chance.randrange(workload.CHECKPOINT_EVERY))
        await asyncio.sleep(chance.random() * step_s)
        victim = chance.choice(fleet.workers())
        at, newcomer_at = fleet.kill(victim), math.inf
        if newcomer is Newcomer.AT_ONCE:
            await fleet.replace(victim)
        if newcomer is Newcomer.AFTER:
            await _steps_from(fleet, fleet.survived_at, "a pause's end")
            newcomer_at = time.monotonic()
            await fleet.replace(victim)
        full_at = await _steps_from(fleet, fleet.full_at, "full strength")
    finally:
        await fleet.close()
    return cost(fleet.counted(), Kill(at, newcomer_at, full_at), workload.BATCH)


async def _undisturbed(fleet: Fleet, more: int) -> float:
    """Wait for enough steps at full strength; seconds of one. more: steps beyond the minimum."""
    await _until(fleet, fleet.is_full, "a start", START_S)
    first = len(new_steps(fleet.commits()))

    def has_trained() -> bool:
        return fleet.is_full() and len(new_steps(fleet.commits())) > first + STEADY + 1 + more

    await _until(fleet, has_trained, "undisturbed steps", START_S)
    start, end = new_steps(fleet.commits())[-STEADY - 1 :: STEADY]
    return (end.at - start.at) / STEADY


async def _steps_from(fleet: Fleet, when: Callable[[], float], what: str) -> float:
    """Wait for new steps after a moment that comes yet; the moment."""
    moment = math.inf

    def is_over() -> bool:
        nonlocal moment
        moment = when()
        return sum(c.at > moment for c in new_steps(fleet.commits())) >= AFTER

    await _until(fleet, is_over, what, RECOVERY_S)
    return moment


async def _until(fleet: Fleet, condition: Callable[[], bool], what: str, deadline_s: float) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {deadline_s:g} s\n{fleet.record()}")
        await asyncio.sleep(POLL_S)
