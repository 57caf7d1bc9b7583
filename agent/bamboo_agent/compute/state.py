"""What is fixed for the life of a worker, and the state that the parts of the back end share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from bamboo_agent.compute.checks import Checks
from bamboo_agent.compute.held import HeldLayers
from bamboo_agent.compute.layers import LayerBuilder, sizes_of, trainable
from bamboo_agent.compute.stage import Halves
from bamboo_agent.data.batches import Data
from bamboo_agent.device.activation_offload import HostMemory
from bamboo_agent.device.host_blocks import HostBlocks
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
    outlines: Sequence[tuple[torch.Tensor, ...]]  # layer -> its parameters without their values
    halves: Sequence[Halves]  # layer -> how its backward is split
    seed: int
    clip_norm: float
    device: torch.device
    host_memory_bytes: int = 0  # for what is computed ahead, and for replicas
    check_every: int = 0  # which share is computed twice; see Checks
    save_every: int = 0  # steps between checkpoints; copies of layers are compared in these, too

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Layer -> number of trainable parameters."""
        return sizes_of(self.outlines)


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

    def outlines(self, lo: int, hi: int) -> list[torch.Tensor]:
        """The trainable parameters of layers lo to hi - 1 without their values. The layers need not
        be held: gradients from others can be added up before the layers come."""
        return [p for outline in self.setup.outlines[lo:hi] for p in outline]

    def parameters(self, lo: int, hi: int) -> list[torch.Tensor]:
        """The trainable parameters of layers lo to hi - 1, in order."""
        return trainable([self.layers[layer] for layer in range(lo, hi)])
