"""The zoo's small models train in real agents, through a loss, with the bits of a plain loop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.agent.local.runs import Run, job
from tests.agent.models import chains

from bamboo_agent.models.zoo import FULL, LIBRARY, TINY
from bamboo_core.api import local_run
from bamboo_core.api.spec import CheckpointSpec, DataSpec, ModelSpec, RedundancySpec

ENTRIES = {**TINY, **LIBRARY}


@pytest.mark.timeout(400)
@pytest.mark.rotating(18)
@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("name", ENTRIES)
def test_a_small_model_trains_through_a_restore(
    name: str, recomputes: bool, tmp_path: Path
) -> None:
    entry = ENTRIES[name]
    arguments = {**entry.model.args, "checkpoint_activations": recomputes}
    spec = job(tmp_path, pipelines=1, stages=2, steps=4)
    spec = replace(
        spec,
        model=ModelSpec(entry.model.factory, arguments),
        data=DataSpec(entry.data.factory, entry.data.args),
        training=replace(spec.training, validate_every=0),
        redundancy=RedundancySpec(),
        checkpoint=CheckpointSpec((tmp_path / "checkpoints").as_uri(), every_steps=1),
    )
    run = Run(spec, tmp_path, "--check", "--kill", "1")
    assert run.to_end() == 0, run.told
    assert run.all_of(local_run.Killed)
    (compared,) = run.all_of(local_run.Compared)
    assert compared.differs == ""


@pytest.mark.parametrize("name", FULL)
def test_a_full_model_is_cut_without_memory(name: str) -> None:
    with torch.device("meta"):
        layers = [build() for build in chains.model_of(FULL[name]).layers]
    assert len(layers) >= FULL[name].spare_stages
    assert all(p.is_meta for layer in layers for p in layer.parameters())


MILLIONS = {
    "resnet152": 60.2,
    "vgg19": 143.7,
    "alexnet": 61.1,
    "bert-large": 335.2,
    "gpt2": 1557.6,
}
"""As published."""


@pytest.mark.parametrize("name", MILLIONS)
def test_a_full_model_has_its_published_size(name: str) -> None:
    with torch.device("meta"):
        model = chains.model_of(FULL[name])
        layers = [build() for build in model.layers]
    count = sum(p.numel() for layer in layers for p in layer.parameters())
    count -= sum(layers[i].get_parameter(n).numel() for _, *more in model.ties for i, n in more)
    assert count / 1e6 == pytest.approx(MILLIONS[name], rel=0.002)
