"""The items that each instruction needs, makes, consumes and releases.

The executor, the dry run and the explorer share these rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import NamedTuple

from bamboo_core.model.ids import Range
from bamboo_core.model.items import Item, Kind, addends, pieces_of
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import (
    BACKWARDS,
    Instruction,
    Op,
    Program,
    layers_done,
    updating,
    voted,
)

_NONE: tuple[Item, ...] = ()
_new = tuple.__new__  # tens of thousands of rules are looked at for one plan: this spares __new__


class Rule(NamedTuple):
    """Items, including VER. All rules of an instruction at once: they share most names."""

    needs: tuple[Item, ...] = _NONE  # the agent must hold them before the instruction may run
    consumes: tuple[Item, ...] = _NONE  # gone afterwards: replaced, or of no further use
    # dropped afterwards if the agent has received them; their maker keeps them to END
    releases: tuple[Item, ...] = _NONE
    makes: tuple[Item, ...] = _NONE  # they exist on the agent afterwards


def rule(instruction: Instruction, batch: BatchShape, layers: int) -> Rule:
    """The effect of the instruction on the items that its agent holds."""
    return _RULES[instruction[0]](instruction, batch, layers)


def needs(instruction: Instruction, batch: BatchShape, layers: int) -> tuple[Item, ...]:
    """Items that the agent must hold before the instruction may run."""
    return rule(instruction, batch, layers).needs


def makes(instruction: Instruction, batch: BatchShape, layers: int) -> tuple[Item, ...]:
    """Items that exist on the agent after the instruction."""
    return rule(instruction, batch, layers).makes


def consumes(instruction: Instruction, batch: BatchShape, layers: int) -> tuple[Item, ...]:
    """Items that are gone afterwards, whatever their origin."""
    return rule(instruction, batch, layers).consumes


# ---------------------------------------------------------------- weights


@lru_cache(maxsize=256)
def versions(lo: int, hi: int, step: int) -> tuple[Item, ...]:
    """VER items of layers lo..hi-1."""
    return tuple(Item.ver(step, layer) for layer in range(lo, hi))


def _fresh(x: Instruction, batch: BatchShape, layers: int) -> Rule:
    """INIT and LOAD."""
    return Rule(makes=versions(x[2], x[3], x[1]))


def _update(x: Instruction, batch: BatchShape, layers: int) -> Rule:
    _, k, lo, hi, _, _, _, ranges, _, _ = x
    needed = _update_needs((lo, hi), ranges, k)
    return Rule(needed, versions(lo, hi, k), _NONE, versions(lo, hi, k + 1))


@lru_cache(maxsize=256)
def _update_needs(span: Range, ranges: tuple[Range, ...], step: int) -> tuple[Item, ...]:
    gradients = (x for cut, (_, n) in updating(ranges) for x in reduced(cut, step, n))
    return (*versions(*span, step), *gradients, Item.commit(step))


def _save(x: Instruction, batch: BatchShape, layers: int) -> Rule:
    return Rule(versions(x[2], x[3], x[1]))


# ---------------------------------------------------------------- computations


def _forward(x: Instruction, batch: BatchShape, layers: int) -> Rule:
    _, k, lo, hi, m = x[:5]
    span, act, gone = (lo, hi), Item.act(k, (lo, hi), m), _NONE
    received = (Item.out(k, lo, m),) if lo else _NONE
    needed = (*versions(lo, hi, k), *received)
    if done := layers_done(x):
        gone = (Item.prefix(k, span, m, done),)
        needed = (*versions(lo, hi, k), *gone)
    made = (act, Item.out(k, hi, m)) if hi < layers else (act,)
    return _new(Rule, (needed, gone, received, made))


def _ahead(x: Instruction, batch: BatchShape, layers: int) -> Rule:
    _, k, lo, hi, m = x[:5]
    span, (begin, end) = (lo, hi), x[7][0]
    needed, gone = versions(begin, end, k), _NONE
    if done := layers_done(x):
        gone = (Item.prefix(k, span, m, done),)
        needed = (*needed, *gone)
    elif lo:
        needed = (*needed, Item.out(k, lo, m))
    made = Item.prefix(k, span, m, end - lo)
    return Rule(needed, gone, _NONE, (made, Item.out(k, hi, m)) if end == hi < layers else (made,))


def _validate(x: Instruction, batch: BatchShape, layers: int) -> Rule:
    _, k, lo, hi, m = x[:5]
    received = (Item.eval(k, lo, m),) if lo else _NONE
    made = Item.score(k, m) if hi == layers else Item.eval(k, hi, m)
    return Rule((*versions(lo, hi, k), *received), _NONE, received, (made,))


def _backward(x: Instruction, batch: BatchShape, layers: int) -> Rule:
    """B, I and W."""
    op, k, lo, hi, m = x[:5]
    span, act = (lo, hi), Item.act(k, (lo, hi), m)
    needed = (act,) if op is _W else (*versions(lo, hi, k), act)
    received = (Item.ingrad(k, hi, m),) if hi < layers else _NONE
    made = _NONE if op is _W or not lo else (Item.ingrad(k, lo, m),)
    if op is _I:
        return _new(Rule, ((*needed, *received), _NONE, _NONE, made))
    leaf, before = batch.leaf_of(m), m % batch.leaf_size
    sums = (Item.partial(k, span, leaf, before),) if before else _NONE
    is_full = before + 1 == batch.leaf_size
    total = (
        Item.sum(k, span, (leaf, leaf + 1)) if is_full else Item.partial(k, span, leaf, before + 1)
    )
    return _new(Rule, ((*needed, *received, *sums), (act, *sums), received, (*made, total)))


# ---------------------------------------------------------------- sums


def _fold(x: Instruction, batch: BatchShape, layers: int) -> Rule:
    _, k, lo, hi, middle = x[:5]
    span, (first, end) = (lo, hi), x[7][0]
    spent = Item.sum(k, span, (first, middle)), Item.sum(k, span, (middle, end))
    return _new(Rule, (spent, spent, _NONE, (Item.sum(k, span, (first, end)),)))


def _slice(x: Instruction, batch: BatchShape, layers: int) -> Rule:
    _, k, lo, hi = x[:4]
    span, (run, (_, slices)) = (lo, hi), x[7]
    spent = (Item.sum(k, span, run),)  # nothing may be added to what others have
    return _new(Rule, (spent, spent, _NONE, pieces_of(span, k, run, slices)))


def _reduce(x: Instruction, batch: BatchShape, layers: int) -> Rule:
    _, k, lo, hi, z = x[:5]
    span, ((_, slices), *runs) = (lo, hi), x[7]
    made = (Item.red(k, span, z, slices),)
    return _new(Rule, (addends(span, k, z, slices, tuple(runs)), _NONE, _NONE, made))


@lru_cache(maxsize=256)
def reduced(cut: Range, step: int, slices: int) -> tuple[Item, ...]:
    """All slices of the reduced gradient of one range of the cut."""
    return tuple(Item.red(step, cut, z, slices) for z in range(slices))


# ---------------------------------------------------------------- the end of a step


def _vote(x: Instruction, batch: BatchShape, layers: int) -> Rule:
    return Rule(_vote_needs(x[7], x[1]))


@lru_cache(maxsize=256)
def _vote_needs(ranges: tuple[Range, ...], step: int) -> tuple[Item, ...]:
    return tuple(
        x
        for cut, own, (_, slices) in voted(ranges)
        for x in (*reduced(cut, step, slices), *versions(*own, step))
    )


def _commit(x: Instruction, batch: BatchShape, layers: int) -> Rule:
    step, agents = x[1], x[8]
    votes = tuple([Item.vote(step, agent) for agent in agents])
    return Rule(votes, _NONE, _NONE, (Item.commit(step),) if agents else _NONE)


def _seal(x: Instruction, batch: BatchShape, layers: int) -> Rule:
    files = tuple(Item.file(x[1], layer) for layer in range(layers))
    commit = () if x[5] is None else (x[5],)
    scores = (Item.score(x[1], m) for first, end in x[7] for m in range(first, end))
    return Rule((*files, *commit, *scores))


def _end(x: Instruction, batch: BatchShape, layers: int) -> Rule:
    return Rule((Item.commit(x[1]),))


def _exit(x: Instruction, batch: BatchShape, layers: int) -> Rule:
    return Rule(_NONE if x[5] is None else (x[5],))


def _message(x: Instruction, batch: BatchShape, layers: int) -> Rule:
    assert x[5] is not None
    return Rule((x[5],))


_I, _W = Op.I, Op.W
_RULES: dict[Op, Callable[[Instruction, BatchShape, int], Rule]] = {
    Op.INIT: _fresh,
    Op.LOAD: _fresh,
    Op.F: _forward,
    Op.R: _ahead,
    Op.B: _backward,
    Op.I: _backward,
    Op.W: _backward,
    Op.V: _validate,
    Op.FOLD: _fold,
    Op.SLICE: _slice,
    Op.REDUCE: _reduce,
    Op.VOTE: _vote,
    Op.COMMIT: _commit,
    Op.UPDATE: _update,
    Op.SAVE: _save,
    Op.SEAL: _seal,
    Op.END: _end,
    Op.EXIT: _exit,
    Op.SEND: _message,
    Op.RECV: _message,
}


class Prepared(NamedTuple):
    """An instruction with absolute steps, and its rules evaluated."""

    instruction: Instruction
    versions: tuple[tuple[int, int], ...]  # (layer, version) that it needs
    items: tuple[Item, ...]  # other items that it needs
    gone: tuple[Item, ...]  # items that it consumes
    releases: tuple[Item, ...]  # items that it drops if they were received
    versions_made: tuple[tuple[int, int], ...]  # (layer, version) that it makes
    items_made: tuple[Item, ...]


def spoilt(task: Prepared) -> list[Item]:
    """List what an instruction that has failed half-way may have changed: a backward's activation,
    and the sum that it adds to."""
    if task.instruction.op not in BACKWARDS:
        return []
    return [item for item in task.items if item.kind in (Kind.ACT, Kind.PART)]


@lru_cache(maxsize=256)
def prepare(program: Program, step: int, batch: BatchShape, layers: int) -> tuple[Prepared, ...]:
    """The program for an absolute step, without the instructions that the step skips."""
    tasks = [
        _prepared(x, step, batch, layers)
        for x in program
        if x.every <= 1 or (x.step + step) % x.every == 0
    ]
    needed = set[Item]()
    for i in reversed(range(len(tasks))):
        if tasks[i].instruction.op in (Op.F, Op.I):
            tasks[i] = _without_activation(tasks[i], needed)
        needed.update(item for item in tasks[i].items if item.kind is Kind.ACT)
    return tuple(tasks)


def _without_activation(task: Prepared, needed: Collection[Item]) -> Prepared:
    """Drop the activation of a forward that no later instruction needs.

    After a loss a forward may run again only for its output or its input gradient. Its leaf sum
    is on another agent, so no B or W here would free the activation. needed: by later instructions.
    """
    k, lo, hi, m = task.instruction[1:5]
    act = Item.act(k, (lo, hi), m)
    if act in needed:
        return task
    made = tuple(i for i in task.items_made if i != act)
    return task._replace(gone=(*task.gone, act), items_made=made)


def _absolute(instruction: Instruction, step: int) -> Instruction:
    item = instruction.item
    if item is not None:
        item = item._replace(step=item.step + step)
    return instruction._replace(step=instruction.step + step, item=item)


@lru_cache(maxsize=4096)  # resumed programs differ, their instructions do not
def _prepared(relative: Instruction, step: int, batch: BatchShape, layers: int) -> Prepared:
    instruction = _absolute(relative, step)
    needed, gone, released, made = rule(instruction, batch, layers)
    return Prepared(
        instruction,
        tuple((i.lo, i.step) for i in needed if i.kind is Kind.VER),
        tuple(i for i in needed if i.kind is not Kind.VER),
        tuple(i for i in gone if i.kind is not Kind.VER),
        released,
        tuple((i.lo, i.step) for i in made if i.kind is Kind.VER),
        tuple(i for i in made if i.kind is not Kind.VER),
    )
