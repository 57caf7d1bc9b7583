"""The authors' simulator with its two faults, to compare engine and market with what it printed.

It is no policy to judge Bamboo by. A fatal failure does not stop the steps, and every rendezvous
that was begun ends on its own: the second one finds nobody listed, and the job stands until a node
gets ready. It also counts on nodes that have waited and gone.
"""

from __future__ import annotations

from typing import NamedTuple

from bamboo_sim.market.policies.published import Published
from bamboo_sim.market.simulation.events import Kind, News
from bamboo_sim.market.simulation.policy import Change, Fleet, Pace


class Told(NamedTuple):
    """``seats``: (node, seat) for each seat, also of those that are gone; ``ends``: when each
    rendezvous ends, and how long it takes; ``listed``: the nodes of the newest rendezvous."""

    seats: tuple[tuple[int, int], ...] = ()
    live: frozenset[int] = frozenset()
    pipelines: int = 0
    waiting: int = 0
    is_slow: bool = False
    steps_on: bool = False
    ends: tuple[tuple[int, int], ...] = ()
    is_meeting: bool = False
    listed: tuple[int, ...] = ()
    fatal: int = 0

    @property
    def serving(self) -> frozenset[int]:
        """Nodes that have seats and are there."""
        return self.live

    def held(self, node: int) -> list[int]:
        """The seats of a node."""
        return [seat for holder, seat in self.seats if holder == node]


class AuthorsSimulator:
    """The rules of the authors' simulator."""

    def __init__(self, published: Published) -> None:
        self._published = published

    def start(self) -> Told:
        """Nothing runs."""
        return Told()

    def rate(self, state: Told) -> Pace | None:
        """Steps go on until a rendezvous has ended."""
        if not state.steps_on:
            return None
        step_ms = self._published.step_ms[state.pipelines]
        slowdown = self._published.slowdown if state.is_slow else 1
        return Pace(int(step_ms * slowdown), self._published.samples)

    def on_change(self, state: Told, fleet: Fleet, news: News) -> Change | None:
        """Steps end after the rendezvous that end at the same instant."""
        before, now = state, news.at_ms
        match news.kind:
            case Kind.READY:
                state = self._ready(state, news, fleet)
            case Kind.REMOVE:
                for node in news.nodes:
                    state = self._remove(state, node.number, fleet, now)
            case Kind.RESUME | Kind.LOOK if state.ends and min(state.ends)[0] <= now:
                state = self._end(state, fleet, now)
            case Kind.LOOK if state.steps_on and self._is_worth_it(state):
                state = self._meet(state, fleet, now, self._published.planned_ms)
                state = state._replace(steps_on=False)
            case _:
                return None
        end = min(state.ends)[0] if state.ends else None
        return Change(
            state,
            resume_ms=None if state.steps_on else end,
            cause="" if state.steps_on or end is None else "rendezvous",
            drops_step=before.steps_on
            and news.kind in (Kind.RESUME, Kind.LOOK)
            and state.listed == (),
            is_fatal=state.fatal > before.fatal,
            looks_at_step_end=state.steps_on and self._is_worth_it(state),
            look_ms=end if state.steps_on else None,
        )

    def _ready(self, state: Told, news: News, fleet: Fleet) -> Told:
        if state.is_meeting:
            return state._replace(listed=(*state.listed, *(node.number for node in news.nodes)))
        if state.pipelines:
            return state._replace(waiting=state.waiting + len(news.nodes))
        return self._meet(state, fleet, news.at_ms, self._published.fatal_ms)

    def _meet(self, state: Told, fleet: Fleet, now: int, ms: int) -> Told:
        return state._replace(
            is_meeting=True, ends=(*state.ends, (now + ms, ms)), listed=tuple(sorted(fleet.ready))
        )

    def _end(self, state: Told, fleet: Fleet, now: int) -> Told:
        first = min(state.ends)
        ends = list(state.ends)
        ends.remove(first)
        state = state._replace(ends=tuple(ends))
        if not fleet.ready.keys() >= set(state.listed):
            return self._meet(state, fleet, now, first[1])
        stages = self._published.stages
        pipelines = len(state.listed) // stages
        active = state.listed[: pipelines * stages]
        seats = tuple(zip(active, range(len(active)), strict=True))
        kept = seats if state.listed else state.seats  # nobody is told
        return state._replace(
            seats=kept,
            live=frozenset(node for node, _ in kept if node in fleet.ready),
            pipelines=pipelines,
            waiting=len(state.listed) - len(active),
            is_slow=False,
            steps_on=pipelines > 0,
            is_meeting=False,
            listed=(),
        )

    def _remove(self, state: Told, node: int, fleet: Fleet, now: int) -> Told:
        held = state.held(node) if node in state.live else []
        state = state._replace(live=state.live - {node})
        if len(held) > 1:
            return self._fail(state, fleet, now)
        if held:
            seat, stages = held[0], self._published.stages
            before = seat - 1
            if not seat % stages:  # while it stands, it knows no last stage
                before = seat + stages - 1 if state.pipelines else -1
            helper = next((n for n, s in state.seats if s == before and n in state.live), None)
            if helper is not None:
                if len(state.held(helper)) > 1:
                    return self._fail(state, fleet, now)
                seats = tuple((helper if n == node else n, s) for n, s in state.seats)
                state = state._replace(seats=seats)
        if state.pipelines and not state.is_meeting:
            state = state._replace(is_slow=True)
        return state

    def _fail(self, state: Told, fleet: Fleet, now: int) -> Told:
        failed = self._meet(state, fleet, now, self._published.fatal_ms)
        return failed._replace(fatal=state.fatal + 1)

    def _is_worth_it(self, state: Told) -> bool:
        doubled = sum(len(state.held(node)) > 1 for node in state.live)
        active = len(state.seats) - doubled
        if doubled and (state.waiting >= doubled or 2 * doubled > self._published.risk * active):
            return True
        return (active + state.waiting) // self._published.stages > state.pipelines
