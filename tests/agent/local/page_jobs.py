"""The jobs of docs/library-models.md as a new user has them, small enough for tests: the library's
weights and memory-mapped data on disk, and the library's own way to load weights."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import yaml

transformers: Any = pytest.importorskip("transformers")
torchvision: Any = pytest.importorskip("torchvision")
PAGE = Path(__file__).resolve().parents[3] / "docs/library-models.md"
TORCHVISION, TRANSFORMERS = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
State = dict[str, torch.Tensor]


class Library(NamedTuple):
    """A job of the page."""

    text: str
    prepare: Callable[[Path, dict[str, Any]], Callable[[Path], State]]
    kind: str  # of export

    def spec(self, folder: Path) -> tuple[dict[str, Any], Callable[[Path], State]]:
        """The job's spec, with weights and data in the folder, and what loads exported weights."""
        spec = yaml.safe_load(self.text.replace("/data/", f"{folder}/"))["spec"]
        return spec, self.prepare(folder, spec)


def resnet(folder: Path, spec: dict[str, Any]) -> Callable[[Path], State]:
    """ResNet-18 in place of ResNet-50, whose weights take a gigabyte and a minute for each run."""
    spec["model"]["args"] = {"name": "resnet18", "classes": 10}
    spec["model"]["initialFrom"] = (folder / "first.pth").as_uri()
    torch.save(torchvision.models.resnet18(num_classes=10).state_dict(), folder / "first.pth")
    drawn = np.random.default_rng(0)
    np.save(folder / "images.npy", drawn.normal(size=(32, 3, 32, 32)).astype(np.float32))
    np.save(folder / "classes.npy", drawn.integers(0, 10, 32))

    def load(file: Path) -> State:
        model = torchvision.models.resnet18(num_classes=10)
        model.load_state_dict(torch.load(file, weights_only=True))
        found: State = model.state_dict()
        return found

    return load


def gpt2(folder: Path, spec: dict[str, Any]) -> Callable[[Path], State]:
    size = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 32}
    spec["model"]["args"]["config"] |= {**size, "vocab_size": 100}
    spec["data"]["args"]["sequence"] = 16
    first = transformers.GPT2Config(**size, vocab_size=100)
    transformers.GPT2LMHeadModel(first).save_pretrained(folder / "first")
    spec["model"]["initialFrom"] = (folder / "first").as_uri()
    np.random.default_rng(0).integers(0, 100, 2000).astype("<u2").tofile(folder / "train-0.bin")

    def load(exported: Path) -> State:
        model = transformers.GPT2LMHeadModel.from_pretrained(exported)
        assert model.lm_head.weight is model.transformer.wte.weight
        found: State = model.state_dict()
        return found

    return load


LIBRARIES = {
    "torchvision": Library(TORCHVISION, resnet, "torch"),
    "transformers": Library(TRANSFORMERS, gpt2, "huggingface"),
}


def bamboo(folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """The output of a command that succeeds, run in the folder with more variables."""
    done = subprocess.run(
        [sys.executable, "-m", "bamboo_cli", *arguments],
        cwd=folder, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
