"""Files of weights appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bamboo_agent.weight_files.outlines import WeightsError
from bamboo_agent.weight_files.sink import Folder, OneFile, placed
from bamboo_agent.weight_files.source import Source


def write(path: Path, value: float, *, force: bool = False) -> None:
    with placed(path, force=force) as temporary:
        assert not path.exists() or force
        sink = OneFile(temporary, is_torch=False)
        sink.add({"x": torch.full((2,), value)})
        sink.close()


def test_a_file_replaces_another_only_if_told_to(tmp_path: Path) -> None:
    path = tmp_path / "new" / "w.safetensors"
    write(path, 1.0)
    with pytest.raises(WeightsError, match="exists; give another path, or --force"):
        write(path, 2.0)
    assert Source(str(path))["x"][0] == 1
    write(path, 2.0, force=True)
    assert Source(str(path))["x"][0] == 2
    assert list(path.parent.iterdir()) == [path]


def test_files_have_the_rights_of_any_new_file(tmp_path: Path) -> None:
    """Pods run as another user than whoever has exported them."""
    write(tmp_path / "w.safetensors", 1.0)
    with placed(tmp_path / "folder", force=False) as temporary:
        folder = Folder(temporary)
        folder.add({"x": torch.zeros(2)})
        folder.close()
    (tmp_path / "usual").touch()
    files = [x for x in tmp_path.rglob("*") if x.is_file()]
    assert len(files) == 3
    assert len({x.stat().st_mode for x in files}) == 1


def test_a_folder_replaces_a_folder_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.write_text("old")
    for value in (1.0, 2.0):
        with placed(path, force=True) as temporary:
            folder = Folder(temporary)
            folder.add({"x": torch.full((2,), value)})
            folder.close()
        assert Source(str(path))["x"][0] == value
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("place", ["home", "home/..", "."])
def test_a_folder_of_other_things_is_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("all of it")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WeightsError, match="is a folder without weights, which --force does not"):
        write(Path(place), 1.0, force=True)
    assert [x.name for x in tmp_path.rglob("*")] == ["home", "thesis.txt"]


def test_nothing_is_left_after_an_error_and_what_was_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "w"
    write(path, 1.0)

    def fail() -> None:
        with placed(path, force=True) as temporary:
            Folder(temporary).add({"x": torch.ones(1)})
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fail()
    assert list(tmp_path.iterdir()) == [path]
    assert path.is_file()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WeightsError, match=r"--out .*w cannot be written: "):
        write(tmp_path / "file" / "w", 1.0)


def test_files_of_equal_tensors_are_equal_whatever_their_names(tmp_path: Path) -> None:
    for name in ("a.pt", "b"):
        sink = OneFile(tmp_path / name, is_torch=True)
        sink.add({"x": torch.ones(3)})
        sink.close()
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_name_of_two_layers_is_refused(tmp_path: Path) -> None:
    sink = OneFile(tmp_path / "w", is_torch=True)
    sink.add({"x": torch.ones(1)})
    with pytest.raises(WeightsError, match="two layers have x"):
        sink.add({"x": torch.ones(1)})


def test_a_part_is_never_larger_than_its_bound_unless_one_tensor_is(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "w", shard_bytes=16)
    folder.add({"a": torch.ones(2), "b": torch.ones(2), "c": torch.ones(1), "d": torch.ones(9)})
    folder.close()
    sizes = {}
    for file in sorted((tmp_path / "w").glob("*.safetensors")):
        sizes[file.name] = list(Source(str(file)))
    assert sizes == {
        "model-00001-of-00003.safetensors": ["a", "b"],
        "model-00002-of-00003.safetensors": ["c"],
        "model-00003-of-00003.safetensors": ["d"],
    }
