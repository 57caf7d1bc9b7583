"""Which checkpoint is meant, and what is said if there is none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.agent.weights.conftest import Write

from bamboo_agent.weight_files.outlines import WeightsError
from bamboo_agent.weights.finding import Wanted, find


def marks(address: Path | str, **wanted: int) -> tuple[int, int]:
    found = find(str(address), Wanted(**wanted)).manifest
    return found.attempt, found.step


def test_the_newest_of_the_newest_attempt_is_taken_unless_another_is_named(
    write: Write, tmp_path: Path
) -> None:
    for attempt, step in ((0, 5), (0, 9), (1, 7)):
        write(attempt=attempt, step=step)
    assert marks(tmp_path / "checkpoints") == (1, 7)
    assert marks(tmp_path / "checkpoints", step=9) == (0, 9)
    assert marks(tmp_path / "checkpoints", attempt=0, step=5) == (0, 5)
    for wanted in ({"step": 6}, {"step": 9, "attempt": 1}):
        with pytest.raises(
            WeightsError, match=r"there are: step 5 \(attempt 0\), step 9 \(attempt 0\), step 7"
        ):
            marks(tmp_path, **wanted)


@pytest.mark.parametrize("uri", [True, False])
@pytest.mark.parametrize(
    ("below", "expected"),
    [
        ("", (1, 7)),
        ("checkpoints", (1, 7)),
        ("checkpoints/uid", (1, 7)),
        ("checkpoints/uid/attempt-0000", (0, 9)),
        ("checkpoints/uid/attempt-0000/step-00000005", (0, 5)),
    ],
)
def test_any_folder_of_a_job_will_do(
    below: str, expected: tuple[int, int], uri: bool, write: Write, tmp_path: Path
) -> None:
    for attempt, step in ((0, 5), (0, 9), (1, 7)):
        write(attempt=attempt, step=step)
    folder = tmp_path / below
    assert marks(folder.as_uri() if uri else folder) == expected


def test_a_copy_elsewhere_is_read(write: Write, tmp_path: Path) -> None:
    write()
    shutil.move(tmp_path / "checkpoints" / "uid", tmp_path / "copied")
    found = find(str(tmp_path / "copied"), Wanted())
    assert len(list(found.checkpoints.read_layers(found.manifest, range(4)))) == 4
    assert all(str(tmp_path / "copied") in file for file in found.files)


def test_an_option_that_contradicts_the_address_is_refused(write: Write, tmp_path: Path) -> None:
    write()
    with pytest.raises(WeightsError, match="--step 6: the address names 5"):
        marks(tmp_path / "checkpoints/uid/attempt-0000/step-00000005", step=6)
    with pytest.raises(WeightsError, match="--attempt 1: the address names 0"):
        marks(tmp_path / "checkpoints/uid/attempt-0000", attempt=1)


def test_the_checkpoints_of_several_jobs_are_told_apart(write: Write, tmp_path: Path) -> None:
    write()
    write(uid="other")
    with pytest.raises(WeightsError, match=r"of 2 jobs: name the folder .*: other, uid"):
        marks(tmp_path)


def test_no_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="has no checkpoint"):
        marks(tmp_path)
    with pytest.raises(WeightsError, match="nowhere is not there"):
        marks(tmp_path / "nowhere")
    with pytest.raises(WeightsError, match="nostore://x cannot be used"):
        marks("nostore://x")


def test_one_that_is_not_complete_is_named_if_it_is_wanted(write: Write, tmp_path: Path) -> None:
    write(step=5)
    write(step=9, seals=False)
    assert marks(tmp_path) == (0, 5)
    with pytest.raises(
        WeightsError, match=r"step 9, attempt 0, is not complete .* another: step 5 \(attempt 0\)"
    ):
        marks(tmp_path, step=9)


def test_one_that_lacks_a_file_is_no_newest_one(write: Write, tmp_path: Path) -> None:
    write(step=5)
    write(step=9)
    folder = tmp_path / "checkpoints/uid/attempt-0000/step-00000009"
    (folder / "layer-0001.safetensors").write_bytes(b"torn")
    with pytest.raises(WeightsError, match=r"layer-0001\.safetensors has 4 bytes.*: step 5"):
        marks(tmp_path)
    (folder / "layer-0001.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"layer-0001\.safetensors is not there.*: step 5"):
        marks(tmp_path)
    assert marks(tmp_path, step=5) == (0, 5)
