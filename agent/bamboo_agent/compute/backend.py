"""The `torch` back end: runs the executor's instructions on tensors.

It maps each instruction, and each item that comes or goes, to the part that it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bamboo_agent.compute.passes import Passes, inputs_of
from bamboo_agent.compute.state import State, TrainingSetup
from bamboo_agent.compute.sums import GradientSums
from bamboo_agent.compute.versions import Versions
from bamboo_agent.compute.votes import Votes
from bamboo_agent.payloads.flow import Flow
from bamboo_agent.payloads.kinds import LayerRecord
from bamboo_core.model.claims import Question
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Instruction, Op
from bamboo_core.protocol.messages import CommitRecord


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
        self.state = state = State(setup, commits)
        self.held, self.layers, self.store = state.held, state.layers, state.store
        self.host_memory = state.host_memory
        self.sums = GradientSums(state)
        self.passes = Passes(state, self.sums)
        self.votes = Votes(state, self.sums)
        self.versions = Versions(state, self.sums, read_layer)
        self._perform: dict[Op, Callable[[Instruction], CommitRecord | None]] = {
            Op.INIT: self.versions.init,
            Op.LOAD: self.versions.load,
            Op.F: self.passes.forward,
            Op.R: self.passes.forward_ahead,
            Op.B: self.passes.backward,
            Op.I: self.passes.backward_input,
            Op.W: self.passes.backward_weight,
            Op.V: self.passes.validate,
            Op.FOLD: self.sums.fold,
            Op.SLICE: self.sums.slice,
            Op.REDUCE: self.sums.reduce,
            Op.VOTE: self.votes.vote,
            Op.COMMIT: self.votes.commit,
            Op.UPDATE: self.versions.update,
        }

    def adopt_batch(
        self, batch: BatchShape, *, compares: bool = False, question: Question | None = None
    ) -> None:
        """Set how the global batch is summed, whether forwards are compared with others', and which
        one with older claims."""
        self.state.batch, self.state.compares = batch, compares
        self.state.question = question

    def retract(self, *, is_new: bool) -> None:
        """Withdraw the claims of this agent. is_new: a new attempt begins."""
        if is_new:
            self.state.claims.forget()
        else:
            self.state.claims.retract()

    def can_run(self, op: Op) -> bool:
        """Whether this back end runs the instruction. If not, the worker does."""
        return op in self._perform

    def run(self, instruction: Instruction) -> CommitRecord | None:
        """Let the device compute it, which may not have done so when this returns. COMMIT returns
        its record."""
        return self._perform[instruction.op](instruction)

    def scored(self, step: int) -> CommitRecord:
        """The record of the step's validation alone, whose scores are here."""
        return self.votes.scored(step)

    # ------------------------------------------------------------ items from and to others

    def accept(self, item: Item, payload: Any) -> None:
        """Store a payload from a peer."""
        if item.kind is Kind.VER:
            self.held.restore(item.lo, payload, item.step)
        elif item.kind is Kind.RED:
            self.sums.keep_reduced(item, payload)
        else:
            self.store[item] = payload

    def payload(self, item: Item) -> Any:
        """The payload to send. Sums that may still grow are copied."""
        if item.kind is Kind.VER:
            return self.layers[item.lo].record()
        if item.kind in (Kind.PART, Kind.SUM):
            return self.sums.to_send(item)
        payload = self.store[item]
        if item.kind is Kind.ACT:
            return inputs_of(payload) if item.lo else Flow(())
        return payload

    def drop(self, item: Item) -> None:
        """Free a payload, or the layer of a VER. No-op if it is not here."""
        if item.kind is Kind.VER:
            self.held.drop(item.lo)
        elif item.kind is Kind.RED:
            self.sums.drop_reduced(item)
        else:
            self.store.pop(item, None)
