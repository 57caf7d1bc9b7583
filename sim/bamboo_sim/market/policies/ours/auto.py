"""Ours in mode Auto: the product's own records of losses and empty seats, and a choice by them
whenever nodes take seats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from math import ceil
from typing import NamedTuple

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.protection.hazard import Hazard
from bamboo_core.protection.measured import EmptySeats
from bamboo_sim.market.policies.base.seats import Seats, lost_of
from bamboo_sim.market.policies.ours.ours import Ours
from bamboo_sim.market.simulation.events import READY, REMOVE, RESUME, News
from bamboo_sim.market.simulation.policy import Change, Fleet, Pace


class Record(NamedTuple):
    """Of a job until now. ``agents``: zone and number of the agents there."""

    hazard: Hazard = Hazard()
    empty: EmptySeats = EmptySeats()
    agents: tuple[tuple[str, int], ...] = ()
    at_ms: int = 0

    def until(self, now_ms: int, seats: Seats) -> Record:
        """The record after time has passed with these seats."""
        passed_s = (now_ms - self.at_ms) / 1000
        return self._replace(
            hazard=self.hazard.exposed(dict(self.agents), passed_s),
            empty=self.empty.passed(seats.grid.seats, len(seats.holes), passed_s),
            at_ms=now_ms,
        )


class Chosen(NamedTuple):
    """``mode``: in force."""

    seats: Seats
    mode: RedundancyMode
    record: Record = Record()

    @property
    def serving(self) -> frozenset[int]:
        """The nodes that have seats."""
        return self.seats.serving


Choice = Callable[[Record, Seats, RedundancyMode], RedundancyMode]
"""The best mode by a record, for these seats, where another is in force. Pure."""


class Auto:
    """The policy. A change of mode takes as long as a join, since copies are made or dropped."""

    def __init__(self, modes: Mapping[RedundancyMode, Ours], choose: Choice) -> None:
        self._modes, self._choose = modes, choose

    def start(self) -> Chosen:
        """Nothing runs. Jobs begin with the least redundancy."""
        first = next(iter(self._modes))
        return Chosen(self._modes[first].start(), first)

    def rate(self, state: Chosen) -> Pace | None:
        """The mode's."""
        return self._modes[state.mode].rate(state.seats)

    def on_change(self, state: Chosen, fleet: Fleet, news: News) -> Change | None:
        """The mode decides what happens to seats; then the mode itself is thought of."""
        ours, record = self._modes[state.mode], state.record.until(news.at_ms, state.seats)
        if news.kind is REMOVE:
            zones = {node.number: node.zone for node in news.nodes}
            for number in sorted(lost_of(state.serving, news)):
                record = record._replace(hazard=record.hazard.lost(zones[number]))
        change = ours.on_change(state.seats, fleet, news)
        if change is None:
            if news.kind not in (READY, RESUME) or fleet.resume_ms is not None:
                return None  # the time until now counts at the next change
            change = Change(state.seats)
        seats: Seats = change.state
        refilled = len(state.seats.holes - seats.holes) if seats.grid == state.seats.grid else 0
        agents = Counter(fleet.ready[number].zone for number in seats.serving)
        record = record._replace(
            empty=record.empty.taken(refilled), agents=tuple(sorted(agents.items()))
        )
        chosen = Chosen(seats, state.mode, record)
        if news.kind is REMOVE or not seats.holders:
            return change._replace(state=chosen)
        mode = self._choose(record, seats, state.mode)
        if mode is state.mode or self._modes[mode].rate(seats) is None:
            return change._replace(state=chosen)
        end = max(change.resume_ms or 0, news.at_ms + ceil(self._modes[mode].pauses.join_ms))
        return change._replace(state=chosen._replace(mode=mode), resume_ms=end, cause="mode")
