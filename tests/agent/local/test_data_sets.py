"""The data sets that come with Bamboo, trained on this machine through losses of agents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from tests.agent.local.runs import Run, job, written

from bamboo_core.api import local_run
from bamboo_core.api.spec import JobSpec, ModelSpec, RedundancyMode, RedundancySpec

pytestmark = [pytest.mark.timeout(600), pytest.mark.rotating(2)]
STEPS = 6
MODEL = """
    from functools import partial
    from torch import nn
    from torch.nn import functional
    from bamboo_agent.model import Model

    class Embed(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(32, 16)

        def forward(self, batch):
            hidden = self.table(batch["input_ids"])
            return hidden * batch["attention_mask"].unsqueeze(-1)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.dropout = nn.Linear(16, 16), nn.Dropout(0.1)

        def forward(self, x):
            return x + self.dropout(self.inner(x).tanh())

    def loss(output, labels):
        total = functional.cross_entropy(output.flatten(0, 1), labels.flatten(), reduction="sum")
        return total, (labels != -100).sum()

    def build():
        return Model([Embed, Block, Block, partial(nn.Linear, 16, 32)], loss)
"""


def trained(spec: JobSpec, folder: Path, *options: str, code: Path | None = None) -> Run:
    run = Run(spec, folder, *options, code=code)
    assert run.to_end() == 0, run.told
    assert [x.step for x in run.all_of(local_run.Step)][-1] == STEPS - 1
    return run


def on(folder: Path, grid: tuple[int, int], factory: str, **arguments: Any) -> JobSpec:
    spec = job(folder, pipelines=grid[0], stages=grid[1], steps=STEPS)
    training = replace(spec.training, validate_every=0)
    data = replace(
        spec.data, factory=f"bamboo_agent.datasets.{factory}:build", args=arguments, validation=None
    )
    return replace(spec, training=training, data=data)


def through_a_loss(spec: JobSpec, folder: Path, code: Path | None = None) -> bool:
    """Whether an agent was lost, and all bits are those of a plain loop that lost none."""
    run = trained(spec, folder, "--kill", "1", "--check", code=code)
    (compared,) = run.all_of(local_run.Compared)
    return len(run.all_of(local_run.Killed)) == 1 and (compared.steps, compared.differs) == (
        STEPS,
        "",
    )


def test_tokens_of_a_file_are_the_same_after_a_loss_and_a_restore(tmp_path: Path) -> None:
    """One pipeline without copies: a lost agent takes its layers with it, and files bring them."""
    tokens = np.random.default_rng(0).integers(0, 64, 3000)
    tokens.astype("<u2").tofile(tmp_path / "train.bin")
    arguments = {"path": str(tmp_path / "*.bin"), "sequence": 16, "vocabulary": 64}
    spec = on(tmp_path, (1, 2), "tokens", **arguments)
    assert spec.checkpoint is not None
    spec = replace(
        spec,
        redundancy=RedundancySpec(RedundancyMode.NONE),
        checkpoint=replace(spec.checkpoint, every_steps=2),
    )
    assert through_a_loss(spec, tmp_path)


def test_padded_rows_are_the_same_after_a_loss(tmp_path: Path) -> None:
    rows = [[i % 32] * (1 + i % 12) for i in range(100)]
    made = {"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]}
    datasets.Dataset.from_dict(made).save_to_disk(tmp_path / "rows")
    code = written(tmp_path / "code", MODEL)
    spec = on(
        tmp_path,
        (2, 1),
        "huggingface",
        path=str(tmp_path / "rows"),
        labels="input_ids",
        columns=["input_ids", "attention_mask"],
        pad={"input_ids": 0, "attention_mask": 0, "labels": -100},
        multiple=4,
    )
    assert through_a_loss(replace(spec, model=ModelSpec("mine:build")), tmp_path, code)
