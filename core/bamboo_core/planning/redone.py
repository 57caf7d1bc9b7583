"""How many tasks of an interrupted step are computed again after a loss. Pure.

A task was done before if what agents still hold proves it, or if it comes before such a task in the
program of a lost agent, since agents compute in the order of their programs. What a lost agent did
after that has left no trace, so the number is the least that can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from math import inf

from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Instruction, Op, Program, single
from bamboo_core.placement.plan import Cut

_PARTS = {Op.F: (Op.F,), Op.I: (Op.I,), Op.W: (Op.W,), Op.B: (Op.I, Op.W)}
"""Forwards and backwards; a fused backward is both of its halves."""

Part = tuple[Op, int, int]
"""F, I or W; the first layer of the stage; the micro-batch."""


@dataclass(frozen=True)
class Interrupted:
    """A step that was stopped."""

    step: int
    batch: BatchShape
    cut: Cut
    told: Set[Part]  # what its agents were to compute; empty: not known
    lost: Iterable[Program]  # the same of agents that have not reported
    held: Iterable[Set[Item]]  # what agents hold that have reported, with absolute steps
    counted: Set[Part] = frozenset()  # by older plans for the same step


@dataclass(frozen=True)
class Redone:
    """The tasks that are computed again."""

    tasks: int = 0
    parts: frozenset[Part] = frozenset()  # counted now or by older plans for the same step


def find(interrupted: Interrupted, resume: Mapping[AgentId, Program]) -> Redone:
    """Forwards and backwards in the new programs of the step that were done before.

    What an older plan has counted does not count again: perhaps its agents did not come to it.
    """
    proof = _Proof(interrupted.cut, interrupted.batch)
    for items in interrupted.held:
        for item in items:
            if item.step == interrupted.step:
                proof.see(item)
    done: set[Part] = set()
    for program in interrupted.lost:
        done |= _certain(program, proof)
    knows_any, told = bool(done) or proof.is_any, interrupted.told
    if not knows_any and told_by(resume) <= told:  # the usual case, early in a step
        return Redone(parts=frozenset(interrupted.counted))

    def is_done(part: Part) -> bool:
        is_older = bool(told) and part not in told  # of an older plan for the same step
        is_proved = knows_any and (part in done or proof.of(part))
        return part not in interrupted.counted and (is_older or is_proved)

    again = [
        set(filter(is_done, _parts(x)))
        for program in resume.values()
        for x in _computing(program)
        if not _is_empty(x)
    ]
    return Redone(sum(map(bool, again)), frozenset(interrupted.counted).union(*again))


def told_by(programs: Mapping[AgentId, Program]) -> frozenset[Part]:
    """The tasks in these programs."""
    return frozenset(
        [part for program in programs.values() for x in _computing(program) for part in _parts(x)]
    )


def _computing(program: Program) -> Program:
    """The few instructions of a program that have parts."""
    return tuple([x for x in single(program) if x[0] in _PARTS])


def _parts(x: Instruction) -> list[Part]:
    return [(part, x[2], x[4]) for part in _PARTS.get(x[0], ())]


def _is_empty(x: Instruction) -> bool:
    """Whether all layers of a forward were computed ahead."""
    return x.op is Op.F and bool(x.ranges) and x.ranges[0][0] == x.hi


def _certain(program: Program, proof: _Proof) -> set[Part]:
    """The tasks of a program up to the last one that is proved."""
    each = [_parts(x) for x in single(program)]
    end = max((n for n, parts in enumerate(each, start=1) if any(map(proof.of, parts))), default=0)
    return {part for parts in each[:end] for part in parts}


@dataclass
class _Proof:
    """Tasks that are proved by items. Stages are named by their first layers."""

    cut: Cut
    batch: BatchShape
    forward: dict[int, int] = field(default_factory=dict)  # micro-batch -> last stage that is done
    # micro-batch -> first stage whose input gradient has been computed
    backward: dict[int, int] = field(default_factory=dict)
    summed: set[tuple[int, int]] = field(default_factory=set)  # (stage, micro-batch)

    @property
    def is_any(self) -> bool:
        """Whether any item has shown anything."""
        return bool(self.forward or self.backward or self.summed)

    def see(self, item: Item) -> None:
        """An item of the step that some agent holds."""
        if item.kind is Kind.OUT:
            for lo, hi in self.cut:
                if hi == item.lo:
                    self._forward(item.index, lo)
        elif item.kind is Kind.INGRAD:
            self._backward(item.index, item.lo)
        elif (item.lo, item.hi) not in self.cut:
            return  # of an older cut, or of no stage
        elif item.kind is Kind.ACT:
            self._forward(item.index, item.lo)
        else:
            for m in self._in_sum(item):
                self.summed.add((item.lo, m))
                self._backward(m, item.hi)

    def _forward(self, microbatch: int, stage: int) -> None:
        self.forward[microbatch] = max(stage, self.forward.get(microbatch, stage))

    def _backward(self, microbatch: int, stage: int) -> None:
        """The gradient that leaves the stage; behind the last stage it is the loss."""
        self.backward[microbatch] = min(stage, self.backward.get(microbatch, stage))
        self._forward(microbatch, self.cut[-1][0])

    def _in_sum(self, item: Item) -> Iterable[int]:
        """The micro-batches that a sum of gradients contains; none: the item is no sum."""
        batch, index = self.batch, item.index
        if item.kind is Kind.PART:
            return batch.microbatches_of(index)[: item.part]
        leaves = range(0)
        if item.kind in (Kind.SUM, Kind.PIECE):
            leaves = range(*item.run)
        elif item.kind is Kind.RED:
            leaves = range(batch.leaves)
        return (m for leaf in leaves for m in batch.microbatches_of(leaf))

    def of(self, part: Part) -> bool:
        """Whether the part was done."""
        op, stage, microbatch = part
        if op is Op.F:
            return stage <= self.forward.get(microbatch, -1)
        if op is Op.I:
            return stage >= self.backward.get(microbatch, inf)
        return (stage, microbatch) in self.summed
