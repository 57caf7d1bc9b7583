"""Forwards and backwards of micro-batches, and forwards of the validation set.

The tensors are those of :mod:`bamboo_agent.compute.stage`. Here is which items they come from and
go to, what is computed twice, and what is claimed about it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bamboo_agent.compute import stage
from bamboo_agent.compute.checks import CodeError, CorruptionError, digest_of
from bamboo_agent.compute.layers import Layer
from bamboo_agent.compute.stage import Halves
from bamboo_agent.compute.state import State
from bamboo_agent.compute.sums import GradientSums
from bamboo_agent.data.batches import SampleError
from bamboo_agent.data.needs import Part
from bamboo_agent.data.targets import UnevenTargetsError
from bamboo_agent.device.digests import combined, digest
from bamboo_agent.device.random_state import seed_forward
from bamboo_agent.losses.forms import Late, take_as
from bamboo_agent.model import FactoryError
from bamboo_agent.modules.batch_norm import NormError
from bamboo_agent.payloads.flow import Flow, told_shapes
from bamboo_agent.payloads.plain_values import StateError
from bamboo_agent.user_code import told
from bamboo_core.model import claims
from bamboo_core.model.items import Item
from bamboo_core.model.program import Instruction, Op, layers_done

log = logging.getLogger(__name__)

_TOLD = (
    *(MemoryError, torch.OutOfMemoryError, torch.AcceleratorError, CorruptionError),
    *(CodeError, FactoryError, NormError, SampleError, StateError, UnevenTargetsError),
)
"""Errors that say themselves what is wrong, or are no fault of the user's code."""


