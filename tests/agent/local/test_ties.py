"""Tied parameters stay one: the same bits on every grid, through losses and restores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.agent.local.runs import check_grids, check_restore, job, written

from bamboo_agent.storage.checkpoint import Checkpoints
from bamboo_core.api.spec import (
    CheckpointSpec,
    DataSpec,
    JobSpec,
    ModelSpec,
    RedundancySpec,
)

pytestmark = [pytest.mark.timeout(600), pytest.mark.rotating(2)]

MODEL = """
import torch
from torch import nn
from torch.nn import functional

from bamboo_agent.model import Model

class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 8)

    def forward(self, x):
        return self.table(x)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.tanh(self.inner(x))

class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.project = nn.Linear(8, 16, bias=False)

    def forward(self, x):
        return self.project(self.norm(x))

def loss(logits, target):
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())

def build():
    ties = [[(0, "table.weight"), (4, "project.weight")]]
    return Model([Embed, Block, Block, Block, Head], loss, ties)

class Data:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        text = torch.arange(7) * (index % 5 + 1) % 16
        return text[:-1], text[1:]
"""


def spec_of(folder: Path, pipelines: int, stages: int, *, redundant: bool = True) -> JobSpec:
    spec = job(folder, pipelines=pipelines, stages=stages, steps=6)
    return replace(
        spec,
        model=ModelSpec("mine:build"),
        data=DataSpec("mine:Data"),
        training=replace(spec.training, validate_every=0),
        redundancy=spec.redundancy if redundant else RedundancySpec(),
        checkpoint=CheckpointSpec((folder / "checkpoints").as_uri(), every_steps=2),
    )


def test_every_grid_ends_with_the_bits_of_a_plain_loop(tmp_path: Path) -> None:
    check_grids(spec_of, tmp_path, written(tmp_path / "code", MODEL))


def test_both_copies_are_one_after_a_restore(tmp_path: Path) -> None:
    code = written(tmp_path / "code", MODEL)
    spec = spec_of(tmp_path / "run", 1, 3, redundant=False)
    check_restore(spec, tmp_path / "run", code)
    assert spec.checkpoint is not None
    checkpoints = Checkpoints(spec.checkpoint.uri, "local")
    newest = max(checkpoints.scan().good, key=lambda m: (m.step, m.attempt))
    first, last = (checkpoints.read_layer(newest, layer).tensors for layer in (0, 4))
    for name in ("param/{}", "optim/{}/exp_avg", "optim/{}/exp_avg_sq"):
        one, other = first[name.format("table.weight")], last[name.format("project.weight")]
        assert torch.equal(one, other), name
