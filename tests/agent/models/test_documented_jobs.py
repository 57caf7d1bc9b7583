"""The jobs of docs/library-models.md are short, and their models are cut into their stages."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from bamboo_agent.user_code import build_model, call_factory
from bamboo_core.api.spec import FactorySpec

PAGE = (Path(__file__).resolve().parents[3] / "docs/library-models.md").read_text()
JOBS = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)


def test_there_is_one_for_each_library() -> None:
    assert [re.findall(r"models\.(\w+):build", job) for job in JOBS] == [
        ["torchvision"],
        ["transformers"],
    ]


@pytest.mark.parametrize("text", JOBS)
def test_a_job_is_short_and_builds(text: str) -> None:
    assert len(text.splitlines()) <= 15
    spec = yaml.safe_load(text)["spec"]
    model = build_model(FactorySpec(**spec["model"]), seed=1)
    assert len(model.layers) >= spec["pipelines"]["stages"]
    with torch.device("meta"):
        assert all(any(True for _ in build().parameters()) for build in model.layers)


@pytest.mark.parametrize("text", JOBS)
def test_its_data_need_no_code_and_fit_its_loss(text: str, tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.zeros((4, 3, 8, 8), np.float32))
    np.save(tmp_path / "classes.npy", np.arange(4))
    np.arange(5000).astype("<u2").tofile(tmp_path / "train-0.bin")
    spec = yaml.safe_load(text.replace("/data/", f"{tmp_path}/"))["spec"]
    data = call_factory(FactorySpec(**spec["data"]), seed=1)
    model = build_model(FactorySpec(**spec["model"]), seed=1)
    given, target = (torch.stack(part) for part in zip(data[0], data[1], strict=True))
    assert model.misfit is None or model.misfit(given, target) == ""
