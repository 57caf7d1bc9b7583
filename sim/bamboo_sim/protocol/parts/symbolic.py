"""The symbolic compute back end: a tensor is a hash of operation and inputs.

Symbols are made layer by layer, so they depend neither on the cut, nor on the grid, nor on which
agent computed what. Equal final symbols mean that exactly the same arithmetic was done, with each
micro-batch once. :func:`reference` is that arithmetic as a sequential program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple

from bamboo_core.model import claims, sampling
from bamboo_core.model.claims import (
    ClaimBook,
    Claims,
    DisputedError,
    Question,
    Said,
    about_gradient,
    name_of,
)
from bamboo_core.model.ids import AgentId, Range
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.numerics import BatchShape, add_up
from bamboo_core.model.program import Instruction, Op, layers_done, updating, voted
from bamboo_core.model.ties import Ties, partners
from bamboo_core.protocol.messages import CommitRecord

Symbol = int
Sums = tuple[Symbol, ...]
"""One for each layer of a stage. A symbol stands for every element of the layer's gradient."""

_DATA, _INIT, _FORWARD, _LOSS, _INPUT_GRADIENT, _WEIGHT_GRADIENT = range(101, 107)
_ADD, _UNEQUAL, _COMMIT, _UPDATE, _SCORE = range(107, 112)
_VALIDATION, _FLIPPED, _ALTERED, _TIED = 114, 115, 116, 117


class SymbolError(Exception):
    """The result cannot be right: votes differ, or a layer has no vote."""


class ContradictionError(Exception):
    """The agent gets two results of one forward or sum: its device is faulty."""


@dataclass(frozen=True)
class Flip:
    """A wrong bit in the next F, R, FOLD or VOTE of an agent. lasts: in every computation of that
    forward, sum or vote; but never when an agent checks its own work by a second computation."""

    op: Op
    lasts: bool
    name: Item | None = None  # the forward or sum that it has spoiled; of a vote: of neither

    @property
    def has_struck(self) -> bool:
        return self.name is not None


class Vote(NamedTuple):
    """An agent's vote, and what only the checker may know."""

    gradients: dict[int, Symbol]  # reduced ones, by layer
    said: Claims
    begun: frozenset[Item]  # forwards that are not done, for the checker
    held: dict[int, Symbol]  # layer -> its version, for the checker


class Slice(NamedTuple):
    """PIECE or RED: which elements, and their symbols by layer."""

    elements: tuple[int, int]  # number of the slice, and of all slices
    sums: Sums


def symbol(*parts: int) -> Symbol:
    """The hash that stands for an operation on these inputs."""
    return hash(parts)


