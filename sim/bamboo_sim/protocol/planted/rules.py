"""Rules of the protocol broken on purpose; :mod:`.faults` lists them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bamboo_core.api.events import RestoreCause
from bamboo_core.arbiter import endings, files, plans
from bamboo_core.arbiter.arbiter import Arbiter
from bamboo_core.arbiter_state import durable as durable_module
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import Send
from bamboo_core.arbiter_state.outbox import Outbox
from bamboo_core.arbiter_state.state import State
from bamboo_core.graph import closure as graph_module
from bamboo_core.graph.holdings import HoldingsIndex
from bamboo_core.model import rules
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.program import Op
from bamboo_core.placement.capacity import pipelines_for
from bamboo_core.placement.plan import layers_of
from bamboo_core.planning import planner
from bamboo_core.planning.requests import Decision
from bamboo_core.planning.team import Seating
from bamboo_core.protocol.effects import SendOperator, Transmit
from bamboo_core.protocol.executor import Executor
from bamboo_core.protocol.messages import Directive, Finished
from bamboo_sim.protocol.parts.symbolic import Symbolic

# ---------------------------------------------------------------- agents

_adopt, _is_stale, _may = Executor._adopt, Executor._is_stale, Executor._may
_accepts, _start, _end = Executor.accepts, Executor._start, Executor._end
_install, _proceed, _next_program = Executor.install, Executor.proceed, Executor._next_program


def keep_votes(self: Executor) -> Any:
    votes = {i: r for i, r in self.held.items() if i.kind is Kind.VOTE}
    effects = _adopt(self)
    self.held.update(votes)
    return [e for e in effects if not (hasattr(e, "items") and set(e.items) <= votes.keys())]


def refuse_before_program(self: Executor, item: Item, fence: Fence) -> bool:
    return self._program is not None and _accepts(self, item, fence)


def refuse_old_gradients(self: Executor, item: Item) -> bool:
    if item.kind in (Kind.VER, Kind.FILE):
        return False
    return item.step < self.ended + 1


def version_without_commit(self: Executor, send: Any) -> Transmit:
    assert send.item is not None
    commit = self.commits[send.item.step] if send.item.kind is Kind.COMMIT else None
    return Transmit(send.item, send.peer, self.fence, commit)


def vote_without_versions(self: Executor, task: Any) -> bool:
    instruction = task.instruction
    if instruction.op is Op.VOTE:
        return all(item in self.held for item in task.items)
    if instruction.op is Op.RECV and instruction.item.kind is Kind.VER:
        return True
    return _may(self, task)


def drop_at_once(self: Executor, step: int) -> Any:
    directive = self.directive
    assert directive is not None
    self.directive = replace(directive, target=step - 1)
    effects = _end(self, step)
    self.directive = directive
    return effects


def keep_continuation(self: Executor, directive: Directive) -> list[Any]:
    """The rest of the plan before counts for the new one, too."""
    rest = self.continuation
    effects = _install(self, directive)
    if directive is self.directive and self.continuation is None:
        self.continuation = rest
        effects += self._advance()
    return effects


def finish_without(self: Executor, effects: list[Any]) -> bool:
    """The end of ``resume`` counts as the end of the job."""
    assert self.directive is not None
    if self.step < self.directive.last and self.continuation is None:
        self._over = True
        effects.append(SendOperator(Finished(self.fence)))
        return False
    return _next_program(self, effects)


def forget_early(self: Executor, continuation: Any) -> list[Any]:
    """Do not keep what comes before it is needed."""
    is_early = self._program is not None and self.at < len(self._program)
    return [] if is_early else _proceed(self, continuation)


def keep_holdings(self: Executor) -> list[Any]:
    return []


def grow_prefix(self: Symbolic, task: Any) -> None:
    """Later leaves are added straight onto the sum of the leaf before."""
    k, lo, hi, m = task.step, task.lo, task.hi, task.index
    before = self.batch.leaf_of(m) - 1
    prefix = self.store.get(Item.sum(k, (lo, hi), (before, before + 1)))
    _weight_gradient(self, task)
    if prefix is not None:
        for name in list(self.store):
            if name.kind in (Kind.SUM, Kind.PART) and name[1:5] == (k, lo, hi, before + 1):
                sums = self.store[name]
                self.store[name] = tuple(hash(p) for p in zip(prefix, sums, strict=True))


_weight_gradient = Symbolic._backward_weight


# ---------------------------------------------------------------- operator


def no_voters(self: State) -> Durable:
    return replace(self.out.durable, voters=())


def forget_voters(self: Arbiter, job: Any, durable: Durable, term: int) -> None:
    _make_arbiter(self, job, replace(durable, voters=()), term)


_make_arbiter = Arbiter.__init__


def same_term(self: Arbiter, job: Any, durable: Durable, term: int) -> None:
    _make_arbiter(self, job, replace(durable, term=1), 1)


def begin_silently(self: Any) -> None:
    """The agents that report decide, even if all of them have just come."""


def repeat_anything(self: Any, planned: int) -> bool:
    """Even if the live agents do not know much of what was committed."""
    return True


def persist_late(self: Outbox, effect: Any) -> None:
    self._ready.append(effect)


def restore_at_once(state: State, agent: AgentId, bad: Any, now: float) -> None:
    """The file from which the attempt had begun: as if nothing that was read from it lived."""
    base = state.durable.manifest
    _bad_checkpoint(state, agent, bad, now)
    if base is not None and (base.attempt, base.step) == (bad.attempt, bad.step):
        endings.restore(state, RestoreCause.LAYER_LOST, "the base cannot be read", state.real_s)


_bad_checkpoint = files.bad_checkpoint


def any_answer(state: State, request: int, result: Any, now: float) -> None:
    """Every answer for the present epoch is taken, whatever the request was."""
    if isinstance(result, Decision) and result.plan.fence == state.fence:
        plans._direct(state, result, now)
    else:
        _planned(state, request, result, now)


def forget_continuations(state: State, result: Any) -> None:
    """The programs of later steps are sent once, and not again to an agent that reconnects."""
    _continue(state, result)
    assert state.in_force is not None
    state.in_force.continuations = {}


_continue = plans._continue


def late_directives(state: State, request: int, result: Any, now: float) -> None:
    """An answer that comes too late still goes to its agents, but not into the facts."""
    if isinstance(result, Decision) and request != state.requests:
        for agent, directive in result.directives.items():
            state.out.at_once(Send(agent, directive))
    _planned(state, request, result, now)


_planned = plans.planned


def old_forks(durable: Durable) -> Any:
    return _eligible(replace(durable, forks=()))


_eligible = durable_module.eligible


# ---------------------------------------------------------------- planner

_plan_init = Seating.__init__


def oldest_step(self: Any, request: Any) -> None:
    _plan_init(self, request)
    known = [max(h.commits, default=-1) for h in self.holdings.values() if h.versions]
    self.committed = max(min(known, default=-1), request.base)
    self.target = min(self.committed + 1, self._steps)
    self.index = self._read(self.holdings, frozenset())


def newest_files(self: Any, request: Any) -> None:
    _plan_init(self, request)
    if request.manifests:
        self.files = max(request.manifests, key=lambda m: m.step)


def no_files(self: Any, request: Any) -> None:
    _plan_init(self, request)
    self.files = None


def count_helpers(state: State) -> bool:
    """An agent that could have a seat is not asked while others are there for this step only."""
    assert state.desired is not None
    staying = state.membership.members & state.membership.usable()
    return len(staying) < state.desired.pipelines * state.job.spec.pipelines.stages


_seats = Seating._seats


def smallest_grid(self: Any, staying: Any) -> Any:
    """As many pipelines as the agents would fill, whatever their zones are."""
    request = self._request
    fewest = pipelines_for(len(staying), stages=self._stages, wanted=request.pipelines)
    self._request = replace(request, pipelines=fewest)
    found = _seats(self, staying)
    self._request = request
    return found


def wanted_only(self: Any, agent: Any, index: HoldingsIndex) -> tuple[int, ...]:
    return tuple(layers_of(self._goals.wants.get(agent, ())))


def always_end(self: Any) -> None:
    """END of the step before is asked for though nobody may know its commit."""
    known = self._builder.index.where
    before = Item.commit(-1)
    if before not in known and self._goals.target > 0:
        known[before] = [self._goals.coordinator]
    _end_older(self)


_end_older = graph_module._Closure._end_older
_directives = planner._Planning._directives


def exit_early(self: Any, plan: Any, resume: Any, *rest: Any) -> dict[Any, Directive]:
    """A leaver goes when its program is through, not when the step is committed."""
    resume = {
        agent: tuple(
            x
            for x in program
            if agent not in plan.leaving
            or not (x.op in (Op.END, Op.UPDATE) or (x.item and x.item.kind is Kind.COMMIT))
        )
        for agent, program in resume.items()
    }
    return _directives(self, plan, resume, *rest)


_usable = HoldingsIndex._usable


def no_late_update(self: HoldingsIndex, versions: Any) -> dict[int, int]:
    """A leaver on short notice must not bring what it holds up to the newest commit."""
    usable = _usable(self, versions)
    short_notice = any(self.held.get(a) is not None for a in self.short_notice)
    return {x: v for x, v in usable.items() if v == 0} if short_notice else usable


def never_spent(self: Executor, item: Item, step: int) -> bool:
    """END does not free what crossed a boundary."""
    if item.kind in (Kind.OUT, Kind.INGRAD):
        return False
    return _is_spent(self, item, step)


_is_spent = Executor._is_spent


def no_caps(seats: Any, extra: int = 0) -> dict[AgentId, int]:
    return {a: 1000 for pipeline in seats for a in pipeline if a is not None}


def keep_leaves(instruction: Any, *rest: Any) -> Any:
    """The sum of a leaf stays when it has been added to others."""
    rule = _rule(instruction, *rest)
    kept = tuple(i for i in rule.consumes if i.kind is not Kind.SUM or i.leaves > 1)
    return rule._replace(consumes=kept)


_rule = rules.rule
