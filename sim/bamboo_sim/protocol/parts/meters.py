"""What agents say of the network between them: what they measure, nothing, or nonsense."""

from __future__ import annotations

import random
from enum import StrEnum
from math import inf, nan

from bamboo_core.api.progress import Goodput, PeerRate
from bamboo_core.model.ids import AgentId

_LIES = (0.0, -1.0, 1e-300, 1e300, inf, nan)


class Meter(StrEnum):
    """What all agents say from some moment on."""

    SLOW = "slow"  # sums take longer than to compute them anew
    FAST = "fast"
    EACH_ITS_OWN = "each its own"
    TURNING = "turning"  # fast in some steps, and slow in others
    LIES = "lies"  # what no network passes, or nothing


def measured(meter: Meter, seed: int, agent: AgentId, step: int) -> Goodput | None:
    """The agent's own figures at the end of a step; None: it has none. Deterministic."""
    rng = random.Random(f"{meter} {seed} {agent} {step}")
    if meter is Meter.LIES and rng.random() < 0.3:
        return None
    rate = _rate(meter, rng, seed + step // 3)
    other = rng.choice(_LIES) if meter is Meter.LIES else rate
    peers = (PeerRate(AgentId(f"a{rng.randrange(9):02d}"), other),)
    return Goodput(rate, other, peers, peers[: rng.randrange(2)])


def _rate(meter: Meter, rng: random.Random, turn: int) -> float:
    """Bytes per second; a layer of the explorer has one."""
    slow, fast = 0.05 * 4.0 ** rng.randrange(3), 1e6
    match meter:
        case Meter.SLOW:
            return slow
        case Meter.FAST:
            return fast
        case Meter.EACH_ITS_OWN:
            return rng.choice((slow, 1.0, fast))
        case Meter.TURNING:
            return (slow, fast)[turn % 2]
        case Meter.LIES:
            return rng.choice((slow, *_LIES))