class Symbolic:
    """Payloads of one agent, by item name; ``layers``: layer -> symbol of its present version."""

    def __init__(
        self,
        agent: AgentId,
        num_layers: int,
        batch: BatchShape,
        save_every: int = 0,
        ties: Ties = (),
    ) -> None:
        self.agent, self.num_layers, self.batch = agent, num_layers, batch
        self.save_every, self.ties = save_every, ties
        self.store: dict[Item, Any] = {}
        self.layers: dict[int, Symbol] = {}
        self.salt = 0
        self.compares = False
        self.check_every = 0  # steps between two checks of a sum by the agent itself; 0: none
        self.book = ClaimBook()
        self.question: Question | None = None
        self.flip: Flip | None = None  # the fault of its device, if it has one
        self.left_out: frozenset[Item] = frozenset()  # forwards of which a slice has failed
        self.is_altered = False  # a layer has changed in its memory

    def copy(self) -> Symbolic:
        """An independent copy; symbols are shared."""
        new = Symbolic.__new__(Symbolic)
        new.agent, new.num_layers, new.save_every = self.agent, self.num_layers, self.save_every
        new.batch, new.salt, new.check_every = self.batch, self.salt, self.check_every
        new.store, new.layers = self.store.copy(), self.layers.copy()
        new.compares, new.book, new.flip = self.compares, self.book.copy(), self.flip
        new.question, new.left_out, new.ties = self.question, self.left_out, self.ties
        new.is_altered = self.is_altered
        return new

    @property
    def is_sound(self) -> bool:
        """Whether neither its device nor its memory has been wrong."""
        return not self.is_altered and (self.flip is None or not self.flip.has_struck)

    def alter(self, layer: int) -> bool:
        """Weights or optimizer state of a layer change in memory. False: it is not here."""
        if layer not in self.layers:
            return False
        self.layers[layer] = symbol(_ALTERED, self.layers[layer])
        self.is_altered = True
        return True

    # ------------------------------------------------------------ items from and to others

    def payload(self, item: Item) -> Any:
        """The payload to send for an item."""
        return self.layers[item.lo] if item.kind is Kind.VER else self.store[item]

    def accept(self, item: Item, payload: Any) -> None:
        """Store the payload of a peer's item."""
        if item.kind is Kind.VER:
            self.layers[item.lo] = payload
        else:
            self.store[item] = payload

    def drop(self, item: Item) -> None:
        """Forget a payload."""
        if item.kind is Kind.VER:
            self.layers.pop(item.lo, None)
        else:
            self.store.pop(item, None)

    def record(self, step: int, layer: int) -> None:
        """A layer's file was written: its record holds the symbol."""
        self.store[Item.file(step, layer)] = self.layers[layer]

    # ------------------------------------------------------------ instructions

    def run(
        self, instruction: Instruction, files: Mapping[int, Symbol] | None = None
    ) -> CommitRecord | None:
        """Run an instruction. COMMIT returns its record. files: layer -> symbol, for LOAD."""
        match instruction.op:
            case Op.INIT:
                for layer in range(instruction.lo, instruction.hi):
                    self.layers[layer] = initial(layer)
            case Op.LOAD:
                assert files is not None
                for layer in range(instruction.lo, instruction.hi):
                    self.layers[layer] = files[layer]
            case Op.COMMIT:
                return self._commit(instruction)
            case op:
                self._perform[op](self, instruction)
        return None

    def _forward(self, task: Instruction) -> None:
        self._go_forward(task, Item.act(task.step, (task.lo, task.hi), task.index), task.hi)

    def _forward_ahead(self, task: Instruction) -> None:
        end = task.ranges[0][1]
        span = task.lo, task.hi
        self._go_forward(task, Item.prefix(task.step, span, task.index, end - task.lo), end)

    def _go_forward(self, task: Instruction, name: Item, end: int) -> None:
        """The forward up to layer ``end``, from where the task says that it has got."""
        k, lo, hi, m = task.step, task.lo, task.hi, task.index
        if done := layers_done(task):
            before, x = self.store[Item.prefix(k, (lo, hi), m, done)]
        else:
            before, x = (), self.store[Item.out(k, lo, m)] if lo else symbol(_DATA, k, m)
        acts = list(before)
        for layer in range(lo + done, end):
            acts.append((x, self.layers[layer]))
            x = symbol(_FORWARD, self.layers[layer], x)
            x = self._computed(task, x)
        if self.compares and end == hi:
            entered = acts[0][0] if acts else x
            again = self.book.is_again(k) or self.question is not None
            layers = symbol(*(self.layers[i] for i in range(lo, hi))) if again else 0
            if not self.book.add(name_of(task), entered, x, layers):
                raise ContradictionError(f"{self.agent} gets another result of {task}")
        if end == hi < self.num_layers:
            self.store[Item.out(k, hi, m)] = x
        self.store[name] = (tuple(acts), x)

    def _computed(self, task: Instruction, right: Symbol, name: Item | None = None) -> Symbol:
        """The device's result. A fault that lasts gives the same wrong result every time."""
        flip, name = self.flip, name or name_of(task)
        if flip is None or flip.op is not task.op or (flip.name is not None and not flip.lasts):
            return right
        if flip.name is not None and flip.name != name:
            return right
        self.flip = replace(flip, name=name)
        return symbol(_FLIPPED, right)

    def _gradients(self, task: Instruction) -> Iterator[tuple[int, Symbol, Symbol, Symbol]]:
        """(layer, its input, gradient by its output, gradient by its input), deepest first."""
        k, lo, hi, m = task.step, task.lo, task.hi, task.index
        acts, out = self.store[Item.act(k, (lo, hi), m)]
        last = hi == self.num_layers
        gradient = symbol(_LOSS, out) if last else self.store[Item.ingrad(k, hi, m)]
        for layer in range(hi - 1, lo - 1, -1):
            x, weights = acts[layer - lo]
            below = symbol(_INPUT_GRADIENT, weights, x, gradient)
            yield layer, x, gradient, below
            gradient = below

    def _backward_input(self, task: Instruction) -> None:
        for layer, _, _, below in self._gradients(task):
            if layer == task.lo:
                self.store[Item.ingrad(task.step, task.lo, task.index)] = below

    def _backward_weight(self, task: Instruction) -> None:
        k, lo, hi, m = task.step, task.lo, task.hi, task.index
        leaf, before = self.batch.leaf_of(m), m % self.batch.leaf_size
        sums = [0] * (hi - lo)
        if before:
            sums = list(self.store[Item.partial(k, (lo, hi), leaf, before)])
        for layer, x, gradient, _ in self._gradients(task):
            sums[layer - lo] = symbol(_WEIGHT_GRADIENT, sums[layer - lo], x, gradient)
        full = before + 1 == self.batch.leaf_size
        name = Item.partial(k, (lo, hi), leaf, before + 1)
        self.store[Item.sum(k, (lo, hi), (leaf, leaf + 1)) if full else name] = tuple(sums)

    def _backward(self, task: Instruction) -> None:
        self._backward_weight(task)
        if task.lo:
            self._backward_input(task)

    def spoil(self, task: Instruction) -> None:
        """A backward fails half-way: its activation, and the sum that it adds to, are wrong now."""
        k, span, m = task.step, (task.lo, task.hi), task.index
        acts, out = self.store[act := Item.act(k, span, m)]
        self.store[act] = tuple((symbol(_FLIPPED, x), w) for x, w in acts), symbol(_FLIPPED, out)
        if task.op is not Op.I and (before := m % self.batch.leaf_size):
            total = Item.partial(k, span, self.batch.leaf_of(m), before)
            self.store[total] = tuple(symbol(_FLIPPED, x) for x in self.store[total])

    def _fold(self, task: Instruction) -> None:
        k, span, (first, end) = task.step, (task.lo, task.hi), task.ranges[0]
        left = self.store[Item.sum(k, span, (first, task.index))]
        right = self.store[Item.sum(k, span, (task.index, end))]
        total, name = added(left, right), Item.sum(k, span, (first, end))
        made = self._computed(task, total[0], name)
        if made != total[0] and sampling.is_task_due(task, self.check_every):
            raise ContradictionError(f"{self.agent} gets another result of {task}")
        self.store[name] = (made, *total[1:])

    def _slice(self, task: Instruction) -> None:
        k, span, (run, (_, slices)) = task.step, (task.lo, task.hi), task.ranges
        sums = self.store[Item.sum(k, span, run)]
        for z in range(slices):
            self.store[Item.piece(k, span, run, z, slices)] = Slice((z, slices), sums)

    def _reduce(self, task: Instruction) -> None:
        k, span, z, ((_, slices), *runs) = task.step, (task.lo, task.hi), task.index, task.ranges
        pieces = [self.store[Item.piece(k, span, run, z, slices)] for run in runs]
        if {piece.elements for piece in pieces} != {(z, slices)}:
            raise SymbolError(f"{task} adds other elements")
        sums = add_up(self.batch, runs, [piece.sums for piece in pieces], added)
        self.store[Item.red(k, span, z, slices)] = Slice((z, slices), sums)

    def _reduced(self, cut: Range, step: int, layer: int, slices: int) -> Symbol:
        """The layer's reduced gradient. All elements of a right one have the same symbol."""
        found = [self.store[Item.red(step, cut, z, slices)] for z in range(slices)]
        if [piece.elements for piece in found] != [(z, slices) for z in range(slices)]:
            raise SymbolError(f"slices of layers {cut} are not those of step {step}")
        symbols = list(dict.fromkeys(piece.sums[layer - cut[0]] for piece in found))
        return symbols[0] if len(symbols) == 1 else symbol(_UNEQUAL, *symbols)

    def _gradient(self, step: int, layer: int, sums: Sequence[tuple[Range, Range]]) -> Symbol:
        """The layer's reduced gradient, and those of layers that are tied to it. sums: ranges whose
        reduced gradients are here, each with its slices."""
        tied = sorted((layer, *partners(self.ties).get(layer, ())))
        found = [
            self._reduced(cut, step, x, slices)
            for x in tied
            for cut, (_, slices) in dict.fromkeys(sums)  # an agent may vote twice for one range
            if cut[0] <= x < cut[1]
        ]
        if len(found) != len(tied):
            raise SymbolError(f"{self.agent} has {len(found)} of the gradients of layers {tied}")
        return tied_gradient(found)

    def _vote(self, task: Instruction) -> None:
        sums = [(cut, slices) for cut, _, slices in voted(task.ranges)]
        vote = {
            layer: self._gradient(task.step, layer, sums)
            for _, held, _ in voted(task.ranges)
            for layer in range(*held)
        }
        if vote:
            vote[min(vote)] = self._computed(task, vote[min(vote)])
        held = {layer: self.layers[layer] for span in task.ranges[1::3] for layer in range(*span)}
        said = self.book.of(task.step)
        begun = self._begun(task.step, said)
        if self.is_compared(task.step) or self.book.is_again(task.step):
            said |= {Item.ver(task.step, layer): Said(0, x) for layer, x in held.items()}
        self.store[Item.vote(task.step, self.agent)] = Vote(vote, said, begun, held)

    def is_compared(self, step: int) -> bool:
        """Whether the vote says what the agent holds."""
        return sampling.are_copies_due(step, self.save_every)

    def _begun(self, step: int, said: Claims) -> frozenset[Item]:
        """Forwards that are begun but not done when the agent votes, for the checker."""
        found = (i for i in self.store if i.kind is Kind.PREFIX and i.step == step)
        begun = {i._replace(part=i.hi - i.lo) for i in found}
        return frozenset(begun - said.keys() - self.left_out)

    def _commit(self, task: Instruction) -> CommitRecord:
        scores = self._scores(task.step)
        if not task.agents:
            return self.scored(task.step)
        cast = {agent: self.store[Item.vote(task.step, agent)] for agent in task.agents}
        said = {agent: vote.said | _of_gradients(task.step, vote) for agent, vote in cast.items()}
        if differences := claims.disputes(said, self.question):
            raise DisputedError(differences)
        found: dict[int, Symbol] = {}
        for agent in task.agents:
            for layer, vote in cast[agent].gradients.items():
                if found.setdefault(layer, vote) != vote:
                    raise SymbolError(f"votes for layer {layer} of step {task.step} differ")
        lacking = sorted(set(range(self.num_layers)) - found.keys())
        if lacking:
            raise SymbolError(f"no vote covers layers {lacking} of step {task.step}")
        total = committed(task.step, [found[x] for x in range(self.num_layers)])
        record = CommitRecord(task.step, loss=_as_float(total), validation_loss=scores)
        self.store[Item.commit(task.step)] = record
        return record

    def scored(self, step: int) -> CommitRecord:
        """The record of the step's validation alone."""
        return CommitRecord(step, validation_loss=self._scores(step))

    def _scores(self, step: int) -> float | None:
        names = sorted(i for i in self.store if i.kind is Kind.SCORE and i.step == step)
        return _as_float(symbol(*(self.store[i] for i in names))) if names else None

    def _validate(self, task: Instruction) -> None:
        k, lo, hi, m = task.step, task.lo, task.hi, task.index
        x = self.store[Item.eval(k, lo, m)] if lo else symbol(_VALIDATION, m)
        for layer in range(lo, hi):
            x = symbol(_FORWARD, self.layers[layer], x)
        if hi < self.num_layers:
            self.store[Item.eval(k, hi, m)] = x
        else:
            self.store[Item.score(k, m)] = symbol(_SCORE, x)

    def _update(self, task: Instruction) -> None:
        k, sums = task.step, list(updating(task.ranges))
        record: CommitRecord = self.store[Item.commit(k)]
        for layer in range(task.lo, task.hi):
            gradient = self._gradient(k, layer, sums)
            self.layers[layer] = updated(self.layers[layer], gradient, record, self.salt)

    @staticmethod
    def _nothing(task: Instruction) -> None:
        """The shell performs SAVE and SEAL."""

    _perform: dict[Op, Callable[..., None]] = {  # noqa: RUF012 - a table of methods
        Op.F: _forward,
        Op.R: _forward_ahead,
        Op.I: _backward_input,
        Op.W: _backward_weight,
        Op.B: _backward,
        Op.FOLD: _fold,
        Op.SLICE: _slice,
        Op.REDUCE: _reduce,
        Op.VOTE: _vote,
        Op.V: _validate,
        Op.UPDATE: _update,
    }


