"""What each instruction needs, makes, consumes and releases.

The executor, the dry run and the explorer share these rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import NamedTuple

from bamboo_core.model.items import Item, Kind
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Instruction, Op, Program, layers_done


def needs(instruction: Instruction, batch: BatchShape, layers: int) -> Iterator[Item]:
    """Items (including VER) that the agent must hold before the instruction may run."""
    op, k, lo, hi, m = instruction[:5]
    span = (lo, hi)
    if op in (Op.F, Op.I, Op.B, Op.V, Op.UPDATE, Op.SAVE):
        yield from versions(lo, hi, k)
    if op is Op.R:
        yield from versions(*instruction.ranges[0], k)
    if op in (Op.F, Op.R) and (done := layers_done(instruction)):
        yield Item.prefix(k, span, m, done)
    elif op in (Op.F, Op.R, Op.V) and lo:
        yield Item.eval(k, lo, m) if op is Op.V else Item.out(k, lo, m)
    elif op in (Op.I, Op.B, Op.W):
        yield Item.act(k, span, m)
        if hi < layers:
            yield Item.ingrad(k, hi, m)
        if op is not Op.I and m % batch.leaf_size:
            leaf = batch.leaf_of(m)
            yield Item.partial(k, span, leaf, m % batch.leaf_size)
    elif op is Op.FOLD:
        yield Item.leaf(k, span, m)
        done = m - batch.leaves_of(batch.chunk_of(m)).start
        if done:
            yield Item.folded(k, span, batch.chunk_of(m), done)
    elif op is Op.REDUCE:
        for c in range(batch.chunks):
            yield Item.chunk(k, span, c, m)
    elif op is Op.VOTE:
        yield from _vote_needs(instruction, batch)
    elif op is Op.COMMIT:
        for agent in instruction.agents:
            yield Item.vote(k, agent)
    elif op is Op.UPDATE:
        yield from reduced(instruction.ranges[0], k, batch)
        yield Item.commit(k)
    elif op is Op.END:
        yield Item.commit(k)
    elif op is Op.SEAL:
        for layer in range(layers):
            yield Item.file(k, layer)
    elif op is Op.EXIT and instruction.item is not None:
        yield instruction.item
    elif op in (Op.SEND, Op.RECV):
        assert instruction.item is not None
        yield instruction.item


def _vote_needs(vote: Instruction, batch: BatchShape) -> Iterator[Item]:
    """``ranges`` are flattened pairs: a range of the cut, and the agent's layers within it."""
    for cut, held in zip(vote.ranges[::2], vote.ranges[1::2], strict=True):
        yield from reduced(cut, vote.step, batch)
        yield from versions(*held, vote.step)


@lru_cache(maxsize=256)
def versions(lo: int, hi: int, step: int) -> tuple[Item, ...]:
    """VER items of layers lo..hi-1."""
    return tuple(Item.ver(step, layer) for layer in range(lo, hi))


@lru_cache(maxsize=256)
def reduced(cut: tuple[int, int], step: int, batch: BatchShape) -> tuple[Item, ...]:
    """All slices of the reduced gradient of one range of the cut."""
    return tuple(Item.red(step, cut, z) for z in range(batch.chunks))


def makes(instruction: Instruction, batch: BatchShape, layers: int) -> Iterator[Item]:
    """Items (including VER) that exist on the agent after the instruction."""
    op, k, lo, hi, m = instruction[:5]
    span = (lo, hi)
    if op is Op.INIT or op is Op.LOAD:
        yield from versions(lo, hi, k)
    elif op is Op.F:
        yield Item.act(k, span, m)
        if hi < layers:
            yield Item.out(k, hi, m)
    elif op is Op.R:
        end = instruction.ranges[0][1]
        yield Item.prefix(k, span, m, end - lo)
        if end == hi < layers:
            yield Item.out(k, hi, m)
    elif op is Op.V:
        last = hi == layers
        yield Item.score(k, m) if last else Item.eval(k, hi, m)
    elif op in (Op.I, Op.B) and lo:
        yield Item.ingrad(k, lo, m)
    elif op is Op.REDUCE:
        yield Item.red(k, span, m)
    elif op is Op.COMMIT and instruction.agents:
        yield Item.commit(k)
    elif op is Op.UPDATE:
        yield from versions(lo, hi, k + 1)
    if op in (Op.B, Op.W):
        leaf, into = batch.leaf_of(m), m % batch.leaf_size + 1
        full = into == batch.leaf_size
        yield Item.leaf(k, span, leaf) if full else Item.partial(k, span, leaf, into)
    elif op is Op.FOLD:
        c = batch.chunk_of(m)
        folded = m - batch.leaves_of(c).start + 1
        if folded < len(batch.leaves_of(c)):
            yield Item.folded(k, span, c, folded)
        else:
            for z in range(batch.chunks):
                yield Item.chunk(k, span, c, z)


def consumes(instruction: Instruction, batch: BatchShape, layers: int) -> Iterator[Item]:
    """Items that are gone afterwards, whatever their origin: replaced, or of no further use."""
    op, k, lo, hi, m = instruction[:5]
    span = (lo, hi)
    if op in (Op.B, Op.W):
        yield Item.act(k, span, m)
        if m % batch.leaf_size:
            yield Item.partial(k, span, batch.leaf_of(m), m % batch.leaf_size)
    elif op is Op.FOLD:
        yield Item.leaf(k, span, m)
        done = m - batch.leaves_of(batch.chunk_of(m)).start
        if done:
            yield Item.folded(k, span, batch.chunk_of(m), done)
    elif op in (Op.F, Op.R):
        if done := layers_done(instruction):
            yield Item.prefix(k, span, m, done)
    elif op is Op.UPDATE:
        yield from versions(lo, hi, k)


def releases(instruction: Instruction, layers: int) -> Iterator[Item]:
    """Items that the agent drops afterwards if it received them; their maker keeps them to END."""
    op, k, lo, hi, m = instruction[:5]
    if op is Op.F and lo:
        yield Item.out(k, lo, m)
    elif op is Op.V and lo:
        yield Item.eval(k, lo, m)
    elif op in (Op.B, Op.W) and hi < layers:
        yield Item.ingrad(k, hi, m)


class Prepared(NamedTuple):
    """An instruction with absolute steps, and its rules evaluated."""

    instruction: Instruction
    versions: tuple[tuple[int, int], ...]  # (layer, version) that it needs
    items: tuple[Item, ...]  # other items that it needs
    gone: tuple[Item, ...]  # items that it consumes
    releases: tuple[Item, ...]  # items that it drops if they were received
    versions_made: tuple[tuple[int, int], ...]  # (layer, version) that it makes
    items_made: tuple[Item, ...]


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
    needed = list(needs(instruction, batch, layers))
    made = list(makes(instruction, batch, layers))
    return Prepared(
        instruction,
        tuple((i.lo, i.step) for i in needed if i.kind is Kind.VER),
        tuple(i for i in needed if i.kind is not Kind.VER),
        tuple(i for i in consumes(instruction, batch, layers) if i.kind is not Kind.VER),
        tuple(releases(instruction, layers)),
        tuple((i.lo, i.step) for i in made if i.kind is Kind.VER),
        tuple(i for i in made if i.kind is not Kind.VER),
    )
