"""How large a job may be."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.controller.builders import manifest

from bamboo_core.api import limits
from bamboo_core.validation.reading import from_manifest


def problems(**spec: Any) -> list[str]:
    body = manifest()
    for field, value in spec.items():
        body["spec"][field] = body["spec"].get(field, {}) | value
    found = from_manifest(body)
    return [str(problem) for problem in found] if isinstance(found, list) else []


def test_a_spec_of_many_small_objects_is_refused_by_its_bytes() -> None:
    """In memory it would take thirty times as much, for as long as the job exists."""
    (problem,) = problems(model={"args": {"a": [{}] * 450_000}})
    assert problem.startswith("spec.model.args.a: has 1350001 of the spec's 13")
    assert f"at most {limits.MOST_BYTES} are supported" in problem


def test_the_largest_field_is_named() -> None:
    text = "x" * 70_000
    (problem,) = problems(worker={"podTemplate": {"metadata": {"annotations": {"a": text}}}})
    assert problem.startswith("spec.worker.podTemplate.metadata.annotations.a: has 70002 of")
    half = ["x"] * 9_000
    (problem,) = problems(model={"args": {"a": half}}, data={"args": {"b": half}})
    assert problem.startswith("spec: has ")


def test_bytes_are_counted_and_not_characters() -> None:
    assert problems(model={"args": {"a": "ä" * 31_000}}) == []
    assert problems(model={"args": {"a": "ä" * 34_000}})


def test_half_of_a_surrogate_pair_is_a_character() -> None:
    assert problems(model={"args": {"a": "\ud800"}}) == []


def test_deep_objects_are_found_before_they_are_written_as_text() -> None:
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    (problem,) = problems(model={"args": {"a": deep}})
    assert "is nested 5004 levels deep" in problem


@pytest.mark.parametrize(
    ("batch", "count", "stages", "is_fine"),
    [
        (98_303, 1, 1, True),
        (98_304, 1, 1, False),  # four tasks for each, and one slice
        (12_287, 1, 8, True),
        (12_288, 1, 8, False),
        (4_096, 128, 8, True),  # the largest grids: 1024 agents
        (8_192, 256, 4, True),
        (8_192, 1024, 1, False),  # 1024 pipelines send each other slices
    ],
)
def test_the_tasks_of_a_step_are_bounded(
    batch: int, count: int, stages: int, is_fine: bool
) -> None:
    found = problems(
        training={"globalBatchSize": batch, "microBatchSize": 1},
        pipelines={"count": count, "stages": stages, "max": count},
        redundancy={"mode": "None"},
    )
    if is_fine:
        assert found == []
    else:
        (problem,) = found
        assert problem.startswith(f"spec.training.globalBatchSize: {batch} makes {batch} micro")
        assert f"at most {limits.MOST_TASKS} can be planned: raise microBatchSize" in problem


def test_a_pipeline_has_a_sum_of_its_own() -> None:
    """256 pipelines of one micro-batch each would have two of them in one sum."""
    (problem,) = problems(
        training={"globalBatchSize": 256, "microBatchSize": 1},
        pipelines={"count": 1, "stages": 2, "max": 129},
    )
    assert problem == (
        "spec.training.globalBatchSize: 256 makes 256 micro-batches, whose gradients are added up"
        " by 2: 128 sums are fewer than spec.pipelines.max 129: raise globalBatchSize, or lower"
        " microBatchSize or max"
    )
