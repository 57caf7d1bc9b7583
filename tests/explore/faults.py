"""Planted faults: protocol rules removed on purpose. The explorer must find every one of them.

A fault is a patch of production code for as long as it is planted, and the histories that hunt it.
Rows are those of the two research notes' tables of rules (S: step graph, C: changes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from tests.explore import operators as operators_module
from tests.explore.job import Job
from tests.explore.plans import Plans

from bamboo_core import graph as graph_module
from bamboo_core import planner, rounds
from bamboo_core.arbiter import Arbiter
from bamboo_core.durable import Durable
from bamboo_core.effects import Transmit
from bamboo_core.executor import Executor
from bamboo_core.facts import Facts
from bamboo_core.ids import AgentId, Fence
from bamboo_core.items import Item, Kind
from bamboo_core.messages import Directive, Suspicion
from bamboo_core.outbox import Outbox
from bamboo_core.plan import layers_of
from bamboo_core.program import Op
from bamboo_core.rounds import Rounds
from bamboo_core.symbolic import Symbolic

SMALL = Job(2, 2, 2)
TALL = Job(1, 3, 2)
LONG = Job(2, 2, 2, steps=5)
SPARE = Job(2, 2, 2, spares=1)
MOVING = Job(1, 2, 2, replica=False, spares=2)
SAVING = Job(2, 2, 2, replica=False, steps=4, save_every=1, salted=True)
SELDOM = Job(2, 2, 2, replica=False, steps=4, save_every=2, salted=True)
HEIR = Job(1, 2, 2, spares=1)


@dataclass(frozen=True)
class Planted:
    """A rule that is left out. hunts: (family, job) in which it must show."""

    name: str
    row: str
    plant: Callable[[ExitStack], None]
    hunts: tuple[tuple[str, Job], ...]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The fault is in force inside; plans are not shared with the healthy code."""
        with ExitStack() as stack:
            stack.enter_context(patch.object(operators_module, "PLANS", Plans()))
            self.plant(stack)
            yield


def _patch(owner: Any, name: str, new: Any) -> Callable[[ExitStack], None]:
    return lambda stack: stack.enter_context(patch.object(owner, name, new))


# ---------------------------------------------------------------- agents

_adopt, _is_stale, _may = Executor._adopt, Executor._is_stale, Executor._may
_accepts, _start, _end = Executor.accepts, Executor._start, Executor._end


def _keep_votes(self: Executor) -> Any:
    votes = {i: r for i, r in self.held.items() if i.kind is Kind.VOTE}
    effects = _adopt(self)
    self.held.update(votes)
    return [e for e in effects if not (hasattr(e, "items") and set(e.items) <= votes.keys())]


def _refuse_before_program(self: Executor, item: Item, fence: Fence) -> bool:
    return self._program is not None and _accepts(self, item, fence)


def _refuse_old_gradients(self: Executor, item: Item) -> bool:
    if item.kind in (Kind.VER, Kind.FILE):
        return False
    return item.step < self.ended + 1


def _version_without_commit(self: Executor, send: Any) -> Transmit:
    assert send.item is not None
    commit = self.commits[send.item.step] if send.item.kind is Kind.COMMIT else None
    return Transmit(send.item, send.peer, self.fence, commit)


def _vote_without_versions(self: Executor, task: Any) -> bool:
    instruction = task.instruction
    if instruction.op is Op.VOTE:
        return all(item in self.held for item in task.items)
    if instruction.op is Op.RECV and instruction.item.kind is Kind.VER:
        return True
    return _may(self, task)


def _drop_at_once(self: Executor, step: int) -> Any:
    directive = self.directive
    assert directive is not None
    self.directive = replace(directive, target=step - 1)
    effects = _end(self, step)
    self.directive = directive
    return effects


def _keep_holdings(self: Executor) -> list[Any]:
    return []


def _grow_prefix(self: Symbolic, task: Any) -> None:
    """Later leaves are added straight onto the sum of the leaf before."""
    k, lo, hi, m = task.step, task.lo, task.hi, task.index
    before = self.batch.leaf_of(m) - 1
    prefix = self.store.get(Item(Kind.LEAF, k, lo, hi, before))
    _weight_gradient(self, task)
    if prefix is not None:
        for name in list(self.store):
            if name.kind in (Kind.LEAF, Kind.PART) and name[1:5] == (k, lo, hi, before + 1):
                sums = self.store[name]
                self.store[name] = tuple(hash(p) for p in zip(prefix, sums, strict=True))


_weight_gradient = Symbolic._backward_weight


# ---------------------------------------------------------------- operator


def _no_voters(self: Rounds) -> Durable:
    return replace(self._out.durable, voters=())


def _forget_voters(self: Arbiter, job: Any, durable: Durable, term: int) -> None:
    _make_arbiter(self, job, replace(durable, voters=()), term)


_make_arbiter = Arbiter.__init__


def _same_term(self: Arbiter, job: Any, durable: Durable, term: int) -> None:
    _make_arbiter(self, job, replace(durable, term=1), 1)


def _persist_late(self: Outbox, effect: Any) -> None:
    self._ready.append(effect)


def _any_evidence(self: Arbiter, agent: AgentId, message: Any, now: float) -> None:
    if isinstance(message, Suspicion):
        message = replace(message, fence=self.fence)
    _received(self, agent, message, now)


_received = Arbiter._received


def _old_forks(durable: Durable) -> Any:
    return _eligible(replace(durable, forks=()))


_eligible = rounds.eligible


# ---------------------------------------------------------------- planner

_plan_init = planner._Planning.__init__


