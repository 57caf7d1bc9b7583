"""Lets the planner's thread go before the event loop while agents of one job wait for its result.

Python runs one thread at a time. The event loop gives up its turn with every message, and asks for
the next one after the switch interval. So with hundreds of agents, half of the time in which a plan
is made goes to heartbeats. If plans are made for several jobs, nobody goes first: else the loop
would have to wait for all of them, and so would the directives of the jobs that have their plan.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH_S = 0.05
_USUAL_S = sys.getswitchinterval()
_lock = threading.Lock()
_planners = 0


@contextmanager
def going() -> Iterator[None]:
    """Around the computation that agents wait for."""
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _count(more: int) -> None:
    global _planners
    with _lock:
        _planners += more
        sys.setswitchinterval(SWITCH_S if _planners == 1 else _USUAL_S)
