"""Reading manifests: defaults, names, and what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.controller.builders import manifest

from bamboo_core.api.records import Problem
from bamboo_core.api.spec import (
    CheckpointSpec,
    FactorySpec,
    JobSpec,
    OnNonFinite,
    PipelinesSpec,
    RecoveryPolicy,
    RedundancyMode,
    from_json,
    to_json,
)
from bamboo_core.validation.reading import from_manifest


def problems(**changes: Any) -> list[Problem]:
    found = from_manifest(manifest(**changes))
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize(
    ("notices", "words"),
    [
        ([], "is empty; name a source, or use [Auto] or [None]"),
        (["Gce", "Gce"], "[Gce, Gce] names a source twice"),
        (["Auto", "Gce"], "is [Auto, Gce]; Auto and None stand alone: remove the others"),
        (["None", "Azure"], "Auto and None stand alone"),
    ],
)
def test_sources_of_notices(notices: list[str], words: str) -> None:
    (problem,) = problems(worker={"image": "i", "notices": notices})
    assert problem.field == "spec.worker.notices"
    assert words in problem.message


def test_an_unknown_source_of_notices() -> None:
    (problem,) = problems(worker={"image": "i", "notices": ["gce"]})
    assert problem.field == "spec.worker.notices[0]"
    assert "Auto, None, Gce, AwsSpot, AwsRebalance, Azure" in problem.message


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
    assert found.redundancy.mode is RedundancyMode.REPLICA
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
        (
            {"seed": "3"},
            "spec.seed",
            "'3'; it must be an integer from 0 to 9,007,199,254,740,991, w",
        ),
        ({"seed": 1.5}, "spec.seed", "1.5; it must be an integer from 0 to"),
        ({"suspend": 1}, "spec.suspend", "is 1; it must be true or false"),
        ({"suspend": "true"}, "spec.suspend", "'true'; it must be true or false, without quotes"),
        ({"model": []}, "spec.model", "[]; it must be an object with fields among factory, args"),
        ({"model": {"factory": 3}}, "spec.model.factory", "3; it must be a string, in quotes"),
        ({"model": {"factory": "m:b", "args": 3}}, "spec.model.args", "an object, as in {a: b}"),
        ({"placement": {"zones": "a"}}, "spec.placement.zones", "must be a list, as in [a, b]"),
        ({"model": {"factory": "m:b", "args": {"a b": 1}}}, "spec.model.args", "'a b'"),
        ({"hooks": [{"factory": "t:b", "args": {"a b": 1}}]}, "spec.hooks[0].args", "'a b'"),
        ({"hooks": [{"args": {}}]}, "spec.hooks[0].factory", "is required"),
        (
            {"data": {"factory": "d:b", "validation": {"factory": "d:b", "args": {"1": 1}}}},
            "spec.data.validation.args",
            "not a Python identifier",
        ),
        (
            {"pipelines": {"count": 32, "stages": 33}},
            "spec.pipelines.count",
            "32 times stages 33 makes 1056 agents; at most 1024 are supported: lower one of them",
        ),
        ({"redundancy": {"hostMemory": "1/0"}}, "spec.redundancy.hostMemory", "is '1/0'; it must"),
        (
            {"pipelines": {"count": 64, "stages": 1}},
            "spec.training.globalBatchSize",
            "64 makes 32 micro-batches of 2 samples, fewer than spec.pipelines.count 64: raise gl",
        ),
    ],
)
def test_problems_name_field_value_and_remedy(
    changes: dict[str, Any], field: str, words: str
) -> None:
    (found,) = problems(**changes)
    assert found.field == field
    assert words in found.message


@pytest.mark.parametrize("changes", [{"seed": "x"}, {"suspend": "x"}])
def test_quotes_are_not_blamed_for_other_words(changes: dict[str, Any]) -> None:
    (found,) = problems(**changes)
    assert "quotes" not in found.message


def test_defaults_of_steps_to_skip() -> None:
    training = manifest()["spec"]["training"]
    accepted = from_manifest(manifest(training=training | {"onNonFinite": {"skip": 0}}))
    assert isinstance(accepted, JobSpec)
    assert accepted.training.on_non_finite == OnNonFinite(0)
    default = from_manifest(manifest())
    assert isinstance(default, JobSpec)
    assert default.training.on_non_finite == OnNonFinite(10)


@pytest.mark.parametrize(
    ("given", "every"),
    [
        (None, 0),
        ({"sample": 1}, 0),
        ({"mode": "Off", "sample": 1}, 0),
        ({"mode": "Detect"}, 100),
        ({"mode": "Detect", "sample": 1}, 1),
        ({"mode": "Detect", "sample": 0.7}, 1),
        ({"mode": "Detect", "sample": 0.3}, 3),
        ({"mode": "Detect", "sample": 0.0001}, 10_000),
    ],
)
def test_which_share_is_checked(given: Any, every: int) -> None:
    found = from_manifest(manifest(**({"corruption": given} if given else {})))
    assert isinstance(found, JobSpec)
    assert found.corruption.check_every == every


def test_hooks_are_read_with_their_args() -> None:
    found = from_manifest(
        manifest(hooks=[{"factory": "t:b", "args": {"x": 1}}, {"factory": "t:c"}])
    )
    assert isinstance(found, JobSpec)
    assert found.hooks == (FactorySpec("t:b", {"x": 1}), FactorySpec("t:c"))
    assert from_json(to_json(found)) == found


def test_an_off_that_yaml_has_read_as_false() -> None:
    (found,) = problems(corruption={"mode": False})
    assert str(found) == (
        'spec.corruption.mode: is False; it must be one of Off, Detect; write "Off" in quotes'
    )


def test_unknown_fields_are_left_to_the_api_server() -> None:
    """A newer version's field must not stop the jobs of an older operator."""
    training = manifest()["spec"]["training"]
    found = from_manifest(manifest(training=training | {"onNonFinite": {"skp": 3}}, new=1))
    assert found == from_manifest(manifest())


