"""Patches for :mod:`.faults_asking`: each takes a rule away by which suspects are asked."""

from __future__ import annotations

from math import inf
from typing import Any

from bamboo_core.api.events import RestoreCause
from bamboo_core.arbiter import plans, rounds
from bamboo_core.arbiter.arbiter import Arbiter
from bamboo_core.arbiter_state.state import Collecting, Holding, Planning, State


def never(*args: Any, **options: Any) -> bool:
    return False


def not_in_the_last_part(state: State, now: float) -> None:
    """Shortly before something is given up nobody is asked any more."""
    phase = state.phase
    if isinstance(phase, Holding) and phase.due_by - rounds._eighth_s(state) <= now:
        state.deadlines.retry_at = inf
        state.incident.asked.update(dict.fromkeys(state.membership.askable(), now))
    _retry(state, now)


_retry = rounds.retry


def keep_pause(state: State, step: int) -> None:
    """After an incident suspects are asked as rarely as in it."""
    before = state.incident
    _resumed(state, step)
    state.incident.retry_s = before.retry_s


_resumed = plans.resumed


def cut_off(self: Arbiter, now: float) -> None:
    """A restore that is due does not wait for the reports, nor for the planner."""
    state = self.state
    limits = state.deadlines
    is_asking = isinstance(state.phase, Collecting | Planning)
    if is_asking and state.desired is not None and now >= min(limits.copy_by, limits.voter_by):
        rounds._list_and_restore(state, RestoreCause.LAYER_LOST, "the time is over", now)
    _act(self, now)


_act = Arbiter._act


def keep_deadline(state: State, why: str, now: float, *waits: Any, **rest: Any) -> None:
    """A lost layer keeps the deadline of an earlier loss, though the job waited for other agents
    meanwhile."""
    copy_by = state.deadlines.copy_by
    _hold(state, why, now, *waits, **rest)
    state.deadlines.copy_by = min(copy_by, state.deadlines.copy_by)


_hold = rounds.hold
