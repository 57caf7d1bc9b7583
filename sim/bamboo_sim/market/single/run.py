"""Runs one system on one fleet."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from pathlib import Path

from bamboo_sim.market.compare.comparison import (
    Key,
    Systems,
    fleet_of,
    prepared,
    systems_of,
    terms_of,
)
from bamboo_sim.market.compare.setting import Setting
from bamboo_sim.market.compare.timeline import Timeline
from bamboo_sim.market.compare.times import Told
from bamboo_sim.market.simulation.audit import Audited
from bamboo_sim.market.simulation.engine import Watch, run
from bamboo_sim.market.simulation.events import FleetEvent
from bamboo_sim.market.simulation.outcome import Activity, Outcome, Span
from bamboo_sim.market.simulation.step_times import Pauses
from bamboo_sim.market.single.names import named


@dataclass(frozen=True)
class State:
    """A time in which the job does the same. ``samples``: that count at its end."""

    begin_ms: int
    end_ms: int
    activity: Activity
    samples: float


@dataclass(frozen=True)
class Single:
    """A run. ``pauses``: of ours; ``events``: of its fleet; ``states``: without gaps."""

    setting: Setting
    key: Key
    pauses: Pauses
    events: tuple[FleetEvent, ...]
    outcome: Outcome
    timeline: Timeline
    states: tuple[State, ...]


def single(
    setting: Setting,
    policy: str,
    seed: int = 1,
    place: Path | None = None,
    processes: int | None = None,
    told: Told | None = None,
) -> Single:
    """Run a policy on the only fleet of a setting. ``policy``: as users write it; ``seed``: deals
    nodes to seats, as in a comparison of as many seeds; other arguments as in ``compared``.

    MarketError names all policies if there is none of this name, before anything is computed.
    """
    key = named(policy, systems_of(setting))
    ready = prepared(setting, place, processes, told)
    ready.until_known(lambda systems: _outcome(systems, key, seed, inf, None))
    setting = ready.setting
    timeline, states = Timeline(setting.fleets.until_ms), list[State]()

    def watch(span: Span) -> None:
        timeline(span)
        _add(states, span)

    outcome = _outcome(ready.systems, key, seed, setting.best_per_node, watch)
    events = fleet_of(setting, key[1], setting.fleets.events[0])
    return Single(setting, key, ready.systems.pauses, events, outcome, timeline, tuple(states))


def _outcome(systems: Systems, key: Key, seed: int, best: float, watch: Watch | None) -> Outcome:
    setting = systems.setting
    audited = Audited(systems.of(seed - 1)[key], best)
    events = fleet_of(setting, key[1], setting.fleets.events[0])
    return audited.ended(run(audited, events, terms_of(setting, best), watch))


def _add(states: list[State], span: Span) -> None:
    """A span as one state, or two if the job repeats first; equal neighbours become one."""
    turn_ms = span.begin_ms + span.again_ms
    for begin_ms, end_ms, activity in (
        (span.begin_ms, turn_ms, Activity.REPEATING),
        (turn_ms, span.end_ms, span.activity),
    ):
        if begin_ms == end_ms:
            continue
        if states and states[-1].activity is activity:
            begin_ms = states.pop().begin_ms
        states.append(State(begin_ms, end_ms, activity, span.after))
