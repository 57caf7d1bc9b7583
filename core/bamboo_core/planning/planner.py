"""From the facts of stopped agents to a plan and all programs. Pure and slow.

The operator runs :func:`compute` in a thread, the simulator and the explorer inline. Order: target
step, cut, seats and wanted layers (:mod:`bamboo_core.planning.team`); then closure, work map,
schedule, dry run and directives; then the same for later steps, while agents run the first part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from operator import itemgetter

from bamboo_core.api import limits
from bamboo_core.api.spec import CorruptionMode
from bamboo_core.graph import closure
from bamboo_core.graph.closure import Goals, LayersLost, Periodic, TaskGraph
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.program import COMPUTE, Op, single
from bamboo_core.placement import moves
from bamboo_core.placement.plan import Cut, Move, Pipeline, Plan, layers_of, ranges_of
from bamboo_core.planning import comparison, hosting, messages, redone, relocation
from bamboo_core.planning.comparison import Shortest
from bamboo_core.planning.lanes import lanes
from bamboo_core.planning.messages import Programs
from bamboo_core.planning.messages import hash_of as hash_of
from bamboo_core.planning.requests import (
    Comparison,
    Continuations,
    Decision,
    Expected,
    Fatal,
    PlannerFault,
    PlanRequest,
    PlanResult,
    Relocation,
)
from bamboo_core.planning.team import NoPlanError, Seating
from bamboo_core.protocol.messages import Directive
from bamboo_core.scheduling import dry_run, inflight, schedule
from bamboo_core.scheduling.candidates import Candidate, candidates, likeliest
from bamboo_core.scheduling.costs import transfers
from bamboo_core.scheduling.device_memory import Need
from bamboo_core.scheduling.inflight import Variant
from bamboo_core.scheduling.remaining import remaining, stage_weights
from bamboo_core.scheduling.schedule import Costs, Schedule
from bamboo_core.scheduling.sharing import orders
from bamboo_core.scheduling.sharing.step_work import Seats, StepWork, unequal

_OP, _EVERY = itemgetter(0), itemgetter(9)  # of an instruction; hundreds of thousands are visited
_RECV, _VER = Op.RECV, Kind.VER

_Build = Callable[[bool], TaskGraph]
_Held = Mapping[AgentId, Collection[Item]]
IsWanted = Callable[[], bool]
"""False once a newer request or STOP has overtaken the computation."""


class _OvertakenError(Exception):
    """The rest of the computation is no longer needed."""


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
            yield (rest := planning.proceed(decision))
            if (move := planning.relocate(decision.plan, rest)) is not None:
                yield move
    except NoPlanError as none:
        yield none.result
    except _OvertakenError:
        return


class _Planning:
    """One computation. Steps are absolute here, relative in graphs and programs."""

    is_wanted: IsWanted = staticmethod(_always)

    def __init__(self, request: PlanRequest) -> None:
        self._request, self._spec = request, request.spec
        self._seating, self._steps = Seating(request), request.spec.training.steps
        self._costs = Costs.measured(request.costs) if request.costs else Costs.even(request.layers)
        self._room = (self._spec.redundancy, request.costs, request.memory_bytes)
        self._speeds = unequal(request.participants, request.speeds)

    def decide(self) -> Decision:
        """The plan and its directives; NoPlanError if there is none."""
        plan = self._seating.plan()
        resume = self._resume(plan)
        few = [x for program in resume.values() for x in single(program)]
        counts = Counter(map(_OP, few))
        copies = [x for x in few if x[0] is _RECV and x[5] is not None and x[5][0] is _VER]
        return Decision(
            plan,
            self._directives(plan, resume),
            min(self._seating.committed, self._steps - 1),
            tasks=sum(counts[op] for op in COMPUTE),
            copies=len(copies),
            loads=counts[Op.LOAD] + counts[Op.INIT],
            shortage=hosting.shortage_of(plan, *self._room),
        )

    def proceed(self, decision: Decision) -> Continuations:
        """The programs after the target step; NoPlanError if they cannot run."""
        self._check_wanted()
        plan, directives = decision.plan, decision.directives
        steady, final, compared = self._undisturbed(plan)
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
            compared,
        )

    def relocate(self, plan: Plan, rest: Continuations) -> Relocation | None:
        """The move of an agent to another stage that makes later steps shorter, if one pays."""
        if rest.sharing is None or not relocation.is_open(self._request, plan):
            return None
        now = rest.sharing.taken.step_s
        found = relocation.tries(self._request, plan, now, self._moved)
        likely = [(move, after, self._length_after(after)) for move, after in found]
        lengths = [
            (move, after, self._length_after(after, every=True))
            for move, after, _ in relocation.finalists(likely)
        ]
        return relocation.best(self._request, plan, now, lengths)

    def _length_after(self, plan: Plan, *, every: bool = False) -> float:
        """Time of a later step after a move, with lost work shared in the likeliest way, or in the
        shortest of all; inf: its programs cannot run, but others' may."""
        self._check_wanted()
        step = self._whole(plan)
        options = self._options(plan, step) if every else [self._likeliest(plan, step)]
        try:
            found = self._steady(plan, step, options, is_exact=every)
            return found.comparison.taken.step_s
        except NoPlanError:
            return inf

    def _moved(self, plan: Plan, move: Move) -> Plan:
        seats = moves.moved(plan.pipelines, move)
        return replace(plan, pipelines=seats, wants=self._seating.wants(seats, plan.live))

    def _expected(self, plan: Plan, steady: Programs) -> dict[AgentId, Expected]:
        durations = self._costs.durations()
        return {a: Expected.of(steady.get(a, ()), durations) for a in plan.members}

    def _check_wanted(self) -> None:
        """Called between the slow parts, because the planner shares the GIL with its successor."""
        if not self.is_wanted():
            raise _OvertakenError

    # ------------------------------------------------------------ programs

    def _resume(self, plan: Plan) -> Programs:
        """Programs for the rest of the target step."""
        holders, extended = self._step_holders(plan)
        seats = self._step_seats(plan)
        step = self._rest(seats, holders, plan.step_cut)
        shared = self._likeliest(plan, step)
        is_degraded = self._is_disturbed(plan) or self._is_uneven(step, shared)
        goals = Goals(
            batch=plan.batch,
            cut=plan.step_cut,
            wants=extended,
            assignment=shared.work,
            coordinator=plan.coordinator,
            target=plan.target,
            last=plan.last,
            short_notice=frozenset(plan.short_notice),
            learners=plan.learners,
            ties=self._request.ties,
            gathers=self._gathers(plan),
            periodic=self._periodic(
                is_suspending=plan.target == plan.last < self._steps
                or plan.target == self._request.rewrites  # its validation is done
            ),
        )
        facts = self._seating
        files = frozenset(range(plan.layers)) if facts.files is not None else frozenset[int]()
        try:
            build = lambda split: closure.missing(  # noqa: E731
                replace(goals, split=split), facts.holdings, files=files, index=facts.index
            )
            held = {
                a: [
                    *facts.index.held[a],
                    *(Item.ver(v, x) for x, v in facts.index.have[a].items()),
                ]
                for a in plan.members
            }
            ways = self._variants(plan, is_degraded=is_degraded)
            found = self._best(
                plan,
                build,
                plan.step_cut,
                order=_order(plan, shared),
                ways=ways[::-1] if is_degraded else ways,  # the split one first
                enough=inflight.WORTH if is_degraded else 0.0,
            )
            self._try(plan, found.programs, held, plan.step_cut)
            return found.programs
        except LayersLost as lost:
            layers = tuple(x for x in lost.layers if x not in facts.spared)
            raise NoPlanError(Fatal(layers, facts.committed)) from lost

    def _gathers(self, plan: Plan) -> bool:
        """Whether slices of gradients are gathered (ADR 40): pairs of agents would be too many."""
        return len(plan.members) > schedule.MANY

    def _is_disturbed(self, plan: Plan) -> bool:
        """Whether the target step differs from a whole step run by a full grid."""
        held = self._seating.index.held.values()
        begun = any(i.step == 0 for items in held for i in items)
        return bool(plan.holes or plan.leaving or begun)

    def _is_uneven(self, step: StepWork, shared: Candidate) -> bool:
        """Whether leaves have moved because agents differ in speed."""
        return bool(self._speeds) and step.is_moved(shared.work)

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
        have = {a: self._seating.index.have[a].keys() for a in plan.computing}
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

    def _rest(self, seats: Seats, holders: list[list[AgentId]], cut: Cut) -> StepWork:
        """The rest of the target step."""
        batch, index = self._request.batch, self._seating.index
        left = remaining(index, batch=batch, cut=cut, holders=holders, costs=self._costs)
        return StepWork(
            batch=batch,
            seats=seats,
            holders=holders,
            weight=left.weight,
            pinned=left.pinned,
            credit=left.credit,
            base={} if left.is_begun else None,
            speeds=self._speeds,
            transfer=self._transfer(cut),
        )

    def _whole(self, plan: Plan) -> StepWork:
        """A step after the target step."""
        wanted = {a: set(layers_of(r)) for a, r in plan.wants.items()}
        holders = [[a for a in plan.live if set(range(lo, hi)) <= wanted[a]] for lo, hi in plan.cut]
        return StepWork(
            batch=plan.batch,
            seats=plan.pipelines,
            holders=holders,
            weight=stage_weights(batch=plan.batch, cut=plan.cut, costs=self._costs),
            speeds=self._speeds,
            transfer=self._transfer(plan.cut),
        )

    def _likeliest(self, plan: Plan, step: StepWork) -> Candidate:
        """The work map where nobody can wait for a comparison."""
        return likeliest(step, self._spec.recovery, hosting.room_for_sums(plan, *self._room))

    def _options(self, plan: Plan, step: StepWork) -> list[Candidate]:
        """The work maps to compare."""
        return candidates(step, self._spec.recovery, hosting.room_for_sums(plan, *self._room))

    def _transfer(self, cut: Cut) -> tuple[float, ...]:
        """Stage -> seconds that its gradient takes to another agent; empty: not measured."""
        return transfers(self._request.costs, cut, self._request.bytes_per_s)

    def _undisturbed(self, plan: Plan) -> tuple[Programs, Programs, Comparison | None]:
        """Programs of the steps after the target step, and of the epilogue; how lost work is shared
        then, if any is."""
        step = self._whole(plan)
        has_steps = plan.target + 1 < plan.last
        compares = has_steps and len(plan.members) <= schedule.MANY  # else it would take too long
        options = self._options(plan, step) if compares else [self._likeliest(plan, step)]
        shared, steady = options[0], Programs()
        compared: Comparison | None = None
        if has_steps:
            found = self._steady(plan, step, options, is_exact=compares and bool(shared.way))
            compared = found.comparison if compares and shared.way else None
            shared, steady = found.shared, found.made.programs
        ending = replace(
            self._later_goals(plan, shared),
            target=3,
            periodic=self._periodic(is_suspending=plan.last < self._steps),
        )
        build = lambda split: closure.epilogue(replace(ending, split=split))  # noqa: E731
        held = _held(ending)
        ways = self._variants(plan, is_degraded=False)
        final = self._best(plan, build, plan.cut, order=(), ways=ways)
        self._try(plan, final.programs, held, None)
        return steady, final.programs, compared

    def _steady(
        self, plan: Plan, step: StepWork, options: list[Candidate], *, is_exact: bool
    ) -> Shortest:
        """The shortest programs of a step after the target step. is_exact: by dry runs over the
        network, where the simulations that schedule the step do not tell."""
        held = _held(self._later_goals(plan, options[0]))
        is_degraded = bool(plan.holes) or self._is_uneven(step, options[0])
        ways = self._variants(plan, is_degraded=is_degraded)
        ways += tuple(map(inflight.tighter, ways)) if is_exact else ()

        def made(shared: Candidate, ways: Sequence[Variant]) -> Schedule:
            goals = self._later_goals(plan, shared)
            build = lambda split: closure.steady(replace(goals, split=split))  # noqa: E731
            return self._best(plan, build, plan.cut, order=_order(plan, shared), ways=ways)

        def length(made: Schedule) -> float:
            self._check_wanted()
            given = self._request, plan.cut, held, self._costs
            return comparison.over_network(made.programs, *given)

        ends = length if is_exact else lambda x: x.end
        best = comparison.in_variants(options, ways, made, ends)
        self._try(plan, best.made.programs, held, plan.cut)
        return best

    def _later_goals(self, plan: Plan, shared: Candidate) -> Goals:
        """The goals of a step that nothing interrupts."""
        return Goals(
            batch=plan.batch,
            cut=plan.cut,
            wants=plan.wants,
            assignment=shared.work,
            coordinator=plan.coordinator,
            target=1,
            last=3,
            learners=plan.learners,
            ties=self._request.ties,
            periodic=self._periodic(is_suspending=False),
        )

    def _periodic(self, *, is_suspending: bool) -> Periodic:
        spec = self._spec
        evals = limits.evals(spec, self._request.validation_samples)
        return Periodic.of(spec, 0 if is_suspending else evals)

    def _variants(self, plan: Plan, *, is_degraded: bool) -> tuple[Variant, ...]:
        """The variants worth trying."""
        measured = self._request.costs
        return inflight.variants(
            plan,
            self._costs,
            self._memory(plan),
            is_measured=bool(measured),
            knows_memory=bool(measured and self._request.memory_bytes),
            is_degraded=is_degraded,
        )

    def _best(
        self,
        plan: Plan,
        build: _Build,
        cut: Cut,
        *,
        order: Sequence[int],
        ways: Sequence[Variant],
        enough: float = 0.0,
    ) -> Schedule:
        """The shortest schedule among these variants. order: as in :func:`schedule.build`; enough:
        as in :func:`inflight.shortest`."""
        sums = dict(zip(cut, self._transfer(cut), strict=False))

        def made(split: bool, caps: dict[AgentId, int]) -> Schedule:
            self._check_wanted()
            graph = build(split)
            self._check_wanted()
            return schedule.build(
                graph,
                batch=plan.batch,
                costs=self._costs,
                caps=caps,
                order=order,
                speeds=self._speeds,
                sums=sums,
                is_split=split,
            )

        return inflight.shortest(
            ((way.price, made(way.split, way.caps)) for way in ways),
            enough=enough,
            price_of_split=self._costs.price_of_split,
        )

    def _try(self, plan: Plan, programs: Programs, held: _Held, ahead: Cut | None) -> None:
        """The dry run, with what agents compute ahead; NoPlanError if the programs cannot run."""
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
                raise NoPlanError(PlannerFault(text))

    # ------------------------------------------------------------ directives

    def _directives(self, plan: Plan, resume: Programs) -> dict[AgentId, Directive]:
        need = self._memory(plan)
        return messages.directives(
            plan,
            resume,
            participants=self._request.participants,
            manifest=self._seating.files,
            lanes=self._lanes(plan, plan.step_cut, resume, self._seating.index.held),
            lane_limit=need.ahead,
            compares=need.ahead > 0 and self._spec.corruption.mode is CorruptionMode.DETECT,
            hosts_ahead=need.ahead_bytes > 0,
            hosted=hosting.replicas(plan) if need.replica_bytes else {},
            question=self._request.question,
        )

    def _memory(self, plan: Plan) -> Need:
        return hosting.memory_of(plan, *self._room)

    def _lanes(self, plan: Plan, cut: Cut, programs: Programs, held: _Held) -> Programs:
        """Programs for work ahead beside these programs, in mode Eager."""
        if not self._memory(plan).ahead:
            return {}
        return lanes(programs, cut=cut, wants=plan.wants, held=held)


def _held(goals: Goals) -> dict[AgentId, list[Item]]:
    """Items that exist when an undisturbed step begins; they are relative to the step."""
    ranges = {**goals.wants, **goals.learners}
    return {agent: [Item.ver(0, x) for x in layers_of(found)] for agent, found in ranges.items()}


def _order(plan: Plan, shared: Candidate) -> tuple[int, ...]:
    """Micro-batch -> its place in the step."""
    return orders.positions(plan.batch, shared.work, shared.pipelines)
