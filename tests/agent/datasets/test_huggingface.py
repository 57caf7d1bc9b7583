"""Rows of HuggingFace's data sets as samples, from folders that the library itself has written."""

from __future__ import annotations

import builtins
import errno
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from bamboo_agent.data.batches import SampleError
from bamboo_agent.datasets import huggingface
from bamboo_agent.datasets.huggingface import build
from bamboo_agent.model import FactoryError

WORDS = ["one", "two", "three", "four", "five"]
ROWS = {
    "input_ids": [list(range(1, 2 + i % 5)) for i in range(100)],
    "attention_mask": [[1] * (1 + i % 5) for i in range(100)],
    "label": list(range(100)),
    "score": [i / 100 for i in range(100)],
    "text": [" ".join(WORDS[: 1 + i % 5]) for i in range(100)],
}
PAD = {"input_ids": 0, "attention_mask": 0, "labels": -100}
IDS = ["input_ids", "attention_mask"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    yield
    datasets.enable_progress_bars()


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """A folder of save_to_disk with two splits."""
    whole = datasets.Dataset.from_dict(ROWS)
    splits = {"train": whole, "test": whole.select(range(10))}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    return str(tmp_path / "saved")


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    made = Tokenizer(WordLevel({"[PAD]": 9, **{w: i for i, w in enumerate(WORDS)}}, "one"))
    made.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]")
    fast.save_pretrained(tmp_path / "tokenizer")
    return str(tmp_path / "tokenizer")


def batch(data_of: Any, made: Any, **more: Any) -> tuple[Any, Any, list[int]]:
    data = data_of(made, **more)
    return *data.training(0, 0), data.indices(0, 0)


def test_a_row_is_a_dict_of_tensors_with_its_target(saved: str) -> None:
    rows = build(saved, "train", columns=["score"], labels="label")
    assert len(rows) == 100
    assert rows[7].keys() == {"score", "labels"}
    assert rows[7]["labels"].item() == 7
    assert rows[7]["score"].dtype == torch.float32
    assert rows.collate is None


def test_all_columns_but_the_target_are_inputs(tmp_path: Path, data_of: Any) -> None:
    folder = tmp_path / "one"
    datasets.Dataset.from_dict({x: ROWS[x] for x in ("score", "label")}).save_to_disk(folder)
    inputs, target, indices = batch(data_of, build(str(folder), labels="label"))
    assert list(inputs) == ["score"]
    assert target.tolist() == indices


