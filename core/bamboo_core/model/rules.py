"""What each instruction needs, makes, consumes and releases.

The executor, the dry run and the explorer share these rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from bamboo_core.model.ids import Range
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Instruction, Op, Program, layers_done

# Tens of thousands of instructions are looked at for one plan: these spare an Enum's attributes.
_F, _R, _V, _B, _I, _W = Op.F, Op.R, Op.V, Op.B, Op.I, Op.W
_FOLD, _REDUCE, _VOTE, _COMMIT, _UPDATE = Op.FOLD, Op.REDUCE, Op.VOTE, Op.COMMIT, Op.UPDATE
_INIT, _LOAD, _SEAL, _END, _EXIT = Op.INIT, Op.LOAD, Op.SEAL, Op.END, Op.EXIT
_SEND, _RECV = Op.SEND, Op.RECV
_WITH_VERSIONS = frozenset({Op.F, Op.I, Op.B, Op.V, Op.SAVE})
_FORWARDS = frozenset({Op.F, Op.R, Op.V})
_BACKWARDS = frozenset({Op.I, Op.B, Op.W})


def needs(instruction: Instruction, batch: BatchShape, layers: int) -> Iterable[Item]:
    """Items (including VER) that the agent must hold before the instruction may run."""
    op, k, lo, hi, m = instruction[:5]
    if op is _VOTE:
        return _vote_needs(instruction[7], k, batch)
    if op is _UPDATE:
        return _update_needs((lo, hi), instruction[7][0], k, batch)
    if op is _REDUCE:
        return [Item.chunk(k, (lo, hi), c, m) for c in range(batch.chunks)]
    return _needs(instruction, batch, layers)


def _needs(instruction: Instruction, batch: BatchShape, layers: int) -> Iterator[Item]:
    """The same for instructions that need few items."""
    op, k, lo, hi, m = instruction[:5]
    span = (lo, hi)
    if op in _WITH_VERSIONS:
        yield from versions(lo, hi, k)
    if op is _R:
        yield from versions(*instruction.ranges[0], k)
    if (op is _F or op is _R) and (done := layers_done(instruction)):
        yield Item.prefix(k, span, m, done)
    elif op in _FORWARDS and lo:
        yield Item.eval(k, lo, m) if op is _V else Item.out(k, lo, m)
    elif op in _BACKWARDS:
        yield Item.act(k, span, m)
        if hi < layers:
            yield Item.ingrad(k, hi, m)
        if op is not _I and m % batch.leaf_size:
            leaf = batch.leaf_of(m)
            yield Item.partial(k, span, leaf, m % batch.leaf_size)
    elif op is _FOLD:
        yield Item.leaf(k, span, m)
        done = m - batch.leaves_of(batch.chunk_of(m)).start
        if done:
            yield Item.folded(k, span, batch.chunk_of(m), done)
    elif op is _COMMIT:
        for agent in instruction.agents:
            yield Item.vote(k, agent)
    elif op is _END:
        yield Item.commit(k)
    elif op is _SEAL:
        for layer in range(layers):
            yield Item.file(k, layer)
    elif op is _EXIT and instruction.item is not None:
        yield instruction.item
    elif op is _SEND or op is _RECV:
        assert instruction.item is not None
        yield instruction.item


@lru_cache(maxsize=256)
def _vote_needs(ranges: tuple[Range, ...], step: int, batch: BatchShape) -> tuple[Item, ...]:
    """``ranges`` are flattened pairs: a range of the cut, and the agent's layers within it."""
    pairs = zip(ranges[::2], ranges[1::2], strict=True)
    return tuple(
        x for cut, own in pairs for x in (*reduced(cut, step, batch), *versions(*own, step))
    )


@lru_cache(maxsize=256)
def _update_needs(span: Range, cut: Range, step: int, batch: BatchShape) -> tuple[Item, ...]:
    return (*versions(*span, step), *reduced(cut, step, batch), Item.commit(step))


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
    if op is _INIT or op is _LOAD:
        yield from versions(lo, hi, k)
    elif op is _F:
        yield Item.act(k, span, m)
        if hi < layers:
            yield Item.out(k, hi, m)
    elif op is _R:
        end = instruction.ranges[0][1]
        yield Item.prefix(k, span, m, end - lo)
        if end == hi < layers:
            yield Item.out(k, hi, m)
    elif op is _V:
        last = hi == layers
        yield Item.score(k, m) if last else Item.eval(k, hi, m)
    elif (op is _I or op is _B) and lo:
        yield Item.ingrad(k, lo, m)
    elif op is _REDUCE:
        yield Item.red(k, span, m)
    elif op is _COMMIT and instruction.agents:
        yield Item.commit(k)
    elif op is _UPDATE:
        yield from versions(lo, hi, k + 1)
    if op is _B or op is _W:
        leaf, into = batch.leaf_of(m), m % batch.leaf_size + 1
        full = into == batch.leaf_size
        yield Item.leaf(k, span, leaf) if full else Item.partial(k, span, leaf, into)
    elif op is _FOLD:
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
    if op is _B or op is _W:
        yield Item.act(k, span, m)
        if m % batch.leaf_size:
            yield Item.partial(k, span, batch.leaf_of(m), m % batch.leaf_size)
    elif op is _FOLD:
        yield Item.leaf(k, span, m)
        done = m - batch.leaves_of(batch.chunk_of(m)).start
        if done:
            yield Item.folded(k, span, batch.chunk_of(m), done)
    elif op is _F or op is _R:
        if done := layers_done(instruction):
            yield Item.prefix(k, span, m, done)
    elif op is _UPDATE:
        yield from versions(lo, hi, k)


def releases(instruction: Instruction, layers: int) -> Iterator[Item]:
    """Items that the agent drops afterwards if it received them; their maker keeps them to END."""
    op, k, lo, hi, m = instruction[:5]
    if op is _F and lo:
        yield Item.out(k, lo, m)
    elif op is _V and lo:
        yield Item.eval(k, lo, m)
    elif (op is _B or op is _W) and hi < layers:
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
