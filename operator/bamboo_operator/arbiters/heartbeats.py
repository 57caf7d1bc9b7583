"""How often agents send heartbeats: rarely enough that all of them together can be handled.

A heartbeat takes about a fifth of a millisecond here, most of it in gRPC, and after a loss planning
shares the interpreter with all of them. Suspicions among agents and the ends of streams do not wait
for a heartbeat, so only the loss of a whole machine or network is noticed later: by as much as the
heartbeats are rarer.

On a slow or crowded processor the fleet's size is not enough to go by. An operator that is busy
with heartbeats answers no Hello in time: agents give up and call again, and it never gets ahead. So
it also makes heartbeats rarer while its event loop is congested, and begins with rare ones: after a
restart all agents come at once.
"""

from __future__ import annotations

BEATS_PER_S = 2500.0
"""Of all agents together, at most."""
JOBS_AT_ONCE = 25
"""Jobs whose agents are told a new pace in a quarter of a second."""
_STEP = 2.0

BUSY = 0.9
"""Share of a window in which the event loop has work, from which it is congested. Its thread may
run for much less: it also waits for the interpreter and for a processor."""
LATE = 0.4
"""Or in which its ticks are late."""
CALM = 0.4
"""Share of both below which twice as many heartbeats would do no harm."""
WINDOW_S = 2.0
CONGESTED_WINDOWS = 2
"""In a row, before heartbeats get rarer: one large plan must not do it."""
CALM_WINDOWS = 15
"""In a row, before they get more frequent again."""
MOST_FACTOR = 8.0
"""By which congestion makes them rarer, at most."""
MOST_S = 12.8
"""Between two heartbeats of an agent because of congestion."""
LIGHT_PER_S = 100.0
"""Of all agents together. So few are not what an operator is congested by."""


def heartbeat_s(agents: int, *, now_s: float, least_s: float) -> float:
    """Seconds between an agent's heartbeats: ``least_s``, or doubled as often as necessary.

    now_s: the present pace. It is kept until half of the agents that it suits are left.
    """
    found = least_s
    while agents / found > BEATS_PER_S:
        found *= _STEP
    is_spare = agents / now_s > BEATS_PER_S / (2 * _STEP)
    return now_s if found < now_s and is_spare else found


def congested_s(agents: int, *, now_s: float, fleet_s: float, factor: float) -> float:
    """Seconds between heartbeats while the event loop is congested: ``fleet_s``, doubled.

    factor: of :class:`Congestion`. It counts only as far as it helps. now_s: the present pace. It
    is kept until half of the agents that it suits are left: silence is counted anew at each pace.
    """
    bound_s = min(fleet_s * factor, MOST_S)
    found = fleet_s
    while found * _STEP <= min(bound_s, agents / LIGHT_PER_S):
        found *= _STEP
    is_helpful = now_s <= bound_s and agents / now_s > LIGHT_PER_S / _STEP
    return now_s if found < now_s and is_helpful else found


class Congestion:
    """By how much heartbeats have to be rarer because the event loop is, or may be, congested."""

    def __init__(self) -> None:
        self.factor = MOST_FACTOR
        self._was_congested = False  # at any time; until then the factor is only a precaution
        self._wall_s = self._idle_s = self._late_s = 0.0  # of the window so far
        self._congested = self._calm = 0  # windows in a row

    def note(self, *, wall_s: float, idle_s: float, late_s: float) -> None:
        """Take note of the time since the last call.

        wall_s: seconds; idle_s: in which the event loop had no work; late_s: by which its timer
        came too late.
        """
        self._wall_s += wall_s
        self._idle_s += idle_s
        self._late_s += late_s
        if self._wall_s < WINDOW_S:
            return
        busy, late = 1 - self._idle_s / self._wall_s, self._late_s / self._wall_s
        self._wall_s = self._idle_s = self._late_s = 0.0
        is_congested = busy >= BUSY or late >= LATE
        is_calm = max(busy, late) < CALM if self._was_congested else not is_congested
        self._congested = self._congested + 1 if is_congested else 0
        self._calm = self._calm + 1 if is_calm else 0
        if self._congested == CONGESTED_WINDOWS:
            self._was_congested = True
            self._turn(min(MOST_FACTOR, self.factor * _STEP))
        elif self._calm == CALM_WINDOWS:
            self._turn(max(1.0, self.factor / _STEP))

    def _turn(self, factor: float) -> None:
        """Set the factor, and count windows again from zero: they show its effect."""
        self.factor, self._congested, self._calm = factor, 0, 0
