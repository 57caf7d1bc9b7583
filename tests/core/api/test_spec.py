"""Reading manifests, and the spec's way to the agents and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.controller.builders import manifest

from bamboo_core.api.records import Problem
from bamboo_core.api.spec import (
    Adjacency,
    CheckpointSpec,
    DataSpec,
    FactorySpec,
    JobSpec,
    Numerics,
    PipelinesSpec,
    PlacementSpec,
    RecoveryPolicy,
    RedundancyMode,
    RunPolicy,
    TrainingSpec,
    WorkerSpec,
    from_json,
    from_manifest,
    identity,
    to_json,
)

_NAMES = st.from_regex(r"[a-z]{1,8}:[a-z]{1,8}", fullmatch=True)
_ARGS = st.dictionaries(
    st.from_regex(r"[a-z]{1,6}", fullmatch=True),
    st.one_of(st.none(), st.booleans(), st.integers(0, 9), st.text(max_size=4), st.just([1, {}])),
    max_size=3,
)
_FACTORIES = st.builds(FactorySpec, _NAMES, _ARGS)


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    count = draw(st.integers(1, 4))
    return JobSpec(
        model=draw(_FACTORIES),
        data=DataSpec(draw(_NAMES), draw(_ARGS), draw(st.none() | _FACTORIES)),
        training=TrainingSpec(
            draw(st.integers(1, 99)), 64, 2, draw(_FACTORIES), draw(st.floats(0, 10)), 3
        ),
        pipelines=PipelinesSpec(count, draw(st.integers(1, 4)), 1, draw(st.integers(count, 8))),
        worker=WorkerSpec("i", draw(_ARGS), ({"name": "A", "value": "b"},), 9, {"spec": {}}),
        checkpoint=draw(st.none() | st.just(CheckpointSpec("file:///x", 5, 1))),
        numerics=draw(st.sampled_from(Numerics)),
        seed=draw(st.integers(0, 2**53 - 1)),
        redundancy=draw(st.sampled_from(RedundancyMode)),
        recovery=draw(st.sampled_from(RecoveryPolicy)),
        placement=PlacementSpec(draw(st.sampled_from(Adjacency)), ("b", "a")),
        run_policy=RunPolicy(draw(st.none() | st.integers(0, 9)), 1, 2, 3),
        suspend=draw(st.booleans()),
    )


def problems(**changes: Any) -> list[Problem]:
    found = from_manifest(manifest(**changes))
    assert isinstance(found, list)
    return found


@given(specs())
def test_json_round_trip(spec: JobSpec) -> None:
    assert from_json(to_json(spec)) == spec


@given(specs())
def test_json_is_the_spec_of_a_manifest(spec: JobSpec) -> None:
    assert from_manifest({"spec": json.loads(to_json(spec))}) == spec


def test_defaults_and_names() -> None:
    found = from_manifest(
        manifest(
            redundancy={"mode": "Replica"},
            recovery={"policy": "Peers"},
            runPolicy={"ttlSecondsAfterFinished": 5, "activeDeadlineSeconds": 6},
            worker={"image": "i", "gracePeriodSeconds": 7},
            checkpoint={"uri": "file:///c", "everySteps": 8},
        )
    )
    assert isinstance(found, JobSpec)
    assert found.redundancy is RedundancyMode.REPLICA
    assert found.recovery is RecoveryPolicy.PEERS
    assert (found.run_policy.ttl_s, found.run_policy.active_deadline_s) == (5, 6)
    assert found.worker.grace_period_s == 7
    assert found.checkpoint == CheckpointSpec("file:///c", 8)
    assert found.pipelines == PipelinesSpec(1, 2, 1, 1)


def test_a_missing_field_is_named() -> None:
    body = manifest()
    del body["spec"]["worker"]
    assert from_manifest(body) == [Problem("spec.worker", "is required; set it")]


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"numerics": "Exact"}, "spec.numerics", "'Exact'; it must be one of Canonical, Fast"),
        ({"seed": "x"}, "spec.seed", "must be an integer"),
        ({"seed": True}, "spec.seed", "must be an integer"),
        ({"suspend": 1}, "spec.suspend", "must be true or false"),
        ({"model": []}, "spec.model", "must be an object"),
        ({"placement": {"zones": "a"}}, "spec.placement.zones", "must be a list"),
        ({"model": {"factory": "m:b", "args": {"a b": 1}}}, "spec.model.args", "'a b'"),
        (
            {"data": {"factory": "d:b", "validation": {"factory": "d:b", "args": {"1": 1}}}},
            "spec.data.validation.args",
            "not a Python identifier",
        ),
        (
            {"pipelines": {"count": 64, "stages": 1}},
            "spec.training.globalBatchSize",
            "32 micro-batches in the global batch are fewer than 64 pipelines; raise it",
        ),
    ],
)
def test_problems_name_field_value_and_remedy(
    changes: dict[str, Any], field: str, words: str
) -> None:
    (found,) = problems(**changes)
    assert found.field == field
    assert words in found.message


def test_batch_sizes_are_at_least_one() -> None:
    training = manifest()["spec"]["training"] | {"microBatchSize": 0}
    (found,) = problems(training=training)
    assert str(found) == "spec.training.microBatchSize: is 0; it must be at least 1"


def test_a_batch_that_does_not_divide() -> None:
    training = manifest()["spec"]["training"] | {"globalBatchSize": 63}
    (found,) = problems(training=training)
    assert str(found) == (
        "spec.training.globalBatchSize: 63 is not a multiple of microBatchSize 2; choose a multiple"
    )


def test_a_clip_norm_that_is_not_a_number() -> None:
    training = manifest()["spec"]["training"] | {"clipNorm": float("inf")}
    assert problems(training=training)[0].field == "spec.training.clipNorm"


def test_unreadable_json_is_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"spec\.model: is required"):
        from_json("{}")


def test_identity_covers_what_decides_the_bits_and_nothing_else() -> None:
    def of(**changes: Any) -> str:
        found = from_manifest(manifest(**changes))
        assert isinstance(found, JobSpec)
        return identity(found)

    assert of() == of(suspend=True, pipelines={"count": 2, "stages": 4})
    assert of() != of(model={"factory": "m:build", "args": {"layers": 5}})
    assert of() != of(seed=1)
