"""Rules about wrong bits, broken on purpose; :mod:`.faults_bits` lists them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bamboo_core.arbiter import training
from bamboo_core.arbiter_state.durable import Durable, eligible, with_newer
from bamboo_core.arbiter_state.state import State
from bamboo_core.graph.cover import Addend, _Search
from bamboo_core.model import claims, numerics, sampling
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item
from bamboo_core.model.program import Instruction, Op
from bamboo_core.protocol.effects import Retract
from bamboo_core.protocol.executor import Executor
from bamboo_core.protocol.messages import Dispute, Disputed, Manifest, Stop
from bamboo_sim.protocol.parts.symbolic import Slice

_disputed, _disputes = training.disputed, claims.disputes


def no_disputes(cast: Any, question: Any = None) -> tuple[Any, ...]:
    """The coordinator does not look at the claims."""
    return ()


_fill = Executor._fill


def votes_at_once(self: Executor, effects: list[Any], *, for_vote: bool = False) -> bool:
    """A vote does not wait for a comparison that has begun."""
    return False if for_vote else _fill(self, effects)


def any_checkpoint(durable: Durable, committed: float, checkpoint: Any) -> tuple[Manifest, ...]:
    """A checkpoint is good although nothing has verified its step."""
    return eligible(durable)


def results_stay(self: Executor) -> list[Any]:
    """Agents keep what they have computed in a void step."""
    self._is_again = True
    return [Retract(is_new=False)]


def void_once(self: State, *, want_manifests: bool = False) -> Stop:
    """Only the first STOP after the dispute says that the step is void."""
    void = self.durable.void if self.durable.void == self.fence else Fence()
    return Stop(self.fence, want_manifests, void)


def no_third_vote(dispute: Dispute) -> frozenset[AgentId]:
    """The claim of a third agent is ignored."""
    return frozenset()


def without_question(cast: Any, question: Any = None) -> tuple[Dispute, ...]:
    """The coordinator compares the third claim with those of voters only."""
    return _disputes(cast)


def without_gradients(cast: Any, question: Any = None) -> tuple[Dispute, ...]:
    """The coordinator does not compare gradients."""
    return tuple(d for d in _disputes(cast, question) if not d.is_of_gradients)


def two_votes(dispute: Dispute) -> frozenset[AgentId]:
    """Two claims that differ are enough: the first agent is wrong."""
    return frozenset({dispute.claims[0].agent})


def only_of_this_plan(state: State, message: Disputed, now: float) -> None:
    """A dispute counts only while its plan is in force."""
    if message.fence == state.fence:
        _disputed(state, message, now)


def forget_roll_back(durable: Durable, newest: int) -> Durable:
    """An attempt voids no later files if it has computed nothing, for whatever reason it began."""
    return with_newer(replace(durable, rolled_back=0), newest)


def twice(batch: Any, runs: Any, sums: Any, add: Any) -> Any:
    """The leaves of the last sum are in another one, too."""
    total = _add_up(batch, runs, sums, add)
    return add(total, sums[-1]) if len(sums) > 1 else total


_add_up = numerics.add_up


def no_merge(task: Instruction, every: int) -> bool:
    """An agent checks everything but the sums of two runs of leaves."""
    return task.op is not Op.FOLD and _is_task_due(task, every)


_is_task_due = sampling.is_task_due


def still_whole(self: _Search, run: Any) -> Any:
    """A sum of which slices were sent is taken for one that its maker has in one piece."""
    return Addend(run, self._owner(run[0])) if run in self._sliced else _existing(self, run)


_existing = _Search._existing


def same_slice(self: Any, task: Any) -> None:
    """Every owner gets the elements of the first slice."""
    k, span, (run, (_, slices)) = task.step, (task.lo, task.hi), task.ranges
    sums = self.store[Item.sum(k, span, run)]
    for z in range(slices):
        self.store[Item.piece(k, span, run, z, slices)] = Slice((0, slices), sums)
