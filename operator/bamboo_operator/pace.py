"""How often agents send heartbeats: rarely enough that all of them together can be handled.

A heartbeat takes about a fifth of a millisecond here, most of it in gRPC, and after a loss planning
shares the interpreter with all of them. Suspicions among agents and the ends of streams do not wait
for a heartbeat, so only the loss of a whole machine or network is noticed later: by as much as the
heartbeats are rarer.
"""

from __future__ import annotations

BEATS_PER_S = 2500.0
"""Of all agents together, at most."""
JOBS_AT_ONCE = 25
"""Jobs whose agents are told a new pace in a quarter of a second."""
_STEP = 2.0


def heartbeat_s(agents: int, *, now_s: float, least_s: float) -> float:
    """Seconds between an agent's heartbeats: ``least_s``, or doubled as often as necessary.

    now_s: the present pace. It is kept until half of the agents that it suits are left.
    """
    found = least_s
    while agents / found > BEATS_PER_S:
        found *= _STEP
    is_spare = agents / now_s > BEATS_PER_S / (2 * _STEP)
    return now_s if found < now_s and is_spare else found
