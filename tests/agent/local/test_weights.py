"""Weights out of a run and into the next: equal bits on any grid, and what is refused before it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tests.agent.local.runs import Run, job

from bamboo_agent.compute.layers import LayerBuilder
from bamboo_agent.user_code import build_model
from bamboo_agent.weight_files.outlines import prefixed, weights_of
from bamboo_core.api import local_run
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import JobSpec, to_json

pytestmark = pytest.mark.timeout(400)


def move(what: str, source: Path, out: Path, spec: JobSpec | None = None) -> local_run.Told:
    """Run the program; the last thing that it tells."""
    read, write = os.pipe()
    with os.fdopen(read) as lines:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "bamboo_agent.weights.main", what, "--tell", str(write)),
                *("--source", str(source), "--out", str(out)),
            ],
            input="" if spec is None else to_json(spec),
            pass_fds=[write],
            text=True,
            check=False,
        )
        os.close(write)
        told = [local_run.from_line(line) for line in lines]
    assert done.returncode == (0 if isinstance(told[-1], local_run.Written) else 1)
    return told[-1]


def first_weights(spec: JobSpec, path: Path) -> JobSpec:
    return replace(spec, model=replace(spec.model, initial_from=path.as_uri()))


@pytest.mark.rotating(2)
@pytest.mark.timeout(360)  # four runs and three programs that load torch
def test_weights_go_out_and_in_with_equal_bits_on_any_grid(tmp_path: Path) -> None:
    files = []
    for grid in ((1, 1), (2, 2)):
        folder = tmp_path / "x".join(map(str, grid))
        run = Run(job(folder, pipelines=grid[0], stages=grid[1], steps=2), folder)
        assert run.to_end() == 0, run.told
        files.append(folder / "weights.safetensors")
        assert isinstance(move("export", folder, files[-1]), local_run.Written)
    assert files[0].read_bytes() == files[1].read_bytes()
    out = tmp_path / "first"
    assert isinstance(move("import", files[0], out, job(tmp_path)), local_run.Written)
    digests = set()
    for name, source, grid, options in (
        ("imported", out, (2, 2), ("--check", "--kill", "1")),
        ("exported", files[1], (1, 1), ()),
    ):
        folder = tmp_path / name
        spec = first_weights(job(folder, pipelines=grid[0], stages=grid[1], steps=2), source)
        run = Run(spec, folder, *options)
        assert run.to_end() == 0, run.told
        assert [x.differs for x in run.all_of(local_run.Compared)] == [""] * ("--check" in options)
        digests.add(run.ended.digest)
    assert len(digests) == 1


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """The first weights of a job that is built here."""
    spec = job(tmp_path)
    model = build_model(spec.model, seed=9)
    builder = LayerBuilder(model, lambda _: None, seed=9, device=torch.device("cpu"))
    tensors = {
        prefixed(index, name): tensor
        for index in range(len(model.layers))
        for name, tensor in weights_of(builder.build(index).module).items()
    }
    safetensors.torch.save_file(tensors, tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


def changed(path: Path, name: str, tensor: torch.Tensor | None) -> None:
    state = safetensors.torch.load_file(path) | ({} if tensor is None else {name: tensor})
    if tensor is None:
        del state[name]
    safetensors.torch.save_file(state, path)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("layers.1.qkv.bias", torch.ones(3), r"layer 1, Block: qkv.bias \(\d+ float32\) is 3"),
        ("layers.1.qkv.bias", None, r"layer 1, Block: qkv.bias \(\d+ float32\) is missing"),
        ("layers.9.qkv.bias", torch.ones(3), r"no layer has layers\.9\.qkv\.bias"),
    ],
)
def test_weights_of_another_model_are_refused_before_the_run(
    name: str, tensor: torch.Tensor | None, message: str, weights: Path, tmp_path: Path
) -> None:
    changed(weights, name, tensor)
    run = Run(first_weights(job(tmp_path), weights), tmp_path)
    assert run.to_end() == 1
    assert run.ended.outcome is Outcome.FAILED
    assert str(weights) in run.ended.message
    assert re.search(message, run.ended.message), run.ended.message
    assert not run.all_of(local_run.Fleet)


def test_agents_that_read_other_weights_do_not_train_together(
    weights: Path, tmp_path: Path
) -> None:
    """The file changes between the set-ups of two agents: the fingerprint tells them apart."""
    spec = first_weights(job(tmp_path, pipelines=1, stages=2, steps=40), weights)
    run = Run(spec, tmp_path, "--kill", "1")
    for told in run:
        if isinstance(told, local_run.Step) and told.step == 3:
            other = weights.with_suffix(".new")
            other.write_bytes(weights.read_bytes())
            changed(other, "layers.0.position", torch.zeros_like(position(weights)))
            other.replace(weights)
    assert run.process.wait() == 1
    assert run.ended.outcome is Outcome.FAILED
    assert "weights of agent agent-2" in run.ended.message
    assert "files with weights must be the same on all nodes" in run.ended.message


def position(path: Path) -> torch.Tensor:
    found: torch.Tensor = safetensors.torch.load_file(path)["layers.0.position"]
    return found


def test_the_program_says_why_nothing_is_written(tmp_path: Path) -> None:
    told = move("export", tmp_path, tmp_path / "w")
    assert isinstance(told, local_run.Refused)
    assert "has no checkpoint" in told.message
