"""What is fixed for the life of a worker, and the state that the parts of the back end share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from bamboo_agent.compute import optim
from bamboo_agent.compute.checks import Checks
from bamboo_agent.compute.held import HeldLayers
from bamboo_agent.compute.layers import LayerBuilder, Outline, Tie
from bamboo_agent.compute.stage import Halves
from bamboo_agent.data.batches import Data
from bamboo_agent.device.activation_offload import HostMemory
from bamboo_agent.device.host_blocks import HostBlocks
from bamboo_agent.ipc.computed import Computed
from bamboo_agent.losses.forms import LossForm
from bamboo_agent.model import Model
from bamboo_core.model.claims import ClaimBook, Question
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protocol.messages import CommitRecord


@dataclass(frozen=True)
class TrainingSetup:
    """What is fixed for the life of a worker."""

    agent: AgentId
    model: Model
    data: Data
    builder: LayerBuilder
    outlines: Sequence[Outline]  # of each layer
    halves: Sequence[Halves]  # layer -> how its backward is split
    seed: int
    clip_norm: float
    device: torch.device
    model_factory: str = ""  # its name, for errors
    host_memory_bytes: int = 0  # for what is computed ahead, and for replicas
    check_every: int = 0  # which share is computed twice; see Checks
    # layer -> number of each parameter's group, which is clipped by itself; empty: all are one
    clip_groups: Sequence[Sequence[int]] = ()
    ties: tuple[Tie, ...] = ()
    save_every: int = 0  # steps between checkpoints; copies of layers are compared in these, too
    loss_form: LossForm = LossForm()  # noqa: RUF009 - frozen
    computed: Computed = field(default_factory=Computed)  # tells which layer runs
    usual_count: int = 1  # targets of a micro-batch, if the loss counts them; see State.nominal

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Layer -> how many numbers a step adds up for it."""
        return tuple(outline.size for outline in self.outlines)

    def group_norms(self, layer: int, gradient: torch.Tensor) -> tuple[float, ...]:
        """Norm of each group that is clipped by itself. gradient: of the layer, flat."""
        if not self.clip_groups:
            return ()
        count = 1 + max(group for groups in self.clip_groups for group in groups)
        sizes = [parameter.numel() for parameter in self.outlines[layer].parameters]
        return optim.group_norms(gradient, sizes, self.clip_groups[layer], count)

    def clip_scale(self, layer: int, record: CommitRecord, factor: float) -> float | list[float]:
        """By what the layer's gradient is multiplied, or that of each parameter. factor: of all
        gradients, before they are clipped."""
        if not self.clip_groups:
            return factor * optim.clip_scale(record.grad_norm, self.clip_norm)
        scales = [factor * optim.clip_scale(x, self.clip_norm) for x in record.group_norms]
        return [scales[group] for group in self.clip_groups[layer]]


class State:
    """Layers and payloads of one agent, and what its plan says about them.

    ``store`` holds payloads by item name. ``held`` holds the layers: weights and optimizer state,
    which change in place. ``commits``: the executor's records by step. ``batch``: how the global
    batch is summed. ``compares``: whether forwards are compared with others'. ``question``: which
    one is compared with older claims.
    """

    def __init__(self, setup: TrainingSetup, commits: Mapping[int, CommitRecord]) -> None:
        self.setup, self.commits = setup, commits
        blocks = HostBlocks(setup.host_memory_bytes, setup.device)
        self.held = HeldLayers(setup.builder, blocks)
        self.layers = self.held.layers
        self.host_memory = HostMemory(blocks)
        self.store: dict[Item, Any] = {}
        self.checks = Checks(setup.agent, setup.check_every)
        self.claims = ClaimBook()
        self.batch = BatchShape(1, 1, 1)
        self.compares = False
        self.question: Question | None = None

    @property
    def nominal(self) -> int:
        """By what the loss of each micro-batch is divided: their number if it is a mean, else about
        the number of the step's targets. It is the same on all agents and in all steps."""
        return self.batch.microbatches * self.setup.usual_count

    def outlines(self, lo: int, hi: int) -> list[torch.Tensor]:
        """Forms of what layers lo to hi - 1 add up. The layers need not be held: sums
        from others can be added up before the layers come."""
        return [tensor for outline in self.setup.outlines[lo:hi] for tensor in outline.summed]

    def parameters(self, lo: int, hi: int) -> list[torch.Tensor]:
        """The trainable parameters of layers lo to hi - 1, in order."""
        return [p for layer in range(lo, hi) for p in self.layers[layer].parameters]

    def summed(self, lo: int, hi: int) -> list[torch.Tensor]:
        """All that layers lo to hi - 1 add up: tensors whose ``.grad`` counts."""
        return [tensor for layer in range(lo, hi) for tensor in self.layers[layer].summed]
