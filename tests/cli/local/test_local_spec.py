"""A manifest's job as one machine runs it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.profiles import QUICKSTART

from bamboo_cli.errors import CommandError
from bamboo_cli.estimate.manifest import read_manifest
from bamboo_cli.local.local_spec import Changes, local_spec, variables
from bamboo_core.api.spec import CheckpointSpec, JobSpec, PlacementSpec, SourceSpec


@pytest.fixture(scope="module")
def spec() -> JobSpec:
    return read_manifest(QUICKSTART)[1]


def test_only_what_is_given_is_changed(spec: JobSpec, tmp_path: Path) -> None:
    made = local_spec(spec, Changes(), tmp_path)
    assert (made.pipelines.count, made.pipelines.stages) == (2, 4)
    assert made.training == spec.training
    assert (made.model, made.data, made.seed) == (spec.model, spec.data, spec.seed)


def test_the_grid_and_the_steps_are_changed(spec: JobSpec, tmp_path: Path) -> None:
    made = local_spec(spec, Changes(pipelines=1, stages=3, steps=5), tmp_path)
    assert (made.pipelines.count, made.pipelines.stages) == (1, 3)
    assert made.training == replace(spec.training, steps=5)


def test_checkpoints_go_below_the_folder_and_no_gpu_is_asked_for(
    spec: JobSpec, tmp_path: Path
) -> None:
    made = local_spec(spec, Changes(), tmp_path)
    assert spec.checkpoint is not None
    assert made.checkpoint is not None
    assert made.checkpoint.uri == (tmp_path / "checkpoints").as_uri()
    assert made.checkpoint.every_steps == spec.checkpoint.every_steps
    assert spec.worker.asks
    assert not made.worker.asks


def test_a_job_without_checkpoints_gets_its_last_one(spec: JobSpec, tmp_path: Path) -> None:
    made = local_spec(replace(spec, checkpoint=None), Changes(), tmp_path)
    assert made.checkpoint is not None
    assert made.checkpoint.every_steps == 0


def test_more_pipelines_than_micro_batches_are_refused(spec: JobSpec, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"--pipelines 17: 16 micro-batches .*globalBatchSize"):
        local_spec(spec, Changes(pipelines=17), tmp_path)


def test_a_grid_for_which_there_are_too_few_zones_is_refused(spec: JobSpec, tmp_path: Path) -> None:
    placed = replace(spec, placement=PlacementSpec(zones=("a", "b")))
    assert local_spec(placed, Changes(stages=2), tmp_path).pipelines.stages == 2
    with pytest.raises(CommandError, match="--stages 3 needs 3 zones"):
        local_spec(placed, Changes(stages=3), tmp_path)


def test_variables_of_a_cluster_are_left_out(spec: JobSpec) -> None:
    entries = (
        {"name": "A", "value": "1"},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "C"},
    )
    worker = replace(spec.worker, env=entries)
    assert variables(replace(spec, worker=worker)) == {"A": "1", "C": ""}


def begun(spec: JobSpec, uri: str, **source: str | int) -> JobSpec:
    return replace(spec, checkpoint=CheckpointSpec(uri, from_=SourceSpec(**source)))  # type: ignore[arg-type]


def test_what_a_job_begins_with_is_looked_for_where_the_manifest_says(
    spec: JobSpec, tmp_path: Path
) -> None:
    made = local_spec(begun(spec, "file:///c/", job="a1", step=4), Changes(), tmp_path)
    assert made.checkpoint is not None
    assert made.checkpoint.uri == (tmp_path / "checkpoints").as_uri()
    assert made.checkpoint.from_ == SourceSpec(uri="file:///c/a1", step=4)


def test_what_a_job_begins_with_may_be_in_a_bucket(spec: JobSpec, tmp_path: Path) -> None:
    """Only its own checkpoints go to this machine."""
    made = local_spec(begun(spec, "s3://b/c", job="a1"), Changes(), tmp_path)
    assert made.checkpoint is not None
    assert made.checkpoint.uri == (tmp_path / "checkpoints").as_uri()
    assert made.checkpoint.from_ == SourceSpec(uri="s3://b/c/a1")
