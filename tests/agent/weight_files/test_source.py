"""Files of weights: formats, folders, other stores, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import fsspec
import pytest
import safetensors.torch
import torch
from torch import nn

from bamboo_agent.weight_files.outlines import Outline, WeightsError
from bamboo_agent.weight_files.sink import Folder
from bamboo_agent.weight_files.source import Source, given, options_of

TENSORS = {
    "a.weight": torch.arange(6.0).reshape(2, 3),
    "a.half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "count": torch.tensor(7),
    "mask": torch.tensor([True, False, True]),
}


def check(source: Source) -> None:
    assert source.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert source.outlines[name] == Outline.of(tensor)
        assert source[name].dtype == tensor.dtype
        assert torch.equal(source[name], tensor)


@pytest.mark.parametrize("limit", [10, 10**9])
def test_a_folder_of_parts_or_of_one_file_is_read(limit: int, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "w", shard_bytes=limit)
    folder.add(TENSORS)
    folder.close()
    check(Source(str(tmp_path / "w")))
    check(Source((tmp_path / "w").as_uri()))
    assert (tmp_path / "w" / "model.safetensors").exists() is (limit > 10)


@pytest.mark.parametrize("is_folder", [True, False])
def test_another_store_is_read_piece_by_piece(is_folder: bool, tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    folder = Folder(tmp_path / "w", shard_bytes=10 if is_folder else 10**9)
    folder.add(TENSORS)
    folder.close()
    for file in (tmp_path / "w").iterdir():
        fs.pipe(f"/weights-{is_folder}/{file.name}", file.read_bytes())
    name = "" if is_folder else "/model.safetensors"
    check(Source(f"memory://weights-{is_folder}{name}"))


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_bucket_is_read_piece_by_piece(is_folder: bool, bucket: str, tmp_path: Path) -> None:
    """Drivers differ in the order of their arguments."""
    folder = Folder(tmp_path / "w", shard_bytes=10 if is_folder else 10**9)
    empty = {"empty": torch.zeros(0, 3)}
    folder.add({**TENSORS, **empty})
    folder.close()
    fs = fsspec.filesystem("s3", **options_of("s3://x"))
    for file in (tmp_path / "w").iterdir():
        fs.pipe(f"{bucket}/first/{file.name}", file.read_bytes())
    source = Source(f"{bucket}/first" + ("" if is_folder else "/model.safetensors"))
    assert source["empty"].shape == (0, 3)
    assert {name: source[name].tolist() for name in TENSORS} == {
        name: tensor.tolist() for name, tensor in TENSORS.items()
    }


@pytest.mark.parametrize("name", ["w.pt", "w.pth", "pytorch_model.bin"])
@pytest.mark.parametrize("is_old", [True, False])
def test_a_state_dict_is_read(name: str, is_old: bool, tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / name, _use_new_zipfile_serialization=not is_old)
    check(Source(str(tmp_path / name)))
    torch.save({"state_dict": TENSORS, "step": 3}, tmp_path / name)
    check(Source(str(tmp_path / name)))


def test_a_state_dict_in_parts_is_read(tmp_path: Path) -> None:
    places = {name: f"part-{i % 2}.bin" for i, name in enumerate(TENSORS)}
    for file in set(places.values()):
        torch.save({n: t for n, t in TENSORS.items() if places[n] == file}, tmp_path / file)
    index = {"weight_map": places}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    check(Source(str(tmp_path)))


def test_nothing_but_tensors_is_unpickled(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "w.pt")
    with pytest.raises(
        WeightsError, match=r"w\.pt is no file of torch\.save with .* write"
    ) as found:
        Source(str(tmp_path / "w.pt"))
    assert "weights_only" not in str(found.value)


def test_a_state_dict_below_another_key_is_named(tmp_path: Path) -> None:
    torch.save({"model": {"x": torch.ones(2)}, "epoch": 3}, tmp_path / "w.pt")
    words = "w.pt is no state dict, but has dicts under 'model': write one with"
    with pytest.raises(WeightsError, match=words):
        Source(str(tmp_path / "w.pt"))


def test_what_is_no_state_dict_is_refused(tmp_path: Path) -> None:
    torch.save([torch.ones(2)], tmp_path / "w.pt")
    with pytest.raises(WeightsError, match="is no state dict"):
        Source(str(tmp_path / "w.pt"))


def test_what_is_not_there_or_not_readable_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="nowhere is not there"):
        Source(str(tmp_path / "nowhere"))
    with pytest.raises(WeightsError, match=r"has none of model\.safetensors"):
        Source(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 64)
    with pytest.raises(
        WeightsError, match=r"model\.safetensors is no safetensors file.*: name one"
    ):
        Source(str(tmp_path))
    fsspec.filesystem("memory").pipe("/bad/model.safetensors", b"\0" * 64)
    with pytest.raises(WeightsError, match="it has no header"):
        Source("memory://bad/model.safetensors")
    with pytest.raises(WeightsError, match="nostore://x cannot be used"):
        Source("nostore://x")
    safetensors.torch.save_file({}, tmp_path / "empty.safetensors")
    with pytest.raises(WeightsError, match="has no tensors"):
        given(str(tmp_path / "empty.safetensors"))


@pytest.mark.parametrize("places", [{"a": "../x.safetensors"}, {}, [], {"a": 3}])
def test_an_index_names_files_of_its_folder(places: object, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with pytest.raises(WeightsError, match="names no files of its folder"):
        Source(str(tmp_path))


def test_a_part_that_is_missing_is_named(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "a.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightsError, match=r"a\.safetensors is not there"):
        Source(str(tmp_path))


def test_a_name_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        safetensors.torch.save_file({"x": torch.ones(1)}, tmp_path / f"{name}.safetensors")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightsError, match="has x in two files"):
        Source(str(tmp_path))


def test_a_state_dict_elsewhere_is_refused() -> None:
    fsspec.filesystem("memory").pipe("/far/w.pt", b"x")
    with pytest.raises(WeightsError, match="copy it here"):
        Source("memory://far/w.pt")
