"""The fragments of docs/data.md build data sets that agents take."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import yaml
from PIL import Image
from tests.agent.datasets.test_huggingface import ROWS, tokenizer

from bamboo_agent.user_code import call_factory
from bamboo_core.api.spec import FactorySpec

__all__ = ["tokenizer"]
PAGE = Path(__file__).resolve().parents[3] / "docs/data.md"
FRAGMENTS = [
    yaml.safe_load(text)["data"]
    for text in re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
]


@pytest.fixture
def folder(tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all that the page has in /data."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "data"
    data.mkdir()
    for name, count in (("train-0.bin", 120_000), ("train-1.bin", 3000), ("val.bin", 3000)):
        (np.arange(count) % 50257).astype("<u2").tofile(data / name)
    rows = datasets.Dataset.from_dict(ROWS)
    datasets.DatasetDict({"train": rows}).save_to_disk(data / "tokenized")
    (data / "texts").mkdir()
    rows.select_columns(["text"]).to_json(data / "texts" / "train.jsonl")
    shutil.move(tokenizer, data / "tokenizer")
    np.save(data / "images.npy", np.zeros((300, 3, 4, 4), np.float32))
    np.save(data / "classes.npy", np.arange(300) % 10)
    for label in ("cat", "dog"):
        (data / "images" / label).mkdir(parents=True)
        for i in range(30):
            Image.new("RGB", (4, 3), (i, 0, 0)).save(data / "images" / label / f"{i}.png")
    return data


def built(fragment: dict[str, Any], folder: Path) -> Any:
    arguments = {
        name: value.replace("/data", str(folder)) if isinstance(value, str) else value
        for name, value in fragment["args"].items()
    }
    return call_factory(FactorySpec(fragment["factory"], arguments), seed=7)


def test_the_page_has_a_fragment_for_each_kind() -> None:
    assert len(FRAGMENTS) == 5


@pytest.mark.parametrize(
    "fragment", FRAGMENTS, ids=lambda x: "-".join(map(str, x["args"].values()))
)
def test_a_fragment_gives_micro_batches(fragment: Any, folder: Path, data_of: Any) -> None:
    held_out = fragment.get("validation")
    data = data_of(built(fragment, folder), held_out and built(held_out, folder))
    data.training(0, 0)
    if held_out:
        data.validation(0)
    assert data.fingerprint()