def test_a_batch_that_does_not_divide() -> None:
    training = manifest()["spec"]["training"] | {"globalBatchSize": 63}
    (found,) = problems(training=training)
    assert str(found) == (
        "spec.training.globalBatchSize: 63 is not a multiple of microBatchSize 2: choose a multiple"
    )


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -float("inf"), 10**400, -(10**400)])
def test_a_clip_norm_that_is_not_a_number(value: float) -> None:
    training = manifest()["spec"]["training"] | {"clipNorm": value}
    assert problems(training=training)[0].field == "spec.training.clipNorm"


@pytest.mark.parametrize(
    ("placement", "words"),
    [
        ({"pools": [{"zones": []}]}, "spec.placement.pools[0].zones: is empty; name at least one"),
        ({"pools": [{"zones": ["a"]}, {"zones": ["b", "a"]}]},
         "spec.placement.pools[1].zones: names zone 'a' again; a zone may be in one pool only"),
        ({"pools": [{"zones": ["a"], "nodeSelector": {"x": 1}}]},
         "spec.placement.pools[0].nodeSelector.x: is 1; it must be a string"),
        ({"pools": [{"zones": ["a"]}], "zones": ["a", "b"]},
         "spec.placement.zones: names b, but no pool of spec.placement.pools does"),
        ({"pools": [{}]}, "spec.placement.pools[0].zones: is required; set it"),
        ({"pools": [{"zones": ["a"]}, {"zones": ["b", "zone c"]}]},
         "spec.placement.pools[1].zones[1]: is 'zone c'; it has at most 63 of A-Z"),
        ({"pools": [{"zones": [""]}]}, "spec.placement.pools[0].zones[0]: is empty; name a zone"),
        ({"pools": [{"zones": ["a"], "nodeSelector": {"x y": "1"}}]},
         "spec.placement.pools[0].nodeSelector: has the key 'x y'; a key has 1 to 63"),
        ({"pools": [{"zones": ["a"], "nodeSelector": {"x": "b@d value!"}}]},
         "spec.placement.pools[0].nodeSelector.x: is 'b@d value!'; it has at most 63"),
        ({"zones": ["a", "b", "-c"]}, "spec.placement.zones[2]: is '-c'; it has at most 63"),
        ({"zones": [""]}, "spec.placement.zones[0]: is empty; name a zone"),
        ({"onDemand": {"nodeSelector": {"x y": "1"}}},
         "spec.placement.onDemand.nodeSelector: has the key 'x y'"),
        ({"onDemand": {"nodeSelector": {"x": "b@d value!"}}},
         "spec.placement.onDemand.nodeSelector.x: is 'b@d value!'; it has at most 63"),
    ],
)  # fmt: skip
def test_bad_placement(placement: dict[str, Any], words: str) -> None:
    found = from_manifest(manifest(placement=placement))
    assert isinstance(found, list)
    assert words in "; ".join(map(str, found))


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_GKE_SPOT = {"key": "cloud.google.com/gke-spot", "operator": "In", "values": ["true"]}


