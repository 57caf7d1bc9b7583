"""Random augmentation keeps bits equal: any grid draws the same for the same sample."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import torch
from tests.rotation import in_turn

from bamboo_agent.data import batches
from bamboo_agent.datasets.text import Windows, read_sources
from bamboo_core.api.spec import DataSpec, FactorySpec
from bamboo_core.model.ids import Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_sim.workers import plans, reference
from bamboo_sim.workers.in_process_fleet import InProcessFleet
from bamboo_sim.workers.jobs import tiny_gpt


class Flipped(Windows):
    """A window of text, reversed at random, its target too."""

    def __init__(self, source, split):
        super().__init__(read_sources(1600), 16, split)
        self.draw = {"torch": lambda: torch.rand(()), "numpy": np.random.rand}.get(
            source, random.random
        )

    def __getitem__(self, index):
        pair = super().__getitem__(index)
        return tuple(x.flip(0) for x in pair) if self.draw() < 0.5 else pair


@pytest.fixture(autouse=True)
def module(monkeypatch):
    made = ModuleType("users_data")
    vars(made).update(flipped=Flipped)
    monkeypatch.setitem(sys.modules, "users_data", made)
    monkeypatch.setattr(batches, "_REMEMBERED", 0)  # as on agents that share no memory


def train(source, *, pipelines, stages):
    """Losses and weights after training on this grid."""
    training, validation = ({"source": source, "split": s} for s in ("train", "validation"))
    checked = FactorySpec("users_data:flipped", validation)
    job = replace(tiny_gpt(), data=DataSpec("users_data:flipped", training, checked))
    fleet = InProcessFleet(job, plans.names(pipelines * stages))
    fence = Fence(0, 1, 1)
    decision = plans.decide(
        plans.grid_of(job, pipelines=pipelines, stages=stages),
        fence=fence,
        layers=fleet.layers,
        reports=fleet.stop(fence),
        batch=BatchShape(reference.G, 2, 4),
        validation_samples=fleet.validation_samples,
    )
    fleet.install(decision)
    fleet.run_to_end(fence)
    fleet.close()
    return fleet.history(), fleet.weights()


@pytest.mark.parametrize("source", ["torch", *in_turn(2, ["numpy", "random"])])
def test_a_random_flip_gives_the_same_bits_on_every_grid(source):
    history, weights = train(source, pipelines=1, stages=1)
    for pipelines, stages in ((1, 2), (2, 2)):
        others, their_weights = train(source, pipelines=pipelines, stages=stages)
        assert [(r.loss, r.grad_norm, r.validation_loss) for r in others] == [
            (r.loss, r.grad_norm, r.validation_loss) for r in history
        ]
        assert all(torch.equal(weights[name], their_weights[name]) for name in weights)