def test_rows_are_padded_to_the_longest_or_a_multiple_or_a_length(saved: str, data_of: Any) -> None:
    for more, expected in (
        ({}, lambda longest: longest),
        ({"multiple": 4}, lambda longest: -(-longest // 4) * 4),
        ({"length": 3}, lambda longest: 3),
        ({"length": 9}, lambda longest: 9),
    ):
        made = build(saved, "train", columns=IDS, labels="input_ids", pad=PAD, **more)
        inputs, target, indices = batch(data_of, made)
        lengths = [1 + i % 5 for i in indices]
        width = expected(max(lengths))
        assert inputs["input_ids"].shape == target.shape == (2, width)
        for row, mask, wanted, length in zip(
            inputs["input_ids"], inputs["attention_mask"], target, lengths, strict=True
        ):
            kept = min(length, width)
            assert row.tolist() == list(range(1, kept + 1)) + [0] * (width - kept)
            assert mask.tolist() == [1] * kept + [0] * (width - kept)
            assert wanted.tolist() == list(range(1, kept + 1)) + [-100] * (width - kept)


def test_targets_without_length_are_not_padded(saved: str, data_of: Any) -> None:
    made = build(saved, "train", columns=["input_ids"], labels="label", pad=PAD)
    _, target, indices = batch(data_of, made)
    assert target.tolist() == indices


def test_a_tokenizer_makes_the_inputs_and_pads_them(
    saved: str, tokenizer: str, data_of: Any
) -> None:
    made = build(saved, "train", tokenizer=tokenizer, multiple=8)
    inputs, target, indices = batch(data_of, made)
    for row, mask, wanted, index in zip(
        inputs["input_ids"], inputs["attention_mask"], target, indices, strict=True
    ):
        tokens = list(range(1 + index % 5))
        left = 8 - len(tokens)
        assert row.tolist() == tokens + [9] * left
        assert mask.tolist() == [1] * len(tokens) + [0] * left
        assert wanted.tolist() == tokens + [-100] * left
    cut = build(saved, "train", tokenizer=tokenizer, labels="label", length=2)[3]
    assert (cut["input_ids"].tolist(), cut["labels"].item()) == ([0, 1], 3)


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_files_of_a_folder_are_read_as_the_library_reads_them(
    tmp_path: Path, data_of: Any, kind: str
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    rows = datasets.Dataset.from_dict({x: ROWS[x] for x in ("score", "label")})
    getattr(rows, f"to_{kind}")(folder / f"train.{kind}")
    for split in ("train", None, "train[:60%]"):
        made = build(str(folder), split, labels="label")
        assert len(made) == (60 if split and "%" in split else 100)
        assert made[5]["labels"].item() == 5
    data = data_of(build(str(folder), labels="label"))
    assert data.fingerprint() == data_of(build(str(folder), labels="label")).fingerprint()


def test_images_of_a_folder_are_read(tmp_path: Path, data_of: Any) -> None:
    image = pytest.importorskip("PIL.Image")
    for label in ("cat", "dog"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for i in range(30):
            made = image.new("RGB", (4, 3), (i, 0, 0))
            made.save(tmp_path / "images" / label / f"{i:02}.png")
    inputs, target, _ = batch(data_of, build(str(tmp_path / "images"), labels="label"))
    assert inputs["image"].shape == (2, 3, 3, 4)
    assert set(target.tolist()) <= {0, 1}


def test_a_collate_of_the_user_gets_the_rows(
    saved: str, data_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("users_collate")
    vars(module)["together"] = lambda rows: {
        "lengths": torch.tensor([len(row["text"]) for row in rows]),
        "labels": torch.stack([row["label"] for row in rows]),
    }
    monkeypatch.setitem(sys.modules, "users_collate", module)
    made = build(saved, "train", collate="users_collate:together")
    inputs, target, indices = batch(data_of, made)
    assert target.tolist() == indices
    assert inputs["lengths"].tolist() == [len(ROWS["text"][i]) for i in indices]
    with pytest.raises(FactoryError, match="module 'users_collate' has no 'apart'"):
        build(saved, "train", collate="users_collate:apart")


# ------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "saved has the splits train, test, not None; name one"),
        ({"split": "dev"}, "saved has the splits train, test, not dev; name one"),
        ({"split": "train"}, "saved has no column 'labels'; its columns are input_ids, attention_"),
        ({"split": "train", "labels": "no"}, "saved has no column 'no'; its columns are input_id"),
        (
            {"split": "train", "labels": "label", "columns": ["words"]},
            "there is no column 'words'; its columns are input_ids",
        ),
        (
            {"split": "train", "labels": "label"},
            "saved is of type str, not numbers; name columns without it, a tokenizer for its text",
        ),
        ({"multiple": 8}, 'multiple and length need pad, such as pad: {"input_ids": 0}'),
        ({"multiple": 0}, "multiple 0 and length None must be at least 1"),
        ({"pad": PAD, "collate": "a:b"}, "pad and collate both make micro-batches; name one"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    saved: str, arguments: dict[str, Any], words: str
) -> None:
    if arguments.get("multiple"):
        arguments = {**arguments, "split": "train"}
    with pytest.raises(ValueError, match=re.escape(words)):
        build(saved, **arguments)


def test_one_data_set_has_no_splits_and_an_empty_one_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets.Dataset.from_dict({"label": [1]}).save_to_disk(tmp_path / "one")
    with pytest.raises(ValueError, match="one is one data set without splits; leave split out"):
        build(str(tmp_path / "one"), "train", labels="label")
    none = datasets.Dataset.from_dict({"label": []})
    monkeypatch.setattr(datasets, "load_from_disk", lambda _: none)
    with pytest.raises(ValueError, match="one has no rows"):
        build(str(tmp_path / "one"), labels="label")


def test_a_column_of_unequal_lengths_without_a_value_is_named(saved: str, data_of: Any) -> None:
    columns = {"columns": IDS, "labels": "label", "pad": {"input_ids": 0}}
    data = data_of(build(saved, "train", **columns), size=4)
    words = (
        r"collate of .*: ValueError: column 'attention_mask' holds a tensor of shape \(\d,\) and"
        r" dtype int64 and .*; give it a value in pad, or leave it out of columns"
    )
    with pytest.raises(SampleError, match=words):
        data.training(0, 0)


@pytest.mark.parametrize("split", [None, "train"])
def test_a_folder_that_is_not_there_is_refused(tmp_path: Path, split: str | None) -> None:
    words = r"data set '.*/no' cannot be loaded: FileNotFoundError: Couldn't find any data file"
    with pytest.raises(OSError, match=words):
        build(str(tmp_path / "no"), split)


def test_a_split_that_files_do_not_have_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("label\n1\n")
    with pytest.raises(ValueError, match=r'cannot be loaded: ValueError: Unknown split "dev"'):
        build(str(tmp_path), "dev")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_cache_that_cannot_be_written_is_told_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise OSError(number, "cannot be written", "/.cache")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(OSError, match=r"/.cache.*: set HF_HOME in spec.worker.env to a folder"):
        build("name/of-the-hub")


def test_a_name_goes_to_the_hub_with_all_that_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load(*positional: Any, **named: Any) -> Any:
        asked.append((positional, named))
        return datasets.Dataset.from_dict({"label": [1]})

    monkeypatch.setattr(datasets, "load_dataset", load)
    build("name/of-the-hub", "train", "small", "abc", labels="label")
    assert asked == [(("name/of-the-hub", "small"), {"split": "train", "revision": "abc"})]


def test_a_tokenizer_that_is_not_there_is_named(saved: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "no-tokenizer")
    words = f"args.tokenizer '{missing}' cannot be loaded: name a folder of save_pretrained"
    with pytest.raises(OSError, match=re.escape(words)) as found:
        build(saved, "train", tokenizer=missing)
    assert str(found.value).endswith(": there is no such folder")


def test_a_folder_without_a_tokenizer_is_told_with_its_files(saved: str, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    for files in ("no files", "config.json"):
        with pytest.raises(OSError, match=r"^args\.tokenizer '.*/made' cannot be") as found:
            build(saved, "train", tokenizer=str(folder))
        lacks = f"the folder has {files}, and so no tokenizer.json, vocab.json, vocab.txt"
        assert lacks in str(found.value)
        (folder / "config.json").write_text("{}")


def test_a_tokenizer_needs_its_column(saved: str, tokenizer: str) -> None:
    with pytest.raises(ValueError, match="there is no column 'body'; its columns are input_ids, a"):
        build(saved, "train", tokenizer=tokenizer, text="body")


@pytest.mark.parametrize("library", ["datasets", "transformers"])
def test_a_library_that_is_missing_is_told(
    saved: str, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    imported = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == library:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return imported(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=f"No module .* pip install {library}$"):
        build(saved, "train", tokenizer="any")


def test_a_folder_that_hides_the_library_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    hiding = ModuleType("datasets")
    hiding.__path__ = ["/app/datasets"]
    monkeypatch.setitem(sys.modules, "datasets", hiding)
    with pytest.raises(ImportError, match=r"/app/datasets.* hides HuggingFace's library datasets"):
        huggingface.build("any")
