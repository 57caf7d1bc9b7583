"""Comparing two runs by their last checkpoints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bamboo_cli.errors import CommandError
from bamboo_cli.job.state import Job, read_job
from bamboo_cli.quickstart.final_state import differing_layers, digest, final_hashes


@pytest.fixture
def job(manifest: dict[str, Any], tmp_path: Path) -> Job:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({"files": [{"sha256": "a"}, {"sha256": "b"}]}))
    return replace(read_job(manifest), checkpoint_step=80, checkpoint_path=str(path))


def test_hashes_in_layer_order(job: Job) -> None:
    assert final_hashes(job) == ("a", "b")
    assert final_hashes(replace(job, checkpoint_path=f"file://{job.checkpoint_path}")) == ("a", "b")


@pytest.mark.parametrize("step", [None, 40])
def test_the_checkpoint_of_the_last_step_is_required(job: Job, step: int | None) -> None:
    with pytest.raises(CommandError, match="gpt has no checkpoint of step 80; its newest is of"):
        final_hashes(replace(job, checkpoint_step=step))


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"files": [{}]}'])
def test_a_broken_manifest_is_named(job: Job, content: str) -> None:
    Path(job.checkpoint_path).write_text(content)
    with pytest.raises(CommandError, match=r"manifest\.json is not a readable"):
        final_hashes(job)


def test_differences() -> None:
    assert differing_layers(("a", "b"), ("a", "b")) == []
    assert differing_layers(("a", "b"), ("a", "c")) == [1]
    assert differing_layers(("a",), ("a", "c")) == [0, 1]


def test_equal_states_have_one_digest() -> None:
    assert digest(("a", "b")) == digest(["a", "b"])
    assert len({digest(hashes) for hashes in (("a", "b"), ("b", "a"), ("a",), ())}) == 4
