"""Jobs in bfloat16, with groups of parameters and schedules, have equal bits on every grid."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.local.runs import Run, job, written

from bamboo_core.api import local_run
from bamboo_core.api.spec import (
    Clipping,
    FactorySpec,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    ParameterGroup,
    Precision,
)

pytestmark = [pytest.mark.timeout(600), pytest.mark.rotating(3)]
GRIDS = ((1, 1), (2, 2), (3, 2))


def digest_of(spec: JobSpec, folder: Path, *, kill: int = 0, code: Path | None = None) -> str:
    """The digest of the final state, which a plain loop has, too."""
    run = Run(spec, folder, "--check", "--kill", str(kill), code=code)
    assert run.to_end() == 0, run.told
    assert [x.differs for x in run.all_of(local_run.Compared)] == [""]
    assert len(run.all_of(local_run.Killed)) == kill
    return run.ended.digest


def test_bfloat16_has_equal_bits_on_every_grid_through_losses(tmp_path: Path) -> None:
    found = set()
    for pipelines, stages in GRIDS:
        folder = tmp_path / f"{pipelines}x{stages}"
        spec = job(folder, pipelines=pipelines, stages=stages, steps=4)
        spec = replace(spec, training=replace(spec.training, precision=Precision.BFLOAT16))
        found.add(digest_of(spec, folder, kill=int(pipelines > 1)))
    assert len(found) == 1


CHECKPOINTED = """
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from bamboo_agent.model import Model

class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 16))

    def forward(self, x):
        return (x @ self.weight).float()

class Block(nn.Module):
    '''Its input, in fp32, is used by three products.'''

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.out = nn.Linear(16, 16)

    def inner(self, x):
        query, key, value = self.query(x), self.key(x), self.value(x)
        assert query.dtype is torch.bfloat16
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return functional.dropout(self.out(mixed), 0.1)

    def forward(self, x):
        assert x.dtype is torch.float32
        return x + checkpoint(self.inner, x, use_reentrant=False)

class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(16, 5)

    def forward(self, x):
        found = self.project(x)
        assert found.dtype is torch.bfloat16
        return found

def loss(output, target):
    assert output.dtype is torch.float32 and not torch.is_autocast_enabled("cpu")
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())

def build():
    return Model([Embed, *[Block] * 4, Head], loss)

class Data:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.randn(6, 8), torch.randint(0, 5, (6,))
"""


def test_checkpointed_activations_and_inputs_with_several_uses(tmp_path: Path) -> None:
    code = written(tmp_path / "code", CHECKPOINTED)
    found = set()
    for pipelines, stages in ((1, 1), (1, 3)):
        folder = tmp_path / f"{pipelines}x{stages}"
        spec = job(folder, pipelines=pipelines, stages=stages, steps=3)
        spec = replace(
            spec,
            model=ModelSpec("mine:build"),
            data=replace(spec.data, factory="mine:Data", args={}, validation=None),
            training=replace(spec.training, precision=Precision.BFLOAT16),
        )
        found.add(digest_of(spec, folder, code=code))
    assert len(found) == 1


def test_groups_schedule_and_clipping_have_equal_bits_on_every_grid(tmp_path: Path) -> None:
    optimizer = OptimizerSpec(
        "torch.optim:AdamW",
        {"lr": 3e-3, "weight_decay": 0.1},
        groups=(
            ParameterGroup(("*bias", "*norm*"), {"weight_decay": 0.0}),
            ParameterGroup(("*",), {"lr": 1e-3, "betas": [0.8, 0.9]}),
        ),
        schedule=FactorySpec(
            "bamboo_agent.schedules:cosine", {"warmup_steps": 2, "total_steps": 6, "final": 0.1}
        ),
    )
    found = set()
    for pipelines, stages in GRIDS:
        folder = tmp_path / f"{pipelines}x{stages}"
        spec = job(folder, pipelines=pipelines, stages=stages, steps=4)
        training = replace(spec.training, optimizer=optimizer, clip_norm=0.1)
        spec = replace(spec, training=replace(training, clip=Clipping.PER_GROUP))
        found.add(digest_of(spec, folder, kill=int(pipelines > 1)))
    assert len(found) == 1
