"""A network with BatchNorm ends with the same bits on every grid, through losses and restores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.local.runs import check_grids, check_restore, job, written

from bamboo_core.api.spec import (
    CheckpointSpec,
    DataSpec,
    FactorySpec,
    JobSpec,
    ModelSpec,
    RedundancySpec,
)

pytestmark = [pytest.mark.timeout(600), pytest.mark.rotating(2)]

NET = """
from functools import partial

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from bamboo_agent.model import Model

class Block(nn.Module):
    def __init__(self, momentum):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4, momentum=momentum)

    def forward(self, x):
        return x + checkpoint(self.inner, x, use_reentrant=False)

    def inner(self, x):
        return torch.relu(self.norm(self.conv(x)))

def build():
    return Model(
        [
            partial(nn.Conv2d, 3, 4, 3),
            partial(Block, 0.1),
            partial(nn.BatchNorm2d, 4, affine=False),  # no parameter, only statistics
            partial(Block, 0.5),
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 5)),
        ],
        cross_entropy,
    )

class Data:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        image = torch.randn(3, 6, 6, generator=torch.Generator().manual_seed(index))
        return image + index % 5, index % 5
"""


def spec_of(folder: Path, pipelines: int, stages: int, *, redundant: bool = True) -> JobSpec:
    spec = job(folder, pipelines=pipelines, stages=stages, steps=6)
    return replace(
        spec,
        model=ModelSpec("mine:build"),
        data=DataSpec("mine:Data", validation=FactorySpec("mine:Data")),
        redundancy=spec.redundancy if redundant else RedundancySpec(),
        checkpoint=CheckpointSpec((folder / "checkpoints").as_uri(), every_steps=2),
    )


def test_every_grid_ends_with_the_bits_of_a_plain_loop(tmp_path: Path) -> None:
    check_grids(spec_of, tmp_path, written(tmp_path / "code", NET))


def test_a_restore_brings_the_running_statistics_back(tmp_path: Path) -> None:
    code = written(tmp_path / "code", NET)
    spec = spec_of(tmp_path / "run", 1, 2, redundant=False)
    check_restore(spec, tmp_path / "run", code)
