"""The spec's way to the agents and back, and what of it decides the bits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.controller.builders import manifest

from bamboo_core.api.spec import (
    Adjacency,
    Channel,
    CheckpointSpec,
    CorruptionMode,
    CorruptionSpec,
    DataSpec,
    Encryption,
    FactorySpec,
    JobSpec,
    NoticeSource,
    Numerics,
    OnNonFinite,
    PipelinesSpec,
    PlacementSpec,
    RecoveryPolicy,
    RedundancyMode,
    RedundancySpec,
    RunPolicy,
    TrainingSpec,
    TransportSpec,
    WorkerSpec,
    from_json,
    identity,
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


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    count = draw(st.integers(1, 4))
    return JobSpec(
        model=draw(_FACTORIES),
        data=DataSpec(draw(_NAMES), draw(_ARGS), draw(st.none() | _FACTORIES)),
        training=TrainingSpec(
            draw(st.integers(1, 99)),
            64,
            2,
            draw(_FACTORIES),
            draw(st.floats(0, 10)),
            3,
            OnNonFinite(draw(st.integers(0, 9))),
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
    assert of() != of(seed=1)
    training = manifest()["spec"]["training"]
    assert of() != of(training=training | {"clipNorm": 1.0})
    assert of() == of(training=training | {"onNonFinite": {"skip": 3}})
    assert "onNonFinite" not in of()  # so jobs keep the identity that they have
