"""Code of the user's that ends its process is named by the layer in which it did so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.local.runs import Run, job, written

from bamboo_agent.data.order import sample_indices
from bamboo_core.api import local_run
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import JobSpec, ModelSpec, RedundancySpec

pytestmark = pytest.mark.timeout(400)

SAMPLES, STEP = 640, 3

CODE = """
import os
import signal
import torch
from torch import nn
from bamboo_agent.model import Model

BAD = 0

class Fragile(nn.Linear):
    def forward(self, x):
        if (x[:, 0] == BAD).any():
            os.kill(os.getpid(), signal.SIGSEGV)
        return torch.cat([x[:, :1], super().forward(x)[:, 1:]], 1)

class Keep(nn.Linear):
    def forward(self, x):
        return torch.cat([x[:, :1], super().forward(x)[:, 1:]], 1)

def loss(output, target):
    return (output[:, 1:] ** 2).mean() + target.sum() * 0

def build():
    return Model([lambda: Keep(4, 4), lambda: Keep(4, 4), lambda: Fragile(4, 4)], loss)

class Data:
    def __len__(self):
        return 640

    def __getitem__(self, index):
        return torch.tensor([float(index), 1.0, 2.0, 3.0]), torch.tensor(0.0)
"""


def crashing(folder: Path, how: str = "") -> tuple[JobSpec, Path]:
    """A job whose last layer crashes over one sample of a step, and its code. how: what it does
    instead."""
    code = written(folder / "code", CODE)
    spec = job(folder, pipelines=3, stages=1)
    training = spec.training
    bad, *_ = sample_indices(
        seed=spec.seed,
        step=STEP,
        microbatch=1,
        microbatches=training.microbatches,
        size=training.micro_batch_size,
        samples=SAMPLES,
    )
    source = code / "mine.py"
    text = source.read_text().replace("BAD = 0", f"BAD = {bad}")
    source.write_text(text.replace("os.kill(os.getpid(), signal.SIGSEGV)", how) if how else text)
    data = replace(spec.data, factory="mine:Data", args={}, validation=None)
    return replace(
        spec,
        model=ModelSpec("mine:build"),
        data=data,
        training=replace(training, validate_every=0),
        redundancy=RedundancySpec(),
    ), code


def test_a_crash_ends_the_run_with_the_layer_and_its_class(tmp_path: Path) -> None:
    spec, code = crashing(tmp_path)
    run = Run(spec, tmp_path, code=code)
    assert run.to_end() == 1
    assert run.ended.outcome is Outcome.FAILED
    assert f", in F[0:3] m1 @{STEP}, layer 2 (Fragile): native code" in run.ended.message
    assert "; it runs spec.model.factory mine:build, layer 2 (Fragile); " in run.ended.message


def test_code_that_ends_one_process_with_the_code_of_a_refusal_ends_no_run(tmp_path: Path) -> None:
    """A tool calls sys.exit(2). Others hold the layers, and the second time it does not do so."""
    flag = tmp_path / "flag"
    spec, code = crashing(tmp_path, f"os.path.exists({str(flag)!r}) or end({str(flag)!r})")
    source = code / "mine.py"
    end = "\n\ndef end(flag):\n    open(flag, 'w').close()\n    os._exit(2)\n"
    source.write_text(source.read_text() + end)
    run = Run(spec, tmp_path, code=code)
    assert run.to_end() == 0
    assert run.ended.outcome is Outcome.COMPLETE
    told = [x.message for x in run.all_of(local_run.Happened) if "code 2, in F[0:3]" in x.message]
    assert told
