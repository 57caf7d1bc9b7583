"""Bamboo as its authors' simulator has it: the node before a lost one takes its stage over, and
every rendezvous stops the job."""

from __future__ import annotations

from typing import NamedTuple

from bamboo_sim.market.policies.published import Published
from bamboo_sim.market.simulation.events import LOOK, READY, REMOVE, RESUME, News
from bamboo_sim.market.simulation.policy import Change, Fleet, Pace


class Seats(NamedTuple):
    """``holders``: the node of each seat, pipeline by pipeline; ``doubled``: nodes with two seats;
    ``meets_ms``: how long the rendezvous takes that is on (0: none is)."""

    holders: tuple[int, ...] = ()
    doubled: frozenset[int] = frozenset()
    is_slow: bool = False
    meets_ms: int = 0
    listed: frozenset[int] = frozenset()
    """The ready nodes since the rendezvous began. If one has gone at its end, it begins again."""
    serving: frozenset[int] = frozenset()


class BambooPublished:
    """The policy."""

    def __init__(self, published: Published) -> None:
        self._published = published

    def start(self) -> Seats:
        """Nothing runs."""
        return Seats()

    def rate(self, state: Seats) -> Pace | None:
        """A loss makes all pipelines slower, since they wait for the doubled node."""
        published = self._published
        if not state.holders:
            return None
        step_ms = published.step_ms[len(state.holders) // published.stages]
        return Pace(int(step_ms * (published.slowdown if state.is_slow else 1)), published.samples)

    def on_change(self, state: Seats, fleet: Fleet, news: News) -> Change | None:
        """A rendezvous is planned at the end of a step; a fatal failure begins one at once."""
        kind = news.kind
        if kind is REMOVE:
            return self._lose(state, fleet, news)
        if kind is READY:
            if state.meets_ms:
                return Change(state._replace(listed=state.listed | {*fleet.ready}), fleet.resume_ms)
            if state.holders:
                return self._watch(state, fleet)
            return self._meet(state, fleet, news, self._published.fatal_ms, "start")
        if kind is RESUME:
            if state.listed <= fleet.ready.keys():
                return self._assign(fleet)
            return self._meet(state, fleet, news, state.meets_ms, "left in rendezvous")
        if kind is LOOK:
            return self._meet(state, fleet, news, self._published.planned_ms, "planned")
        return None

    def _meet(self, state: Seats, fleet: Fleet, news: News, ms: int, cause: str) -> Change:
        meeting = state._replace(meets_ms=ms, listed=frozenset(fleet.ready))
        return Change(meeting, news.at_ms + ms, cause, is_fatal=cause == "fatal")

    def _pipelines(self, nodes: int) -> int:
        return min(nodes // self._published.stages, max(self._published.step_ms))

    def _assign(self, fleet: Fleet) -> Change:
        seats = self._pipelines(len(fleet.ready)) * self._published.stages
        holders = tuple(fleet.ready)[:seats]
        return self._watch(Seats(holders, serving=frozenset(holders)), fleet)

    def _watch(self, state: Seats, fleet: Fleet) -> Change:
        return Change(state, looks_at_step_end=self._is_worth_it(state, fleet))

    def _is_worth_it(self, state: Seats, fleet: Fleet) -> bool:
        doubled, active = len(state.doubled), len(state.serving)
        waiting = len(fleet.ready) - active
        if doubled and (waiting >= doubled or 2 * doubled > self._published.risk * active):
            return True
        could = self._pipelines(len(fleet.ready))
        return 0 < len(state.holders) // self._published.stages < could

    def _lose(self, state: Seats, fleet: Fleet, news: News) -> Change:
        for node in news.nodes:
            if node.number not in state.serving:  # the authors' simulator is slow after any loss
                state = state._replace(is_slow=True)
                continue
            next_state = self._take_over(state, node.number)
            if next_state is None:
                return self._meet(Seats(), fleet, news, self._published.fatal_ms, "fatal")
            state = next_state
        if state.meets_ms:
            return Change(state, fleet.resume_ms)
        return self._watch(state, fleet)

    def _take_over(self, state: Seats, lost: int) -> Seats | None:
        """None: the loss is fatal."""
        if lost in state.doubled:
            return None
        seat, stages = state.holders.index(lost), self._published.stages
        before = seat - 1 if seat % stages else seat + stages - 1
        helper = state.holders[before]
        if helper in state.doubled:
            return None
        return state._replace(
            holders=(*state.holders[:seat], helper, *state.holders[seat + 1 :]),
            doubled=state.doubled | {helper},
            is_slow=True,
            serving=state.serving - {lost},
        )
