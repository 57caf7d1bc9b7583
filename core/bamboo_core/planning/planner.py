"""From the facts of stopped agents to a plan and all programs. Pure and slow.

The operator runs :func:`compute` in a thread, the simulator and the explorer inline. Order: target
step, cut, seats, wanted layers, closure, work map, schedule, dry run, directives; then the same for
the later steps, while agents already run the first part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from operator import itemgetter

from bamboo_core.api import limits
from bamboo_core.api.spec import CorruptionMode
from bamboo_core.graph import closure
from bamboo_core.graph.closure import Goals, Holdings, LayersLost, Periodic, TaskGraph
from bamboo_core.graph.holdings import HoldingsIndex
from bamboo_core.model.ids import AgentId, Range
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.program import COMPUTE, Op, single
from bamboo_core.placement import partition
from bamboo_core.placement import seats as placement
from bamboo_core.placement.capacity import pipelines_for
from bamboo_core.placement.plan import Cut, Pipeline, Plan, layers_of, ranges_of, wants
from bamboo_core.planning import hosting, messages, redone
from bamboo_core.planning.lanes import lanes
from bamboo_core.planning.messages import Programs
from bamboo_core.planning.messages import hash_of as hash_of
from bamboo_core.planning.requests import (
    Continuations,
    Decision,
    Expected,
    Fatal,
    PlannerFault,
    PlanRequest,
    PlanResult,
    Unplaceable,
)
from bamboo_core.planning.team import Team, lacking_bytes, live_in
from bamboo_core.protocol.messages import Directive
from bamboo_core.scheduling import dry_run, inflight, schedule, workmap
from bamboo_core.scheduling.costs import transfers, unequal
from bamboo_core.scheduling.device_memory import Need
from bamboo_core.scheduling.remaining import remaining, stage_weights
from bamboo_core.scheduling.schedule import Costs

_OP, _EVERY = itemgetter(0), itemgetter(9)  # of an instruction; hundreds of thousands are visited
_RECV, _VER = Op.RECV, Kind.VER

_Build = Callable[[bool], TaskGraph]
_Held = Mapping[AgentId, Collection[Item]]
IsWanted = Callable[[], bool]
"""False once a newer request or STOP has overtaken the computation."""


class _OvertakenError(Exception):
    """The rest of the computation is no longer needed."""


class _NoPlanError(Exception):
    """No plan can be made; ``result`` says why."""

    def __init__(self, result: Fatal | Unplaceable | PlannerFault) -> None:
        self.result = result


def _always() -> bool:
    return True


def compute(request: PlanRequest, is_wanted: IsWanted = _always) -> Iterator[PlanResult]:
    """A plan for these facts, then its continuations, each as soon as it is ready.

    The same request always gives the same plan. The iteration ends early once ``is_wanted`` returns
    False.
    """
    return run(_Planning(request), is_wanted)


def run(planning: _Planning, is_wanted: IsWanted = _always) -> Iterator[PlanResult]:
    """The results of one computation."""
    planning.is_wanted = is_wanted
    try:
        decision = planning.decide()
        yield decision
        if decision.plan.target < decision.plan.last:
            yield planning.proceed(decision)
    except _NoPlanError as none:
        yield none.result
    except _OvertakenError:
        return


class _Planning:
    """One computation. Steps are absolute here, relative in graphs and programs."""

    is_wanted: IsWanted = staticmethod(_always)

    def __init__(self, request: PlanRequest) -> None:
        self._request, self._spec = request, request.spec
        self._stages = request.spec.pipelines.stages
        self._holdings = {a: Holdings.of(r) for a, r in request.reports.items()}
        newest = max((k for h in self._holdings.values() for k in h.commits), default=-1)
        self._steps = request.spec.training.steps
        self._continue_after(max(newest, request.base))
        planned = -1 if request.is_full else request.target - 1
        self._spared: Collection[int] = ()  # layers that still have a copy, whatever is lost
        if self._committed < planned and not self._can_repeat(planned):
            self._spared = self._index.sources if self._committed == planned - 1 else ()
            self._continue_after(planned)
        self._last = min(self._target + 1, self._steps) if request.is_last else self._steps
        self._costs = Costs.measured(request.costs) if request.costs else Costs.even(request.layers)
        self._room = (self._spec.redundancy, request.costs, request.memory_bytes)
        self._speeds = unequal(request.participants, request.speeds)

    def _continue_after(self, committed: int) -> None:
        self._committed = committed
        self._target = min(committed + 1, self._steps)
        self._files = next((m for m in self._request.manifests if m.step == self._target), None)
        self._index = self._read(self._holdings, frozenset())

    def _can_repeat(self, planned: int) -> bool:
        """Whether the commit that the plan in force started from can be repeated.

        It is known only to lost agents; the agents that voted for it may make it again.
        """
        kept = self._index.sources
        is_whole = self._files is not None or all(x in kept for x in range(self._request.layers))
        return self._committed == planned - 1 and bool(kept) and is_whole

    def _read(
        self, holdings: Mapping[AgentId, Holdings], short_notice: Collection[AgentId]
    ) -> HoldingsIndex:
        return HoldingsIndex(
            holdings,
            batch=self._request.batch,
            target=self._target,
            short_notice=frozenset(short_notice),
        )

    def decide(self) -> Decision:
        """The plan and its directives; _NoPlanError if there is none."""
        self._refuse_silent_restart()
        team = self._seat()
        plan = self._plan(team)
        resume = self._resume(plan)
        few = [x for program in resume.values() for x in single(program)]
        counts = Counter(map(_OP, few))
        copies = [x for x in few if x[0] is _RECV and x[5] is not None and x[5][0] is _VER]
        return Decision(
            plan,
            self._directives(plan, resume),
            min(self._committed, self._steps - 1),
            tasks=sum(counts[op] for op in COMPUTE),
            copies=len(copies),
            loads=counts[Op.LOAD] + counts[Op.INIT],
            shortage=hosting.shortage_of(plan, *self._room),
        )

    def proceed(self, decision: Decision) -> Continuations:
        """The programs after the target step; _NoPlanError if they cannot run."""
        self._check_wanted()
        plan, directives = decision.plan, decision.directives
        steady, final = self._undisturbed(plan)
        known = self._request.participants
        return Continuations(
            messages.continuations(
                plan,
                directives,
                steady,
                final,
                participants=known,
                lanes=self._lanes(plan, plan.cut, steady, {}),
            ),
            self._expected(plan, steady) if self._request.costs else {},
            (redone.told_by({a: d.resume for a, d in directives.items()}), redone.told_by(steady)),
        )

    def _expected(self, plan: Plan, steady: Programs) -> dict[AgentId, Expected]:
        durations = self._costs.durations()
        return {a: Expected.of(steady.get(a, ()), durations) for a in plan.members}

    def _check_wanted(self) -> None:
        """Called between the slow parts, because the planner shares the GIL with its successor."""
        if not self.is_wanted():
            raise _OvertakenError

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
        kept = {*self._index.sources, *self._spared} if newest <= self._target else ()
        lost = tuple(x for x in range(request.layers) if x not in kept)
        if lost:
            raise _NoPlanError(Fatal(lost, max(self._committed, newest - 1)))

    # ------------------------------------------------------------ the plan

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
        return request.step_cut if self._target == request.target else request.cut

    def _seat(self) -> Team:
        staying = [a for a in self._request.participants if a not in self._request.draining]
        seats = self._seats(staying)
        if isinstance(seats, placement.Infeasible):
            raise _NoPlanError(Unplaceable(seats.reason))
        learners = self._learners(seats)
        without = self._seats([a for a in staying if a not in learners]) if learners else seats
        if isinstance(without, placement.Infeasible) or not self._is_whole(without):
            return self._team(seats, {})
        return self._team(without, learners)

    def _seats(self, staying: Collection[AgentId]) -> tuple[Pipeline, ...] | placement.Infeasible:
        request, cut = self._request, self._cut()
        candidates = [
            placement.Candidate(
                agent,
                request.participants[agent].zone,
                held=tuple(
                    sum(x in self._index.have[agent] for x in range(lo, hi)) for lo, hi in cut
                ),
            )
            for agent in staying
        ]
        stages, adjacency = self._stages, self._spec.placement.adjacency
        if request.is_full:
            number = self._most_pipelines(staying)
            return placement.assign(
                candidates, stages=stages, pipelines=number, previous=request.grid,
                adjacency=adjacency,
            )  # fmt: skip
        least = pipelines_for(len(staying), stages=stages, wanted=request.pipelines)
        numbers = range(least, request.pipelines + 1)
        return placement.assign_all(
            candidates, stages=stages, pipelines=numbers, previous=request.grid, adjacency=adjacency
        )

    def _learners(self, seats: tuple[Pipeline, ...]) -> dict[AgentId, tuple[Range, ...]]:
        """Newcomers that need too many bytes for all others to wait -> their layers.

        Empty near the end of the job, and while newcomers are needed to replace a leaver.
        """
        request = self._request
        seated = {a for p in request.grid for a in p if a is not None}
        if request.is_full or self._target + 2 >= self._last or seated & request.draining:
            return {}
        live = live_in(seats)
        wanted = self._wants(seats, live)
        lacking = {
            a: lacking_bytes(self._index.have[a], wanted[a], request.costs)
            for a in live
            if a not in seated
        }
        return {a: wanted[a] for a, n in lacking.items() if n > request.catch_up_above_bytes}

    def _is_whole(self, seats: tuple[Pipeline, ...]) -> bool:
        """Whether the agents with a seat hold every layer."""
        held = {x for a in live_in(seats) for x in self._index.have[a]}
        return held >= set(range(self._request.layers))

    def _most_pipelines(self, staying: Collection[AgentId]) -> int:
        """In a full grid."""
        request = self._request
        zones = Counter(request.participants[agent].zone for agent in staying)
        found = placement.feasible_pipelines(
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
            raise _NoPlanError(Unplaceable("no agent that stays has a seat"))
        rest = [a for a in sorted(request.participants) if a not in live and a not in learners]
        leaving = tuple(a for a in rest if self._is_useful(a))
        short_notice = tuple(a for a in leaving if a in request.short_notice)
        return Team(seats, live, leaving, short_notice, learners)

    def _is_useful(self, agent: AgentId) -> bool:
        """Whether it holds anything that the target step needs."""
        kept = self._index.held[agent]
        return bool(self._index.have[agent]) or any(i.step >= 0 for i in kept)

    def _plan(self, team: Team) -> Plan:
        request, cut = self._request, self._cut()
        members = {*team.live, *team.leaving, *team.learners}
        self._holdings = {a: h for a, h in self._holdings.items() if a in members}
        self._index = self._read(self._holdings, (*team.short_notice, *team.learners))
        return Plan(
            fence=request.fence,
            pipelines=team.pipelines,
            cut=cut,
            step_cut=self._step_cut(cut),
            target=self._target,
            last=self._last,
            live=team.live,
            leaving=team.leaving,
            short_notice=team.short_notice,
            wants=self._wants(team.pipelines, team.live),
            coordinator=team.live[0],
            batch=request.batch,
            learners=team.learners,
        )

    def _wants(
        self, pipelines: tuple[Pipeline, ...], live: tuple[AgentId, ...]
    ) -> dict[AgentId, tuple[Range, ...]]:
        return wants(
            pipelines=pipelines,
            cut=self._cut(),
            live=live,
            mode=self._spec.redundancy.mode,
            holders=self._index.sources,
        )

    # ------------------------------------------------------------ programs

    def _resume(self, plan: Plan) -> Programs:
        """Programs for the rest of the target step."""
        holders, extended = self._step_holders(plan)
        seats = self._step_seats(plan)
        assignment = self._assign(seats, holders, pinned=True, cut=plan.step_cut)
        is_degraded = self._is_disturbed(plan) or self._is_uneven(assignment, seats)
        goals = Goals(
            batch=plan.batch,
            cut=plan.step_cut,
            wants=extended,
            assignment=assignment,
            coordinator=plan.coordinator,
            target=plan.target,
            last=plan.last,
            short_notice=frozenset(plan.short_notice),
            learners=plan.learners,
            gathers=self._gathers(plan),
            periodic=self._periodic(is_suspending=plan.target == plan.last < self._steps),
        )
        files = frozenset(range(plan.layers)) if self._files is not None else frozenset[int]()
        try:
            build = lambda split: closure.missing(  # noqa: E731
                replace(goals, split=split), self._holdings, files=files, index=self._index
            )
            held = {
                a: [
                    *self._index.held[a],
                    *(Item.ver(v, x) for x, v in self._index.have[a].items()),
                ]
                for a in plan.members
            }
            return self._best(plan, build, held, plan.step_cut, is_degraded=is_degraded)
        except LayersLost as lost:
            layers = tuple(x for x in lost.layers if x not in self._spared)
            raise _NoPlanError(Fatal(layers, self._committed)) from lost

    def _gathers(self, plan: Plan) -> bool:
        """Whether slices of gradients are gathered (ADR 40): pairs of agents would be too many."""
        return len(plan.members) > schedule.MANY

    def _is_disturbed(self, plan: Plan) -> bool:
        """Whether the target step differs from a whole step run by a full grid."""
        begun = any(i.step == 0 for held in self._index.held.values() for i in held)
        return bool(plan.holes or plan.leaving or begun)

    def _is_uneven(self, work: workmap.WorkMap, seats: workmap.Seats) -> bool:
        """Whether leaves have moved because agents differ in speed."""
        leaves = self._request.batch.leaves
        return bool(self._speeds) and workmap.is_moved(work, seats, leaves=leaves)

    def _step_seats(self, plan: Plan) -> tuple[Pipeline, ...]:
        """Agents keep the leaves they started."""
        grid = self._request.grid
        if not grid or self._request.is_full or len(grid[0]) != len(plan.step_cut):
            same = len(plan.cut) == len(plan.step_cut)
            return plan.pipelines if same else ((None,) * len(plan.step_cut),)
        computing = set(plan.computing)
        return tuple(tuple(a if a in computing else None for a in p) for p in grid)

    def _step_holders(
        self, plan: Plan
    ) -> tuple[list[list[AgentId]], dict[AgentId, tuple[tuple[int, int], ...]]]:
        """Stage of the step's cut -> agents that may compute it; layers that live agents need.

        Agents that hold the whole stage; otherwise live agents that will get it; otherwise the live
        agent with most of the stage, which gets the rest for this step.
        """
        need = {a: set(layers_of(r)) for a, r in plan.wants.items()}
        have = {a: self._index.have[a].keys() for a in plan.computing}
        holders = []
        for lo, hi in plan.step_cut:
            stage = set(range(lo, hi))
            able = [a for a in plan.computing if stage <= have[a]]
            able = able or [a for a in plan.live if stage <= need[a] | have[a]]
            if not able:
                best = min(plan.live, key=lambda a: (len(stage - need[a] - have[a]), a))
                need[best] |= stage
                able = [best]
            holders.append(able)
        return holders, {a: ranges_of(x) for a, x in need.items()}

    def _assign(
        self,
        seats: tuple[Pipeline, ...],
        holders: list[list[AgentId]],
        *,
        pinned: bool,
        cut: Cut,
    ) -> workmap.WorkMap:
        batch, transfer = self._request.batch, self._transfer(cut)
        if not pinned:
            weight = stage_weights(batch=batch, cut=cut, costs=self._costs)
            return workmap.assign(
                batch=batch,
                seats=seats,
                holders=holders,
                policy=self._spec.recovery,
                weight=weight,
                speeds=self._speeds,
                transfer=transfer,
            )
        left = remaining(self._index, batch=batch, cut=cut, holders=holders, costs=self._costs)
        return workmap.assign(
            batch=batch,
            seats=seats,
            holders=holders,
            policy=self._spec.recovery,
            weight=left.weight,
            pinned=left.pinned,
            credit=left.credit,
            base={} if left.is_begun else None,
            speeds=self._speeds,
            transfer=transfer,
        )

    def _transfer(self, cut: Cut) -> tuple[float, ...]:
        """Stage -> seconds that its gradient takes to another agent; empty: not measured."""
        return transfers(self._request.costs, cut, self._spec.transport.bytes_per_s)

    def _undisturbed(self, plan: Plan) -> tuple[Programs, Programs]:
        """Programs of the steps after the target step, and of the epilogue."""
        wanted = {a: set(layers_of(r)) for a, r in plan.wants.items()}
        holders = [[a for a in plan.live if set(range(lo, hi)) <= wanted[a]] for lo, hi in plan.cut]
        assignment = self._assign(plan.pipelines, holders, pinned=False, cut=plan.cut)
        is_degraded = bool(plan.holes) or self._is_uneven(assignment, plan.pipelines)
        goals = Goals(
            batch=plan.batch,
            cut=plan.cut,
            wants=plan.wants,
            assignment=assignment,
            coordinator=plan.coordinator,
            target=1,
            last=3,
            learners=plan.learners,
            periodic=self._periodic(is_suspending=False),
        )
        steady: Programs = {}
        if plan.target + 1 < plan.last:
            build = lambda split: closure.steady(replace(goals, split=split))  # noqa: E731
            steady = self._best(plan, build, _held(goals), plan.cut, is_degraded=is_degraded)
        ending = replace(
            goals,
            target=3,
            periodic=self._periodic(is_suspending=plan.last < self._steps),
        )
        build = lambda split: closure.epilogue(replace(ending, split=split))  # noqa: E731
        final = self._best(plan, build, _held(ending), plan.cut, is_degraded=False, has_lanes=False)
        return steady, final

    def _periodic(self, *, is_suspending: bool) -> Periodic:
        spec = self._spec
        evals = limits.evals(spec, self._request.validation_samples)
        return Periodic(
            evals=0 if is_suspending else evals,
            validate_every=spec.training.validate_every,
            saves=spec.checkpoint is not None,
            save_every=spec.checkpoint.every_steps if spec.checkpoint is not None else 0,
        )

    def _best(
        self,
        plan: Plan,
        build: _Build,
        held: _Held,
        cut: Cut,
        *,
        is_degraded: bool,
        has_lanes: bool = True,
    ) -> Programs:
        """The shortest programs among the variants worth trying. has_lanes: whether agents may
        compute ahead beside them."""
        made = []
        measured = self._request.costs
        sums = dict(zip(cut, self._transfer(cut), strict=False))
        network = schedule.Network(sums, held, plan.layers)
        ways = inflight.variants(
            plan,
            self._costs,
            self._memory(plan),
            is_measured=bool(measured),
            knows_memory=bool(measured and self._request.memory_bytes),
            is_degraded=is_degraded,
        )
        for way in ways:
            self._check_wanted()
            graph = build(way.split)
            self._check_wanted()
            found = schedule.build(
                graph,
                batch=plan.batch,
                costs=self._costs,
                caps=way.caps,
                pipelines=len(plan.pipelines),
                speeds=self._speeds,
                network=network,
            )
            made.append((found.length * way.price, found))
        _, best = min(made, key=lambda pair: pair[0])
        self._try(plan, best.programs, held, cut if has_lanes else None)
        return best.programs

    def _try(self, plan: Plan, programs: Programs, held: _Held, ahead: Cut | None) -> None:
        """The dry run, with what agents compute ahead; _NoPlanError if the programs cannot run."""
        lanes = {} if ahead is None else self._lanes(plan, ahead, programs, held)
        has_periods = any(max(map(_EVERY, single(p)), default=0) > 1 for p in programs.values())
        for periodic in (True, False) if has_periods else (True,):
            self._check_wanted()
            report = dry_run.dry_run(
                programs,
                batch=plan.batch,
                layers=plan.layers,
                holdings=held,
                costs=self._costs,
                periodic=periodic,
                lanes=lanes,
                lane_limit=self._memory(plan).ahead,
                measures=False,
            )
            if not report.ok:
                text = f"programs of {plan.fence} for step {plan.target} cannot run: {report}"
                raise _NoPlanError(PlannerFault(text))

    # ------------------------------------------------------------ directives

    def _directives(self, plan: Plan, resume: Programs) -> dict[AgentId, Directive]:
        need = self._memory(plan)
        return messages.directives(
            plan,
            resume,
            participants=self._request.participants,
            manifest=self._files,
            lanes=self._lanes(plan, plan.step_cut, resume, self._index.held),
            lane_limit=need.ahead,
            compares=need.ahead > 0 and self._spec.corruption.mode is CorruptionMode.DETECT,
            hosts_ahead=need.ahead_bytes > 0,
            hosted=hosting.replicas(plan) if need.replica_bytes else {},
            question=self._request.question,
        )

    def _memory(self, plan: Plan) -> Need:
        return hosting.memory_of(plan, *self._room)

    def _lanes(self, plan: Plan, cut: Cut, programs: Programs, held: _Held) -> Programs:
        """What agents compute ahead beside these programs, in mode Eager."""
        if not self._memory(plan).ahead:
            return {}
        return lanes(programs, cut=cut, wants=plan.wants, held=held)


def _held(goals: Goals) -> dict[AgentId, list[Item]]:
    """What an undisturbed step begins with; items are relative to the step."""
    ranges = {**goals.wants, **goals.learners}
    return {agent: [Item.ver(0, x) for x in layers_of(found)] for agent, found in ranges.items()}