def initial(layer: int) -> Symbol:
    """Version 0."""
    return symbol(_INIT, layer)


def updated(weights: Symbol, gradient: Symbol, record: CommitRecord, salt: int = 0) -> Symbol:
    """The next version. salt: distinguishes attempts in salted jobs."""
    return symbol(_UPDATE, weights, gradient, int(record.loss), salt)


def committed(step: int, gradients: list[Symbol]) -> Symbol:
    """The symbol of a step's commit record."""
    return symbol(_COMMIT, step, *gradients)


def _of_gradients(step: int, vote: Vote) -> Claims:
    return {about_gradient(step, layer): Said(0, x) for layer, x in vote.gradients.items()}


def _as_float(value: Symbol) -> float:
    """The symbol as an exact float, since records carry floats."""
    return float(value & ((1 << 52) - 1))


def added(left: Sums, right: Sums) -> Sums:
    """The sum of two runs of leaves that lie together, layer by layer."""
    return tuple(symbol(_ADD, a, b) for a, b in zip(left, right, strict=True))


def reference(
    *,
    layers: int,
    batch: BatchShape,
    steps: int,
    salts: Mapping[int, int] | None = None,
    evals: int = 0,
    ties: Ties = (),
) -> tuple[list[list[Symbol]], list[CommitRecord]]:
    """Versions 0..steps of every layer, and the commit records, computed in one loop. The last
    record has only the validation loss of the final version.

    salts: step -> salt of the attempt whose result counts (default 0); evals: micro-batches of the
    validation set.
    """
    weights = [[initial(layer) for layer in range(layers)]]
    records = []
    for step in range(steps):
        gradients = with_ties(sequential_step(weights[-1], batch, step), ties)
        loss, score = _as_float(committed(step, gradients)), _validated(weights[-1], evals)
        record = CommitRecord(step, loss=loss, validation_loss=score)
        salt = salts[step] if salts is not None else 0
        records.append(record)
        weights.append(
            [updated(w, g, record, salt) for w, g in zip(weights[-1], gradients, strict=True)]
        )
    records.append(CommitRecord(steps, validation_loss=_validated(weights[-1], evals)))
    return weights, records