def _oldest_step(self: Any, request: Any) -> None:
    _plan_init(self, request)
    known = [max(h.commits, default=-1) for h in self._holdings.values() if h.versions]
    self._committed = max(min(known, default=-1), request.base)
    self._target = min(self._committed + 1, self._steps)
    self._facts = self._read(self._holdings, frozenset())


def _newest_files(self: Any, request: Any) -> None:
    _plan_init(self, request)
    if request.manifests:
        self._files = max(request.manifests, key=lambda m: m.step)


def _wanted_only(self: Any, agent: Any, facts: Facts) -> tuple[int, ...]:
    return tuple(layers_of(self._goals.wants.get(agent, ())))


def _always_end(self: Any) -> None:
    """END of the step before is asked for though nobody may know its commit."""
    known = self._work.facts.where
    before = Item(Kind.COMMIT, -1)
    if before not in known and self._goals.target > 0:
        known[before] = [self._goals.coordinator]
    _end_older(self)


_end_older = graph_module._Closure._end_older
_directives = planner._Planning._directives


def _exit_early(self: Any, plan: Any, resume: Any, *rest: Any) -> dict[Any, Directive]:
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


_usable = Facts._usable


def _no_late_update(self: Facts, versions: Any) -> dict[int, int]:
    """A rushed leaver must not bring what it holds up to the newest commit."""
    usable = _usable(self, versions)
    rushed = any(self.held.get(a) is not None for a in self.rushed)
    return {x: v for x, v in usable.items() if v == 0} if rushed else usable


PLANTS: tuple[Planted, ...] = (
    Planted("votes survive a stop", "S1", _patch(Executor, "_adopt", _keep_votes),
            (("singles", TALL), ("singles", SMALL), ("seconds", SMALL))),
    Planted("data before the program is refused", "S2",
            _patch(Executor, "accepts", _refuse_before_program), (("singles", SMALL),)),
    Planted("the oldest step decides, not the facts", "S3",
            _patch(planner._Planning, "__init__", _oldest_step), (("singles", SMALL),)),
    Planted("no term in the fence", "S4", _patch(Arbiter, "__init__", _same_term),
            (("operators", SMALL),)),
    Planted("a leaf sum grows out of the one before", "S11",
            _patch(Symbolic, "_backward_weight", _grow_prefix), (("singles", SMALL),)),
    Planted("gradients of an ended step are refused", "C2",
            _patch(Executor, "_is_stale", _refuse_old_gradients),
            (("singles", SMALL), ("seconds", SMALL), ("changes", SPARE))),
    Planted("a copied version comes without its commit", "C3",
            _patch(Executor, "_transmit", _version_without_commit),
            (("heirs", HEIR),)),
    Planted("no voter rule", "C4", _patch(Rounds, "durable", property(_no_voters)),
            (("shrinks", LONG),)),
    Planted("voters are forgotten at a restart", "C5",
            _patch(Arbiter, "__init__", _forget_voters), (("shrinks", LONG),)),
    Planted("directives leave before their facts are durable", "C6",
            _patch(Outbox, "after_facts", _persist_late), (("moves", MOVING),)),
    Planted("unwanted layers are dropped at once", "C7",
            _patch(Executor, "_end", _drop_at_once), (("changes", SPARE), ("moves", MOVING))),
    Planted("a leaver goes before the commit", "C8",
            _patch(planner._Planning, "_directives", _exit_early),
            (("moves", MOVING), ("changes", SPARE))),
    Planted("a vote does not need the versions", "C9",
            _patch(Executor, "_may", _vote_without_versions),
            (("moves", MOVING),)),
    Planted("only wanted holders take part in the transition", "C10",
            _patch(graph_module._Closure, "_layers", _wanted_only),
            (("handovers", MOVING),)),
    Planted("END of an unknown commit is asked for", "C11",
            _patch(graph_module._Closure, "_end_older", _always_end), (("restores", SAVING),)),
    Planted("files of any version are used", "C12",
            _patch(planner._Planning, "__init__", _newest_files), (("restores", SELDOM),)),
    Planted("manifests beyond a fork are used", "C13", _patch(rounds, "eligible", _old_forks),
            (("forks", SAVING),)),
    Planted("evidence outlives its epoch", "C14", _patch(Arbiter, "_received", _any_evidence),
            (("partitions", SMALL),)),
    Planted("a rushed leaver may not catch up", "C15", _patch(Facts, "_usable", _no_late_update),
            (("rushes", MOVING),)),
    Planted("holdings survive a new attempt", "C18", _patch(Executor, "_wipe", _keep_holdings),
            (("restores", SAVING),)),
)  # fmt: skip

NOT_SHOWN: dict[str, str] = {
    "S1": "every holder votes for all that it holds and wants, and a copy precedes the vote, so an"
    " old vote stays true; tests/unit/protocol checks that a stop drops votes all the same",
    "S5": "the commit comes after every F, B, I and V of its step by construction;"
    " tests/unit/protocol checks that they are ancestors of UPDATE",
    "S10": "the executor has no caps; the scheduler's forced releases are counted and tested",
    "C1": "copies in the background are not built yet",
    "C16": "as C1",
    "C17": "as C1",
    "C2": "END waits for the updates of its step, so nobody's floor passes what it still needs;"
    " tests/unit/protocol checks that such items are taken",
    "C9": "a newcomer's UPDATE and its next program wait for its versions anyway",
    "C10": "only leavers hold what they do not want, and they go with the commit",
    "C14": "it costs healthy agents their place, no state; tests of the evidence check it",
}
"""Rules whose removal no history has shown: why not, and what checks them instead."""

FAULTS: tuple[Planted, ...] = tuple(p for p in PLANTS if p.row not in NOT_SHOWN)
"""Those that must be found."""
