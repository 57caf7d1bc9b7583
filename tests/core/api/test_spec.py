"""The spec's way to the agents and back, and what of it decides the bits."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.controller.builders import manifest

from bamboo_core.api.identity import identity, identity_parts
from bamboo_core.api.spec import (
    Adjacency,
    BestSpec,
    Channel,
    CheckpointSpec,
    Clipping,
    CorruptionMode,
    CorruptionSpec,
    DataSpec,
    Encryption,
    FactorySpec,
    JobSpec,
    ModelSpec,
    NoticeSource,
    Numerics,
    OnNonFinite,
    OptimizerSpec,
    ParameterGroup,
    PipelinesSpec,
    PlacementSpec,
    Precision,
    RecoveryPolicy,
    RedundancyMode,
    RedundancySpec,
    RunPolicy,
    TrainingSpec,
    TransportSpec,
    WorkerSpec,
    from_json,
    to_json,
)
from bamboo_core.validation.reading import from_manifest

_NAMES = st.from_regex(r"[a-z]{1,8}:[a-z]{1,8}", fullmatch=True)
_ARGS = st.dictionaries(
    st.from_regex(r"[a-z]{1,6}", fullmatch=True),
    st.one_of(st.none(), st.booleans(), st.integers(0, 9), st.text(max_size=4), st.just([1, {}])),
    max_size=3,
)
_FACTORIES = st.builds(FactorySpec, _NAMES, _ARGS)
_GROUPS = st.lists(st.builds(ParameterGroup, st.just(("*bias", "a")), _ARGS), max_size=2).map(tuple)
_OPTIMIZERS = st.builds(OptimizerSpec, _NAMES, _ARGS, _GROUPS, st.none() | _FACTORIES)


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    count = draw(st.integers(1, 4))
    return JobSpec(
        model=draw(st.builds(ModelSpec, _NAMES, _ARGS, st.none() | st.just("file:///w"))),
        data=DataSpec(draw(_NAMES), draw(_ARGS), draw(st.none() | _FACTORIES)),
        training=TrainingSpec(
            draw(st.integers(1, 99)),
            64,
            2,
            draw(_OPTIMIZERS),
            draw(st.floats(0, 10)),
            3,
            OnNonFinite(draw(st.integers(0, 9))),
            draw(st.sampled_from(Clipping)),
            draw(st.sampled_from(Precision)),
        ),
        pipelines=PipelinesSpec(count, draw(st.integers(1, 4)), 1, draw(st.integers(count, 8))),
        worker=WorkerSpec(
            *("i", draw(_ARGS), ({"name": "A", "value": "b"},), 9, {"spec": {}}),
            notices=draw(
                st.sampled_from([(x,) for x in NoticeSource])
                | st.just((NoticeSource.AZURE, NoticeSource.GCE))
            ),
        ),
        checkpoint=draw(st.none() | st.just(CheckpointSpec("file:///x", 5, 1))),
        numerics=draw(st.sampled_from(Numerics)),
        seed=draw(st.integers(0, 2**53 - 1)),
        redundancy=RedundancySpec(draw(st.sampled_from(RedundancyMode)), "3Gi"),
        recovery=draw(st.sampled_from(RecoveryPolicy)),
        placement=PlacementSpec(draw(st.sampled_from(Adjacency)), ("b", "a")),
        transport=TransportSpec(
            draw(st.sampled_from(Channel)),
            draw(st.sampled_from(Encryption)),
            draw(st.floats(0.001, 100_000)),
        ),
        corruption=CorruptionSpec(draw(st.sampled_from(CorruptionMode)), draw(st.floats(0.1, 1))),
        run_policy=RunPolicy(draw(st.none() | st.integers(0, 9)), 1, 2, 3),
        suspend=draw(st.booleans()),
    )


@given(specs())
def test_json_round_trip(spec: JobSpec) -> None:
    assert from_json(to_json(spec)) == spec


@given(specs())
def test_json_is_the_spec_of_a_manifest(spec: JobSpec) -> None:
    assert from_manifest({"spec": json.loads(to_json(spec))}) == spec


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
    weighted = {"factory": "m:build", "initialFrom": "/w"}
    assert of(model={"factory": "m:build"}) != of(model=weighted)
    assert "initialFrom" not in of()
    assert of() != of(seed=1)
    training = manifest()["spec"]["training"]
    assert of() != of(training=training | {"clipNorm": 1.0})
    assert of() == of(training=training | {"onNonFinite": {"skip": 3}})
    assert of() == of(hooks=[{"factory": "pkg.trackers:build"}])  # hooks decide no bit
    data = manifest()["spec"]["data"]
    assert of() == of(data=data | {"workers": 3})  # who reads a sample decides no bit, either
    assert "workers" not in of()
    assert "onNonFinite" not in of()  # so jobs keep the identity that they have


def test_identity_parts_name_each_field_that_decides_the_state_after_a_step() -> None:
    def of(**changes: Any) -> dict[str, str]:
        found = from_manifest(manifest(**changes))
        assert isinstance(found, JobSpec)
        return identity_parts(found)

    training = manifest()["spec"]["training"]
    assert of() == of(training=training | {"steps": 9999}, pipelines={"count": 2, "stages": 4})
    assert of(seed=3)["spec.seed"] == "3"
    assert of(training=training | {"clipNorm": 1.5})["spec.training.clipNorm"] == "1.5"
    long = of(model={"factory": "m:build", "args": {"a": "x" * 300}})["spec.model.args.a"]
    other = of(model={"factory": "m:build", "args": {"a": "y" * 300}})["spec.model.args.a"]
    assert long.startswith("sha256:")
    assert long != other
    assert not {"spec.training.steps", "spec.training.validateEvery"} & of().keys()


def test_newer_fields_of_training_are_in_the_identity_only_if_they_are_set() -> None:
    training = manifest()["spec"]["training"]
    optimizer = training["optimizer"]

    def of(**changes: Any) -> str:
        found = from_manifest(manifest(training=training | changes))
        assert isinstance(found, JobSpec)
        return identity(found)

    usual = of()
    assert (
        not {"precision", "clip", "groups", "schedule"} & json.loads(usual)["spec.training"].keys()
    )
    assert of(precision="Float32", clip="Whole", optimizer=optimizer | {"groups": []}) == usual
    groups = [{"parameters": ["*bias"], "args": {"weight_decay": 0.0}}]
    others = [
        of(precision="TF32"),
        of(precision="BFloat16"),
        of(clip="PerGroup"),
        of(optimizer=optimizer | {"groups": groups}),
        of(optimizer=optimizer | {"schedule": {"factory": "a:b"}}),
    ]
    assert len({usual, *others}) == 6


@pytest.mark.parametrize(
    ("every_steps", "validate_every", "best", "expected"),
    [
        (0, 5, None, 0),
        (7, 5, None, 7),
        (0, 5, BestSpec(), 5),
        (10, 5, BestSpec(), 5),
        (5, 10, BestSpec(), 5),
    ],
)
def test_each_validated_step_has_a_checkpoint_if_there_is_a_best_one(
    every_steps: int, validate_every: int, best: BestSpec | None, expected: int
) -> None:
    spec = from_manifest(manifest())
    assert isinstance(spec, JobSpec)
    found = replace(
        spec,
        training=replace(spec.training, validate_every=validate_every),
        checkpoint=CheckpointSpec("file:///c", every_steps, best=best),
    )
    assert found.save_every == expected
    assert replace(found, checkpoint=None).save_every == 0
    assert from_json(to_json(found)) == found
    assert identity(found) == identity(replace(found, checkpoint=None))
