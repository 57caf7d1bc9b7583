"""The `torch` back end: runs the executor's instructions on tensors.

``store`` holds payloads by item name. ``held`` holds the layers: weights and optimizer state, which
change in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from bamboo_agent.compute import optim, stage, sums, votes
from bamboo_agent.compute.batches import Data
from bamboo_agent.compute.buffers import Buffer, Pool
from bamboo_agent.compute.checks import Checks, digest_of
from bamboo_agent.compute.digests import combined, digest
from bamboo_agent.compute.held import HeldLayers
from bamboo_agent.compute.host_blocks import HostBlocks
from bamboo_agent.compute.host_memory import HostMemory
from bamboo_agent.compute.kinds import LayerRecord, Losses, Slice, Sum, Vote
from bamboo_agent.compute.layers import Layer, LayerBuilder
from bamboo_agent.compute.random_state import seed_forward
from bamboo_agent.compute.stage import Halves
from bamboo_agent.compute.sums import Layout
from bamboo_agent.model import Model
from bamboo_core.model import claims, sampling
from bamboo_core.model.claims import ClaimBook, Claims, DisputedError, Question, Said
from bamboo_core.model.ids import AgentId, Range
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Instruction, Op, layers_done
from bamboo_core.protocol.messages import CommitRecord


@dataclass(frozen=True)
class TrainingSetup:
    """What is fixed for the life of a worker."""

    agent: AgentId
    model: Model
    data: Data
    builder: LayerBuilder
    sizes: Sequence[int]  # layer -> number of trainable parameters
    halves: Sequence[Halves]  # layer -> how its backward is split
    seed: int
    clip_norm: float
    device: torch.device
    host_memory_bytes: int = 0  # for what is computed ahead, and for replicas
    check_every: int = 0  # which share is computed twice; see Checks
    save_every: int = 0  # steps between checkpoints; copies of layers are compared in these, too


class Backend:
    """Layers and payloads of one agent.

    ``read_layer(layer)``: a layer of the running LOAD.
    ``commits``: the executor's records by step.
    """

    def __init__(
        self,
        setup: TrainingSetup,
        read_layer: Callable[[int], LayerRecord],
        commits: Mapping[int, CommitRecord],
    ) -> None:
        blocks = HostBlocks(setup.host_memory_bytes, setup.device)
        self.held = HeldLayers(setup.builder, blocks)
        self.layers = self.held.layers
        self.store: dict[Item, Any] = {}
        self.host_memory = HostMemory(blocks)
        self._setup, self._read_layer, self._commits = setup, read_layer, commits
        self._pool = Pool(setup.device)
        self._checks = Checks(setup.agent, setup.check_every)
        self._reduced: dict[tuple[int, int, int], Buffer] = {}
        self._batch = BatchShape(1, 1, 1)
        self._compares = False
        self._claims = ClaimBook()
        self._question: Question | None = None
        self._perform: dict[Op, Callable[[Instruction], CommitRecord | None]] = {
            Op.INIT: self._init,
            Op.LOAD: self._load,
            Op.F: self._forward,
            Op.R: self._forward_ahead,
            Op.B: self._backward,
            Op.I: self._backward_input,
            Op.W: self._backward_weight,
            Op.V: self._validate,
            Op.FOLD: self._fold,
            Op.REDUCE: self._reduce,
            Op.VOTE: self._vote,
            Op.COMMIT: self._commit,
            Op.UPDATE: self._update,
        }

    def adopt_batch(
        self, batch: BatchShape, *, compares: bool = False, question: Question | None = None
    ) -> None:
        """Set how the global batch is summed, whether forwards are compared with others', and which
        one with older claims."""
        self._batch, self._compares, self._question = batch, compares, question

    def retract(self, *, is_new: bool) -> None:
        """What this agent has claimed does not count any more. is_new: a new attempt begins."""
        if is_new:
            self._claims.forget()
        else:
            self._claims.retract()

    def can_run(self, op: Op) -> bool:
        """Whether this back end runs the instruction. If not, the worker does."""
        return op in self._perform

    def run(self, instruction: Instruction) -> CommitRecord | None:
        """Run it to completion on the device. COMMIT returns its record."""
        record = self._perform[instruction.op](instruction)
        if self._setup.device.type == "cuda":
            torch.cuda.current_stream(self._setup.device).synchronize()
        return record

    # ------------------------------------------------------------ items from and to others

    def accept(self, item: Item, payload: Any) -> None:
        """Store a payload from a peer."""
        if item.kind is Kind.VER:
            self.held.restore(item.lo, payload, item.step)
        elif item.kind is Kind.RED:
            self._keep_reduced(item, payload)
        else:
            self.store[item] = payload

    def payload(self, item: Item) -> Any:
        """The payload to send. Sums that may still grow are copied."""
        if item.kind is Kind.VER:
            return self.layers[item.lo].record()
        payload = self.store[item]
        if item.kind is Kind.ACT:
            return _inputs_of(payload) if item.lo else ()
        if item.kind not in (Kind.PART, Kind.LEAF, Kind.FOLDED):
            return payload
        if payload.buffer is None:
            sums.flatten(self._pool, payload, self._parameters(item.lo, item.hi))
        if item.kind is not Kind.LEAF:
            return sums.copied(self._pool, payload)
        return Sum(dict(payload.losses), payload.buffer)

    def drop(self, item: Item) -> None:
        """Free a payload, or the layer of a VER. No-op if it is not here."""
        if item.kind is Kind.VER:
            self.held.drop(item.lo)
            return
        self.store.pop(item, None)
        if item.kind is Kind.RED and not self._has_slice(item):
            self._reduced.pop((item.step, item.lo, item.hi), None)

    def _has_slice(self, item: Item) -> bool:
        """Whether any slice of this reduced gradient is here. They share one buffer."""
        slices = range(self._batch.chunks)
        return any(item._replace(part=part) in self.store for part in slices)

    def _keep_reduced(self, item: Item, piece: Slice) -> None:
        target = self._reduced_slice(item)
        target.tensor.copy_(piece.tensor)
        self.store[item] = Slice(target.tensor, piece.losses, target.buffer)

    def _reduced_slice(self, item: Item) -> Slice:
        layout = self._layout(item.lo, item.hi)
        buffer = self._reduced.get((item.step, item.lo, item.hi))
        if buffer is None:
            buffer = self._pool.take(layout.size)
            self._reduced[item.step, item.lo, item.hi] = buffer
        return Slice(buffer.tensor[layout.slice_of(item.part, self._batch.chunks)], {}, buffer)

    def _layout(self, lo: int, hi: int) -> Layout:
        return Layout(self._setup.sizes, lo, hi)

    # ------------------------------------------------------------ versions

    def _init(self, task: Instruction) -> None:
        for layer in range(task.lo, task.hi):
            self.held.build(layer)

    def _load(self, task: Instruction) -> None:
        for layer in range(task.lo, task.hi):
            self.held.restore(layer, self._read_layer(layer), task.step)

    def _update(self, task: Instruction) -> None:
        record = self._commits[task.step]
        for layer in range(task.lo, task.hi):
            self.layers[layer].version = task.step + 1
        if not record.finite:
            return
        cut = task.ranges[0]
        buffer, layout = self._gradient(cut, task.step), self._layout(*cut)
        scale = optim.clip_scale(record.grad_norm, self._setup.clip_norm)
        for layer in range(task.lo, task.hi):
            flat = buffer.tensor[layout.layers[layer]]
            self._update_layer(task, layer, flat, scale)

    def _update_layer(
        self, task: Instruction, layer: int, gradient: torch.Tensor, scale: float
    ) -> None:
        found, is_checked = self.layers[layer], self._checks.is_due(task.step, layer)

        def update() -> None:
            optim.update(found, gradient, scale=scale, step=task.step)

        def checked() -> None:
            self._checks.update(task, layer, found, update)

        self.held.update(layer, checked if is_checked else update)

    def _gradient(self, cut: Range, step: int) -> Buffer:
        """The reduced gradient of a range as one flat buffer."""
        return self._reduced[(step, *cut)]

    # ------------------------------------------------------------ forward and backward

    def _forward(self, task: Instruction) -> None:
        begun = self._begin_forward(task)
        activation = self._run_forward(task, begun, task.lo + layers_done(task), task.hi)
        if self._checks.is_due(task.step, task.index):
            self._checks.forward(task, activation, lambda: self._again(task, activation))
        self._claim(task, activation)
        self.store[Item.act(task.step, (task.lo, task.hi), task.index)] = activation
        self._keep_output(task, activation)

    def _forward_ahead(self, task: Instruction) -> None:
        first, end = task.ranges[0]
        begun = self._begin_forward(task)
        layers = self.held.on_device(first, end)
        activation = self.host_memory.run(
            (tensor for layer in layers for tensor in layer.weights()),
            lambda: self._run_forward(task, begun, first, end),
        )
        span = task.lo, task.hi
        if end == task.hi:
            self._claim(task, activation)
            self._keep_output(task, activation)
        self.store[Item.prefix(task.step, span, task.index, end - task.lo)] = activation

    def _claim(self, task: Instruction, made: stage.Activation) -> None:
        """Say what the forward gave, for the next vote. CorruptionError."""
        if not self._compares:
            return
        name, entered, layers = claims.name_of(task), digest(made.inputs), 0
        if self._claims.is_again(task.step) or self._question is not None:
            layers = combined(self.layers[x].checksum() for x in range(task.lo, task.hi))
        if not self._claims.add(name, entered, digest_of(made), layers):
            raise self._checks.error(str(task))

    def _again(self, task: Instruction, activation: stage.Activation) -> stage.Activation:
        """The whole forward once more, from the inputs of a forward that has been made."""
        return self._run_forward(task, self._entered(task, activation.inputs), task.lo, task.hi)

    def _begin_forward(self, task: Instruction) -> stage.Activation:
        """What the task continues: a forward begun ahead, or the input of the stage."""
        if done := layers_done(task):
            name = Item.prefix(task.step, (task.lo, task.hi), task.index, done)
            begun: stage.Activation = self.store[name]
            return begun
        return self._entered(task, self._input(task, Item.out))

    @staticmethod
    def _entered(task: Instruction, values: tuple[torch.Tensor, ...]) -> stage.Activation:
        inputs = stage.detached(values, first=task.lo == 0)
        return stage.Activation(inputs, inputs)

    def _keep_output(self, task: Instruction, activation: stage.Activation) -> None:
        if activation.loss is None:
            out = Item.out(task.step, task.hi, task.index)
            self.store[out] = tuple(value.detach() for value in activation.outputs)

    def _run_forward(
        self, task: Instruction, begun: stage.Activation, first: int, end: int
    ) -> stage.Activation:
        """The forward after layers ``first`` to ``end - 1``, of which some may be none."""
        if first == end:
            return begun
        inputs, layers = begun.inputs, self.held.on_device(first, end)
        outputs = self._run(layers, task, begun.outputs, first=first, training=True)
        if end < len(self._setup.sizes):
            return stage.Activation(inputs, outputs)
        loss = self._loss(outputs, task)
        # divided here, the sum over the global batch is the mean's gradient
        scaled = loss / self._batch.microbatches
        return stage.Activation(inputs, (scaled,), loss=float(loss.detach()))

    def _input(
        self, task: Instruction, entering: Callable[[int, int, int], Item]
    ) -> tuple[torch.Tensor, ...]:
        if task.lo:
            value: tuple[torch.Tensor, ...] = self.store[entering(task.step, task.lo, task.index)]
            return value
        return stage.as_tuple(self._sample(task)[0])

    def _sample(self, task: Instruction) -> tuple[Any, Any]:
        data = self._setup.data
        if task.op is Op.V:
            return data.validation(task.index)
        return data.training(task.step, task.index)

    def _run(
        self,
        layers: Sequence[Layer],
        task: Instruction,
        inputs: tuple[torch.Tensor, ...],
        *,
        first: int,
        training: bool,
    ) -> tuple[torch.Tensor, ...]:
        seed, device = self._setup.seed, self._setup.device
        for layer in layers:
            layer.set_training(training)
        return stage.run_layers(
            layers,
            inputs,
            lambda index: seed_forward(seed, task.step, task.index, first + index, device),
        )

    def _loss(self, outputs: tuple[torch.Tensor, ...], task: Instruction) -> torch.Tensor:
        output = outputs[0] if len(outputs) == 1 else outputs
        return self._setup.model.loss(output, self._sample(task)[1])

    def _activation(self, task: Instruction) -> stage.Activation:
        """An ACT from a leaving agent has only its inputs, so the forward runs again."""
        item = Item.act(task.step, (task.lo, task.hi), task.index)
        found: stage.Activation | tuple[torch.Tensor, ...] = self.store[item]
        if isinstance(found, tuple):
            values = found or self._input(task, Item.out)
            begun = self._entered(task, values)
            found = self.store[item] = self._run_forward(task, begun, task.lo, task.hi)
        return found

    def _output_gradient(self, task: Instruction) -> stage.Gradients | None:
        if task.hi == len(self._setup.sizes):
            return None
        found: stage.Gradients = self.store[Item.ingrad(task.step, task.hi, task.index)]
        return found

    def _keep_input_gradient(self, task: Instruction, gradients: stage.Gradients) -> None:
        if task.lo:
            self.store[Item.ingrad(task.step, task.lo, task.index)] = gradients

    def _backward(self, task: Instruction) -> None:
        parameters = self._parameters(task.lo, task.hi)
        total = self._open_sum(task, parameters)
        gradient = self._output_gradient(task)
        given = self._gradients(task, parameters, lambda made: stage.backward(made, gradient))
        self._keep_input_gradient(task, given)
        self._close_sum(task, parameters, total)

    def _backward_input(self, task: Instruction) -> None:
        parameters = self._parameters(task.lo, task.hi)
        gradient, way = self._output_gradient(task), self._halves(task)
        given = self._gradients(
            task, parameters, lambda made: stage.backward_input(made, gradient, parameters, way)
        )
        self._keep_input_gradient(task, given)

    def _backward_weight(self, task: Instruction) -> None:
        parameters = self._parameters(task.lo, task.hi)
        total = self._open_sum(task, parameters)
        activation, gradient = self._activation(task), self._output_gradient(task)
        way, is_second_half = self._halves(task), activation.weight_groups is not None

        def run(made: stage.Activation) -> stage.Gradients:
            if is_second_half and made.weight_groups is None:
                stage.backward_input(made, gradient, parameters, way)
            stage.backward_weight(made, gradient, parameters, way)
            return ()

        self._gradients(task, parameters, run)
        self._close_sum(task, parameters, total)
        # gradients from torch's helper may share memory with other tensors
        sums.flatten(self._pool, total, parameters)

    def _gradients(
        self,
        task: Instruction,
        parameters: Sequence[torch.Tensor],
        run: Callable[[stage.Activation], stage.Gradients],
    ) -> stage.Gradients:
        """What ``run`` gives for the task's activation, which it may use up."""
        made = self._activation(task)
        if not self._checks.is_due(task.step, task.index):
            return run(made)
        return self._checks.gradients(
            task, parameters, lambda: run(made), lambda: run(self._again(task, made))
        )

    def _halves(self, task: Instruction) -> Halves:
        return min(self._setup.halves[task.lo : task.hi])

    def _parameters(self, lo: int, hi: int) -> list[torch.Tensor]:
        return sums.trainable([self.layers[layer] for layer in range(lo, hi)])

    # ------------------------------------------------------------ sums

    def _open_sum(self, task: Instruction, parameters: list[torch.Tensor]) -> Sum:
        """Let autograd accumulate into the leaf's sum, or start a new sum."""
        done = task.index % self._batch.leaf_size
        if not done:
            return Sum(parts=[])
        leaf = self._batch.leaf_of(task.index)
        total: Sum = self.store[Item.partial(task.step, (task.lo, task.hi), leaf, done)]
        if total.buffer is not None:
            grown: Sequence[torch.Tensor | None] = sums.parameter_views(total.buffer, parameters)
        else:
            grown = total.parts or ()
        for parameter, part in zip(parameters, grown, strict=True):
            if part is None or part.dtype == parameter.dtype:
                parameter.grad = part
        return total

    def _close_sum(self, task: Instruction, parameters: list[torch.Tensor], total: Sum) -> None:
        gradients = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        sums.grow(self._pool, total, gradients, parameters)
        loss = self._activation(task).loss
        if loss is not None:
            total.losses[task.index] = loss
        size = self._batch.leaf_size
        leaf, into = self._batch.leaf_of(task.index), task.index % size + 1
        span = (task.lo, task.hi)
        if into == size:
            self.store[Item.leaf(task.step, span, leaf)] = total
        else:
            self.store[Item.partial(task.step, span, leaf, into)] = total

    def _fold(self, task: Instruction) -> None:
        batch, (lo, hi) = self._batch, (task.lo, task.hi)
        chunk = batch.chunk_of(task.index)
        leaves = batch.leaves_of(chunk)
        done = task.index - leaves.start
        leaf: Sum = self.store[Item.leaf(task.step, (lo, hi), task.index)]
        before: Sum | None = None
        if done:
            before = self.store[Item.folded(task.step, (lo, hi), chunk, done)]
        total = self._add_leaf(task, before, leaf)
        buffer = sums.flatten(self._pool, total, self._parameters(lo, hi))
        if done + 1 < len(leaves):
            self.store[Item.folded(task.step, (lo, hi), chunk, done + 1)] = total
            return
        layout = self._layout(lo, hi)
        for z in range(batch.chunks):
            piece = buffer.tensor[layout.slice_of(z, batch.chunks)]
            losses = total.losses if z == 0 else {}
            self.store[Item.chunk(task.step, (lo, hi), chunk, z)] = Slice(piece, losses, buffer)

    def _add_leaf(self, task: Instruction, before: Sum | None, leaf: Sum) -> Sum:
        """The chunk with one more leaf, flat. before: None for the first leaf."""
        parameters = self._parameters(task.lo, task.hi)

        def add(before: Sum | None, leaf: Sum) -> Sum:
            total = leaf if before is None else sums.fold(self._pool, before, leaf, parameters)
            sums.flatten(self._pool, total, parameters)
            return total

        if not self._checks.is_due(task.step, task.index):
            return add(before, leaf)
        copies_of = None if before is None else sums.copied(self._pool, before), replace(leaf)
        total, again = add(before, leaf), add(*copies_of)
        assert total.buffer is not None
        assert again.buffer is not None
        self._checks.compare(task, digest([total.buffer.tensor]), digest([again.buffer.tensor]))
        return total

    def _reduce(self, task: Instruction) -> None:
        chunks = range(self._batch.chunks)
        names = [Item.chunk(task.step, (task.lo, task.hi), c, task.index) for c in chunks]
        pieces: list[Slice] = [self.store[name] for name in names]
        losses: Losses = {m: loss for piece in pieces for m, loss in piece.losses.items()}
        item = Item.red(task.step, (task.lo, task.hi), task.index)
        target = self._reduced_slice(item)
        tensors = [piece.tensor for piece in pieces]
        sums.add_tree(tensors, out=target.tensor)
        if self._checks.is_due(task.step, task.index):
            again = torch.empty_like(target.tensor)
            sums.add_tree(tensors, out=again)
            self._checks.compare(task, digest([target.tensor]), digest([again]))
        self.store[item] = Slice(target.tensor, losses, target.buffer)

    # ------------------------------------------------------------ vote and commit

    def _vote(self, task: Instruction) -> None:
        norms: dict[int, float] = {}
        losses: Losses = {}
        for cut, held in zip(task.ranges[::2], task.ranges[1::2], strict=True):
            buffer, layout = self._gradient(cut, task.step), self._layout(*cut)
            for layer in range(*held):
                flat = buffer.tensor[layout.layers[layer]]
                norm = torch.linalg.vector_norm(flat)
                if self._checks.is_due(task.step, layer):
                    again = torch.linalg.vector_norm(flat)
                    self._checks.compare(task, digest([norm]), digest([again]))
                norms[layer] = float(norm)
            losses |= self.store[Item.red(task.step, cut, 0)].losses
        said = self._claims.of(task.step) | self._copies(task)
        self.store[Item.vote(task.step, self._setup.agent)] = Vote(norms, losses, said)

    def _copies(self, task: Instruction) -> Claims:
        """What this agent holds, if it is to be compared: also in a step that is computed again."""
        step = task.step
        is_due = sampling.are_copies_due(step, self._setup.save_every)
        if not (is_due or self._claims.is_again(step)):
            return {}
        held = (layer for span in task.ranges[1::2] for layer in range(*span))
        return {Item.ver(step, x): Said(0, self.layers[x].checksum()) for x in held}

    def _commit(self, task: Instruction) -> CommitRecord:
        cast: dict[AgentId, Vote] = {
            agent: self.store[Item.vote(task.step, agent)] for agent in task.agents
        }
        unequal = votes.unequal(task.step, cast, len(self._setup.sizes))
        said = {agent: vote.claims | unequal[agent] for agent, vote in cast.items()}
        found = claims.disputes(said, self._question)
        if found:
            raise DisputedError(found)
        scores = {
            item.index: score
            for item, score in self.store.items()
            if item.kind is Kind.SCORE and item.step == task.step
        }
        before = self._commits.get(task.step - 1)
        return votes.count(task.step, list(cast.values()), scores, before)

    def _validate(self, task: Instruction) -> None:
        layers = self.held.on_device(task.lo, task.hi)
        with torch.no_grad():
            inputs = self._input(task, Item.eval)
            outputs = self._run(layers, task, inputs, first=task.lo, training=False)
            if task.hi == len(self._setup.sizes):
                item = Item.score(task.step, task.index)
                self.store[item] = float(self._loss(outputs, task))
                return
        self.store[Item.eval(task.step, task.hi, task.index)] = outputs


def _inputs_of(payload: Any) -> tuple[torch.Tensor, ...]:
    values: tuple[torch.Tensor, ...] = payload if isinstance(payload, tuple) else payload.inputs
    return tuple(value.detach() for value in values)
