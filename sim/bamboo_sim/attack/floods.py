"""Floods at a port. While one lasts, an honest client must not wait much longer than before."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from bamboo_sim.attack.tally import Tally

LOOKS = 5
MOST_SLOWDOWN = 100.0
"""The fastest look in a flood, compared with the usual one. Far more than the load of a machine."""
AT_ONCE = 8
ENOUGH = 100
"""So many strikes at least, however fast the looks are."""

Look = Callable[[str], Awaitable[bool]]


async def usual(look: Look) -> float:
    """Seconds that an honest client waits before any flood."""
    return statistics.median([await _seconds(look, "no flood") for _ in range(LOOKS)])


async def attack(
    tally: Tally, kind: str, strike: Callable[[], Awaitable[None]], look: Look, usual_s: float
) -> None:
    """Strike without end, some at a time, and look meanwhile. The strikes are cases of ``kind``."""
    first = tally.cases[kind]

    async def strike_on() -> None:
        while True:
            await strike()
            tally.cases[kind] += 1

    strikers = [asyncio.create_task(strike_on()) for _ in range(AT_ONCE)]
    try:
        took: list[float] = []
        while len(took) < LOOKS or tally.cases[kind] - first < ENOUGH:
            took.append(await _seconds(look, f"a flood: {kind}"))
            if tally.breaches:
                return
            for striker in strikers:
                if striker.done():
                    striker.result()
        if min(took) > MOST_SLOWDOWN * usual_s:
            ratio = min(took) / usual_s
            tally.breach("slow", f"an honest client waits {ratio:.0f} times as long in {kind}")
    finally:
        for striker in strikers:
            striker.cancel()
        await asyncio.gather(*strikers, return_exceptions=True)


async def _seconds(look: Look, after: str) -> float:
    began = time.monotonic()
    await look(after)
    return time.monotonic() - began