def tied_gradient(gradients: Sequence[Symbol]) -> Symbol:
    """The gradient of a layer that is tied to others, from theirs and its own in layer order."""
    return gradients[0] if len(gradients) == 1 else symbol(_TIED, *gradients)


def with_ties(gradients: Sequence[Symbol], ties: Ties) -> list[Symbol]:
    """The gradients with which layers are updated, from the reduced ones of all layers."""
    others = partners(ties)
    return [
        tied_gradient([gradients[x] for x in sorted((layer, *others.get(layer, ())))])
        for layer in range(len(gradients))
    ]


def _validated(weights: list[Symbol], evals: int) -> float | None:
    scores = []
    for m in range(evals):
        x = symbol(_VALIDATION, m)
        for w in weights:
            x = symbol(_FORWARD, w, x)
        scores.append(symbol(_SCORE, x))
    return _as_float(symbol(*scores)) if scores else None


def sequential_step(weights: list[Symbol], batch: BatchShape, step: int) -> list[Symbol]:
    """The reduced gradient of every layer."""
    chunks: list[Sums] = []
    for c in range(batch.chunks):
        first, *others = (tuple(_leaf_sum(weights, batch, step, x)) for x in batch.leaves_of(c))
        chunks.append(reduce(added, others, first))
    while len(chunks) > 1:
        chunks = [added(a, b) for a, b in zip(chunks[::2], chunks[1::2], strict=True)]
    return list(chunks[0])


def _leaf_sum(weights: list[Symbol], batch: BatchShape, step: int, leaf: int) -> list[Symbol]:
    sums = [0] * len(weights)
    for m in batch.microbatches_of(leaf):
        inputs = [symbol(_DATA, step, m)]
        for w in weights:
            inputs.append(symbol(_FORWARD, w, inputs[-1]))
        gradient = symbol(_LOSS, inputs[-1])
        for x in reversed(range(len(weights))):
            sums[x] = symbol(_WEIGHT_GRADIENT, sums[x], inputs[x], gradient)
            gradient = symbol(_INPUT_GRADIENT, weights[x], inputs[x], gradient)
    return sums
