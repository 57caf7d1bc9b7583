"""Arrays on disk: exact rows, and errors that name the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bamboo_agent.datasets.arrays import build

IMAGES = np.arange(6 * 3 * 4, dtype=np.float32).reshape(6, 3, 4)
LABELS = np.arange(6)[::-1].copy()


def saved(folder: Path, **arrays: Any) -> dict[str, str]:
    """Arguments of the factory; by default both arrays."""
    for name, array in {"inputs": IMAGES, "targets": LABELS, **arrays}.items():
        np.save(folder / f"{name}.npy", array)
    return {name: str(folder / f"{name}.npy") for name in ("inputs", "targets")}


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f2", "|u1", ">i8", "|b1"])
def test_a_sample_is_a_row_of_each(dtype: str, tmp_path: Path) -> None:
    images = IMAGES.astype(dtype)
    data = build(**saved(tmp_path, inputs=images))
    assert len(data) == 6
    for index in (0, 3, 5):
        image, label = data[index]
        native = images[index].astype(images.dtype.newbyteorder("="))
        assert torch.equal(image, torch.from_numpy(native))
        assert (int(label), label.dtype) == (5 - index, torch.int64)


def test_a_part_begins_and_ends_where_it_should(tmp_path: Path) -> None:
    data = build(**saved(tmp_path), first=2, count=3)
    assert [int(data[i][1]) for i in range(len(data))] == [3, 2, 1]
    with pytest.raises(IndexError):
        data[3]


def test_samples_do_not_share_memory(tmp_path: Path) -> None:
    data = build(**saved(tmp_path))
    data[0][0].zero_()
    assert torch.equal(data[0][0], torch.from_numpy(IMAGES[0]))


def test_the_fingerprint_is_of_the_contents(tmp_path: Path) -> None:
    files = saved(tmp_path)
    before = build(**files).content_fingerprint()
    assert build(**files).content_fingerprint() == before
    saved(tmp_path, targets=LABELS + 1)
    assert build(**files).content_fingerprint() != before


def test_a_file_that_has_become_shorter_is_named(tmp_path: Path) -> None:
    files = saved(tmp_path)
    data = build(**files)
    with open(files["inputs"], "r+b") as opened:
        opened.truncate(200)
    with pytest.raises(ValueError, match=r"inputs\.npy has become shorter .* row 5 is not there"):
        data[5]


@pytest.mark.parametrize(
    ("arrays", "more", "words"),
    [
        ({"targets": LABELS[:5]}, {}, r"inputs.npy has 6 rows and .*targets.npy 5"),
        (
            {"inputs": np.array(["cat"] * 6)},
            {},
            r"inputs .*inputs.npy has dtype <U3 and shape \(6,\); it",
        ),
        ({"inputs": np.array([object()])}, {}, "inputs.npy is not an array of numbers"),
        (
            {"targets": np.array(3)},
            {},
            r"targets .* has dtype int64 and shape \(\); .* rows of numbers",
        ),
        ({"inputs": np.asfortranarray(IMAGES)}, {}, "inputs.npy is in Fortran order.*contiguous"),
        ({}, {"first": 6}, r"first 6 lie beyond the 6 rows of .*inputs.npy"),
        ({}, {"first": 4, "count": 3}, "first 4 and count 3 lie beyond the 6 rows"),
        ({}, {"count": 0}, "count 0 must be a whole number of at least 1"),
        ({}, {"first": 1.5}, "first 1.5 must be a whole number"),
    ],
)
def test_what_is_wrong_is_named(
    arrays: dict[str, Any], more: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        build(**saved(tmp_path, **arrays), **more)


def test_a_torn_file_and_a_missing_one_are_named(tmp_path: Path) -> None:
    files = saved(tmp_path)
    with open(files["targets"], "r+b") as opened:
        opened.truncate(20)
    with pytest.raises(ValueError, match=r"targets\.npy is not an array .* or is torn"):
        build(**files)
    with pytest.raises(
        FileNotFoundError, match=r"^inputs .*absent.npy: no such file; name .*podTemplate"
    ):
        build(str(tmp_path / "absent.npy"), files["targets"])