class Passes:
    """The forwards and backwards of one agent."""

    def __init__(self, state: State, sums: GradientSums) -> None:
        self._state, self._sums = state, sums
        self._store, self._held, self._layers = state.store, state.held, state.layers
        self._checks, self._claims = state.checks, state.claims
        self._host_memory = state.host_memory

    # ------------------------------------------------------------ forward

    def forward(self, task: Instruction) -> None:
        """F: the forward of a stage, or the rest of one that was begun ahead."""
        begun = self._begin_forward(task)
        activation = self._run_forward(task, begun, task.lo + layers_done(task), task.hi)
        if self._checks.is_task_due(task):
            self._checks.forward(task, activation, lambda: self._again(task, activation))
        self._claim(task, activation)
        self._store[Item.act(task.step, (task.lo, task.hi), task.index)] = activation
        self._keep_output(task, activation)

    def forward_ahead(self, task: Instruction) -> None:
        """R: some layers of a forward, computed ahead."""
        first, end = task.ranges[0]
        begun = self._begin_forward(task)
        layers = self._held.on_device(first, end)
        activation = self._host_memory.run(
            (tensor for layer in layers for tensor in layer.weights()),
            lambda: self._run_forward(task, begun, first, end),
        )
        span = task.lo, task.hi
        if end == task.hi:
            self._claim(task, activation)
            self._keep_output(task, activation)
        self._store[Item.prefix(task.step, span, task.index, end - task.lo)] = activation

    def _claim(self, task: Instruction, made: stage.Activation) -> None:
        """Say what the forward gave, for the next vote. CorruptionError."""
        if not self._state.compares:
            return
        name, entered, layers = claims.name_of(task), digest(made.inputs), 0
        if self._claims.is_again(task.step) or self._state.question is not None:
            layers = combined(self._layers[x].checksum() for x in range(task.lo, task.hi))
        if not self._claims.add(name, entered, digest_of(made), layers):
            raise self._checks.error(str(task))

    def _again(self, task: Instruction, activation: stage.Activation) -> stage.Activation:
        """The whole forward once more, from the inputs of a forward that has been made."""
        return self._run_forward(task, self._entered(task, activation.inputs), task.lo, task.hi)

    def _begin_forward(self, task: Instruction) -> stage.Activation:
        """The activation that the task continues: begun ahead, or the input of the stage."""
        if done := layers_done(task):
            name = Item.prefix(task.step, (task.lo, task.hi), task.index, done)
            begun: stage.Activation = self._store[name]
            return begun
        return self._entered(task, self._input(task, Item.out))

    @staticmethod
    def _entered(task: Instruction, values: Flow) -> stage.Activation:
        inputs = stage.detached(values, first=task.lo == 0)
        return stage.Activation(inputs, inputs)

    def _keep_output(self, task: Instruction, activation: stage.Activation) -> None:
        if activation.loss is None:
            out = Item.out(task.step, task.hi, task.index)
            self._store[out] = activation.outputs.map(torch.Tensor.detach)

    def _run_forward(
        self, task: Instruction, begun: stage.Activation, first: int, end: int
    ) -> stage.Activation:
        """The forward after layers ``first`` to ``end - 1``, of which some may be none."""
        if first == end:
            return begun
        inputs, layers = begun.inputs, self._held.on_device(first, end)
        found = list(begun.statistics)
        outputs = self._run(layers, task, begun.outputs, first=first, statistics=found)
        if end < len(self._state.setup.sizes):
            return stage.Activation(inputs, outputs, statistics=tuple(found))
        tensor, late = self._loss(outputs, task)
        # divided here, the sum over the global batch is the mean's gradient, but for a factor that
        # only the commit knows if targets are counted
        scaled = tensor / self._state.nominal
        return stage.Activation(inputs, Flow((scaled,)), late, tuple(found))

    def _input(self, task: Instruction, entering: Callable[[int, int, int], Item]) -> Flow:
        if task.lo:
            value: Flow = self._store[entering(task.step, task.lo, task.index)]
            return value
        return Flow.of(self._sample(task, Part.INPUT))

    def _sample(self, task: Instruction, part: Part) -> Any:
        step = None if task.op is Op.V else task.step
        return self._state.setup.data.part(part, step, task.index)

    def _run(
        self,
        layers: Sequence[Layer],
        task: Instruction,
        inputs: Flow,
        *,
        first: int,
        statistics: list[torch.Tensor] | None,
    ) -> Flow:
        """statistics: see run_layers; None: validation."""
        seed, device = self._state.setup.seed, self._state.setup.device
        at, computed = first, self._state.setup.computed

        def seed_layer(index: int) -> None:
            nonlocal at
            at = first + index
            computed.begin_layer(at, layers[index].module)
            seed_forward(seed, task.step, task.index, at, device)

        for layer in layers:
            layer.set_training(statistics is not None)
        try:
            return stage.run_layers(layers, inputs, seed_layer, statistics)
        except _TOLD:
            raise
        except (Exception, SystemExit) as error:
            kind = type(layers[at - first].module).__name__
            raise CodeError(f"{_where(task)}, layer {at}, {kind}: {told(error)}") from error
        finally:
            computed.end()

    def _loss(self, outputs: Flow, task: Instruction) -> tuple[torch.Tensor, Late]:
        """It with its graph, and its figures. LossError if it is of another kind than before."""
        which, setup, target = _where(task), self._state.setup, self._sample(task, Part.TARGET)
        setup.computed.begin_loss()
        try:
            value = setup.model.loss(outputs.value, target)
        except _TOLD:
            raise
        except (Exception, SystemExit) as error:
            origin = setup.data.origin(None if task.op is Op.V else task.step, task.index)
            raise CodeError(
                f"{which}, the loss of {setup.model_factory}, with targets {told_shapes(target)} of"
                f" {origin}: {told(error)}"
            ) from error
        finally:
            setup.computed.end()
        found = take_as(setup.loss_form, value, which)
        return found.tensor, Late(found, which)

    def validate(self, task: Instruction) -> None:
        """V: a forward of the validation set."""
        layers = self._held.on_device(task.lo, task.hi)
        with torch.no_grad():
            inputs = self._input(task, Item.eval)
            outputs = self._run(layers, task, inputs, first=task.lo, statistics=None)
            if task.hi == len(self._state.setup.sizes):
                item = Item.score(task.step, task.index)
                self._store[item] = self._loss(outputs, task)[1]
                return
        self._store[Item.eval(task.step, task.hi, task.index)] = outputs

    # ------------------------------------------------------------ backward

    def _activation(self, task: Instruction) -> stage.Activation:
        """An ACT from a leaving agent has only its inputs, so the forward runs again."""
        item = Item.act(task.step, (task.lo, task.hi), task.index)
        found: stage.Activation | Flow = self._store[item]
        if isinstance(found, Flow):
            values = found or self._input(task, Item.out)
            begun = self._entered(task, values)
            found = self._store[item] = self._run_forward(task, begun, task.lo, task.hi)
        return found

    def _output_gradient(self, task: Instruction) -> stage.Gradients | None:
        if task.hi == len(self._state.setup.sizes):
            return None
        found: stage.Gradients = self._store[Item.ingrad(task.step, task.hi, task.index)]
        return found

    def _keep_input_gradient(self, task: Instruction, gradients: stage.Gradients) -> None:
        if task.lo:
            self._store[Item.ingrad(task.step, task.lo, task.index)] = gradients

    def backward(self, task: Instruction) -> None:
        """B: a whole backward."""
        summed = self._state.summed(task.lo, task.hi)
        total = self._sums.begin_micro_batch(task, summed)
        gradient = self._output_gradient(task)

        def run(made: stage.Activation) -> stage.Gradients:
            self._add_statistics(task, made)
            return stage.backward(made, gradient)

        self._keep_input_gradient(task, self._gradients(task, summed, run))
        self._sums.end_micro_batch(task, summed, total, self._activation(task).loss)

    def backward_input(self, task: Instruction) -> None:
        """I: the half of a backward that the stage before waits for."""
        parameters = self._state.parameters(task.lo, task.hi)
        gradient, way = self._output_gradient(task), self._halves(task)
        given = self._gradients(
            task, parameters, lambda made: stage.backward_input(made, gradient, parameters, way)
        )
        self._keep_input_gradient(task, given)

    def backward_weight(self, task: Instruction) -> None:
        """W: the half of a backward that gives the gradients of the weights."""
        parameters = self._state.parameters(task.lo, task.hi)
        summed = self._state.summed(task.lo, task.hi)
        total = self._sums.begin_micro_batch(task, summed)
        activation, gradient = self._activation(task), self._output_gradient(task)
        way, is_second_half = self._halves(task), activation.is_half_done

        def run(made: stage.Activation) -> stage.Gradients:
            if is_second_half and not made.is_half_done:
                stage.backward_input(made, gradient, parameters, way)
            stage.backward_weight(made, gradient, parameters, way)
            self._add_statistics(task, made)
            return ()

        self._gradients(task, summed, run)
        self._sums.end_micro_batch(task, summed, total, self._activation(task).loss)
        if total.parts is not None and self._state.batch.leaf_size > 1:
            # it may grow in place, and gradients of torch's helper may share memory with others
            self._sums.flatten(total, summed)

    def _add_statistics(self, task: Instruction, made: stage.Activation) -> None:
        """Add what the BatchNorms have found in a forward, as autograd adds gradients."""
        count, at = self._state.batch.microbatches, 0
        for layer in range(task.lo, task.hi):
            statistics = self._layers[layer].statistics
            end = at + len(statistics.slots)
            weighed = statistics.weigh(made.statistics[at:end], task.index, count)
            stage.accumulate(statistics.slots, weighed)
            at = end

    def _gradients(
        self,
        task: Instruction,
        parameters: Sequence[torch.Tensor],
        run: Callable[[stage.Activation], stage.Gradients],
    ) -> stage.Gradients:
        """Run a backward, which may use up the task's activation. Returns the result of ``run``.

        CodeError if the user's code raises: the activation and the sums that it adds to are spoilt.
        """
        made = self._activation(task)
        try:
            if not self._checks.is_task_due(task):
                return run(made)
            return self._checks.gradients(
                task, parameters, lambda: run(made), lambda: run(self._again(task, made))
            )
        except _TOLD:
            raise
        except (Exception, SystemExit) as error:
            where = self._failing_layer(task, made)
            for parameter in parameters:
                parameter.grad = None
            raise CodeError(f"{_where(task)}, {where}: {told(error)}") from error

    def _failing_layer(self, task: Instruction, made: stage.Activation) -> str:
        """The layer whose backward has failed, which autograd does not say: each runs alone, from
        the last one on, until one fails again."""
        values, runs, end = made.inputs, [], len(self._state.setup.sizes)
        try:
            for layer in range(task.lo, task.hi):
                entered = stage.detached(values, first=layer == 0)
                begun = stage.Activation(entered, entered)
                runs.append((layer, self._run_forward(task, begun, layer, layer + 1)))
                values = runs[-1][1].outputs
            gradients = self._output_gradient(task)
        except Exception:
            log.debug("the forwards of %s fail, too", task, exc_info=True)
            return "a backward"
        for layer, run in reversed(runs):
            try:
                gradients = stage.backward(run, gradients if layer + 1 < end else None)
            except (Exception, SystemExit):
                kind = type(self._layers[layer].module).__name__
                return f"the backward of layer {layer}, {kind}"
        return "a backward"

    def _halves(self, task: Instruction) -> Halves:
        return min(self._state.setup.halves[task.lo : task.hi])


def _where(task: Instruction) -> str:
    which = f"micro-batch {task.index} of step {task.step}"
    return f"validation {which}" if task.op is Op.V else which


def inputs_of(payload: stage.Activation | Flow) -> Flow:
    """The inputs of an activation, which another agent can begin with. payload: it, or they."""
    values = payload if isinstance(payload, Flow) else payload.inputs
    return values.map(torch.Tensor.detach)
