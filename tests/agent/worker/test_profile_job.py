"""What `bamboo profile` runs: it measures the layers, or says what is wrong in one line."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bamboo_agent.worker import profile_job
from bamboo_core.api.spec import (
    DataSpec,
    FactorySpec,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    PipelinesSpec,
    TrainingSpec,
    WorkerSpec,
    to_json,
)
from bamboo_core.protection import profile_file

SPEC = JobSpec(
    model=ModelSpec("bamboo_agent.models.gpt:build", {"layers": 1, "width": 16, "context": 8}),
    data=DataSpec("bamboo_agent.datasets.text:build", {"split": "train", "context": 8}),
    training=TrainingSpec(4, 4, 2, OptimizerSpec("torch.optim:AdamW")),
    pipelines=PipelinesSpec(1, 2),
    worker=WorkerSpec("image"),
)


@pytest.fixture(autouse=True)
def _determinism(monkeypatch: pytest.MonkeyPatch):
    before = torch.are_deterministic_algorithms_enabled()
    yield
    torch.use_deterministic_algorithms(before)


def run(spec: JobSpec, out: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(to_json(spec)))
    return profile_job.main(["--out", str(out)])


def test_a_job_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "p.json"
    assert run(SPEC, out, monkeypatch) == 0
    found = profile_file.from_json(out.read_text())
    assert len(found.layers) == 3
    assert all(layer.forward_s > 0 < layer.parameter_bytes for layer in found.layers)
    assert found.micro_batch_size == 2
    assert found.model == FactorySpec(SPEC.model.factory, SPEC.model.args)
    assert found.device.split(":")[0] in ("cpu", "cuda")


def test_the_users_mistake_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "p.json"
    wrong = replace(SPEC, model=replace(SPEC.model, args={"width": 15, "heads": 4}))
    assert run(wrong, out, monkeypatch) == 1
    assert not out.exists()
    (line,) = capsys.readouterr().err.strip().splitlines()
    words = "spec.model.args.width: 15 is not divisible by heads 4; set a multiple of it"
    assert line.endswith("raised ValueError: " + words)


@pytest.mark.parametrize(("cuda", "words"), [(None, "use an image"), ("12.8", "nvidia-smi")])
def test_a_job_that_asks_for_a_gpu_is_not_measured_on_the_cpu(
    cuda: str | None,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    asks = WorkerSpec("image", resources={"limits": {"nvidia.com/gpu": 1}})
    assert run(replace(SPEC, worker=asks), tmp_path / "p.json", monkeypatch) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "spec.worker.resources asks for nvidia.com/gpu 1" in line
    assert words in line
