"""The agents of a plan and their seats, and the step from which training goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from bamboo_core.graph.closure import Holdings
from bamboo_core.graph.holdings import HoldingsIndex
from bamboo_core.model.ids import AgentId, Range
from bamboo_core.placement import moves, partition
from bamboo_core.placement.capacity import pipelines_for
from bamboo_core.placement.plan import Cut, Pipeline, Plan, layers_of, ranges_of, wants
from bamboo_core.placement.seats import (
    Candidate,
    Infeasible,
    Seats,
    assign,
    assign_all,
    feasible_pipelines,
)
from bamboo_core.planning.requests import Fatal, PlannerFault, PlanRequest, Unplaceable
from bamboo_core.protocol.messages import LayerCost
from bamboo_core.scheduling.device_memory import STATES


@dataclass(frozen=True)
class Team:
    """Agents by their part in a plan; see :class:`bamboo_core.placement.plan.Plan`."""

    pipelines: tuple[Pipeline, ...]
    live: tuple[AgentId, ...]  # agents that stay
    leaving: tuple[AgentId, ...]  # agents that help until the target step has ended
    short_notice: tuple[AgentId, ...]
    learners: dict[AgentId, tuple[Range, ...]]


class NoPlanError(Exception):
    """No plan can be made; ``result`` says why."""

    def __init__(self, result: Fatal | Unplaceable | PlannerFault) -> None:
        self.result = result


class Seating:
    """From the facts of stopped agents to a plan: the step to go on from, its members, their seats.

    Steps are absolute. ``holdings`` and ``index`` say what agents hold, ``committed`` is the newest
    commit and ``target`` the step to compute, ``files`` a checkpoint of that version, if any.
    """

    def __init__(self, request: PlanRequest) -> None:
        self._request, self._spec = request, request.spec
        self._stages = request.spec.pipelines.stages
        self.holdings = {a: Holdings.of(r) for a, r in request.reports.items()}
        newest = max((k for h in self.holdings.values() for k in h.commits), default=-1)
        self._steps = request.spec.training.steps
        self._continue_after(max(newest, request.base))
        planned = -1 if request.is_full else request.target - 1
        self.spared: Collection[int] = ()  # layers that still have a copy, whatever is lost
        if self.committed < planned and not self._can_repeat(planned):
            self.spared = self.index.sources if self.committed == planned - 1 else ()
            self._continue_after(planned)
        self._last = min(self.target + 1, self._steps) if request.is_last else self._steps
        if request.rewrites == self.target:
            self._last = self.target

    def _continue_after(self, committed: int) -> None:
        self.committed = committed
        self.target = min(committed + 1, self._steps)
        self.files = next((m for m in self._request.manifests if m.step == self.target), None)
        self.index = self._read(self.holdings, frozenset())

    def _can_repeat(self, planned: int) -> bool:
        """Whether the commit that the plan in force started from can be repeated.

        It is known only to lost agents; the agents that voted for it may make it again.
        """
        kept = self.index.sources
        is_whole = self.files is not None or all(x in kept for x in range(self._request.layers))
        return self.committed == planned - 1 and bool(kept) and is_whole

    def _read(
        self, holdings: Mapping[AgentId, Holdings], short_notice: Collection[AgentId]
    ) -> HoldingsIndex:
        return HoldingsIndex(
            holdings,
            batch=self._request.batch,
            target=self.target,
            short_notice=frozenset(short_notice),
            ties=self._request.ties,
        )

    def plan(self) -> Plan:
        """The plan; NoPlanError if there is none. Then only its members' holdings count."""
        self._refuse_silent_restart()
        team = self._seat()
        request, cut = self._request, self._cut()
        members = {*team.live, *team.leaving, *team.learners}
        self.holdings = {a: h for a, h in self.holdings.items() if a in members}
        self.index = self._read(self.holdings, (*team.short_notice, *team.learners))
        return Plan(
            fence=request.fence,
            pipelines=team.pipelines,
            cut=cut,
            step_cut=self._step_cut(cut),
            target=self.target,
            last=self._last,
            live=team.live,
            leaving=team.leaving,
            short_notice=team.short_notice,
            wants=self.wants(team.pipelines, team.live),
            coordinator=team.live[0],
            batch=request.batch,
            learners=team.learners,
            move=request.move if self._mover in team.learners else None,
        )

    @property
    def _mover(self) -> AgentId | None:
        """The agent that is to get another seat, if any."""
        return self._request.move.agent if self._request.move is not None else None

    def _refuse_silent_restart(self) -> None:
        """Never restart silently from version 0 or a file once later steps are committed.

        Any agent can build version 0 or read a file. A voter knows every commit under its plan
        except perhaps the newest, which is repeated. If no voter reports, the number of commits is
        unknown: continue only if the remaining agents hold every layer and no file is newer.
        """
        request = self._request
        if request.is_full or request.has_voter:
            return
        newest = max((m.step for m in request.manifests), default=0)
        kept = {*self.index.sources, *self.spared} if newest <= self.target else ()
        lost = tuple(x for x in range(request.layers) if x not in kept)
        if lost:
            raise NoPlanError(Fatal(lost, max(self.committed, newest - 1)))

    def _cut(self) -> Cut:
        """The current cut, unless the state is new or the number of stages changes."""
        request = self._request
        if request.cut and len(request.cut) == self._stages and not request.is_full:
            return request.cut
        if request.costs:
            costs = [c.forward_s + c.backward_s for c in request.costs]
        else:
            costs = [1.0] * request.layers
        return partition.split(costs, self._stages)

    def _step_cut(self, cut: Cut) -> Cut:
        """The cut under which the target step began or would have begun."""
        request = self._request
        if not request.grid or request.is_full:
            return cut
        return request.step_cut if self.target == request.target else request.cut

    def _seat(self) -> Team:
        staying = [a for a in self._request.participants if a not in self._request.draining]
        seats = self._seats(staying)
        if isinstance(seats, Infeasible):
            raise NoPlanError(Unplaceable(seats.reason))
        learners = self._learners(seats)
        without = self._seats([a for a in staying if a not in learners]) if learners else seats
        if isinstance(without, Infeasible) or not self._is_whole(without):
            return self._team(seats, {})
        if self._mover in learners and len(without) < len(seats):  # no pipeline goes for a move
            return self._team(seats, {})
        return self._team(without, learners)

    def _seats(self, staying: Collection[AgentId]) -> tuple[Pipeline, ...] | Infeasible:
        request, cut = self._request, self._cut()
        candidates = [
            Candidate(
                agent,
                request.participants[agent].zone,
                held=tuple(
                    sum(x in self.index.have[agent] for x in range(lo, hi)) for lo, hi in cut
                ),
            )
            for agent in staying
        ]
        stages, adjacency = self._stages, self._spec.placement.adjacency
        previous = self._grid(staying)
        if request.is_full:
            number = self._most_pipelines(staying)
            return assign(
                candidates, stages=stages, pipelines=number, previous=previous,
                adjacency=adjacency,
            )  # fmt: skip
        least = pipelines_for(len(staying), stages=stages, wanted=request.pipelines)
        numbers = range(least, request.pipelines + 1)
        return assign_all(
            candidates, stages=stages, pipelines=numbers, previous=previous, adjacency=adjacency
        )

    def _grid(self, staying: Collection[AgentId]) -> Seats:
        """The seats of the plan in force, with the move if it may still be made."""
        request, move = self._request, self._request.move
        if move is None or request.is_full or request.draining or move.agent not in staying:
            return request.grid
        present = tuple(tuple(a if a in staying else None for a in p) for p in request.grid)
        zones = {a: request.participants[a].zone for a in staying}
        adjacency = self._spec.placement.adjacency
        if not moves.is_allowed(present, move, zones=zones, adjacency=adjacency):
            return request.grid
        return moves.moved(present, move)

    def _learners(self, seats: tuple[Pipeline, ...]) -> dict[AgentId, tuple[Range, ...]]:
        """Newcomers that need too many bytes for all others to wait -> their layers. An agent that
        moves is one, and keeps what it holds until it has its new seat.

        Empty near the end of the job, and while newcomers are needed to replace a leaver.
        """
        request = self._request
        seated = {a for p in request.grid for a in p if a is not None}
        if request.is_full or self.target + 2 >= self._last or seated & request.draining:
            return {}
        live = live_in(seats)
        wanted = self.wants(seats, live)
        if request.move is not None and moves.is_made(seats, request.move):
            seated.discard(request.move.agent)
        lacking = {
            a: lacking_bytes(self.index.have[a], wanted[a], request.costs)
            for a in live
            if a not in seated
        }
        learners = {a: wanted[a] for a, n in lacking.items() if n > request.catch_up_above_bytes}
        mover = self._mover
        if mover is not None and mover in learners:
            kept = {*self.index.have[mover], *layers_of(learners[mover])}
            learners[mover] = ranges_of(kept)
        return learners

    def _is_whole(self, seats: tuple[Pipeline, ...]) -> bool:
        """Whether the agents with a seat hold every layer."""
        held = {x for a in live_in(seats) for x in self.index.have[a]}
        return held >= set(range(self._request.layers))

    def _most_pipelines(self, staying: Collection[AgentId]) -> int:
        """In a full grid."""
        request = self._request
        zones = Counter(request.participants[agent].zone for agent in staying)
        found = feasible_pipelines(
            zones,
            stages=self._stages,
            most=request.pipelines,
            adjacency=self._spec.placement.adjacency,
        )
        return max(found, request.least)

    def _team(
        self, seats: tuple[Pipeline, ...], learners: dict[AgentId, tuple[Range, ...]]
    ) -> Team:
        request, live = self._request, live_in(seats)
        if not live:
            raise NoPlanError(Unplaceable("no agent that stays has a seat"))
        rest = [a for a in sorted(request.participants) if a not in live and a not in learners]
        leaving = tuple(a for a in rest if self._is_useful(a))
        short_notice = tuple(a for a in leaving if a in request.short_notice)
        return Team(seats, live, leaving, short_notice, learners)

    def _is_useful(self, agent: AgentId) -> bool:
        """Whether it holds anything that the target step needs."""
        kept = self.index.held[agent]
        return bool(self.index.have[agent]) or any(i.step >= 0 for i in kept)

    def wants(
        self, pipelines: tuple[Pipeline, ...], live: tuple[AgentId, ...]
    ) -> dict[AgentId, tuple[Range, ...]]:
        """Layers that each of these agents must hold in these seats."""
        return wants(
            pipelines=pipelines,
            cut=self._cut(),
            live=live,
            mode=self._spec.redundancy.mode,
            holders=self.index.sources,
        )


def live_in(seats: tuple[Pipeline, ...]) -> tuple[AgentId, ...]:
    """All agents that have a seat, sorted."""
    return tuple(sorted({a for p in seats for a in p if a is not None}))


def lacking_bytes(
    have: Collection[int], wanted: Collection[Range], costs: Sequence[LayerCost]
) -> float:
    """Bytes of weights and optimizer state that an agent must get; -inf if it has every layer."""
    lacking = set(layers_of(wanted)).difference(have)
    if not lacking:
        return -inf
    return sum(STATES * costs[x].parameter_bytes for x in lacking) if costs else 0.0
