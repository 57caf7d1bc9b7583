"""Planted faults of the rules by which suspects are asked before anything is given up. Rows: Q."""

from __future__ import annotations

from math import inf
from typing import Any

from bamboo_core.api.events import RestoreCause
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import Reason
from bamboo_core.arbiter import endings, plans, rounds, training
from bamboo_core.arbiter.arbiter import Arbiter
from bamboo_core.arbiter_state.state import Collecting, Holding, Planning, State, Waiting
from bamboo_core.protocol.clock import Backlog
from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.planted.patches import Planted, patched

SMALL = Job(2, 2, 2)
MOVING = Job(1, 2, 2, replica=False, spares=2)
THIN = Job(1, 3, 2, replica=False, steps=5)
TALL = Job(1, 3, 2, steps=6)
THREE = Job(1, 3, 2, steps=6, save_every=4)
PAIR = Job(2, 2, 4, steps=2)


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


def only_suspects(state: State, now: float) -> bool:
    """A job that is to be suspended does not ask the agents that have come back."""
    return _may_come_back(state, now) and bool(state.membership.suspected)


_may_come_back = rounds._may_come_back


def say_nothing(state: State, waiting: Waiting) -> None:
    """A job that rests after a restore does not say what it has given up."""
    endings.end(state, Outcome.SUSPENDED, Reason.USER_REQUESTED, "nothing was running")


PLANTS: tuple[Planted, ...] = (
    Planted("suspects are asked ever more rarely before a restore", "Q1",
            patched(rounds, "ASKS", 0.1), (("blips", MOVING),)),
    Planted("suspects are not asked a last time", "Q2",
            patched(rounds, "retry", not_in_the_last_part), (("blips", MOVING),)),
    Planted("an incident begins with the long waits of the one before", "Q3",
            patched(training, "resumed", keep_pause), (("blips", TALL),)),
    Planted("a late answer does not count", "Q4",
            patched(rounds, "can_answer", never),
            (("races", TALL), ("races", SMALL))),
    Planted("a round is cut off when a restore is due", "Q5",
            patched(Arbiter, "_act", cut_off), (("blips", MOVING),)),
    Planted("a lost layer keeps the deadline of an earlier loss", "Q6",
            patched(rounds, "hold", keep_deadline), (("blips", THIN),)),
    Planted("a link that stays cut holds the job for ever", "Q7",
            patched(rounds, "MOST_WAITS", 1_000_000), (("blips", MOVING),)),
    Planted("a job is suspended while its agents are away for a moment", "Q8",
            patched(rounds, "_may_come_back", never), (("rests", THREE),)),
    Planted("suspicions are judged before everything is read", "Q9",
            patched(Backlog, "is_behind", never), (("deaf", PAIR), ("deaf", SMALL))),
    Planted("nobody waits for agents whose sessions are closed", "Q10",
            patched(rounds, "may_bring", never), (("blips", MOVING), ("rests", THREE))),
    Planted("a job is suspended before it asks those that are back", "Q11",
            patched(rounds, "_may_come_back", only_suspects), (("rests", THREE),)),
    Planted("a job that rests does not say what a restore has undone", "Q12",
            patched(endings, "rest", say_nothing), (("rests", THREE),)),
)  # fmt: skip