def _on_nodes(*terms: Any) -> dict[str, Any]:
    return {"affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": list(terms)}}}}


@pytest.mark.parametrize(
    ("selector", "pool", "template", "words"),
    [
        ({}, {"pool": "spot"}, {}, "spec.placement.onDemand.nodeSelector: is empty, but"),
        ({"x": 1}, {}, {}, "spec.placement.onDemand.nodeSelector.x: is 1; it must be a string"),
        ({}, {}, {"nodeSelector": {"cloud.google.com/gke-spot": "true"}},
         "spec.worker.podTemplate.spec.nodeSelector.cloud.google.com/gke-spot: 'true' keeps"),
        ({"x": "1"}, {}, {"nodeSelector": {"karpenter.sh/capacity-type": "spot"}},
         "or set karpenter.sh/capacity-type in spec.placement.onDemand.nodeSelector"),
        ({}, {}, _on_nodes({"matchExpressions": [_GKE_SPOT]}), "remove that rule"),
    ],
)  # fmt: skip
def test_nobody_could_use_on_demand_nodes(
    selector: dict[str, Any], pool: dict[str, str], template: dict[str, Any], words: str
) -> None:
    pools = [{"zones": ["a", "b"], "nodeSelector": pool}]
    placement: dict[str, Any] = {"onDemand": {"nodeSelector": selector}, "pools": pools}
    worker = {"image": "agent:1", "podTemplate": {"spec": template}}
    found = from_manifest(manifest(placement=placement, worker=worker))
    assert isinstance(found, list)
    assert [words in str(problem) for problem in found] == [True]
    del placement["onDemand"]
    assert not isinstance(from_manifest(manifest(placement=placement, worker=worker)), list)


@pytest.mark.parametrize(
    ("selector", "template"),
    [
        ({}, {}),
        ({"karpenter.sh/capacity-type": "on-demand"},
         {"nodeSelector": {"karpenter.sh/capacity-type": "spot"}}),
        ({}, {"nodeSelector": {"karpenter.sh/capacity-type": "on-demand"}}),
        ({}, _on_nodes({"matchExpressions": [_GKE_SPOT]}, {"matchExpressions": []})),
        ({}, {"affinity": {"nodeAffinity": None}}),
    ],
)  # fmt: skip
def test_on_demand_nodes_can_be_used(selector: dict[str, str], template: dict[str, Any]) -> None:
    worker = {"image": "agent:1", "podTemplate": {"spec": template}}
    placement = {"onDemand": {"nodeSelector": selector}}
    found = from_manifest(manifest(placement=placement, worker=worker))
    assert not isinstance(found, list), found
    assert found.placement.selector("a", on_demand=True) == selector


def test_zones_choose_among_the_pools() -> None:
    pools = [{"zones": ["a", "b"], "nodeSelector": {"x": "1"}}, {"zones": ["c"]}]
    found = from_manifest(manifest(placement={"pools": pools}))
    assert isinstance(found, JobSpec)
    assert found.placement.named_zones == ("a", "b", "c")
    fewer = from_manifest(manifest(placement={"pools": pools, "zones": ["c", "a"]}))
    assert isinstance(fewer, JobSpec)
    assert fewer.placement.named_zones == ("c", "a")
    assert from_json(to_json(fewer)) == fewer


def test_a_job_of_an_earlier_version_may_have_more_pipelines_than_a_new_one() -> None:
    training = manifest()["spec"]["training"] | {"globalBatchSize": 256, "microBatchSize": 1}
    body = manifest(training=training, pipelines={"count": 2, "stages": 4, "max": 200})
    found = from_manifest(body)
    assert isinstance(found, list)
    assert "128 sums are fewer than spec.pipelines.max 200" in found[0].message
    assert isinstance(from_manifest(body, is_started=True), JobSpec)
